//! One piece of GPU work, pending or done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A piece of work. It does not own what it waits for, so chains of tasks do
/// not keep each other alive.
pub(crate) struct Task {
    done: AtomicU32,
    sleepers: AtomicU32,
    end_ns: AtomicU64,
}

/// Everything that must be done before something else may start.
pub(crate) type Frontier = Vec<Arc<Task>>;

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid clock and a valid output.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Task {
    /// A pending task.
    pub(crate) fn new() -> Arc<Task> {
        Arc::new(Task {
            done: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            end_ns: AtomicU64::new(0),
        })
    }

    /// Whether it is done. Acquires everything that the work wrote.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0
    }

    /// When it was done, in nanoseconds of the monotonic clock; 0 before.
    pub(crate) fn end_ns(&self) -> u64 {
        self.end_ns.load(Ordering::Relaxed)
    }

    /// Marks it done and wakes who waits.
    pub(crate) fn finish(&self) {
        self.end_ns.store(now_ns(), Ordering::Relaxed);
        self.done.store(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // SAFETY: the futex word lives in self.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.done.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    i32::MAX,
                )
            };
        }
    }

    /// Waits until it is done.
    pub(crate) fn wait(&self) {
        while !self.is_done() {
            // The order of these two and of the two in `finish` makes it
            // impossible that both sides miss each other; the futex compares
            // the word again before it sleeps.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if self.done.load(Ordering::SeqCst) == 0 {
                // SAFETY: the futex word lives in self.
                unsafe {
                    libc::syscall(
                        libc::SYS_futex,
                        self.done.as_ptr(),
                        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                        0,
                        std::ptr::null::<libc::timespec>(),
                    )
                };
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Whether all of it is done.
pub(crate) fn all_done(frontier: &Frontier) -> bool {
    frontier.iter().all(|t| t.is_done())
}

/// Drops what is done.
pub(crate) fn prune(frontier: &mut Frontier) {
    frontier.retain(|t| !t.is_done());
}

/// Adds what is pending in `from` to `into`.
pub(crate) fn merge(into: &mut Frontier, from: &Frontier) {
    for t in from {
        if !t.is_done() && !into.iter().any(|u| Arc::ptr_eq(t, u)) {
            into.push(t.clone());
        }
    }
}

/// Waits for all of it.
pub(crate) fn wait_all(frontier: &Frontier) {
    for t in frontier {
        t.wait();
    }
}

/// Lets time pass, unless `stop` says that the context is going away. Short
/// waits are spun, as sleeping is not that exact.
pub(crate) fn delay(ns: u64, stop: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_nanos(ns);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stop() {
            return;
        }
        if left < Duration::from_micros(30) {
            std::hint::spin_loop();
        } else {
            std::thread::sleep((left - Duration::from_micros(20)).min(Duration::from_millis(5)));
        }
    }
}
