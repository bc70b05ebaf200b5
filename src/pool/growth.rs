//! Taking memory from the driver and giving it back.

use super::arena::Which;
use super::device::{Device, Refusal};
use super::grace::Closed;
use super::size_class::{Kind, Layout, PAGE};
use super::{BlockInfo, Pool, lock, policy, stats};
use std::sync::atomic::Ordering;

impl Pool {
    /// Takes a new segment from the driver. `None` if there is no room.
    pub(super) fn grow<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let _growing = lock(&self.growth);
        // Another thread may have grown the pool while this one waited; and
        // what lies in caches may serve, joined.
        self.flush();
        if let Some(block) = self.carve(layout, requested, false) {
            return Some(block);
        }
        let reserved = lock(&self.inner).arena.reserved;
        let exact = self.policy.exact_size(layout);
        if self.policy.is_scarce(reserved) {
            self.release_empty(device, exact, Which::All);
        } else if layout.kind != Kind::Small {
            // What is empty of its kind does not fit this request.
            self.release_empty(device, exact, Which::Kind(layout.kind));
        }
        let reserved = lock(&self.inner).arena.reserved;
        let layout = &self.policy.growth(layout, reserved);
        let room = self
            .policy
            .max
            .saturating_sub(reserved)
            .min(device.headroom());
        let wanted = self.policy.segment_size(layout, reserved);
        let sizes = if wanted > exact {
            [wanted, exact]
        } else {
            [exact, exact]
        };
        let mut last = 0;
        for size in sizes {
            if size > room || size == last {
                continue;
            }
            last = size;
            match device.reserve(size) {
                Ok(base) => {
                    stats::bump(&self.counters.segment_allocs);
                    self.polled_ns.store(0, Ordering::Relaxed);
                    let mut inner = lock(&self.inner);
                    inner.arena.add_segment(base, size, layout.kind);
                    inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
                    return self.carve_locked(&mut inner, layout, requested, false);
                }
                Err(Refusal::OutOfMemory) => {}
                Err(Refusal::Lost) => {
                    self.grace.set_lost();
                    return None;
                }
            }
        }
        None
    }

    /// Memory is short: all grace, blocks meant for others, giving back. Tries
    /// again as long as there is something to be had, because other threads
    /// take and free meanwhile, at most [`Policy::wait`].
    pub(super) fn scrape_together<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let start = device.now();
        loop {
            let left = self
                .policy
                .wait
                .saturating_sub(device.now().saturating_sub(start));
            let complete = self.complete_earlier(device, left);
            if let Some(block) = self.carve(layout, requested, true) {
                return Some(block);
            }
            if self.grace.is_lost() {
                return None;
            }
            // What is empty goes back, at best while the GPU is idle; but the
            // allocation would fail otherwise, so in the end the driver may
            // wait.
            let needed = self.policy.exact_size(layout);
            if self.release_empty(device, needed, Which::All) < needed {
                self.release_anyway(device, needed);
            }
            let grown = self.grow(device, layout, requested);
            let hope = self.waiting() > 0 || lock(&self.inner).arena.unowned >= needed;
            if grown.is_some() || !complete || !hope || left.is_zero() {
                return grown;
            }
        }
    }

    /// Whether the GPU has just been seen idle: a fence over everything
    /// submitted so far passes within [`policy::PATIENCE`].
    pub(super) fn seen_idle<D: Device>(&self, device: &D) -> bool {
        let Closed::Epoch(epoch) = self.fence(device) else {
            return false;
        };
        let start = device.now();
        for round in 0.. {
            self.grace.poll(device);
            if self.grace.completed() >= epoch && !cfg!(feature = "unsafe-no-grace") {
                return true;
            }
            if self.grace.is_lost() || device.now().saturating_sub(start) >= policy::PATIENCE {
                break;
            }
            device.pause(round);
        }
        false
    }

    /// Whether giving memory back now holds nobody up. A driver that cannot be
    /// asked without waiting is made to wait only where all is asked for:
    /// because an allocation would fail otherwise.
    pub(super) fn may_release<D: Device>(&self, device: &D, which: Which) -> bool {
        if device.record_waits() {
            which == Which::All
        } else {
            self.seen_idle(device)
        }
    }

    /// Gives empty segments back to the driver, at least `wanted` bytes of
    /// them if there are so many, provided that the GPU is seen idle (the
    /// driver would wait for it). Returns the bytes given back.
    pub(super) fn release_empty<D: Device>(&self, device: &D, wanted: u64, which: Which) -> u64 {
        let mut released = 0;
        loop {
            let candidate = {
                let mut inner = lock(&self.inner);
                inner.arena.complete(self.grace.completed());
                inner.arena.has_empty(which)
            };
            if !candidate || (released == 0 && !self.may_release(device, which)) {
                break;
            }
            let taken = lock(&self.inner)
                .arena
                .remove_empty(wanted.saturating_sub(released), which);
            let Some((base, size)) = taken else { break };
            device.release(base, size);
            stats::bump(&self.counters.segment_frees);
            released += size;
            if which != Which::Retired && released >= wanted {
                break;
            }
        }
        released
    }

    /// [`Pool::release_empty`] of any kind, without looking whether the GPU is
    /// idle: the driver waits for the context's work, as in a native free.
    pub(super) fn release_anyway<D: Device>(&self, device: &D, wanted: u64) {
        let mut released = 0;
        while released < wanted {
            let taken = lock(&self.inner)
                .arena
                .remove_empty(wanted - released, Which::All);
            let Some((base, size)) = taken else { break };
            device.release(base, size);
            stats::bump(&self.counters.segment_frees);
            released += size;
        }
    }

    /// Gives back all that is empty, after waiting for grace as an allocation
    /// would. Returns the bytes given back.
    pub fn trim<D: Device>(&self, device: &D) -> u64 {
        self.complete_earlier(device, self.policy.wait);
        self.release_empty(device, u64::MAX, Which::All)
    }

    /// Takes `bytes` from the driver ahead of need. Returns what was taken.
    pub fn preallocate<D: Device>(&self, device: &D, bytes: u64) -> u64 {
        let _growing = lock(&self.growth);
        let mut taken = 0;
        while taken < bytes {
            let size = (bytes - taken).min(1 << 30).next_multiple_of(PAGE);
            let reserved = lock(&self.inner).arena.reserved;
            if size
                > self
                    .policy
                    .max
                    .saturating_sub(reserved)
                    .min(device.headroom())
            {
                break;
            }
            let Ok(base) = device.reserve(size) else {
                break;
            };
            stats::bump(&self.counters.segment_allocs);
            let mut inner = lock(&self.inner);
            inner.arena.add_segment(base, size, Kind::Large);
            inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
            taken += size;
        }
        taken
    }
}
