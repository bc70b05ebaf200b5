//! Figures of a pool: one list of fields gives the structs, the sum, the JSON,
//! and the layout of what other processes may watch.
//!
//! Figures are kept where they arise. Whoever wants them seen from outside
//! gives the pool a place ([`Shown::show_on`]), and they live there from then
//! on: showing them costs nothing, and nothing has to be copied.

use super::front::SLOTS;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts since the pool was made. Thread-safe, relaxed.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct Counters { $($(#[doc = $doc])* pub $name: AtomicU64,)* }

        /// A reading of [`Counters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[doc = $doc])* pub $name: u64,)* }

        impl Counters {
            /// Names of the fields, in their order.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];

            /// Copies every counter.
            pub fn carry(&self, to: &Self) {
                $(carry(&self.$name, &to.$name);)*
            }

            /// Reads every counter; they may move meanwhile.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Adds `other` to each field.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// What each field counts, in their order.
            pub const MEANINGS: &[&str] = &[$(concat!($($doc),*).trim_ascii(),)*];

            /// Name and value of each field.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Allocations served without taking memory from the driver.
    hits,
    /// Allocations that made the pool grow.
    misses,
    /// Allocations left to the driver because the pool could not serve them.
    bypasses,
    /// Allocations served with memory that was with the program before.
    reissues,
    /// Blocks given back by the program.
    frees,
    /// Allocations that waited for grace beyond the break-even time.
    waits,
    /// Nanoseconds that they waited.
    wait_ns,
    /// Waits that ran out.
    wait_timeouts,
    /// Segments taken from the driver.
    segment_allocs,
    /// Segments given back to it.
    segment_frees,
}

/// Adds one.
pub fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Adds to a counter that only one thread changes at a time (it holds a lock):
/// a load and a store, where [`bump`] locks the bus.
#[inline]
pub fn add(counter: &AtomicU64, count: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(count),
        Ordering::Relaxed,
    );
}

macro_rules! gauges {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a pool holds, in bytes unless said otherwise, as its arena last
        /// left it. Written under the pool's lock, readable by anybody.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct Gauges { $($(#[$doc])* pub $name: AtomicU64,)* }

        impl Gauges {
            /// Names of the fields, in their order.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];
        }
    };
}

gauges! {
    /// With the program or in a cache.
    carved,
    /// Freed, in the arena, waiting for grace.
    waiting,
    /// Taken from the driver.
    reserved,
    /// Highest `reserved` so far.
    peak_reserved,
    /// Highest sum with the program so far.
    peak_live,
    /// Segments without a carved block.
    unowned,
    /// Largest free run.
    largest_free,
    /// Number of blocks with the program or in a cache.
    carved_blocks,
    /// Number of segments.
    segments,
    /// Most that may wait for grace.
    inflight_limit,
    /// 1 once the context was seen to be lost.
    lost,
}

/// What a slot of the front has to tell. A cache line pair of its own, as
/// its thread writes there.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct SlotFigures {
    /// Bytes in its cache.
    pub cached: AtomicU64,
    /// What its threads did.
    pub counts: Counters,
}

/// All figures of a pool.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct PoolFigures {
    /// What it holds.
    pub gauges: Gauges,
    /// What happened beside the slots.
    pub counts: Counters,
    /// The slots.
    pub slots: [SlotFigures; SLOTS],
}

impl Default for PoolFigures {
    fn default() -> Self {
        Self {
            gauges: Gauges::default(),
            counts: Counters::default(),
            slots: std::array::from_fn(|_| SlotFigures::default()),
        }
    }
}

impl PoolFigures {
    /// Sum of all counts.
    pub fn counts(&self) -> Counts {
        let mut sum = self.counts.read();
        self.slots
            .iter()
            .for_each(|slot| sum.add(&slot.counts.read()));
        sum
    }

    /// Bytes in all caches.
    pub fn cached(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| slot.cached.load(Ordering::Relaxed))
            .sum()
    }
}

/// Figures that are kept here, or from some moment on in a place where others
/// see them.
#[derive(Debug, Default)]
pub struct Shown<T: 'static> {
    own: T,
    place: OnceLock<&'static T>,
}

impl<T> Shown<T> {
    /// Figures that nobody else sees yet.
    pub const fn new(own: T) -> Self {
        Self {
            own,
            place: OnceLock::new(),
        }
    }

    /// They live at `place` from now on; `carry` copies what they are. What
    /// other threads count meanwhile may be lost. Only the first call has an
    /// effect.
    pub fn show_on(&self, place: &'static T, carry: impl FnOnce(&T, &T)) {
        if self.place.get().is_none() {
            carry(&self.own, place);
            let _ = self.place.set(place);
        }
    }
}

/// Copies a figure; for [`Shown::show_on`].
pub fn carry(from: &AtomicU64, to: &AtomicU64) {
    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
}

impl<T> Deref for Shown<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        match self.place.get() {
            Some(place) => place,
            None => &self.own,
        }
    }
}

/// A number of bytes for people: `512 B`, `1.5 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // What would be rounded to 1024 is 1 of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if (value * 10.0).round() % 10.0 == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536 << 20, "1.5 GiB"),
            ((1 << 30) - 1, "1 GiB"),
            (200 << 20, "200 MiB"),
            (141 << 30, "141 GiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn what_was_counted_before_moves_along() {
        let place: &'static PoolFigures = Box::leak(Box::default());
        let counters: Shown<Counters> = Shown::default();
        bump(&counters.hits);
        counters.show_on(&place.counts, Counters::carry);
        add(&counters.hits, 2);
        assert_eq!(place.counts().hits, 3);
        assert_eq!(counters.read().hits, 3);
    }
}
