//! How much may wait for grace, and when a fence is due.
//!
//! The limit is what bounds memory: the CPU runs ahead of the GPU, and without
//! it one run took 12 GiB instead of 1.4 (PyTorch without caching on an H200).
//! Too small a limit starves the GPU whenever the CPU is late for a moment. So
//! `auto` begins small and grows where that is seen: an allocation had to wait,
//! and later a fence finds that the GPU has nothing left to do.
//!
//! Fences are kept apart: each is a little work in every stream of the context.
//! On an H200 a fence every 30 µs took a tenth of the throughput of eight
//! streams that were busy with 50 µs kernels.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The limit in force, and what decides about fences. Thread-safe.
#[derive(Debug)]
pub struct Inflight {
    limit: AtomicU64,
    /// Up to where the limit grows by itself whatever is live, and at most.
    grows_to: Option<(u64, u64)>,
    /// An allocation had to wait since the GPU was last seen without work.
    throttled: AtomicBool,
    /// Bytes of large blocks freed since the last fence.
    unfenced: AtomicU64,
    /// Nanoseconds of the device's clock at the last fence.
    fenced_at: AtomicU64,
}

/// Fences share the limit by this number: what passes first comes back while
/// the rest keeps the GPU busy.
const FENCES: u64 = 4;
/// A fence is due after this many frees, however small.
const FREES: u32 = 256;
/// Least time from one fence to the next that a free finds due.
const SPACING: Duration = Duration::from_micros(100);
/// Frees of at least this many bytes are counted for all threads together.
pub const COUNTED_TOGETHER: u64 = 256 << 10;

impl Inflight {
    /// A limit of `bytes` for good.
    #[must_use]
    pub fn fixed(bytes: u64) -> Self {
        Self::new(bytes, None)
    }

    /// The limit that adapts, on a device of `total` bytes: from 192 MiB to twice
    /// what is live, at most 1/128 of the device.
    #[must_use]
    pub fn auto(total: u64) -> Self {
        const START: u64 = 192 << 20;
        let most = (total / 128).max(64 << 20);
        let start = START.min(most);
        Self::new(start, Some((start, most)))
    }

    fn new(limit: u64, grows_to: Option<(u64, u64)>) -> Self {
        Self {
            limit: AtomicU64::new(limit),
            grows_to,
            throttled: AtomicBool::new(false),
            unfenced: AtomicU64::new(0),
            fenced_at: AtomicU64::new(0),
        }
    }

    /// Bytes that may wait before an allocation waits.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// An allocation has to wait.
    pub fn throttle(&self) {
        self.throttled.store(true, Ordering::Relaxed);
    }

    /// The GPU was seen without work, with what `live` tells in bytes.
    pub fn drained(&self, live: impl FnOnce() -> u64) {
        let Some((least, most)) = self.grows_to else {
            return;
        };
        if self.throttled.swap(false, Ordering::Relaxed) {
            let cap = live().saturating_mul(2).clamp(least, most);
            let limit = self.limit();
            self.limit
                .store((limit + limit / 2).min(cap).max(limit), Ordering::Relaxed);
        }
    }

    /// Notes a free of a large block; bytes freed since the last fence.
    #[inline]
    pub fn freed(&self, bytes: u64) -> u64 {
        self.unfenced.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Whether a fence is due after so many bytes and frees since the last.
    /// `waits`: a fence waits for the GPU; then only bytes count, and time does
    /// not.
    #[inline]
    pub fn fence_due(
        &self,
        bytes: u64,
        frees: u32,
        waits: bool,
        now: impl FnOnce() -> Duration,
    ) -> bool {
        let due = bytes >= self.limit() / FENCES || (frees >= FREES && !waits);
        due && (waits
            || nanos(now()).saturating_sub(self.fenced_at.load(Ordering::Relaxed))
                >= nanos(SPACING))
    }

    /// A fence was recorded.
    pub fn fenced(&self, now: Duration) {
        self.unfenced.store(0, Ordering::Relaxed);
        self.fenced_at.store(nanos(now), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_grows_only_where_waiting_left_the_gpu_without_work() {
        let auto = Inflight::auto(141 << 30);
        auto.drained(|| 1 << 40);
        assert_eq!(auto.limit(), 192 * MIB);
        auto.throttle();
        auto.drained(|| 0);
        assert_eq!(auto.limit(), 192 * MIB);
        auto.throttle();
        auto.drained(|| 1 << 30);
        assert_eq!(auto.limit(), 288 * MIB);
        auto.drained(|| 1 << 30);
        assert_eq!(auto.limit(), 288 * MIB);
        for _ in 0..20 {
            auto.throttle();
            auto.drained(|| 200 * MIB);
        }
        assert_eq!(auto.limit(), 400 * MIB);
        for _ in 0..20 {
            auto.throttle();
            auto.drained(|| 1 << 40);
        }
        assert_eq!(auto.limit(), (141 << 30) / 128);
        assert_eq!(Inflight::auto(1 << 30).limit(), 64 * MIB);
        let fixed = Inflight::fixed(10);
        fixed.throttle();
        fixed.drained(|| 1 << 40);
        assert_eq!(fixed.limit(), 10);
    }

    #[test]
    fn fences_are_due_by_bytes_or_frees_and_apart() {
        let fixed = Inflight::fixed(64 * MIB);
        let at = |us| move || Duration::from_micros(us);
        assert!(!fixed.fence_due(15 * MIB, 255, false, at(1000)));
        assert!(fixed.fence_due(16 * MIB, 0, false, at(1000)));
        assert!(fixed.fence_due(0, 256, false, at(1000)));
        assert!(!fixed.fence_due(0, 256, true, at(1000)));
        fixed.fenced(Duration::from_micros(1000));
        assert!(!fixed.fence_due(16 * MIB, 0, false, at(1050)));
        assert!(fixed.fence_due(16 * MIB, 0, true, at(1050)));
        assert!(fixed.fence_due(16 * MIB, 0, false, at(1100)));
    }
}
