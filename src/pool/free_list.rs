//! Free blocks by size: best fit, lowest address first among equals, so that
//! the same calls always give the same addresses.
//!
//! Small, medium and large requests have segments of their own, and large free
//! blocks are not broken up for much smaller ones as long as that can be
//! avoided ([`Fit`]): one long-lived small block would keep a large segment from
//! ever being free as a whole.

use super::memory::Memory;
use super::size_class::{Kind, Layout, PAGE, SMALL_MAX};
use std::collections::BTreeSet;

/// `(size that counts, address, block)`.
type Entry = (u64, u64, u32);

/// How much larger than the request a block may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Hardly: what is left over of a large block is no more than an eighth of
    /// the request, of a medium one no more than a page.
    Tight,
    /// A little.
    Near,
    /// As much as it likes; a medium request may break up what large ones
    /// could use, and a small one may have a gap that page alignment leaves.
    Any,
    /// Memory is short: a small request may break up anything too.
    Short,
}

/// A large block is tight for a request if it is larger by at most this part.
const TIGHT: u64 = 8;
/// It is near if it is at most so many times as large, or so large.
const NEAR: (u64, u64) = (2, 8 << 20);

/// A free block.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Kind of its segment.
    pub kind: Kind,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// It is the whole segment.
    pub whole: bool,
    /// Its index.
    pub block: u32,
}

impl Run {
    /// A segment that is free as a whole.
    #[must_use]
    pub fn segment(kind: Kind, address: u64, size: u64, block: u32) -> Self {
        Self {
            kind,
            address,
            size,
            whole: true,
            block,
        }
    }
}

/// Free blocks of one kind of segments, by the bytes from their first page
/// boundary: exactly what a page-aligned request can have of them.
#[derive(Debug, Default)]
struct Runs {
    /// Parts of segments.
    parts: BTreeSet<Entry>,
    /// Whole segments.
    whole: BTreeSet<Entry>,
}

/// Ordered sets, logarithmic in the number of free blocks.
#[derive(Debug, Default)]
pub struct FreeList {
    memory: Memory,
    /// Blocks of small segments, by size.
    small: BTreeSet<Entry>,
    /// What page alignment leaves in other segments, too little for their own
    /// requests, by size.
    gaps: BTreeSet<Entry>,
    medium: Runs,
    large: Runs,
    /// Whole dedicated segments, by size.
    dedicated: BTreeSet<Entry>,
}

/// Bytes of `[address, address + size)` from its first page boundary on.
fn aligned_capacity(memory: Memory, address: u64, size: u64) -> u64 {
    (address + size).saturating_sub(address.next_multiple_of(memory.page()))
}

/// The smallest of at least `size` bytes.
fn first(set: &BTreeSet<Entry>, size: u64) -> Option<Entry> {
    set.range((size, 0, 0)..).next().copied()
}

/// The smallest of at least `size` bytes, if it has at most `most`.
fn within(set: &BTreeSet<Entry>, size: u64, most: u64) -> Option<Entry> {
    first(set, size).filter(|entry| entry.0 <= most)
}

impl Runs {
    /// One of at most `most` bytes, rather a part than a whole segment.
    fn within(&self, size: u64, most: u64) -> Option<Entry> {
        within(&self.parts, size, most).or_else(|| within(&self.whole, size, most))
    }

    fn any(&self, size: u64) -> Option<Entry> {
        self.within(size, u64::MAX)
    }
}

