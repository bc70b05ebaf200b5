//! How much to take from the driver, how much may wait, and for how long.

use super::memory::Memory;
use super::size_class::{DEDICATED_MIN, Kind, Layout, PAGE};
use std::time::Duration;

/// Limits of one pool, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What the pool is made of.
    pub memory: Memory,
    /// Most that the pool may hold of the device, or of the host.
    pub max: u64,
    /// Most that may wait for grace before an allocation waits for the oldest
    /// fence rather than take new memory; `None` adapts.
    pub inflight: Option<u64>,
    /// Memory of the device, or of the host.
    pub total: u64,
    /// Longest that an allocation waits for grace.
    pub wait: Duration,
    /// Requests of 2 MiB and more have a segment of their own, so that an
    /// importer of one, who maps the segment, can see no other.
    pub isolate: bool,
    /// Segments are mapped rather than allocated: they can be taken and given
    /// back without waiting for the GPU, so that each fits what it serves, and
    /// goes where nothing lives in it.
    pub mapped: bool,
}

/// The smallest and largest segment for small requests; a sixteenth of what is
/// held lies between.
const SMALL_STEP: (u64, u64) = (PAGE, 32 << 20);
/// The same for medium ones, and a twentieth.
const MEDIUM_STEP: (u64, u64) = (8 << 20, 32 << 20);
/// The same for large ones while the GPU works: what waits for it cannot serve
/// other sizes, unless it joins, so that segments of one block each would be
/// needed for every size (replay of recorded training with fences 0.2 ms late:
/// 1.90 times its live memory, so 1.16).
/// Otherwise large requests get segments of their size: those become empty as a
/// whole, and can go back.
const LARGE_STEP: (u64, u64) = (32 << 20, 1 << 30);
/// Small and medium segments of pinned memory: each MiB beyond what is asked for
/// costs nearly as much as the call that it saves, and is the whole machine's, so
/// they are an eighth of what is held. Large requests get what they need.
const HOST_STEP: (u64, u64) = (PAGE, 16 << 20);
/// What the pool may hold before it gives empty segments back for new ones: so
/// much at any time, and so many hundredths of what the program has held at
/// most; the last where the budget for order is spent. Figures
/// from recorded traces of real programs: less costs driver calls, more costs
/// memory and saves few.
const TARGET: (u64, u64, u64) = (64 << 20, 120, 150);
/// The same for mapped ones: a page can go back as soon as nothing is in it, and
/// each call of the driver costs as much for a page as for four.
const SMALL_MAPPED: (u64, u64, u64) = (128, PAGE, 4 << 20);
/// What a pool of mapped segments may hold before empty ones go back for new
/// ones: so much at any time, and so many hundredths of what the program has held
/// at most; so many more where the time for mapping is used up, and at most.
const MAPPED_TARGET: (u64, u64, u64, u64) = (16 << 20, 105, 3, 110);
/// A segment may be broken up for a smaller request where those in use are then
/// so many hundredths of the program's peak, likewise: what is pinned around
/// short-lived blocks while a program holds little is free again when it holds
/// much. (Less costs more driver calls: on a recorded training 1.2% of the time
/// with none, 0.35% with these. More costs memory.)
const MAPPED_SPLIT: (u64, u64, u64) = (60, 10, 90);
/// Misses poll this long in sum before the pool takes new memory: about what
/// the driver's allocation costs (30 µs on an H200). So polling never costs
/// more than growing would have, and a pool in which allocations keep missing
/// by a little becomes a little larger.
pub const PATIENCE: Duration = Duration::from_micros(20);

/// So often is a fence asked for before a wait gives up on it: another thread
/// that is just recording is no reason, a capture that stays open is.
pub const REFUSALS: u32 = 200;

/// Requests of at least this many bytes wait for memory to join before the pool
/// grows: smaller ones find room more easily, and come more often.
pub const JOINED_MIN: u64 = 32 << 20;

/// They do so from where the pool holds this part of the device: below, memory
/// is worth less than keeping the GPU busy.
pub const JOINS_FROM: u64 = 16;

