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
use super::slot_lock::{Held, SlotLock};
use super::stats::{self, Counters, Counts, PoolFigures, Shown};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Blocks up to this many bytes are cached. Larger ones are rare and the work on
/// them long, so that the arena's cost does not show.
pub const CACHED_MAX: u64 = 64 << 20;

/// Slots of a front.
pub const SLOTS: usize = 64;
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
    pub counts: Shown<Counters>,
    /// `ticks` when last swept.
    swept: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    cache: SlotLock<Cache>,
    /// Bytes in the cache, for a look without the lock.
    bytes: Shown<AtomicU64>,
    /// Whether it is counted in [`Front::holding`].
    holds: AtomicBool,
}

/// All caches of a pool.
#[derive(Debug)]
pub struct Front {
    slots: [Slot; SLOTS],
    /// Slots below this number were used; the others are empty.
    used: AtomicUsize,
    /// Slots that held anything when last looked at.
    holding: AtomicU64,
}

impl Default for Front {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot::default()),
            used: AtomicUsize::new(0),
            holding: AtomicU64::new(0),
        }
    }
}

/// The bins that `size` can be in.
fn ways(size: u64) -> impl Iterator<Item = usize> {
    let first = first_way(size);
    (0..WAYS).map(move |way| (first + way) % BINS)
}

#[inline]
fn first_way(size: u64) -> usize {
    ((size >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) as usize
}

thread_local! {
    // No destructor: it works also while the thread and the process end.
    static SLOT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The calling thread goes on as if it were the thread `number` of a program
/// that is replayed.
pub fn act_as(number: u32) {
    SLOT.set(number as usize % SLOTS);
}

/// The slot of the calling thread.
fn my_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SLOT.with(|slot| {
        if slot.get() == usize::MAX {
            slot.set(NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS);
        }
        slot.get()
    })
}

/// The calling thread's cache, locked.
pub struct Mine<'a> {
    front: &'a Front,
    slot: &'a Slot,
    number: u64,
    /// The cache.
    pub cache: Held<'a, Cache>,
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
            front: self,
            slot,
            number: number as u64,
            cache: slot.cache.lock(),
        }
    }

    /// The share of `limit` of a slot: it goes to those that hold anything, as
    /// far as is known.
    #[inline]
    pub fn share(&self, limit: u64) -> u64 {
        limit / self.holding.load(Ordering::Relaxed).max(1)
    }

    /// Empties the caches that were not used since the last call into `take`:
    /// their thread has ended, or does something else. Now and then: it reads a
    /// cache line of each thread.
    pub fn sweep(&self, mut take: impl FnMut(Epoch, u32)) {
        for slot in self
            .used()
            .iter()
            .filter(|slot| slot.holds.load(Ordering::Relaxed))
        {
            let Some(mut cache) = slot.cache.try_lock() else {
                continue;
            };
            let ticks = cache.ticks;
            if std::mem::replace(&mut cache.swept, ticks) != ticks {
                continue;
            }
            cache.empty(&mut take);
            slot.bytes.store(0, Ordering::Relaxed);
            slot.holds.store(false, Ordering::Relaxed);
            self.holding.fetch_sub(1, Ordering::Relaxed);
        }
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
            let mut cache = slot.cache.lock();
            cache.empty(&mut take);
            slot.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Empties every cache but for blocks of `size` bytes into `take`.
    pub fn flush_others(&self, size: u64, mut take: impl FnMut(Epoch, u32)) {
        for slot in self
            .used()
            .iter()
            .filter(|slot| slot.bytes.load(Ordering::Relaxed) != 0)
        {
            let mut cache = slot.cache.lock();
            let mut left = 0;
            for bin in &mut cache.bins {
                if bin.size == size {
                    left = size * bin.blocks.len() as u64;
                } else {
                    bin.blocks
                        .drain(..)
                        .for_each(|(epoch, index)| take(epoch, index));
                }
            }
            cache.bytes = left;
            slot.bytes.store(left, Ordering::Relaxed);
        }
    }

    /// Sum of the counts of all slots.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.used()
            .iter()
            .for_each(|slot| sum.add(&slot.cache.lock().counts.read()));
        sum
    }

    /// The slots' figures live in `place` from now on.
    pub fn show_on(&self, place: &'static PoolFigures) {
        for (slot, place) in self.slots.iter().zip(&place.slots) {
            slot.bytes.show_on(&place.cached, stats::carry);
            slot.cache
                .lock()
                .counts
                .show_on(&place.counts, Counters::carry);
        }
    }
}

impl Mine<'_> {
    /// A block of exactly `size` bytes whose epoch is complete.
    #[inline]
    pub fn take(&mut self, size: u64, completed: Epoch) -> Option<u32> {
        let cache = &mut *self.cache;
        let place = cache.bin_of(size)?;
        let bin = &mut cache.bins[place];
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
        let place = match cache.bin_of(size) {
            Some(place) => place,
            None => cache.make_room(size, spill),
        };
        let bin = &mut cache.bins[place];
        bin.used_at = cache.ticks;
        bin.blocks.push_back((epoch, index));
        cache.bytes += size;
        if !self.slot.holds.load(Ordering::Relaxed) {
            self.slot.holds.store(true, Ordering::Relaxed);
            self.front.holding.fetch_add(1, Ordering::Relaxed);
        }
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

    /// Whether no more may wait here.
    pub fn is_full(&self, size: u64) -> bool {
        self.cache.bytes + size > self.cache.budget
    }

    /// The epoch of the oldest block of this size, and how many there are.
    pub fn oldest(&self, size: u64) -> Option<(Epoch, usize)> {
        let bin = &self.cache.bins[self.cache.bin_of(size)?];
        Some((bin.blocks.front()?.0, bin.blocks.len()))
    }

    /// Notes a free of `size` bytes in `epoch`. Returns the number of frees in
    /// it here, and once there are `quantum` bytes, how many they are.
    #[inline]
    pub fn freed(&mut self, epoch: Epoch, size: u64, quantum: u64) -> (u32, u64) {
        let (last, bytes, frees) = self.cache.unfenced;
        let (bytes, frees) = if last == epoch {
            (bytes + size, frees + 1)
        } else {
            (size, 1)
        };
        let told = if bytes >= quantum { bytes } else { 0 };
        self.cache.unfenced = (epoch, bytes - told, frees);
        (frees, told)
    }

    /// An identity that no other allocation of the pool gets.
    #[inline]
    pub fn next_id(&mut self) -> u64 {
        self.cache.next_id += 1;
        (self.number << ID_BITS) | self.cache.next_id
    }
}

impl Cache {
    /// The bin of this size.
    #[inline]
    fn bin_of(&self, size: u64) -> Option<usize> {
        let first = first_way(size);
        if self.bins.get(first)?.size == size {
            return Some(first);
        }
        ways(size).skip(1).find(|way| self.bins[*way].size == size)
    }

    fn empty(&mut self, take: &mut impl FnMut(Epoch, u32)) {
        for bin in &mut self.bins {
            bin.blocks
                .drain(..)
                .for_each(|(epoch, index)| take(epoch, index));
        }
        self.bytes = 0;
    }

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
