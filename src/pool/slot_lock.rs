//! The lock of a slot. Nearly always taken by the one thread whose slot it is,
//! so what counts is the cost without contention: letting go is a plain store,
//! where the standard library's lock needs a second locked instruction.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A lock around `T`. Not fair, not reentrant, and no worse for a panic of its
/// holder. Held for a few hundred instructions at most.
#[derive(Debug, Default)]
pub struct SlotLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a `Held` only, of which there is one at a
// time: `held` is taken with Acquire and let go with Release.
unsafe impl<T: Send> Sync for SlotLock<T> {}

/// The right to the value.
#[derive(Debug)]
pub struct Held<'a, T>(&'a SlotLock<T>);

impl<T> SlotLock<T> {
    /// Takes the lock if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Held(self))
    }

    /// Takes the lock, waiting for its turn.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        match self.try_lock() {
            Some(held) => held,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Held<'_, T> {
        for round in 0u32.. {
            // Looks before it tries: trying takes the cache line from the holder.
            if !self.held.load(Ordering::Relaxed)
                && let Some(held) = self.try_lock()
            {
                return held;
            }
            match round {
                0..100 => std::hint::spin_loop(),
                100..200 => std::thread::yield_now(),
                // The holder may be of lower priority and need this very core.
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        unreachable!("the loop has no end")
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only `Held`, and borrows it.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only `Held`, and borrows it mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}
