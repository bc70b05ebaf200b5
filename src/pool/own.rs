//! A miss of a thread that has blocks of this size, which wait for grace.
//!
//! Where nothing else runs, a fence passes at once, and waiting for it is
//! cheaper than anything else. Where the GPU works, a thread that has its share
//! of what may wait waits for its own blocks: first come, first served would let
//! those that run ahead take what the others free, their streams' queues grow
//! long, every fence waits for the longest queue, and the other streams run dry
//! (eight streams fell to 75% of their throughput on an H200, and now reach it).

use super::device::Device;
use super::front::CACHED_MAX;
use super::grace::Closed;
use super::size_class::Layout;
use super::{BlockInfo, Memory, Pool, policy};
use std::sync::atomic::Ordering;

/// So many blocks of a size are enough for a thread that allocates and frees
/// while nothing runs: a fence (0.3 µs) is shared by so many pairs that it does
/// not show.
const ROTATION: u64 = 256;
/// Or so many bytes.
const ROTATION_BYTES: u64 = 16 << 20;
/// Larger blocks are not taken only for that.
const ROTATED_MAX: u64 = 4 << 20;

impl Pool {
    /// Waits, while nothing runs, for the fence over the thread's oldest block
    /// of this size: at most [`policy::PATIENCE`], which is what growing costs.
    /// While the GPU works it asks once at most.
    pub(super) fn complete_own<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let (epoch, count) = self.oldest(layout.size)?;
        if device.record_waits() {
            return None;
        }
        let start = device.now();
        let mut now = start;
        let enough = self.rotates(layout, count);
        for round in 0.. {
            if self.grace.completed() >= epoch {
                return self.take_cached(layout, requested);
            }
            if now.saturating_sub(start) >= policy::PATIENCE {
                break;
            }
            if self.grace.is_open(epoch) {
                if self.pace.claim_fence(now, false) {
                    if self.fence(device) == Closed::Lost {
                        break;
                    }
                    continue;
                }
                if !enough || !self.pace.is_idle() {
                    break;
                }
            } else if self.pace.claim_poll(now) {
                self.grace.poll(device);
                if !self.pace.is_idle() && self.grace.completed() < epoch {
                    break;
                }
                continue;
            } else if !self.pace.is_idle() {
                break;
            }
            // Only loads, so that whoever is at the fence is not held up.
            device.pause(round.min(1));
            now = device.now();
        }
        None
    }

    /// Whether the thread has to wait for its own blocks of this size, having
    /// its share of what may wait. Not after a wait that ran out.
    pub(super) fn waits_for_own(&self, layout: &Layout) -> bool {
        if layout.size > CACHED_MAX {
            return false;
        }
        let mine = self.front.mine();
        mine.oldest(layout.size).is_some()
            && mine.is_full(layout.size)
            && self.stalled_at.load(Ordering::Relaxed) != self.grace.completed()
    }

    /// Whether `count` blocks of this size are as many as help while nothing
    /// runs.
    fn rotates(&self, layout: &Layout, count: usize) -> bool {
        let (count, bytes) = (count as u64, count as u64 * layout.size);
        // A block more of pinned memory costs as much as hundreds of fences.
        self.policy.memory == Memory::Host
            || count >= ROTATION
            || bytes >= ROTATION_BYTES
            || self.front.mine().is_full(layout.size)
    }

    /// Whether the thread comes back to its few blocks faster than fences may
    /// follow each other, while nothing runs: then it gets more, within what may
    /// wait.
    pub(super) fn rotates_too_fast(&self, layout: &Layout) -> bool {
        if !self.pace.is_idle() || layout.size > ROTATED_MAX {
            return false;
        }
        self.oldest(layout.size).is_some_and(|(_, count)| {
            !self.rotates(layout, count) && self.waiting() + layout.size <= self.inflight.limit()
        })
    }
}
