//! How much to take from the driver, how much may wait, and for how long.

use super::size_class::{DEDICATED_MIN, Kind, Layout, PAGE};
use std::time::Duration;

/// Limits of one pool, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Most that the pool may hold of the device.
    pub max: u64,
    /// Most that may wait for grace before an allocation waits for the oldest
    /// fence rather than take new memory.
    pub inflight: u64,
    /// Longest that an allocation waits for grace.
    pub wait: Duration,
    /// Requests of 2 MiB and more have a segment of their own, so that an
    /// importer of one, who maps the segment, can see no other.
    pub isolate: bool,
}

/// The smallest and largest growth step for large requests. Five per cent of
/// what is held lies between: on recorded traces of real programs this kept
/// reserved memory near live memory (smaller steps fragment, larger ones stay
/// empty).
const LARGE_STEP: (u64, u64) = (32 << 20, 1 << 30);
/// The same for small requests.
const SMALL_STEP: (u64, u64) = (PAGE, 32 << 20);

/// Misses poll this long in sum before the pool takes new memory: about what
/// the driver's allocation costs (30 µs on an H200). So polling never costs
/// more than growing would have, and a pool in which allocations keep missing
/// by a little becomes a little larger.
pub const PATIENCE: Duration = Duration::from_micros(20);

/// Requests of at least this many bytes wait for memory to join before the pool
/// grows: smaller ones find room more easily, and come more often.
pub const JOINED_MIN: u64 = 32 << 20;

/// Longest that a request waits for memory to join before the pool grows.
pub const GROWTH_WAIT: Duration = Duration::from_millis(5);

/// Frees of at least this many bytes are counted for all threads together.
pub const COUNTED_TOGETHER: u64 = 256 << 10;

/// A fence is recorded after this many frees, however small.
const FENCE_FREES: u32 = 256;

impl Policy {
    /// The in-flight limit that `auto` stands for on a device with `total`
    /// bytes: 1/512 of it, between 64 and 256 MiB. (On an H200 workloads ran
    /// at full speed with 64–256 MiB; without a limit the same run took 12 GiB
    /// instead of 1.4, because the CPU runs ahead of the GPU.)
    #[must_use]
    pub fn auto_inflight(total: u64) -> u64 {
        (total / 512).clamp(64 << 20, 256 << 20)
    }

    /// Size of the segment to take for a request, with `reserved` bytes held.
    #[must_use]
    pub fn segment_size(&self, layout: &Layout, reserved: u64) -> u64 {
        let step = |share: u64, (low, high): (u64, u64)| {
            (reserved / share).clamp(low, high).next_multiple_of(PAGE)
        };
        match layout.kind {
            Kind::Small => step(16, SMALL_STEP),
            Kind::Large => step(20, LARGE_STEP)
                .max(self.exact_size(layout))
                .min(DEDICATED_MIN - PAGE),
            Kind::Dedicated => layout.size,
        }
    }

    /// The smallest segment that holds the request.
    #[must_use]
    pub fn exact_size(&self, layout: &Layout) -> u64 {
        layout.size.next_multiple_of(PAGE)
    }

    /// Whether a fence is due after so many bytes and frees since the last.
    /// Sixteen fences share the in-flight limit, so that what passes first
    /// comes back while the rest keeps the GPU busy.
    /// Where a fence waits for the GPU (`waits`), four do, whatever the count.
    #[must_use]
    pub fn fence_due(&self, bytes: u64, frees: u32, waits: bool) -> bool {
        if waits {
            bytes >= self.inflight / 4
        } else {
            frees >= FENCE_FREES || bytes >= self.inflight / 16
        }
    }
}
