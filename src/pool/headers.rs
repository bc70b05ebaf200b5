//! What every thread may see of a block without a lock: to whom it belongs,
//! and the way from an address to it.
//!
//! Both structures are written under the pool's lock, when blocks are carved
//! out of a segment and joined again, and read without one. They only grow.

use super::sync::Apart;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// To whom a block belongs. Changes by compare-and-swap, so that of two frees
/// of one address only one succeeds.
pub mod owner {
    /// The arena: free, or waiting for grace.
    pub const ARENA: u32 = 0;
    /// The program.
    pub const LIVE: u32 = 1;
    /// The program; when it is freed it goes to the arena at once, because its
    /// segment takes no new blocks.
    pub const LIVE_RETIRED: u32 = 2;
    /// A cache of the front.
    pub const CACHED: u32 = 3;
}

/// The shared part of a block.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Header {
    /// First byte.
    pub address: AtomicU64,
    /// Bytes, a multiple of the granule.
    pub size: AtomicU64,
    /// Bytes that the program asked for.
    pub requested: AtomicU64,
    /// Identity of this allocation, never used again.
    pub id: AtomicU64,
    /// One of [`owner`].
    pub owner: AtomicU32,
    /// SYNC_MEMOPS was set on it.
    pub sync_memops: AtomicU32,
}

impl Header {
    /// Moves the block from one owner to another; false if it was not there.
    #[inline]
    pub fn pass(&self, from: u32, to: u32) -> bool {
        self.owner
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether the program has it.
    pub fn is_live(&self) -> bool {
        matches!(
            self.owner.load(Ordering::Acquire),
            owner::LIVE | owner::LIVE_RETIRED
        )
    }
}

const FIRST_CHUNK_BITS: u32 = 10;
const CHUNKS: usize = 16;

/// Headers by index. Chunks of doubling size, never moved.
#[derive(Debug)]
pub struct Headers {
    chunks: [OnceLock<Box<[Header]>>; CHUNKS],
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }
}

/// Chunk and place in it of a header.
fn place(index: u32) -> (usize, usize) {
    let shifted = u64::from(index) + (1 << FIRST_CHUNK_BITS);
    let chunk = shifted.ilog2() - FIRST_CHUNK_BITS;
    (
        chunk as usize,
        (shifted - (1 << (chunk + FIRST_CHUNK_BITS))) as usize,
    )
}

impl Headers {
    /// The largest number of headers: an index has to fit into [`Owners`].
    pub const MAX: u32 = 1 << INDEX_BITS;

    /// The header `index`, if it was ever made.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Header> {
        let (chunk, place) = place(index);
        self.chunks.get(chunk)?.get()?.get(place)
    }

    /// The header `index`, made if need be. `None` beyond [`Headers::MAX`].
    pub fn get_or_make(&self, index: u32) -> Option<&Header> {
        if index >= Self::MAX {
            return None;
        }
        let (chunk, place) = place(index);
        let length = 1usize << (chunk as u32 + FIRST_CHUNK_BITS);
        let chunk = self
            .chunks
            .get(chunk)?
            .get_or_init(|| (0..length).map(|_| Header::default()).collect());
        chunk.get(place)
    }
}

/// An entry holds address / 512 above and the index below.
const INDEX_BITS: u32 = 25;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const TOMBSTONE: u64 = 1;
const FIRST_TABLE_BITS: u32 = 10;
const SIZES: usize = 17;

/// Address -> index of the header, for blocks that are carved out. Open
/// addressing in one of two tables of each size. A table that is full of
/// entries is followed by a larger one, one full of tombstones by its twin.
///
/// A reader can still be in a table when that is used again; `current` has
/// another generation then, so it looks again.
#[derive(Debug)]
pub struct Owners {
    tables: [[OnceLock<Box<[AtomicU64]>>; 2]; SIZES],
    /// Generation, size and twin of the table in use.
    current: Apart<AtomicU64>,
    /// Entries in use, and those with tombstones. Written under the pool's lock.
    live: AtomicUsize,
    used: AtomicUsize,
}

impl Default for Owners {
    fn default() -> Self {
        Self {
            tables: [const { [const { OnceLock::new() }; 2] }; SIZES],
            current: Apart(AtomicU64::new(0)),
            live: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        }
    }
}

/// Size and twin that `current` stands for.
fn which(current: u64) -> (usize, usize) {
    ((current >> 1 & 0x7F) as usize, (current & 1) as usize)
}

#[inline]
fn probe(key: u64, length: usize) -> impl Iterator<Item = usize> {
    let start = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize;
    (0..length).map(move |step| (start + step) & (length - 1))
}

impl Owners {
    #[inline]
    fn table(&self, current: u64) -> Option<&[AtomicU64]> {
        let (size, twin) = which(current);
        Some(self.tables.get(size)?[twin].get()?)
    }

    /// The index at `address`, if a block begins there.
    #[inline]
    pub fn get(&self, address: u64) -> Option<u32> {
        let key = address >> 9;
        if key == 0 || !address.is_multiple_of(512) || key >= 1 << (64 - INDEX_BITS) {
            return None;
        }
        loop {
            let current = self.current.load(Ordering::Acquire);
            let found = Self::find(self.table(current)?, key);
            fence(Ordering::Acquire);
            if self.current.load(Ordering::Relaxed) == current {
                return found;
            }
        }
    }

    #[inline]
    fn find(table: &[AtomicU64], key: u64) -> Option<u32> {
        for place in probe(key, table.len()) {
            let entry = table[place].load(Ordering::Acquire);
            if entry >> INDEX_BITS == key {
                return Some((entry & INDEX_MASK) as u32);
            }
            if entry == 0 {
                return None;
            }
        }
        None
    }

