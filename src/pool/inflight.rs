//! How much may wait for grace, and when a fence is due.
//!
//! The limit is what bounds memory: the CPU runs ahead of the GPU, and without
//! it one run took 12 GiB instead of 1.4 (PyTorch without caching on an H200).
//! Too small a limit starves the GPU whenever the CPU is late for a moment. So
//! `auto` begins small and grows where that is seen: an allocation had to wait,
//! and later a fence finds that the GPU has nothing left to do.

use super::memory::Memory;
use super::sync::Apart;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The limit in force, and what decides about fences. Thread-safe.
#[derive(Debug)]
pub struct Inflight {
    limit: Apart<AtomicU64>,
    /// Up to where the limit grows by itself whatever is live, and at most.
    grows_to: Option<(u64, u64)>,
    /// An allocation had to wait since the GPU was last seen without work.
    throttled: AtomicBool,
    /// Bytes freed since the last fence, as far as the slots have told.
    unfenced: AtomicU64,
}

/// Fences share the limit by this number: what passes first comes back while
/// the rest keeps the GPU busy.
const FENCES: u64 = 4;
/// A fence is due after this many frees, however small.
const FREES: u32 = 256;
/// A slot tells what was freed in steps of this part of a fence's share: a
/// counter that each free of each thread changes would cost more than the free.
const STEPS: u64 = 16;

impl Inflight {
    /// A limit of `bytes` for good.
    #[must_use]
    pub fn fixed(bytes: u64) -> Self {
        Self::new(bytes, None)
    }

    /// The limit that adapts, with `total` bytes of such memory there: from
    /// 256 MiB to twice what is live, at most 1/128 of all. Of pinned memory from
    /// 64 MiB: taking more costs the CPU about as long as waiting does.
    #[must_use]
    pub fn auto(memory: Memory, total: u64) -> Self {
        let start: u64 = match memory {
            Memory::Device => 256 << 20,
            Memory::Host => 64 << 20,
        };
        let most = (total / 128).max(64 << 20);
        let start = start.min(most);
        Self::new(start, Some((start, most)))
    }

    fn new(limit: u64, grows_to: Option<(u64, u64)>) -> Self {
        Self {
            limit: Apart(AtomicU64::new(limit)),
            grows_to,
            throttled: AtomicBool::new(false),
            unfenced: AtomicU64::new(0),
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

    /// Bytes freed in an epoch from which on a slot tells.
    #[inline]
    pub fn step(&self) -> u64 {
        self.limit() / (FENCES * STEPS)
    }

    /// Whether enough was freed for a fence, by frees in the calling slot since
    /// the last one and the `bytes` that it has to tell. `waits`: a fence waits
    /// for the GPU; then only bytes count.
    #[inline]
    pub fn fence_due(&self, bytes: u64, frees: u32, waits: impl FnOnce() -> bool) -> bool {
        let many = bytes != 0 && {
            let sum = self.unfenced.fetch_add(bytes, Ordering::Relaxed) + bytes;
            sum >= self.limit() / FENCES
        };
        many || (frees >= FREES && !waits())
    }

    /// Whether a slot has told of frees since the last fence.
    pub fn has_unfenced(&self) -> bool {
        self.unfenced.load(Ordering::Relaxed) != 0
    }

    /// A fence was recorded.
    pub fn fenced(&self) {
        self.unfenced.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_grows_only_where_waiting_left_the_gpu_without_work() {
        let auto = Inflight::auto(Memory::Device, 141 << 30);
        auto.drained(|| 1 << 40);
        assert_eq!(auto.limit(), 256 * MIB);
        auto.throttle();
        auto.drained(|| 0);
        assert_eq!(auto.limit(), 256 * MIB);
        auto.throttle();
        auto.drained(|| 1 << 30);
        assert_eq!(auto.limit(), 384 * MIB);
        auto.drained(|| 1 << 30);
        assert_eq!(auto.limit(), 384 * MIB);
        for _ in 0..20 {
            auto.throttle();
            auto.drained(|| 300 * MIB);
        }
        assert_eq!(auto.limit(), 600 * MIB);
        for _ in 0..20 {
            auto.throttle();
            auto.drained(|| 1 << 40);
        }
        assert_eq!(auto.limit(), (141 << 30) / 128);
        assert_eq!(Inflight::auto(Memory::Device, 1 << 30).limit(), 64 * MIB);
        assert_eq!(Inflight::auto(Memory::Host, 1 << 40).limit(), 64 * MIB);
        let fixed = Inflight::fixed(10);
        fixed.throttle();
        fixed.drained(|| 1 << 40);
        assert_eq!(fixed.limit(), 10);
    }

    #[test]
    fn fences_are_due_by_bytes_or_frees() {
        let fixed = Inflight::fixed(64 * MIB);
        assert!(!fixed.fence_due(0, 255, || false));
        assert!(fixed.fence_due(0, 256, || false));
        assert!(!fixed.fence_due(0, 256, || true));
        // Frees of several slots add up.
        assert!(!fixed.fence_due(15 * MIB, 0, || false));
        assert!(fixed.fence_due(MIB, 0, || true));
        fixed.fenced();
        assert!(!fixed.fence_due(15 * MIB, 0, || false));
    }
}
