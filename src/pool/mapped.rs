//! Growth where segments are mapped ([`Policy::mapped`]): a range of addresses
//! of its own for each, backed by a chunk of physical memory of its size.
//!
//! Such a chunk can be taken and given back while the GPU works, so memory in
//! which nothing lives goes where it is needed, and what the pool holds stays
//! within a few hundredths of what the program has held at most. What it costs is
//! calls, and what decides their cost is their number (on an H200 19 to 25 µs for
//! access to a chunk of 2 MiB, and 0.1 ms for all of one of 100). So a segment is
//! one chunk of exactly the size that a request needs, and a chunk that is given
//! up is released, not mapped elsewhere: with another size to be had, that takes
//! one more chunk (15 µs more). Of the same size it serves where it lies.
//!
//! A segment that is broken up for smaller requests is kept whole by each of
//! them. That is done where the program holds much less than at its peak, the
//! more the more time mapping has taken ([`super::budget`]).
//!
//! [`Policy::mapped`]: super::Policy::mapped

use super::device::{Device, Refusal};
use super::free_list::Fit;
use super::size_class::{Kind, Layout};
use super::{BlockInfo, Pool, lock, stats};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest that an allocation waits for grace rather than have memory mapped:
/// two fences of a GPU that works ([`super::pace`]) and what they cover.
const WAIT: Duration = Duration::from_micros(500);
/// How far the time for mapping may be exceeded before segments are broken up
/// instead.
const OVERDRAFT: f64 = 1.5;

/// How large growth may make the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// As large as [`super::Policy::mapped_target`] says, with empty segments
    /// given back for it.
    Target,
    /// Larger than that if need be, though no larger than with all empty
    /// segments given back for it.
    None,
}