/// Longest that a request waits for memory to join before the pool grows.
pub const GROWTH_WAIT: Duration = Duration::from_millis(5);

/// `base` hundredths of `bytes`, and `more` for each time that `spent` holds 1, at
/// most `most`.
fn share(bytes: u64, (base, more, most): (u64, u64, u64), spent: f64) -> u64 {
    let percent = (base as f64 + more as f64 * spent).min(most as f64);
    (bytes as f64 / 100.0 * percent) as u64
}

impl Policy {
    /// What a request of `bytes` takes; `None` for what the driver answers.
    #[must_use]
    pub fn layout(&self, bytes: u64) -> Option<Layout> {
        self.memory.layout(bytes, self.isolate)
    }

    /// Size of the segment to take for a request, with `reserved` bytes held
    /// and [`Policy::target`]; `busy`: the GPU works.
    #[must_use]
    pub fn segment_size(&self, layout: &Layout, reserved: u64, target: u64, busy: bool) -> u64 {
        let step = |share: u64, (low, high): (u64, u64)| {
            (reserved / share).clamp(low, high).next_multiple_of(PAGE)
        };
        let exact = self.exact_size(layout);
        if self.memory == Memory::Host {
            return match layout.kind {
                Kind::Small | Kind::Medium => step(8, HOST_STEP).max(exact),
                Kind::Large | Kind::Dedicated => exact,
            };
        }
        match layout.kind {
            Kind::Small if self.mapped => {
                let (share, low, high) = SMALL_MAPPED;
                step(share, (low, high))
            }
            _ if self.mapped => exact,
            Kind::Small => step(16, SMALL_STEP),
            // Beyond the target no more than needed.
            Kind::Medium if reserved + exact >= target => exact,
            Kind::Medium => step(20, MEDIUM_STEP).min(target - reserved).max(exact) / PAGE * PAGE,
            Kind::Large if busy => step(20, LARGE_STEP).max(exact).min(DEDICATED_MIN - PAGE),
            Kind::Large | Kind::Dedicated => exact,
        }
    }

    /// What the pool may hold where the program has held `peak_live` bytes at
    /// most; `in_order`: there is time for keeping it small. It may have to hold
    /// more.
    #[must_use]
    pub fn target(&self, peak_live: u64, in_order: bool) -> u64 {
        let percent = if in_order { TARGET.1 } else { TARGET.2 };
        (peak_live / 100 * percent).max(TARGET.0)
    }

    /// [`Policy::target`] of mapped segments; `spent`: which part of the time
    /// that mapping may take it has taken.
    #[must_use]
    pub fn mapped_target(&self, peak_live: u64, spent: f64) -> u64 {
        let (least, base, more, most) = MAPPED_TARGET;
        share(peak_live, (base, more, most), spent).max(least)
    }

    /// Up to how many bytes of mapped segments in use one is broken up for a
    /// much smaller request.
    #[must_use]
    pub fn splits_until(&self, peak_live: u64, spent: f64) -> u64 {
        share(peak_live, MAPPED_SPLIT, spent)
    }

    /// How the pool grows for a request with `reserved` bytes held. From half of
    /// the device on, a large request gets a segment of its own, as the driver
    /// would give it: what is never split can always be given back whole, so
    /// that the rest of the device does not go to pieces.
    #[must_use]
    pub fn growth(&self, layout: &Layout, reserved: u64) -> Layout {
        match layout.kind {
            Kind::Medium | Kind::Large if self.is_scarce(reserved) => Layout {
                size: self.exact_size(layout),
                kind: Kind::Dedicated,
                ..*layout
            },
            _ => *layout,
        }
    }

    /// Whether the pool holds so much that memory counts more than time.
    #[must_use]
    pub fn is_scarce(&self, reserved: u64) -> bool {
        reserved >= self.total.min(self.max) / 2
    }

    /// The smallest segment that holds the request.
    #[must_use]
    pub fn exact_size(&self, layout: &Layout) -> u64 {
        layout.size.next_multiple_of(self.memory.unit())
    }
}