impl FreeList {
    /// An empty list of blocks of such memory.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    /// What its blocks are.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    fn set_for(&mut self, run: &Run) -> (&mut BTreeSet<Entry>, u64) {
        let runs = match run.kind {
            Kind::Small => return (&mut self.small, run.size),
            Kind::Dedicated => return (&mut self.dedicated, run.size),
            Kind::Medium => &mut self.medium,
            Kind::Large => &mut self.large,
        };
        let capacity = aligned_capacity(self.memory, run.address, run.size);
        if run.whole {
            (&mut runs.whole, capacity)
        } else if capacity > SMALL_MAX {
            (&mut runs.parts, capacity)
        } else {
            (&mut self.gaps, run.size)
        }
    }

    /// Adds a free block.
    pub fn insert(&mut self, run: Run) {
        let (set, key) = self.set_for(&run);
        let new = set.insert((key, run.address, run.block));
        debug_assert!(new);
    }

    /// Removes a block that was inserted as the same.
    pub fn remove(&mut self, run: Run) {
        let (set, key) = self.set_for(&run);
        let was = set.remove(&(key, run.address, run.block));
        debug_assert!(was);
    }

    /// The best block for `layout` among those that `fit` allows.
    pub fn best(&self, layout: &Layout, fit: Fit) -> Option<u32> {
        let size = layout.size;
        let any = !matches!(fit, Fit::Tight | Fit::Near);
        let (medium, large) = (&self.medium, &self.large);
        // Never split, so one that is much too large would be waste.
        let dedicated = || within(&self.dedicated, size, size + size / 4);
        let found = match layout.kind {
            Kind::Small => first(&self.small, size)
                .or_else(|| first(&self.gaps, size).filter(|_| any))
                .or_else(|| medium.any(size).filter(|_| fit == Fit::Short))
                .or_else(|| large.any(size).filter(|_| fit == Fit::Short)),
            Kind::Medium if fit == Fit::Tight => medium.within(size, size + PAGE),
            Kind::Large if fit == Fit::Tight => large.within(size, size + size / TIGHT),
            Kind::Medium => medium
                .any(size)
                .or_else(|| large.any(size).filter(|_| any))
                .or_else(dedicated),
            Kind::Large => large
                .within(size, size + size / TIGHT)
                .or_else(|| large.within(size, (NEAR.0 * size).max(NEAR.1)))
                .or_else(|| large.any(size).filter(|_| any))
                .or_else(|| medium.any(size).filter(|_| any))
                .or_else(dedicated),
            Kind::Dedicated => dedicated(),
        };
        found.map(|(_, _, block)| block)
    }

    fn sets(&self) -> [&BTreeSet<Entry>; 7] {
        let Runs { parts, whole } = &self.medium;
        [
            &self.small,
            &self.gaps,
            parts,
            whole,
            &self.large.parts,
            &self.large.whole,
            &self.dedicated,
        ]
    }

    /// Number of free blocks.
    pub fn count(&self) -> usize {
        self.sets().iter().map(|set| set.len()).sum()
    }

    /// Largest free run in bytes.
    pub fn largest(&self) -> u64 {
        self.sets()
            .iter()
            .filter_map(|set| set.last().map(|entry| entry.0))
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::size_class::{PAGE, layout};

    fn part(kind: Kind, address: u64, size: u64, block: u32) -> Run {
        Run {
            whole: false,
            ..Run::segment(kind, address, size, block)
        }
    }

    fn best(list: &FreeList, bytes: u64, fit: Fit) -> Option<u32> {
        list.best(&layout(bytes, false).unwrap(), fit)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn best_fit_counts_from_the_page_boundary() {
        let mut list = FreeList::default();
        // 7 MiB that begin 512 bytes after a boundary hold only 5 MiB aligned.
        list.insert(part(Kind::Large, PAGE + 512, 7 * MIB - 512, 1));
        list.insert(part(Kind::Large, 16 * MIB, 8 * MIB, 2));
        assert_eq!(best(&list, 5 * MIB, Fit::Near), Some(1));
        assert_eq!(best(&list, 6 * MIB, Fit::Near), Some(2));
        assert_eq!(best(&list, 9 * MIB, Fit::Any), None);
    }

    #[test]
    fn gaps_and_pages_serve_small_requests_when_they_have_to() {
        let mut list = FreeList::default();
        let gap = part(Kind::Large, PAGE + 4096, PAGE - 4096, 1);
        list.insert(gap);
        list.insert(part(Kind::Large, 16 * MIB, 6 * MIB, 2));
        assert_eq!(best(&list, 4096, Fit::Near), None);
        assert_eq!(best(&list, 4096, Fit::Any), Some(1));
        list.remove(gap);
        assert_eq!(best(&list, 4096, Fit::Any), None);
        assert_eq!(best(&list, 4096, Fit::Short), Some(2));
    }

    #[test]
    fn large_blocks_are_kept_for_large_requests() {
        let mut list = FreeList::default();
        list.insert(Run::segment(Kind::Large, 100 * MIB, 30 * MIB, 1));
        list.insert(part(Kind::Large, 200 * MIB, 100 * MIB, 2));
        for (bytes, near, any) in [
            (2 * MIB, None, Some(2)),
            (5 * MIB, None, Some(2)),
            (15 * MIB, Some(1), Some(1)),
            (28 * MIB, Some(1), Some(1)),
            (31 * MIB, None, Some(2)),
            (50 * MIB, Some(2), Some(2)),
        ] {
            let tight = Some(1).filter(|_| bytes == 28 * MIB);
            assert_eq!(best(&list, bytes, Fit::Tight), tight, "{bytes}");
            assert_eq!(best(&list, bytes, Fit::Near), near, "{bytes}");
            assert_eq!(best(&list, bytes, Fit::Any), any, "{bytes}");
        }
        // A part that is tight comes before a whole segment.
        list.insert(part(Kind::Large, 400 * MIB, 31 * MIB, 3));
        assert_eq!(best(&list, 29 * MIB, Fit::Near), Some(3));
        list.insert(Run::segment(Kind::Medium, 500 * MIB, 8 * MIB, 4));
        assert_eq!(best(&list, 2 * MIB, Fit::Near), Some(4));
    }

    #[test]
    fn equal_sizes_go_by_address() {
        let mut list = FreeList::default();
        for (address, block) in [(9 << 20, 1), (3 << 20, 2), (6 << 20, 3)] {
            list.insert(part(Kind::Small, address, 4096, block));
        }
        assert_eq!(best(&list, 1, Fit::Near), Some(2));
    }
}
