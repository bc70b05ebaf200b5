//! How much time may go into keeping the pool small: waiting for memory to
//! join, giving segments back and taking others. Beyond it the pool breaks
//! large blocks up, and grows where nothing fits, which costs memory and no
//! time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// So much at any time: a program that starts gets its memory in good order.
const AT_ONCE: Duration = Duration::from_millis(5);
/// Granted each time that the program's need has grown by an eighth: it has
/// begun something else.
const FOR_GROWTH: Duration = Duration::from_millis(1);
/// Growth is counted from here on, in bytes.
const COUNTED_FROM: u64 = 64 << 20;

/// Time that was spent, and how much may be. Thread-safe, relaxed.
#[derive(Debug)]
pub struct Budget {
    /// One part in so many of the time that has gone by.
    share: u64,
    /// At most so many nanoseconds of it.
    most: u64,
    /// Nanoseconds granted for growth.
    per_growth: u64,
    /// When it was first asked, in nanoseconds of the device's clock, from 1.
    begun: AtomicU64,
    /// What the program needed when that was last counted as growth, in bytes.
    need: AtomicU64,
    granted: AtomicU64,
    spent: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Budget {
    /// 0.5% of the time, until 20 ms are spent: a program that goes on doing the
    /// same so comes to a state without driver calls. (With no such end, one that
    /// trains over fifteen shapes on an H200 gave memory back and took it again
    /// for 1.6% of its allocations, for ever.)
    #[must_use]
    pub fn new() -> Self {
        Self::of(200, Duration::from_millis(20))
    }

    /// For mapping and unmapping: 0.74% of the time, whatever the program does.
    /// Callers may go half as far again ([`Budget::spent`]) where it saves most.
    #[must_use]
    pub fn for_mapping() -> Self {
        Self {
            per_growth: 0,
            ..Self::of(135, Duration::MAX)
        }
    }

    /// For waiting for grace rather than mapping: 3% of the time. The GPU goes on
    /// meanwhile.
    #[must_use]
    pub fn for_waiting() -> Self {
        Self {
            per_growth: 0,
            ..Self::of(33, Duration::MAX)
        }
    }

    fn of(share: u64, most: Duration) -> Self {
        Self {
            share,
            most: nanos(most),
            per_growth: nanos(FOR_GROWTH),
            begun: AtomicU64::new(0),
            need: AtomicU64::new(COUNTED_FROM),
            granted: AtomicU64::new(nanos(AT_ONCE)),
            spent: AtomicU64::new(0),
        }
    }

    /// Whether there is time left for a program that has held `peak_live` bytes
    /// at most.
    pub fn allows(&self, now: Duration, peak_live: u64) -> bool {
        let order = Ordering::Relaxed;
        let need = self.need.load(order);
        if peak_live >= need + need / 8
            && self
                .need
                .compare_exchange(need, peak_live, order, order)
                .is_ok()
        {
            self.granted.fetch_add(self.per_growth, order);
        }
        self.spent.load(order) < self.limit(now)
    }

    /// What may be spent until `now`, in nanoseconds.
    fn limit(&self, now: Duration) -> u64 {
        let order = Ordering::Relaxed;
        let now = nanos(now).max(1);
        let begun = match self.begun.compare_exchange(0, now, order, order) {
            Ok(_) => now,
            Err(begun) => begun,
        };
        let share = (now.saturating_sub(begun) / self.share).min(self.most);
        self.granted.load(order) + share
    }

    /// Which part of what may be spent has been; beyond 1 where it is exceeded.
    pub fn spent(&self, now: Duration) -> f64 {
        self.spent.load(Ordering::Relaxed) as f64 / self.limit(now) as f64
    }

    /// The time from `start` to `now` was spent.
    pub fn spend(&self, start: Duration, now: Duration) {
        self.spent
            .fetch_add(nanos(now.saturating_sub(start)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_little_at_once_a_share_later_and_then_no_more() {
        let budget = Budget::new();
        assert!(budget.allows(at(1000), 0));
        budget.spend(at(1000), at(1004));
        assert!(budget.allows(at(1004), 0));
        budget.spend(at(1004), at(1006));
        assert!(!budget.allows(at(1006), 0));
        assert!(!budget.allows(at(1000 + 200), 0));
        assert!(budget.allows(at(1000 + 2 * 200), 0));
        budget.spend(at(0), at(19));
        assert!(!budget.allows(at(1_000_000_000), 0));
    }

    #[test]
    fn the_part_that_is_spent_falls_with_time() {
        let budget = Budget::for_mapping();
        assert_eq!(budget.spent(at(10)), 0.0);
        budget.spend(at(10), at(20));
        assert_eq!(budget.spent(at(10)), 2.0);
        assert_eq!(budget.spent(at(10 + 135 * 5)), 1.0);
        assert_eq!(budget.spent(at(10 + 135 * 15)), 0.5);
        // Growth grants nothing here.
        assert!(!budget.allows(at(20), 1 << 40));
        assert_eq!(budget.spent(at(10)), 2.0);
    }

    #[test]
    fn a_program_that_grows_gets_more() {
        let budget = Budget::new();
        assert!(budget.allows(at(1), 0));
        budget.spend(at(0), at(25));
        let hour = at(3_600_000);
        assert!(!budget.allows(hour, 65 << 20));
        assert!(budget.allows(hour, 72 << 20));
        budget.spend(at(0), at(1));
        assert!(!budget.allows(hour, 80 << 20));
        assert!(budget.allows(hour, 81 << 20));
    }
}
