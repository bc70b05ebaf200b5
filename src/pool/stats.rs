//! Counters of a pool: one list of fields gives the struct, the sum and the
//! JSON.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the pool was made. Thread-safe, relaxed.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// A reading of [`Counters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
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
