//! Taking memory from the driver and giving it back.

use super::arena::Which;
use super::device::{Device, Refusal};
use super::free_list::Fit;
use super::grace::Closed;
use super::mapped::Bound;
use super::size_class::{Kind, Layout, PAGE};
use super::{BlockInfo, Pool, lock, policy, stats};
use crate::config::Control;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Pool {
    /// A block of the arena. Where only blocks would do that are much larger,
    /// the pool rather joins what waits, and grows, if that keeps it near what
    /// the program needs, with empty segments given back for it if the GPU is
    /// idle: a small block in a large one keeps all of that from serving large
    /// requests and from going back. It does so only as [`super::budget`]
    /// allows.
    pub(super) fn carve_well<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        if let Some(block) = self.carve(layout, requested, Fit::Near) {
            return Some(block);
        }
        let (empty, reserved) = {
            let inner = self.inner();
            if !inner.arena.fits(layout, Fit::Any) {
                return None;
            }
            (inner.arena.empty_bytes(), inner.arena.reserved)
        };
        let start = device.now();
        let excess = self.excess(self.policy.exact_size(layout), true);
        // What was taken ahead of need is there to be used.
        let worth = reserved > self.preallocated.load(Ordering::Relaxed)
            && excess <= empty
            && self.may_order(start);
        if worth {
            if excess > 0 && self.pace.is_idle() {
                let limit = policy::GROWTH_WAIT.min(self.policy.wait);
                self.complete_within(device, limit, &self.join_stalled_at);
            } else {
                // No new memory would be saved by waiting, or the GPU would
                // run dry meanwhile.
                if self.pace.claim_fence(start, !self.grace.has_pending()) {
                    self.fence(device);
                }
                self.grace.poll(device);
                self.flush();
            }
            let found = self
                .carve(layout, requested, Fit::Near)
                .or_else(|| self.grow_as(device, layout, requested, Fit::Near));
            self.for_order.spend(start, device.now());
            if found.is_some() {
                return found;
            }
        }
        self.carve(layout, requested, Fit::Any)
    }

    /// Takes a new segment from the driver. `None` if there is no room.
    pub(super) fn grow<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        if self.policy.mapped {
            return self.map(device, layout, requested, Bound::None);
        }
        let start = device.now();
        let found = self.grow_as(device, layout, requested, Fit::Any);
        self.for_growth.spend(start, device.now());
        found
    }

    /// Whether there is time to keep the pool small.
    fn may_order(&self, now: Duration) -> bool {
        let peak_live = self.inner().peak_live;
        self.for_order.allows(now, peak_live)
    }

    /// Whether there is time to do without new memory.
    pub(super) fn may_avoid_growth(&self, now: Duration) -> bool {
        let peak_live = self.inner().peak_live;
        self.for_growth.allows(now, peak_live)
    }

    /// How far a segment of `bytes` more would bring the pool past
    /// [`policy::Policy::target`].
    fn excess(&self, bytes: u64, in_order: bool) -> u64 {
        let inner = self.inner();
        let target = self.policy.target(inner.peak_live, in_order);
        (inner.arena.reserved + bytes).saturating_sub(target)
    }

    /// [`Pool::grow`]; with [`Fit::Near`] only up to the target.
    fn grow_as<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
        fit: Fit,
    ) -> Option<BlockInfo> {
        let in_order = self.may_order(device.now());
        // Before the lock, so that nobody waits for who waits.
        let idle = self.excess(self.policy.exact_size(layout), in_order) > 0
            && !self.policy.is_scarce(self.inner().arena.reserved)
            && self.inner().arena.has_empty(Which::All)
            && (fit == Fit::Near || self.may_avoid_growth(device.now()))
            && !device.record_waits()
            && self.pace.is_idle()
            && self.seen_idle(device);
        let _growing = lock(&self.growth);
        // Another thread may have grown the pool while this one waited; and
        // what lies in caches may serve, joined; blocks of this very size stay
        // where they are, as their threads will want them.
        if self.pace.claim_flush(device.now()) {
            let mut blocks = Vec::new();
            self.front
                .flush_others(layout.size, |epoch, index| blocks.push((epoch, index)));
            self.take_back(blocks);
        }
        if let Some(block) = self.carve(layout, requested, fit) {
            return Some(block);
        }
        let reserved = self.inner().arena.reserved;
        let exact = self.policy.exact_size(layout);
        if self.policy.is_scarce(reserved) {
            self.release_empty(device, exact, Which::All);
        } else {
            if idle {
                self.release_anyway(device, self.excess(exact, in_order));
            }
            if fit == Fit::Near && self.excess(exact, in_order) > 0 {
                return None;
            }
        }
        let reserved = self.inner().arena.reserved;
        let layout = &self.policy.growth(layout, reserved);
        let room = self
            .policy
            .max
            .saturating_sub(reserved)
            .min(device.headroom());
        let target = self.policy.target(self.inner().peak_live, in_order);
        let busy = !self.pace.is_idle();
        let wanted = self.policy.segment_size(layout, reserved, target, busy);
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
                    let mut inner = self.inner();
                    inner.arena.add_segment(base, size, layout.kind);
                    inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
                    return self.carve_locked(&mut inner, layout, requested, Fit::Any);
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
            if let Some(block) = self.carve(layout, requested, Fit::Short) {
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
            let hope = self.waiting() > 0 || self.inner().arena.unowned >= needed;
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
            if self.grace.completed() >= epoch && !Control::Grace.is_off() {
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
        if self.policy.mapped {
            return true;
        }
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
                let mut inner = self.inner();
                inner.arena.complete(self.grace.completed());
                inner.arena.has_empty(which)
            };
            if !candidate || (released == 0 && !self.may_release(device, which)) {
                break;
            }
            let taken = self
                .inner()
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
            let taken = self
                .inner()
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

    /// [`Pool::trim`], for an allocation that would fail otherwise: where the
    /// GPU is not seen idle, the driver waits for it. Returns the bytes given
    /// back.
    pub fn trim_anyway<D: Device>(&self, device: &D) -> u64 {
        let released = self.trim(device);
        if released > 0 {
            return released;
        }
        let before = self.usage().reserved;
        self.release_anyway(device, u64::MAX);
        before.saturating_sub(self.usage().reserved)
    }

    /// Gives back all that is empty and needs no waiting, if the GPU is seen
    /// idle; what waits for grace gets a fence for the next time. Returns the
    /// bytes given back.
    pub fn give_back_idle<D: Device>(&self, device: &D) -> u64 {
        self.flush();
        self.grace.poll(device);
        if self.waiting() > 0 && !self.grace.has_pending() {
            self.fence(device);
        }
        self.release_empty(device, u64::MAX, Which::All)
    }

    /// Takes `bytes` from the driver ahead of need. Returns what was taken.
    pub fn preallocate<D: Device>(&self, device: &D, bytes: u64) -> u64 {
        let _growing = lock(&self.growth);
        let mut taken = 0;
        while taken < bytes {
            let size = (bytes - taken).min(1 << 30).next_multiple_of(PAGE);
            let reserved = self.inner().arena.reserved;
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
            let mut inner = self.inner();
            inner.arena.add_segment(base, size, Kind::Large);
            inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
            taken += size;
        }
        self.preallocated.fetch_add(taken, Ordering::Relaxed);
        taken
    }
}
