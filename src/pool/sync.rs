//! The atomics and the lock that [`super::grace`] is built on: the standard
//! library's, or loom's model of them when the crate is built with
//! `--cfg loom` (see `tests/loom_grace.rs`).

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Locks `mutex`, as [`try_lock`] does, waiting for its turn.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Locks `mutex` if no other thread holds it; also when a thread panicked while
/// it held it: whoever caught that panic has switched the library to
/// pass-through, and a free must still be able to look its block up.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// On cache lines of its own (two, as they are fetched in pairs), away from
/// what other threads write.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A SeqCst fence: all that the calling thread did before it is visible to
/// whoever does something after a later such fence.
#[inline]
pub fn full_fence() {
    // The compiler's own is `mfence`, which orders more than memory. A locked
    // instruction orders loads and stores as much (Intel's manual, volume 3,
    // "Loads and stores are not reordered with locked instructions"), and
    // inline assembly is no less to the compiler.
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: or-ing 0 changes nothing, and the top of the stack is mapped.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(any(loom, all(target_arch = "x86_64", not(miri)))))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
