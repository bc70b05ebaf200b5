//! Waiting for grace: briefly before the pool grows, longer where more waits
//! than the in-flight limit allows, and for all of it where memory is short.
//! By polling, with no lock held, and never longer than [`Policy::wait`].
//!
//! [`Policy::wait`]: super::Policy::wait

use super::device::{Device, Event};
use super::free_list::Fit;
use super::grace::Closed;
use super::size_class::Layout;
use super::{BlockInfo, Pool, policy, stats};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A wait that those who watch are told of, once it has begun; it ends when
/// this is dropped.
struct Told<'a, D: Device> {
    device: &'a D,
    begun: bool,
}

impl<'a, D: Device> Told<'a, D> {
    fn new(device: &'a D) -> Self {
        let begun = false;
        Self { device, begun }
    }

    /// The wait has begun; from the second call on nothing.
    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.device.tell(Event::WaitBegins);
        }
    }
}

impl<D: Device> Drop for Told<'_, D> {
    fn drop(&mut self) {
        if self.begun {
            self.device.tell(Event::WaitEnds);
        }
    }
}

impl Pool {
    /// Polls for grace: briefly in any case, longer if more memory waits than
    /// the in-flight limit allows.
    pub(super) fn wait_for_grace<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let start = device.now();
        let polled = Duration::from_nanos(self.polled_ns.load(Ordering::Relaxed));
        let patience = if self.waits_for_own(layout) {
            Duration::ZERO
        } else {
            policy::PATIENCE.saturating_sub(polled)
        };
        let mut seen = self.grace.completed();
        let mut long = false;
        let mut told = Told::new(device);
        let mut found = None;
        let mut refused = 0;
        for round in 0.. {
            let now = device.now();
            let pending = self.grace.has_pending();
            if !pending && (device.record_waits() || self.waiting() == 0) {
                break;
            }
            if self.needs_fence(device, layout, pending) && self.pace.claim_fence(now, !pending) {
                refused += u32::from(self.fence(device) == Closed::NotNow && !pending);
            }
            if self.pace.claim_poll(now) {
                self.grace.poll(device);
            }
            let completed = self.grace.completed();
            let moved = completed != seen;
            if moved {
                seen = completed;
                found = self.take_cached(layout, requested);
                // A thread that has blocks of this size waits for its own:
                // first come, first served would let some streams run dry.
                if found.is_none() && self.oldest(layout.size).is_none() {
                    self.flush_since(completed);
                    found = self.carve(layout, requested, Fit::Any);
                }
            }
            if found.is_some() || self.grace.is_lost() {
                break;
            }
            let elapsed = device.now().saturating_sub(start);
            // What waits is looked at where it can have changed, not in every
            // round: others need the lock to go on.
            if elapsed >= patience && (moved || !long) {
                let may_wait = (self.waiting() >= self.inflight.limit()
                    || self.waits_for_own(layout))
                    && (self.grace.has_pending() || refused < policy::REFUSALS)
                    && self.stalled_at.load(Ordering::Relaxed) != completed;
                if !may_wait {
                    break;
                }
                long = true;
                told.begin();
                self.inflight.throttle();
            }
            if refused >= policy::REFUSALS {
                break;
            }
            if long && elapsed >= self.policy.wait {
                // A fence may depend on what this thread does next: not again
                // until one has passed.
                self.stalled_at.store(completed, Ordering::Relaxed);
                stats::bump(&self.counters.wait_timeouts);
                break;
            }
            device.pause(round);
        }
        let spent = device.now().saturating_sub(start).as_nanos() as u64;
        if long {
            stats::bump(&self.counters.waits);
            self.counters.wait_ns.fetch_add(spent, Ordering::Relaxed);
        } else {
            self.polled_ns.fetch_add(spent, Ordering::Relaxed);
        }
        found
    }

    /// Whether a waiting thread shall have a fence recorded: there is none, or
    /// none over what it waits for. A free of its own that found no fence due is
    /// not followed by another while it waits.
    fn needs_fence<D: Device>(&self, device: &D, layout: &Layout, pending: bool) -> bool {
        let not_covered = || {
            self.oldest(layout.size)
                .is_none_or(|(epoch, _)| self.grace.is_open(epoch))
        };
        !pending || (!device.record_waits() && self.inflight.has_unfenced() && not_covered())
    }

    /// Waits for the grace of everything freed so far, at most `limit`, and
    /// joins what it completes. Returns whether that was reached.
    pub fn complete_earlier<D: Device>(&self, device: &D, limit: Duration) -> bool {
        self.complete_within(device, limit, &self.stalled_at)
    }

    /// [`Pool::complete_earlier`]; `stalled_at` remembers a wait that ran out.
    pub(super) fn complete_within<D: Device>(
        &self,
        device: &D,
        limit: Duration,
        stalled_at: &AtomicU64,
    ) -> bool {
        self.flush();
        let (start, stamp) = (device.now(), self.grace.stamp());
        let mut told = Told::new(device);
        let mut refused = 0;
        for round in 0.. {
            let completed = self.grace.completed();
            {
                let mut inner = self.inner();
                inner.arena.complete(completed);
                if completed >= stamp || inner.arena.waiting_bytes == 0 {
                    return true;
                }
            }
            // A record that failed has moved the epoch on too, so that only a
            // pending fence shows that one was made.
            let wanted = self.grace.stamp() == stamp || !self.grace.has_pending();
            if wanted && !matches!(self.fence(device), Closed::Epoch(_)) {
                refused += 1;
                if !self.grace.has_pending() && refused >= policy::REFUSALS {
                    return false;
                }
            }
            if self.grace.poll(device) {
                continue;
            }
            if self.grace.is_lost() || stalled_at.load(Ordering::Relaxed) == completed {
                return false;
            }
            if device.now().saturating_sub(start) >= limit {
                // Only a whole wait shows that waiting does not help.
                if limit >= policy::GROWTH_WAIT.min(self.policy.wait) {
                    stalled_at.store(completed, Ordering::Relaxed);
                }
                return false;
            }
            told.begin();
            device.pause(round);
        }
        false
    }

    /// Before the pool grows although it holds enough unused memory: waits a
    /// little for what is not complete, so that it can join. Growth is rare,
    /// and memory that is split further now stays split.
    pub(super) fn join_before_growth<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        let (unused, reserved) = {
            let inner = self.inner();
            let unused = inner.arena.reserved - inner.arena.carved + self.front.bytes();
            (unused, inner.arena.reserved)
        };
        if unused < layout.size || self.waiting() == 0 {
            return None;
        }
        let start = device.now();
        let large = layout.size >= policy::JOINED_MIN
            && unused >= 2 * layout.size
            && reserved >= self.policy.total / policy::JOINS_FROM;
        // A GPU that works would run dry.
        if !(large || self.pace.is_idle() && self.may_avoid_growth(start)) {
            return None;
        }
        let limit = policy::GROWTH_WAIT.min(self.policy.wait);
        self.complete_within(device, limit, &self.join_stalled_at);
        self.for_growth.spend(start, device.now());
        self.carve(layout, requested, Fit::Any)
    }
}
