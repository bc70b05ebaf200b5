//! A value that is read all the time, and replaced a few times in a process's
//! life: `gpupool set`.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Reads as the value last set, at the cost of one load. Thread-safe. Every
/// value stays in memory for good, because readers may still hold it: not for
/// what changes often.
pub struct Changeable<T: 'static> {
    first: T,
    later: AtomicPtr<T>,
}

impl<T> Changeable<T> {
    /// Begins with this value.
    pub const fn new(first: T) -> Self {
        Self {
            first,
            later: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Replaces the value. Readers that are under way go on with the old one.
    pub fn set(&self, value: T) {
        self.later
            .store(Box::into_raw(Box::new(value)), Ordering::Release);
    }
}

impl<T> Deref for Changeable<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: null, or a box that `set` leaked: it is never freed or
        // written again, and the release store made its content visible.
        unsafe { self.later.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.first)
    }
}

impl<T: fmt::Debug> fmt::Debug for Changeable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_last_value_and_keep_the_one_they_have() {
        let value = Changeable::new(1);
        let before = &*value;
        value.set(2);
        assert_eq!((*before, *value), (1, 2));
        value.set(3);
        assert_eq!(*value, 3);
    }
}
