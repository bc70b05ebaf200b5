//! The front of a pool: caches of freed blocks, so that a hit and a free share
//! nothing with other threads.
//!
//! A cache belongs to a slot, and a thread to a slot for its life; threads
//! beyond the number of slots share. Each slot has a lock, which its thread
//! nearly always finds free, so that others can empty it: when memory is
//! short, when the program asks what is free, when a segment is retired. There
//! is nothing to do when a thread ends.
//!
//! A cached block waits for grace here as it would in the arena: it is handed
//! out only when its epoch is complete.

use super::grace::Epoch;
use super::stats::Counts;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks up to this many bytes are cached. Larger ones are rare and the work on
/// them long, so that the arena's cost does not show.
pub const CACHED_MAX: u64 = 64 << 20;

const SLOTS: usize = 64;
/// Bins of a cache. A size has its place in a few of them only, so that a
/// look-up costs the same however many sizes a program uses.
const BINS: usize = 128;
/// How many bins a size can be in.
const WAYS: usize = 4;
/// Bits of an id below the slot's number.
const ID_BITS: u32 = 38;

/// Freed blocks of one size, oldest first.
#[derive(Debug, Default)]
struct Bin {
    size: u64,
    used_at: u64,
    blocks: VecDeque<(Epoch, u32)>,
}

/// The cache of a slot.
#[derive(Debug, Default)]
pub struct Cache {
    /// None before the first free, then [`BINS`].
    bins: Box<[Bin]>,
    ticks: u64,
    next_id: u64,
    bytes: u64,
    /// Most bytes that it keeps; its share of what may wait.
    budget: u64,
    /// Epoch of the last free here, and what was freed in it.
    unfenced: (Epoch, u64, u32),
    /// What this slot's threads did.
    pub counts: Counts,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    cache: Mutex<Cache>,
    /// Bytes in the cache, for a look without the lock.
    bytes: AtomicU64,
}

/// All caches of a pool.
#[derive(Debug)]
pub struct Front {
    slots: [Slot; SLOTS],
    /// Slots below this number were used; the others are empty.
    used: AtomicUsize,
}

impl Default for Front {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot::default()),
            used: AtomicUsize::new(0),
        }
    }
}

/// The bins that `size` can be in.
#[inline]
fn ways(size: u64) -> impl Iterator<Item = usize> {
    let first = ((size >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
    (0..WAYS).map(move |way| (first + way) % BINS)
}

/// The slot of the calling thread.
fn my_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // No destructor: it works also while the thread and the process end.
        static SLOT: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SLOT.with(|slot| {
        if slot.get() == usize::MAX {
            slot.set(NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS);
        }
        slot.get()
    })
}

fn lock(slot: &Slot) -> MutexGuard<'_, Cache> {
    slot.cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread's cache, locked.
pub struct Mine<'a> {
    slot: &'a Slot,
    number: u64,
    /// The cache.
    pub cache: MutexGuard<'a, Cache>,
}

impl Front {
    /// The calling thread's cache.
    #[inline]
    pub fn mine(&self) -> Mine<'_> {
        let number = my_slot();
        let slot = &self.slots[number];
        if self.used.load(Ordering::Relaxed) <= number {
            self.used.fetch_max(number + 1, Ordering::Relaxed);
        }
        Mine {
            slot,
            number: number as u64,
            cache: lock(slot),
        }
    }

    /// The share of `limit` of a slot: it goes to those that hold anything now.
    pub fn share(&self, limit: u64) -> u64 {
        let holding = self
            .slots
            .iter()
            .filter(|slot| slot.bytes.load(Ordering::Relaxed) != 0);
        limit / (holding.count().max(1) as u64)
    }

    fn used(&self) -> &[Slot] {
        &self.slots[..self.used.load(Ordering::Relaxed)]
    }

    /// Bytes in all caches.
    pub fn bytes(&self) -> u64 {
        self.used()
            .iter()
            .map(|slot| slot.bytes.load(Ordering::Relaxed))
            .sum()
    }

    /// Empties every cache into `take`. A block that is on its way into a
    /// cache meanwhile may be missed.
    pub fn flush(&self, mut take: impl FnMut(Epoch, u32)) {
        for slot in self
            .slots
            .iter()
            .filter(|slot| slot.bytes.load(Ordering::Relaxed) != 0)
        {
            let mut cache = lock(slot);
            for bin in &mut cache.bins {
                bin.blocks
                    .drain(..)
                    .for_each(|(epoch, index)| take(epoch, index));
            }
            cache.bytes = 0;
            slot.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Sum of the counts of all slots.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.used()
            .iter()
            .for_each(|slot| sum.add(&lock(slot).counts));
        sum
    }
}

