//! Giving back what has not been used for a while, and what can be given back
//! without waiting.

use super::arena::{Unused, Which};
use super::device::Device;
use super::{Pool, stats};
use std::time::Duration;

/// Since when segments have been unused, as far as was seen.
#[derive(Debug, Default)]
pub struct IdleLog {
    seen: Vec<(Unused, Duration)>,
}

impl Pool {
    /// [`Pool::trim`] without waiting for grace: what the GPU is busy with, and
    /// everything while it is busy, stays. Returns the bytes given back.
    pub fn trim_at_once<D: Device>(&self, device: &D) -> u64 {
        self.settle(device);
        self.release_empty(device, u64::MAX, Which::All)
    }

    /// Gives back the segments that no block was carved from for `age`, if the
    /// GPU is seen idle. To be called several times in `age`, with the same
    /// `log`: a segment's time begins when a call first sees it unused. Returns
    /// the bytes given back. Where asking the driver waits for the GPU, nothing
    /// is done: then idleness cannot be seen.
    pub fn release_unused<D: Device>(&self, device: &D, log: &mut IdleLog, age: Duration) -> u64 {
        if device.record_waits() || self.is_lost() {
            return 0;
        }
        self.settle(device);
        let now = device.now();
        let unused: Vec<Unused> = self.inner().arena.unused().collect();
        log.seen.retain(|(known, _)| unused.contains(known));
        for segment in unused {
            if !log.seen.iter().any(|(known, _)| *known == segment) {
                log.seen.push((segment, now));
            }
        }
        let due = |since: &Duration| now.saturating_sub(*since) >= age;
        if !log.seen.iter().any(|(_, since)| due(since))
            || !(self.policy.mapped || self.seen_idle(device))
        {
            return 0;
        }
        let mut released = 0;
        log.seen.retain(|(segment, since)| {
            if !due(since) {
                return true;
            }
            if self.inner().arena.remove_unused(segment) {
                device.release(segment.base, segment.size);
                stats::bump(&self.counters.segment_frees);
                released += segment.size;
            }
            false
        });
        released
    }

    /// Joins what is complete, in caches too; looks briefly whether everything
    /// is, as in a process that has stopped calling nobody else does.
    fn settle<D: Device>(&self, device: &D) {
        self.flush();
        if self.waiting() > 0 && !device.record_waits() {
            self.seen_idle(device);
        }
        self.inner().arena.complete(self.grace.completed());
    }
}
