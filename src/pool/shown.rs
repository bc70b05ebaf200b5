//! What a pool tells of itself, and its limits.

use super::inflight::Inflight;
use super::{Policy, Pool, Usage, stats};
use std::sync::atomic::Ordering;

impl Pool {
    /// What the pool holds now.
    pub fn usage(&self) -> Usage {
        let inner = self.inner();
        let arena = &inner.arena;
        let cached = self.front.bytes();
        Usage {
            live: arena.carved.saturating_sub(cached),
            waiting: arena.waiting_bytes + cached,
            reserved: arena.reserved,
            peak_live: inner.peak_live,
            peak_reserved: inner.peak_reserved,
            unowned: arena.unowned,
            largest_free: arena.largest_free(),
            carved_blocks: arena.carved_blocks() as u64,
            segments: arena.segment_count() as u64,
        }
    }

    /// Counts since the pool was made.
    pub fn counts(&self) -> stats::Counts {
        let mut counts = self.counters.read();
        counts.add(&self.front.counts());
        counts
    }

    /// The pool's figures live in `place` from now on, where others may watch
    /// them. Once, before the pool serves.
    pub fn show_on(&self, place: &'static stats::PoolFigures) {
        self.front.show_on(place);
        self.counters.show_on(&place.counts, stats::Counters::carry);
        self.inner().arena.show_on(&place.gauges);
        let _ = self.figures.set(place);
        self.show_state();
    }

    /// What is not shown where it arises.
    pub(super) fn show_state(&self) {
        if let Some(place) = self.figures.get() {
            let gauges = &place.gauges;
            let limit = self.inflight.limit();
            gauges.inflight_limit.store(limit, Ordering::Relaxed);
            let lost = u64::from(self.grace.is_lost());
            gauges.lost.store(lost, Ordering::Relaxed);
        }
    }

    /// Most that may wait for grace now, in bytes.
    pub fn inflight_limit(&self) -> u64 {
        self.inflight.limit()
    }

    /// The limits in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Changes the limits, for what happens from now on. The pool gives nothing
    /// back by itself because of it.
    pub fn set_policy(&self, policy: Policy) {
        if policy.inflight != self.policy.inflight {
            self.inflight.set(inflight_of(&policy));
        }
        self.policy.set(policy);
        self.show_state();
    }
}

/// The in-flight limit that a policy asks for.
pub(super) fn inflight_of(policy: &Policy) -> Inflight {
    policy.inflight.map_or_else(
        || Inflight::auto(policy.memory, policy.total),
        Inflight::fixed,
    )
}
