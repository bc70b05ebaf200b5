//! Addresses to map memory at, first fit. Pure: the ranges come from the driver,
//! which is asked for one that lasts.

use super::size_class::PAGE;
use std::collections::BTreeMap;

/// Ranges of addresses, of which parts are in use.
#[derive(Debug, Default)]
pub struct Addresses {
    /// Free ranges by their first byte; no two touch within one of [`Self::all`].
    free: BTreeMap<u64, u64>,
    /// What was added.
    all: Vec<(u64, u64)>,
}

impl Addresses {
    /// Adds `[base, base + bytes)`, multiples of 2 MiB that were never added.
    pub fn add(&mut self, base: u64, bytes: u64) {
        debug_assert!(base.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE));
        self.all.push((base, bytes));
        self.free.insert(base, bytes);
    }

    /// The lowest `bytes` (a multiple of 2 MiB) that are free; `None` if there is
    /// no such range.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&base, &has) = self.free.iter().find(|(_, has)| **has >= bytes)?;
        self.free.remove(&base);
        if has > bytes {
            self.free.insert(base + bytes, has - bytes);
        }
        Some(base)
    }

    /// Gives back what [`Addresses::take`] gave.
    pub fn give(&mut self, base: u64, bytes: u64) {
        let (mut base, mut bytes) = (base, bytes);
        // Ranges of the driver's that lie side by side stay apart: nothing can be
        // mapped across two reservations.
        let begins = |at: u64| self.all.iter().any(|range| range.0 == at);
        let before = self.free.range(..base).next_back();
        if let Some((&at, &has)) = before
            && at + has == base
            && !begins(base)
        {
            self.free.remove(&at);
            (base, bytes) = (at, has + bytes);
        }
        let end = base + bytes;
        if !self.all.iter().any(|range| range.0 == end)
            && let Some(has) = self.free.remove(&end)
        {
            bytes += has;
        }
        self.free.insert(base, bytes);
    }

    /// Takes everything out: the ranges that were added.
    pub fn drain(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(self).all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of pages, each free or not.
    #[test]
    fn first_fit_as_a_list_of_pages_has_it() {
        const PAGES: usize = 64;
        // Two ranges side by side, and a third apart.
        let ranges = [(1, 24), (25, 24), (60, 16)];
        let mut addresses = Addresses::default();
        let mut free = [false; 80];
        for (first, count) in ranges {
            addresses.add(first * PAGE, count * PAGE);
            (first..first + count).for_each(|page| free[page as usize] = true);
        }
        let crosses = |at: usize, count: usize| at < 25 && at + count > 25;
        let naive = |free: &[bool], count: usize| {
            (0..=free.len() - count)
                .find(|at| free[*at..at + count].iter().all(|f| *f) && !crosses(*at, count))
        };
        let (mut seed, mut taken) = (1u64, Vec::new());
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (seed >> 33) as usize;
            if random.is_multiple_of(2) || taken.is_empty() {
                let count = random / 2 % 9 + 1;
                let at = addresses.take(count as u64 * PAGE);
                assert_eq!(at, naive(&free, count).map(|page| page as u64 * PAGE));
                if let Some(at) = at {
                    let page = (at / PAGE) as usize;
                    free[page..page + count].fill(false);
                    taken.push((page, count));
                }
            } else {
                let (page, count) = taken.swap_remove(random / 2 % taken.len());
                addresses.give(page as u64 * PAGE, count as u64 * PAGE);
                free[page..page + count].fill(true);
            }
        }
        for (page, count) in taken {
            addresses.give(page as u64 * PAGE, count as u64 * PAGE);
        }
        assert_eq!(addresses.free.len(), ranges.len());
        assert_eq!(addresses.free.values().sum::<u64>(), PAGES as u64 * PAGE);
        assert_eq!(addresses.drain().len(), ranges.len());
    }
}
