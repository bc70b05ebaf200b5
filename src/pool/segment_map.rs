//! Address -> whose segment it lies in, for all pools of the process.
//!
//! A two-level table over 2 MiB pages of a 48-bit address space. Reads take
//! no lock: every free and query asks it first, in any thread, with or without
//! a context, also in a forked child and while the process ends.

use super::size_class::PAGE;
use std::sync::atomic::{AtomicPtr, Ordering};

const LEAF_BITS: u32 = 13;
const TOP_BITS: u32 = 48 - 21 - LEAF_BITS;

type Leaf<T> = [AtomicPtr<T>; 1 << LEAF_BITS];

/// The table. Entries are `&'static T`; leaves (64 KiB for 16 GiB of
/// addresses) are made on demand and never freed.
pub struct SegmentMap<T: 'static> {
    top: [AtomicPtr<Leaf<T>>; 1 << TOP_BITS],
}

impl<T> Default for SegmentMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> SegmentMap<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            top: [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << TOP_BITS],
        }
    }

    fn slot(&self, page: u64) -> Option<&AtomicPtr<T>> {
        let leaf = self
            .top
            .get((page >> LEAF_BITS) as usize)?
            .load(Ordering::Acquire);
        // SAFETY: a non-null leaf was published with Release after it was
        // fully made, and is never freed.
        let leaf = unsafe { leaf.as_ref() }?;
        Some(&leaf[(page as usize) & ((1 << LEAF_BITS) - 1)])
    }

    fn slot_or_new(&self, page: u64) -> Option<&AtomicPtr<T>> {
        let top = self.top.get((page >> LEAF_BITS) as usize)?;
        if top.load(Ordering::Acquire).is_null() {
            let new = Box::into_raw(Box::new(
                [const { AtomicPtr::new(std::ptr::null_mut()) }; 1 << LEAF_BITS],
            ));
            if top
                .compare_exchange(
                    std::ptr::null_mut(),
                    new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                )
                .is_err()
            {
                // SAFETY: `new` came from Box::into_raw above and, as the
                // exchange failed, was seen by nobody else.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        self.slot(page)
    }

    /// Whose segment `address` lies in.
    #[inline]
    pub fn get(&self, address: u64) -> Option<&'static T> {
        // SAFETY: entries come from `&'static T` in `insert`.
        unsafe { self.slot(address / PAGE)?.load(Ordering::Acquire).as_ref() }
    }

    /// Enters a segment (multiples of 2 MiB). Whatever stood there is
    /// replaced: the driver has just given these addresses to `owner`. False,
    /// and nothing entered, if they do not fit into 48 bits.
    pub fn insert(&self, base: u64, size: u64, owner: &'static T) -> bool {
        let Some(end) = base.checked_add(size).filter(|end| *end <= 1 << 48) else {
            return false;
        };
        for page in base / PAGE..end / PAGE {
            if let Some(slot) = self.slot_or_new(page) {
                slot.store(std::ptr::from_ref(owner).cast_mut(), Ordering::Release);
            }
        }
        true
    }

    /// Removes a segment where it is still `owner`'s.
    pub fn remove(&self, base: u64, size: u64, owner: &'static T) {
        for page in base / PAGE..(base + size) / PAGE {
            if let Some(slot) = self.slot(page) {
                let mine = std::ptr::from_ref(owner).cast_mut();
                let _ = slot.compare_exchange(
                    mine,
                    std::ptr::null_mut(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_page_and_only_those() {
        static MAP: SegmentMap<u32> = SegmentMap::new();
        static A: u32 = 1;
        static B: u32 = 2;
        assert!(MAP.insert(PAGE * 7, PAGE * 3, &A));
        assert_eq!(MAP.get(PAGE * 7 - 1), None);
        assert_eq!(MAP.get(PAGE * 7), Some(&1));
        assert_eq!(MAP.get(PAGE * 10 - 1), Some(&1));
        assert_eq!(MAP.get(PAGE * 10), None);
        // Another owner was given some of the addresses: those stay his.
        assert!(MAP.insert(PAGE * 8, PAGE, &B));
        MAP.remove(PAGE * 7, PAGE * 3, &A);
        assert_eq!(MAP.get(PAGE * 7), None);
        assert_eq!(MAP.get(PAGE * 8), Some(&2));
        assert!(!MAP.insert((1 << 48) - PAGE, PAGE * 2, &A));
        assert_eq!(MAP.get(u64::MAX), None);
    }
}
