//! How often the device is asked, and the caches are looked through. Each thing
//! has a moment when it was last done; whoever finds it due claims it, so that
//! one thread does it and the others go on.
//!
//! A fence is a little work in every stream of the context: on an H200 one every
//! 30 µs took a tenth of the throughput of eight streams busy with 50 µs
//! kernels, one every 200 µs nothing that could be measured. Without other work
//! it costs the GPU nothing and passes at once (0.3 µs with its query), so that
//! fences may then follow each other closely.

use super::sync::Apart;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Least time between fences while the GPU works.
const FENCE_BUSY: Duration = Duration::from_micros(200);
/// The same while it does not, and for an allocation that waits although no
/// fence is pending.
const FENCE_IDLE: Duration = Duration::from_nanos(1500);
/// Least time between polls: each takes the driver's lock, which launches need.
const POLL: Duration = Duration::from_micros(3);
/// Least time between looks for caches that nobody uses any more.
const SWEEP: Duration = Duration::from_millis(2);
/// Least time between emptyings of the caches before growth.
const FLUSH: Duration = Duration::from_millis(1);

/// See the module's documentation. Thread-safe, relaxed: that two threads do
/// the same thing at once does no harm.
#[derive(Debug)]
pub struct Pace {
    /// The last fence passed at once: nothing else runs.
    idle: Apart<AtomicBool>,
    fenced: AtomicU64,
    polled: AtomicU64,
    swept: AtomicU64,
    flushed: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            idle: Apart(AtomicBool::new(true)),
            fenced: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        }
    }
}

impl Pace {
    /// Whether the GPU was seen without work at the last fence.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// A fence was recorded; `idle`: it passed at once.
    pub fn fenced(&self, idle: bool) {
        if self.is_idle() != idle {
            self.idle.store(idle, Ordering::Relaxed);
        }
    }

    /// Whether the caller shall record a fence now. `urgent`: none is pending,
    /// and an allocation waits for one.
    pub fn claim_fence(&self, now: Duration, urgent: bool) -> bool {
        let spacing = if urgent || self.is_idle() {
            FENCE_IDLE
        } else {
            FENCE_BUSY
        };
        claim(&self.fenced, now, spacing)
    }

    /// Whether the caller shall ask for pending fences now.
    pub fn claim_poll(&self, now: Duration) -> bool {
        claim(&self.polled, now, POLL)
    }

    /// Whether the caller shall look for unused caches now.
    pub fn claim_sweep(&self, now: Duration) -> bool {
        claim(&self.swept, now, SWEEP)
    }

    /// Whether the caller shall empty the caches now.
    pub fn claim_flush(&self, now: Duration) -> bool {
        claim(&self.flushed, now, FLUSH)
    }
}

/// Whether `spacing` has gone by since `last` (0: never), and no other thread
/// was faster.
fn claim(last: &AtomicU64, now: Duration, spacing: Duration) -> bool {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (now, at) = (nanos(now).max(1), last.load(Ordering::Relaxed));
    (at == 0 || now.saturating_sub(at) >= nanos(spacing))
        && last
            .compare_exchange(at, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_apart_and_closer_without_work() {
        let pace = Pace::default();
        let at = Duration::from_micros;
        assert!(pace.claim_fence(at(0), false));
        assert!(!pace.claim_fence(at(1), false));
        assert!(pace.claim_fence(at(2), false));
        pace.fenced(false);
        assert!(!pace.claim_fence(at(201), false));
        assert!(pace.claim_fence(at(202), false));
        assert!(pace.claim_fence(at(204), true));
        assert!(!pace.claim_fence(at(403), false));
        pace.fenced(true);
        assert!(pace.claim_fence(at(403), false));
    }

    #[test]
    fn one_thread_of_many_gets_the_claim() {
        for _ in 0..100 {
            let pace = Pace::default();
            let start = std::sync::Barrier::new(4);
            let claims: usize = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            usize::from(pace.claim_poll(Duration::from_secs(1)))
                        })
                    })
                    .collect();
                all.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(claims, 1);
        }
    }
}
