//! Memory of the pool that no block owns and that holds the pattern: address
//! ranges, and whose they were last.

use crate::logging::callsite::CallSite;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A block that was freed.
#[derive(Debug, Default)]
pub(super) struct Former {
    pub address: u64,
    /// Bytes that the program had asked for.
    pub requested: u64,
    pub allocated: CallSite,
    pub freed: CallSite,
    /// A write to it was reported: once is enough.
    pub reported: AtomicBool,
}

/// Whose a range was; `None`: nobody's since its segment came from the driver.
pub(super) type Last = Option<Arc<Former>>;

/// A part of a range that was taken out or looked at.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub start: u64,
    pub end: u64,
    pub last: Last,
}

/// Ranges by their first byte. They do not overlap.
#[derive(Debug, Default)]
pub(super) struct Unowned(BTreeMap<u64, (u64, Last)>);

impl Unowned {
    /// Enters `[start, end)`, which overlaps no other range.
    pub fn insert(&mut self, start: u64, end: u64, last: Last) {
        if start < end {
            self.0.insert(start, (end, last));
        }
    }

    /// Takes out all that lies in `[start, end)`; what sticks out of it stays.
    pub fn take(&mut self, start: u64, end: u64) -> Vec<Part> {
        let keys: Vec<u64> = self
            .0
            .range(..end)
            .rev()
            .take_while(|(_, (to, _))| *to > start)
            .map(|(from, _)| *from)
            .collect();
        let mut parts = Vec::with_capacity(keys.len());
        for from in keys.into_iter().rev() {
            let Some((to, last)) = self.0.remove(&from) else {
                continue;
            };
            self.insert(from, start.min(to), last.clone());
            self.insert(end.max(from), to, last.clone());
            parts.push(Part {
                start: from.max(start),
                end: to.min(end),
                last,
            });
        }
        parts
    }

    /// The first part at or after `address`, at most `limit` bytes of it.
    pub fn next(&self, address: u64, limit: u64) -> Option<Part> {
        let inside = self
            .0
            .range(..address)
            .next_back()
            .filter(|(_, (to, _))| *to > address);
        let (from, (to, last)) = inside.or_else(|| self.0.range(address..).next())?;
        let start = (*from).max(address);
        Some(Part {
            start,
            end: (*to).min(start + limit),
            last: last.clone(),
        })
    }

    /// The range that contains `address`.
    pub fn around(&self, address: u64) -> Option<Part> {
        let (from, (to, last)) = self.0.range(..=address).next_back()?;
        (*to > address).then(|| Part {
            start: *from,
            end: *to,
            last: last.clone(),
        })
    }

    /// The first freed block that begins at or behind `address`, and of whose
    /// memory the beginning is still here.
    pub fn first_former(&self, address: u64) -> Option<&Former> {
        let mut ranges = self.0.range(address..);
        ranges
            .find_map(|(from, (_, last))| last.as_deref().filter(|former| former.address == *from))
    }

    /// All of it.
    pub fn all(&self) -> Vec<Part> {
        self.0
            .iter()
            .map(|(from, (to, last))| Part {
                start: *from,
                end: *to,
                last: last.clone(),
            })
            .collect()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(parts: &[Part]) -> Vec<(u64, u64)> {
        parts.iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn taking_splits_what_sticks_out() {
        let mut unowned = Unowned::default();
        unowned.insert(0, 100, None);
        unowned.insert(100, 200, Some(Arc::default()));
        unowned.insert(300, 400, None);
        let parts = unowned.take(50, 320);
        assert_eq!(spans(&parts), [(50, 100), (100, 200), (300, 320)]);
        assert!(parts[0].last.is_none() && parts[1].last.is_some());
        assert_eq!(spans(&unowned.all()), [(0, 50), (320, 400)]);
        assert!(unowned.take(50, 320).is_empty());
        assert_eq!(spans(&unowned.take(10, 20)), [(10, 20)]);
        assert_eq!(spans(&unowned.all()), [(0, 10), (20, 50), (320, 400)]);
        unowned.insert(5, 5, None);
        assert_eq!(spans(&unowned.all()).len(), 3);
    }

    #[test]
    fn a_walk_by_next_sees_everything_once() {
        let mut unowned = Unowned::default();
        unowned.insert(10, 40, None);
        unowned.insert(64, 65, None);
        let (mut at, mut seen) = (0, Vec::new());
        while let Some(part) = unowned.next(at, 16) {
            seen.push((part.start, part.end));
            at = part.end;
        }
        assert_eq!(seen, [(10, 26), (26, 40), (64, 65)]);
        let around = |at| unowned.around(at).map(|part| (part.start, part.end));
        assert_eq!(
            [9, 10, 39, 40, 64].map(around),
            [None, Some((10, 40)), Some((10, 40)), None, Some((64, 65))]
        );
    }

    /// Against one flag a byte.
    #[test]
    fn agrees_with_a_map_of_bytes() {
        const SIZE: u64 = 256;
        let (mut unowned, mut bytes) = (Unowned::default(), [false; SIZE as usize]);
        let mut seed = 7u64;
        let mut random = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1442695040888963407);
            seed >> 33
        };
        for _ in 0..20_000 {
            let start = random() % SIZE;
            let end = (start + 1 + random() % 40).min(SIZE);
            let taken = unowned.take(start, end);
            for byte in start..end {
                let in_part = taken.iter().any(|p| (p.start..p.end).contains(&byte));
                assert_eq!(in_part, bytes[byte as usize]);
            }
            let back = random() % 2 == 0;
            bytes[start as usize..end as usize].fill(back);
            if back {
                unowned.insert(start, end, None);
            }
        }
    }
}
