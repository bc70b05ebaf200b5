//! Free blocks by size: best fit, lowest address first among equals, so that
//! the same calls always give the same addresses.

use super::size_class::{Kind, Layout, PAGE, SMALL_MAX};
use std::collections::BTreeSet;

/// `(size that counts, address, block)`.
type Entry = (u64, u64, u32);

/// Ordered sets, logarithmic in the number of free blocks.
#[derive(Debug, Default)]
pub struct FreeList {
    /// Blocks for small requests: those of small segments, and the gaps of
    /// large ones. By size.
    small: BTreeSet<Entry>,
    /// Blocks of large segments, by the bytes from their first page boundary:
    /// exactly what a page-aligned request can have of them.
    large: BTreeSet<Entry>,
    /// Whole dedicated segments, by size.
    dedicated: BTreeSet<Entry>,
}

/// Bytes of `[address, address + size)` from its first page boundary on.
fn aligned_capacity(address: u64, size: u64) -> u64 {
    (address + size).saturating_sub(address.next_multiple_of(PAGE))
}

impl FreeList {
    fn set_for(&mut self, kind: Kind, address: u64, size: u64) -> (&mut BTreeSet<Entry>, u64) {
        match kind {
            Kind::Small => (&mut self.small, size),
            Kind::Dedicated => (&mut self.dedicated, size),
            Kind::Large => {
                let capacity = aligned_capacity(address, size);
                // What no large request could use is a gap, for small ones.
                if capacity > SMALL_MAX {
                    (&mut self.large, capacity)
                } else {
                    (&mut self.small, size)
                }
            }
        }
    }

    /// Adds a free block that lies in a segment of `kind`.
    pub fn insert(&mut self, kind: Kind, address: u64, size: u64, block: u32) {
        let (set, key) = self.set_for(kind, address, size);
        let new = set.insert((key, address, block));
        debug_assert!(new);
    }

    /// Removes a block that was inserted with the same arguments.
    pub fn remove(&mut self, kind: Kind, address: u64, size: u64, block: u32) {
        let (set, key) = self.set_for(kind, address, size);
        let was = set.remove(&(key, address, block));
        debug_assert!(was);
    }

    /// The best block for `layout`. `short`: memory is short, so a small
    /// request may also break up what large ones could use.
    pub fn best(&self, layout: &Layout, short: bool) -> Option<u32> {
        let first = |set: &BTreeSet<Entry>| set.range((layout.size, 0, 0)..).next().copied();
        // Never split, so one that is much too large would be waste.
        let whole = || first(&self.dedicated).filter(|e| e.0 <= layout.size + layout.size / 4);
        let found = match layout.kind {
            Kind::Small if short => first(&self.small).or_else(|| first(&self.large)),
            Kind::Small => first(&self.small),
            Kind::Large => first(&self.large).or_else(whole),
            Kind::Dedicated => whole(),
        };
        found.map(|(_, _, block)| block)
    }

    /// Number of free blocks.
    pub fn count(&self) -> usize {
        self.small.len() + self.large.len() + self.dedicated.len()
    }

    /// Largest free run in bytes.
    pub fn largest(&self) -> u64 {
        [&self.small, &self.large, &self.dedicated]
            .iter()
            .filter_map(|set| set.last().map(|e| e.0))
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::size_class::layout;

    #[test]
    fn best_fit_counts_from_the_page_boundary() {
        let mut list = FreeList::default();
        // 5 MiB that begin 512 bytes after a boundary hold only 3 MiB aligned.
        list.insert(Kind::Large, PAGE + 512, (5 << 20) - 512, 1);
        list.insert(Kind::Large, 16 << 20, 6 << 20, 2);
        assert_eq!(list.best(&layout(3 << 20, false).unwrap(), false), Some(1));
        assert_eq!(list.best(&layout(4 << 20, false).unwrap(), false), Some(2));
        assert_eq!(list.best(&layout(7 << 20, false).unwrap(), false), None);
    }

    #[test]
    fn gaps_serve_small_requests_and_pages_do_not_unless_memory_is_short() {
        let mut list = FreeList::default();
        list.insert(Kind::Large, PAGE + 4096, PAGE - 4096, 1);
        list.insert(Kind::Large, 16 << 20, 6 << 20, 2);
        assert_eq!(list.best(&layout(4096, false).unwrap(), false), Some(1));
        list.remove(Kind::Large, PAGE + 4096, PAGE - 4096, 1);
        assert_eq!(list.best(&layout(4096, false).unwrap(), false), None);
        assert_eq!(list.best(&layout(4096, false).unwrap(), true), Some(2));
    }

    #[test]
    fn equal_sizes_go_by_address() {
        let mut list = FreeList::default();
        for (address, block) in [(9 << 20, 1), (3 << 20, 2), (6 << 20, 3)] {
            list.insert(Kind::Small, address, 4096, block);
        }
        assert_eq!(list.best(&layout(1, false).unwrap(), false), Some(2));
    }
}