    /// Enters a block. Under the pool's lock; `address` is a multiple of 512
    /// below 2^48 and not entered yet.
    pub fn insert(&self, address: u64, index: u32) {
        let length = self
            .table(self.current.load(Ordering::Relaxed))
            .map_or(0, <[_]>::len);
        if (self.used.load(Ordering::Relaxed) + 1) * 4 > length * 3 {
            self.rebuild(length);
        }
        let entry = ((address >> 9) << INDEX_BITS) | u64::from(index);
        if let Some(table) = self.table(self.current.load(Ordering::Relaxed)) {
            let fresh = Self::place(table, entry);
            self.used.fetch_add(usize::from(fresh), Ordering::Relaxed);
            self.live.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes `entry` to its place; whether that was empty before.
    fn place(table: &[AtomicU64], entry: u64) -> bool {
        for place in probe(entry >> INDEX_BITS, table.len()) {
            let old = table[place].load(Ordering::Relaxed);
            if old == 0 || old == TOMBSTONE {
                table[place].store(entry, Ordering::Release);
                return old == 0;
            }
        }
        debug_assert!(false, "a table is never full");
        false
    }

    /// Goes over to a table without tombstones, in which less than half is used.
    fn rebuild(&self, length: usize) {
        let current = self.current.load(Ordering::Relaxed);
        let live = self.live.load(Ordering::Relaxed);
        let (size, twin) = which(current);
        let (size, twin) = match length {
            0 => (0, 0),
            _ if live * 2 < length => (size, 1 - twin),
            _ => ((size + 1).min(SIZES - 1), 0),
        };
        let slots = 1usize << (FIRST_TABLE_BITS as usize + size);
        let table =
            self.tables[size][twin].get_or_init(|| (0..slots).map(|_| AtomicU64::new(0)).collect());
        for entry in table {
            entry.store(0, Ordering::Relaxed);
        }
        for entry in self
            .table(current)
            .filter(|_| length > 0)
            .into_iter()
            .flatten()
        {
            let entry = entry.load(Ordering::Relaxed);
            if entry > TOMBSTONE {
                Self::place(table, entry);
            }
        }
        self.used.store(live, Ordering::Relaxed);
        let next = ((current >> 8) + 1) << 8 | (size as u64) << 1 | twin as u64;
        self.current.store(next, Ordering::Release);
    }

    /// Removes a block. Under the pool's lock.
    pub fn remove(&self, address: u64) {
        let key = address >> 9;
        let Some(table) = self.table(self.current.load(Ordering::Relaxed)) else {
            return;
        };
        for place in probe(key, table.len()) {
            let entry = table[place].load(Ordering::Relaxed);
            if entry == 0 {
                return;
            }
            if entry >> INDEX_BITS == key {
                // The end of a run needs no tombstone.
                let last = table[(place + 1) & (table.len() - 1)].load(Ordering::Relaxed) == 0;
                table[place].store(if last { 0 } else { TOMBSTONE }, Ordering::Release);
                self.live.fetch_sub(1, Ordering::Relaxed);
                self.used.fetch_sub(usize::from(last), Ordering::Relaxed);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn indices_have_places_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        for index in 0..10_000 {
            assert!(seen.insert(place(index)));
        }
        assert_eq!(
            (place(0), place(1023), place(1024), place(3071)),
            ((0, 0), (0, 1023), (1, 0), (1, 2047))
        );
        let headers = Headers::default();
        assert!(headers.get(5000).is_none());
        assert!(headers.get_or_make(5000).is_some());
        assert!(headers.get(5000).is_some());
        assert!(headers.get_or_make(Headers::MAX).is_none());
    }

    #[test]
    fn owners_agree_with_a_map() {
        let (owners, mut map) = (Owners::default(), HashMap::new());
        let mut seed = 1u64;
        for step in 0..200_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let address = ((seed >> 40) % 30_000 + 1) * 512;
            if map.remove(&address).is_some() {
                owners.remove(address);
            } else if map.len() < 3000 || seed & 1 == 0 {
                map.insert(address, step);
                owners.insert(address, step);
            }
            assert_eq!(owners.get(address), map.get(&address).copied());
        }
        for address in (512..30_001 * 512).step_by(512) {
            assert_eq!(owners.get(address), map.get(&address).copied());
        }
        assert_eq!(owners.get(513), None);
        assert_eq!(owners.get(!511), None);
    }

    /// Churn with few live entries does not make the table grow.
    #[test]
    fn tombstones_are_cleared_in_place() {
        let owners = Owners::default();
        for round in 0..1_000_000u64 {
            owners.insert((round + 1) * 512, 7);
            if round >= 100 {
                owners.remove((round - 99) * 512);
            }
        }
        assert_eq!(which(owners.current.load(Ordering::Relaxed)).0, 0);
    }

    /// Readers of entries that stay find them while others come and go.
    #[test]
    fn readers_are_never_misled() {
        let owners = Owners::default();
        let stay = |i: u64| (i + 1) * 1024 * 512;
        for i in 0..64 {
            owners.insert(stay(i), i as u32);
        }
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        for i in 0..64 {
                            assert_eq!(owners.get(stay(i)), Some(i as u32));
                        }
                    }
                });
            }
            for round in 0..300_000u64 {
                owners.insert((round * 2 + 1) * 512 + (1 << 40), 9);
                if round >= 50 {
                    owners.remove(((round - 50) * 2 + 1) * 512 + (1 << 40));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