impl Pool {
    /// Serves a miss: by what fits, by what may be broken up, by mapping, by what
    /// grace completes, and at last by breaking anything up.
    pub(super) fn carve_mapped<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        self.carve(layout, requested, Fit::Tight)
            .or_else(|| self.break_up(device, layout, requested))
            .or_else(|| self.map_or_wait(device, layout, requested))
            .or_else(|| {
                let throttled =
                    self.waiting() >= self.inflight.limit() || self.waits_for_own(layout);
                throttled
                    .then(|| self.wait_for_grace(device, layout, requested))
                    .flatten()
            })
            .or_else(|| {
                self.may_map(device)
                    .then(|| self.map(device, layout, requested, Bound::None))
                    .flatten()
            })
            .or_else(|| self.carve(layout, requested, Fit::Any))
    }

    /// Whether there is time for mapping.
    fn may_map<D: Device>(&self, device: &D) -> bool {
        self.for_mapping.spent(device.now()) < OVERDRAFT
    }

    /// How far `bytes` more would bring the pool past its target.
    fn past_target<D: Device>(&self, device: &D, bytes: u64) -> u64 {
        let spent = self.for_mapping.spent(device.now());
        let inner = self.inner();
        let target = self.policy.mapped_target(inner.peak_live, spent);
        (inner.arena.reserved + bytes).saturating_sub(target)
    }

    /// A part of a larger free block, where little is in use, or where the block
    /// was taken ahead of need.
    fn break_up<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let spent = self.for_mapping.spent(device.now());
        let allowed = {
            let inner = self.inner();
            let ahead = inner.arena.reserved <= self.preallocated.load(Ordering::Relaxed);
            let most = self.policy.splits_until(inner.peak_live, spent);
            let in_use = inner.arena.in_use_with(layout);
            ahead || in_use.is_some_and(|in_use| in_use <= most)
        };
        allowed
            .then(|| self.carve(layout, requested, Fit::Any))
            .flatten()
    }

    /// Maps a segment within the target. Where a block that fits waits for grace,
    /// and where too little is empty, it rather waits, a little while, for what
    /// grace completes.
    fn map_or_wait<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let exact = self.policy.exact_size(layout);
        let start = device.now();
        let mut awaited = false;
        // A gap that page alignment leaves does for a small one.
        if layout.kind == Kind::Small
            && self.past_target(device, exact) > 0
            && let Some(block) = self.carve(layout, requested, Fit::Any)
        {
            return Some(block);
        }
        if self.past_target(device, exact) > 0 && self.waiting() > 0 {
            if self.pace.claim_fence(start, !self.grace.has_pending()) {
                self.fence(device);
            }
            self.grace.poll(device);
            if let Some(block) = self.take_joined(layout, requested) {
                return Some(block);
            }
            awaited = self.oldest(layout.size).is_some() || self.inner().arena.awaits(layout);
        }
        let found = (!awaited && self.may_map(device))
            .then(|| self.map(device, layout, requested, Bound::Target))
            .flatten();
        let may_wait = !device.record_waits()
            && self.for_waiting.allows(start, 0)
            && self.join_stalled_at.load(Ordering::Relaxed) != self.grace.completed();
        if found.is_some() || !may_wait {
            return found;
        }
        self.wait_to_map(device, layout, requested)
    }

    /// A block that has become complete, by itself or by joining others. Blocks of
    /// this very size stay where they are, as their threads will want them.
    fn take_joined(&self, layout: &Layout, requested: u64) -> Option<BlockInfo> {
        let cached = self.take_cached(layout, requested);
        if cached.is_some() {
            return cached;
        }
        let mut blocks = Vec::new();
        self.front
            .flush_others(layout.size, |epoch, index| blocks.push((epoch, index)));
        self.take_back(blocks);
        self.carve(layout, requested, Fit::Tight)
    }

    fn wait_to_map<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let start = device.now();
        let mut found = None;
        for round in 0.. {
            if self.waiting() == 0 || self.grace.is_lost() {
                break;
            }
            let now = device.now();
            if !self.grace.has_pending() && self.pace.claim_fence(now, true) {
                self.fence(device);
            }
            if self.pace.claim_poll(now) && self.grace.poll(device) {
                found = self.take_joined(layout, requested);
                if found.is_none() && self.may_map(device) {
                    found = self.map(device, layout, requested, Bound::Target);
                }
                if found.is_some() {
                    break;
                }
            }
            if device.now().saturating_sub(start) >= WAIT.min(self.policy.wait) {
                // A fence can depend on what this thread does next.
                self.join_stalled_at
                    .store(self.grace.completed(), Ordering::Relaxed);
                break;
            }
            device.pause(round);
        }
        self.for_waiting.spend(start, device.now());
        found
    }

    /// Takes a new segment from the driver, with empty ones given back for it as
    /// far as it would bring the pool past the target. `None` if that does not
    /// stay within `bound`, or if there is no room.
    pub(super) fn map<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
        bound: Bound,
    ) -> Option<BlockInfo> {
        let _growing = lock(&self.growth);
        // Another thread may have grown the pool while this one waited.
        if let Some(block) = self.carve(layout, requested, Fit::Tight) {
            return Some(block);
        }
        let reserved = self.inner().arena.reserved;
        let sizes = [
            self.policy.segment_size(layout, reserved, 0, false),
            self.policy.exact_size(layout),
        ];
        let mut last = 0;
        for size in sizes {
            if std::mem::replace(&mut last, size) == size {
                continue;
            }
            let past = self.past_target(device, size);
            let empty = self.inner().arena.empty_bytes();
            if bound == Bound::Target && past > empty {
                continue;
            }
            let start = device.now();
            self.give_up(device, past.min(empty));
            let room = {
                let inner = self.inner();
                self.policy.max.saturating_sub(inner.arena.reserved)
            };
            let reserved = (size <= room.min(device.headroom())).then(|| device.reserve(size));
            self.for_mapping.spend(start, device.now());
            match reserved {
                Some(Ok(base)) => {
                    stats::bump(&self.counters.segment_allocs);
                    let mut inner = self.inner();
                    inner.arena.add_segment(base, size, layout.kind);
                    inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
                    return self.carve_locked(&mut inner, layout, requested, Fit::Any);
                }
                Some(Err(Refusal::Lost)) => {
                    self.grace.set_lost();
                    return None;
                }
                Some(Err(Refusal::OutOfMemory)) | None => {}
            }
        }
        None
    }

    /// Gives so many bytes of empty segments back.
    fn give_up<D: Device>(&self, device: &D, mut wanted: u64) {
        while wanted > 0 {
            let Some((base, size)) = self.inner().arena.remove_stale(wanted) else {
                break;
            };
            device.release(base, size);
            stats::bump(&self.counters.segment_frees);
            wanted = wanted.saturating_sub(size);
        }
    }
}