impl Mine<'_> {
    /// A block of exactly `size` bytes whose epoch is complete.
    #[inline]
    pub fn take(&mut self, size: u64, completed: Epoch) -> Option<u32> {
        let cache = &mut *self.cache;
        let bin = &mut cache.bins
            [ways(size).find(|way| cache.bins.get(*way).is_some_and(|bin| bin.size == size))?];
        let &(epoch, index) = bin.blocks.front()?;
        if epoch > completed {
            return None;
        }
        bin.blocks.pop_front();
        cache.ticks += 1;
        bin.used_at = cache.ticks;
        cache.bytes -= size;
        self.slot.bytes.store(cache.bytes, Ordering::Relaxed);
        Some(index)
    }

    /// Takes in a block of `size` bytes freed in `epoch`. Whatever has to
    /// leave the cache, because it holds more than its budget or too many
    /// sizes, goes to `spill`, oldest first.
    #[inline]
    pub fn put(&mut self, size: u64, epoch: Epoch, index: u32, spill: &mut Vec<(Epoch, u32)>) {
        let cache = &mut *self.cache;
        cache.ticks += 1;
        let place = ways(size).find(|way| cache.bins.get(*way).is_some_and(|bin| bin.size == size));
        let place = place.unwrap_or_else(|| cache.make_room(size, spill));
        let bin = &mut cache.bins[place];
        bin.used_at = cache.ticks;
        bin.blocks.push_back((epoch, index));
        cache.bytes += size;
        if cache.bytes > cache.budget {
            cache.spill_some(spill);
        }
        self.slot.bytes.store(cache.bytes, Ordering::Relaxed);
    }

    /// Whether a free in `epoch` is the first here since that was opened.
    #[inline]
    pub fn is_first_in(&self, epoch: Epoch) -> bool {
        self.cache.unfenced.0 != epoch
    }

    /// Sets what the cache may keep.
    pub fn set_budget(&mut self, bytes: u64) {
        self.cache.budget = bytes;
    }

    /// Whether the cache holds blocks of this size, complete or not.
    pub fn holds(&self, size: u64) -> bool {
        ways(size).any(|way| {
            self.cache
                .bins
                .get(way)
                .is_some_and(|bin| bin.size == size && !bin.blocks.is_empty())
        })
    }

    /// Notes a free of `size` bytes in `epoch`; what was freed in it here.
    #[inline]
    pub fn freed(&mut self, epoch: Epoch, size: u64) -> (u64, u32) {
        let (last, bytes, frees) = self.cache.unfenced;
        let sum = if last == epoch {
            (epoch, bytes + size, frees + 1)
        } else {
            (epoch, size, 1)
        };
        self.cache.unfenced = sum;
        (sum.1, sum.2)
    }

    /// An identity that no other allocation of the pool gets.
    #[inline]
    pub fn next_id(&mut self) -> u64 {
        self.cache.next_id += 1;
        (self.number << ID_BITS) | self.cache.next_id
    }
}

impl Cache {
    /// A bin for `size`: of those that it can be in, the one not used for
    /// longest.
    #[cold]
    fn make_room(&mut self, size: u64, spill: &mut Vec<(Epoch, u32)>) -> usize {
        if self.bins.is_empty() {
            self.bins = (0..BINS).map(|_| Bin::default()).collect();
        }
        let oldest = ways(size)
            .min_by_key(|way| self.bins[*way].used_at)
            .unwrap_or(0);
        let bin = &mut self.bins[oldest];
        self.bytes -= bin.size * bin.blocks.len() as u64;
        spill.extend(bin.blocks.drain(..));
        bin.size = size;
        oldest
    }

    /// The older half leaves of the bins that hold most, until the cache is
    /// well below its budget.
    #[cold]
    fn spill_some(&mut self, spill: &mut Vec<(Epoch, u32)>) {
        let target = self.budget - self.budget / 4;
        while self.bytes > target {
            let held = |bin: &Bin| bin.size * bin.blocks.len() as u64;
            let Some(bin) = self
                .bins
                .iter_mut()
                .max_by_key(|bin| held(bin))
                .filter(|bin| held(bin) > 0)
            else {
                return;
            };
            let count = bin.blocks.len().div_ceil(2);
            self.bytes -= bin.size * count as u64;
            spill.extend(bin.blocks.drain(..count));
        }
    }
}
