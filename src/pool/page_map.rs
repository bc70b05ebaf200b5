//! Address -> whose segment it lies in, for segments that begin at any page of
//! 4 KiB, as pinned memory does; see [`super::segment_map`] for those of 2 MiB.
//!
//! A table of three levels over a 48-bit address space. Reads take no lock, as
//! frees and queries ask it in any thread, also in a forked child and while the
//! process ends.

use std::sync::atomic::{AtomicPtr, Ordering};

/// Segments begin and end at multiples of this many bytes.
pub const STEP: u64 = 4096;
const BITS: u32 = 12;
const FANOUT: usize = 1 << BITS;

type Table<T> = [AtomicPtr<T>; FANOUT];
type Leaf<T> = Table<T>;
type Middle<T> = Table<Leaf<T>>;

/// The table. Entries are `&'static T`; leaves (32 KiB for 16 MiB of addresses)
/// are made on demand and never freed.
pub struct PageMap<T: 'static> {
    top: Table<Middle<T>>,
}

impl<T> Default for PageMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

const fn empty<T>() -> Table<T> {
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FANOUT]
}

/// The table behind `slot`, if there is one.
fn below<T>(slot: &AtomicPtr<Table<T>>) -> Option<&Table<T>> {
    // SAFETY: a table that is not null was published with Release after it was
    // fully made, and is never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// The same, made if there is none.
fn below_or_new<T>(slot: &AtomicPtr<Table<T>>) -> Option<&Table<T>> {
    if slot.load(Ordering::Acquire).is_null() {
        let new = Box::into_raw(Box::new(empty::<T>()));
        let null = std::ptr::null_mut();
        if slot
            .compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: `new` came from Box::into_raw above and, as the exchange
            // failed, was seen by nobody else.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    below(slot)
}

fn index(page: u64, level: u32) -> usize {
    (page >> (BITS * level)) as usize & (FANOUT - 1)
}

impl<T> PageMap<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { top: empty() }
    }

    fn slot(&self, page: u64) -> Option<&AtomicPtr<T>> {
        let middle = below(self.top.get((page >> (BITS * 2)) as usize)?)?;
        Some(&below(&middle[index(page, 1)])?[index(page, 0)])
    }

    fn slot_or_new(&self, page: u64) -> Option<&AtomicPtr<T>> {
        let middle = below_or_new(self.top.get((page >> (BITS * 2)) as usize)?)?;
        Some(&below_or_new(&middle[index(page, 1)])?[index(page, 0)])
    }

    /// Whose segment `address` lies in.
    #[inline]
    pub fn get(&self, address: u64) -> Option<&'static T> {
        // SAFETY: entries come from `&'static T` in `insert`.
        unsafe { self.slot(address / STEP)?.load(Ordering::Acquire).as_ref() }
    }

    /// Enters a segment. Whatever stood there is replaced: the driver has just
    /// given these addresses to `owner`. False, and nothing entered, if they do
    /// not fit into 48 bits or are no whole pages.
    pub fn insert(&self, base: u64, size: u64, owner: &'static T) -> bool {
        let Some(end) = base.checked_add(size).filter(|end| *end <= 1 << 48) else {
            return false;
        };
        if !(base | size).is_multiple_of(STEP) {
            return false;
        }
        for page in base / STEP..end / STEP {
            if let Some(slot) = self.slot_or_new(page) {
                slot.store(std::ptr::from_ref(owner).cast_mut(), Ordering::Release);
            }
        }
        true
    }

    /// Removes a segment where it is still `owner`'s.
    pub fn remove(&self, base: u64, size: u64, owner: &'static T) {
        let mine = std::ptr::from_ref(owner).cast_mut();
        for page in base / STEP..(base + size) / STEP {
            if let Some(slot) = self.slot(page) {
                let none = std::ptr::null_mut();
                let _ = slot.compare_exchange(mine, none, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_page_and_only_those() {
        static MAP: PageMap<u32> = PageMap::new();
        static A: u32 = 1;
        static B: u32 = 2;
        // Over the edge of a leaf.
        let base = (16 << 20) - 2 * STEP;
        assert!(MAP.insert(base, 4 * STEP, &A));
        assert_eq!(MAP.get(base - 1), None);
        for page in 0..4 {
            assert_eq!(MAP.get(base + page * STEP), Some(&1));
            assert_eq!(MAP.get(base + page * STEP + STEP - 1), Some(&1));
        }
        assert_eq!(MAP.get(base + 4 * STEP), None);
        // Another owner was given some of the addresses: those stay his.
        assert!(MAP.insert(base + STEP, STEP, &B));
        MAP.remove(base, 4 * STEP, &A);
        assert_eq!(MAP.get(base), None);
        assert_eq!(MAP.get(base + STEP), Some(&2));
        assert!(!MAP.insert((1 << 48) - STEP, 2 * STEP, &A));
        assert!(!MAP.insert(base + 512, STEP, &A));
        assert_eq!(MAP.get(u64::MAX), None);
        assert_eq!(MAP.get(0), None);
    }
}
