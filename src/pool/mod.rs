//! The allocator of one device context. Pure: it knows no CUDA and has no
//! global state; whatever it needs of the GPU goes through [`Device`].
//!
//! A request is served from a block of the calling thread's cache ([`front`]),
//! else from a free block whose grace is complete ([`Arena`]), else from what
//! grace completes meanwhile, else from a new segment, and when memory is short
//! from what can be given back; where none of it helps, the answer is
//! [`Outcome::Native`] and the caller asks the driver itself.

pub mod addresses;
pub mod arena;
mod blocks;
mod budget;
pub mod device;
pub mod free_list;
pub mod front;
pub mod grace;
mod growth;
pub mod headers;
mod idle;
pub mod inflight;
mod mapped;
pub mod memory;
mod own;
pub mod pace;
pub mod page_map;
pub mod policy;
pub mod profile;
pub mod segment;
pub mod segment_map;
mod shown;
pub mod size_class;
mod slot_lock;
pub mod spans;
pub mod stats;
pub mod sync;
mod waiting;

pub use arena::{Arena, BlockInfo, Shared, Which};
pub use device::Device;
pub use idle::IdleLog;
pub use memory::Memory;
pub use policy::Policy;

use crate::config::Changeable;
use budget::Budget;
use device::Event;
use free_list::Fit;
use front::{CACHED_MAX, Front, Mine};
use grace::{Closed, Epoch, Grace};
use headers::{Header, owner};
use inflight::Inflight;
use pace::Pace;
use size_class::Layout;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use sync::Apart;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served by this block.
    Block(BlockInfo),
    /// The driver shall answer: the request is not the pool's, memory is
    /// short beyond help, or the context is lost.
    Native,
}

/// What the pool holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// With the program, rounded to the granule.
    pub live: u64,
    /// Freed by the program, waiting for grace or in a cache.
    pub waiting: u64,
    /// Taken from the driver.
    pub reserved: u64,
    /// Highest `live` so far.
    pub peak_live: u64,
    /// Highest `reserved` so far.
    pub peak_reserved: u64,
    /// Segments without a live block.
    pub unowned: u64,
    /// Largest free run.
    pub largest_free: u64,
    /// Blocks with the program or in a cache.
    pub carved_blocks: u64,
    /// Segments.
    pub segments: u64,
}

#[derive(Debug, Default)]
struct Inner {
    arena: Arena,
    peak_live: u64,
    peak_reserved: u64,
}

/// The pool of one context. Thread-safe; no lock is held while it waits.
#[derive(Debug)]
pub struct Pool {
    front: Front,
    shared: Shared,
    inner: Mutex<Inner>,
    /// Bytes that wait for grace in the arena, for a look without the lock.
    arena_waiting: Apart<AtomicU64>,
    grace: Grace,
    /// Held while the driver is asked for a segment, so that threads that
    /// miss together do not each take one.
    growth: Mutex<()>,
    policy: Changeable<Policy>,
    inflight: Changeable<Inflight>,
    pace: Pace,
    /// Where others watch its figures, if they do.
    figures: OnceLock<&'static stats::PoolFigures>,
    /// Counters of what happens beside the caches.
    counters: stats::Shown<stats::Counters>,
    /// Nanoseconds that misses have polled since the pool last grew.
    polled_ns: AtomicU64,
    /// `completed` when the caches were last emptied for a wait.
    flushed_at: AtomicU64,
    /// `completed` when a wait last ran out: no further wait until it moves.
    stalled_at: AtomicU64,
    /// The same for the shorter waits before growth.
    join_stalled_at: AtomicU64,
    /// What growing for a better fit may cost.
    for_order: Budget,
    /// What avoiding growth may cost.
    for_growth: Budget,
    /// What mapping may cost.
    for_mapping: Budget,
    /// What waiting may cost where that saves mapping.
    for_waiting: Budget,
    /// Bytes that were taken ahead of need.
    preallocated: AtomicU64,
}

/// What the arena holds, locked.
struct InnerGuard<'a> {
    pool: &'a Pool,
    inner: MutexGuard<'a, Inner>,
}

impl std::ops::Deref for InnerGuard<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl std::ops::DerefMut for InnerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for InnerGuard<'_> {
    fn drop(&mut self) {
        let waiting = self.inner.arena.waiting_bytes;
        if self.pool.arena_waiting.load(Ordering::Relaxed) != waiting {
            self.pool.arena_waiting.store(waiting, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            front: Front::default(),
            shared: Shared::default(),
            inner: Mutex::new(Inner {
                arena: Arena::new(policy.memory),
                ..Inner::default()
            }),
            arena_waiting: Apart::default(),
            grace: Grace::default(),
            growth: Mutex::new(()),
            inflight: Changeable::new(shown::inflight_of(&policy)),
            pace: Pace::default(),
            policy: Changeable::new(policy),
            figures: OnceLock::new(),
            counters: stats::Shown::default(),
            polled_ns: AtomicU64::new(0),
            flushed_at: AtomicU64::new(0),
            stalled_at: AtomicU64::new(u64::MAX),
            join_stalled_at: AtomicU64::new(u64::MAX),
            for_order: Budget::new(),
            for_growth: Budget::new(),
            for_mapping: Budget::for_mapping(),
            for_waiting: Budget::for_waiting(),
            preallocated: AtomicU64::new(0),
        }
    }

    /// Serves a request of `requested` bytes. Waits for the GPU at most
    /// [`Policy::wait`] (a few times that when memory is short), by polling.
    pub fn alloc<D: Device>(&self, device: &D, requested: u64) -> Outcome {
        let Some(layout) = self.policy.layout(requested) else {
            return Outcome::Native;
        };
        if self.grace.is_lost() {
            self.show_state();
            return Outcome::Native;
        }
        let hit = self
            .take_cached(&layout, requested)
            .or_else(|| self.look_further(device, &layout, requested));
        if let Some(block) = hit {
            device.tell(Event::Hit(requested));
            return Outcome::Block(block);
        }
        let grown = self
            .grow(device, &layout, requested)
            .or_else(|| self.scrape_together(device, &layout, requested));
        if let Some(block) = grown {
            // Counted as a hit where it was carved.
            let mine = self.front.mine();
            let counts = &mine.cache.counts;
            counts.hits.fetch_sub(1, Ordering::Relaxed);
            stats::add(&counts.misses, 1);
            device.tell(Event::Miss(requested));
            return Outcome::Block(block);
        }
        stats::bump(&self.counters.bypasses);
        Outcome::Native
    }

    /// A miss of the cache: what grace completes, and what is free.
    #[cold]
    fn look_further<D: Device>(
        &self,
        device: &D,
        layout: &Layout,
        requested: u64,
    ) -> Option<BlockInfo> {
        device.attend(true);
        let own = self.complete_own(device, layout, requested);
        if own.is_some() {
            return own;
        }
        if self.policy.mapped {
            return self.carve_mapped(device, layout, requested);
        }
        if !self.waits_for_own(layout)
            && let Some(block) = self.carve_well(device, layout, requested)
        {
            return Some(block);
        }
        if self.rotates_too_fast(layout) {
            return None;
        }
        self.wait_for_grace(device, layout, requested)
            .or_else(|| self.join_before_growth(device, layout, requested))
    }

    /// The way of nearly every request: a block of this very size that a
    /// thread of this slot freed, and whose grace is complete.
    #[inline]
    fn take_cached(&self, layout: &Layout, requested: u64) -> Option<BlockInfo> {
        if layout.size > CACHED_MAX {
            return None;
        }
        let mut mine = self.front.mine();
        let index = mine.take(layout.size, self.grace.completed())?;
        let header = self.shared.headers.get(index)?;
        Some(hand_out(&mut mine, header, requested, true))
    }

    /// The epoch of the oldest block of this size in the calling thread's cache,
    /// and how many there are.
    fn oldest(&self, size: u64) -> Option<(Epoch, usize)> {
        if size > CACHED_MAX {
            return None;
        }
        self.front.mine().oldest(size)
    }

    /// A block carved out of the arena; `fit` as in [`free_list::FreeList::best`].
    fn carve(&self, layout: &Layout, requested: u64, fit: Fit) -> Option<BlockInfo> {
        let mut inner = self.inner();
        inner.arena.complete(self.grace.completed());
        self.carve_locked(&mut inner, layout, requested, fit)
    }

    fn carve_locked(
        &self,
        inner: &mut Inner,
        layout: &Layout,
        requested: u64,
        fit: Fit,
    ) -> Option<BlockInfo> {
        let (index, used) = inner.arena.take(&self.shared, layout, fit)?;
        let live = inner.arena.carved.saturating_sub(self.front.bytes());
        if live > inner.peak_live {
            inner.peak_live = live;
            inner.arena.show_peak_live(live);
        }
        let header = self.shared.headers.get(index)?;
        Some(hand_out(&mut self.front.mine(), header, requested, used))
    }

    /// Ends the life of the block that begins at `address`; false if no live
    /// block does. Never waits for the GPU.
    pub fn free<D: Device>(&self, device: &D, address: u64) -> bool {
        let Some((index, header)) = self.shared.find(address) else {
            return false;
        };
        let size = header.size.load(Ordering::Relaxed);
        let mut mine = self.front.mine();
        let mut to_cache = size <= CACHED_MAX;
        let to = if to_cache {
            owner::CACHED
        } else {
            owner::ARENA
        };
        let mut from = owner::LIVE;
        if !header.pass(from, to) {
            to_cache = false;
            from = owner::LIVE_RETIRED;
            if !header.pass(from, owner::ARENA) {
                return false;
            }
        }
        if header.address.load(Ordering::Relaxed) != address {
            // Two frees of one address at once, and between them the block
            // was joined and its header used again: that one is not ours.
            header.owner.store(from, Ordering::Release);
            return false;
        }
        let mut spill = Vec::new();
        // The stamp is read here, in this call: see `grace`.
        let epoch = self.grace.stamp();
        if to_cache {
            if mine.is_first_in(epoch) {
                mine.set_budget(self.front.share(self.inflight.limit()));
            }
            mine.put(size, epoch, index, &mut spill);
        }
        stats::add(&mine.cache.counts.frees, 1);
        let (frees, bytes) = mine.freed(epoch, size, self.inflight.step());
        drop(mine);
        if !to_cache {
            self.give(index, epoch);
        }
        if !spill.is_empty() {
            self.take_back(spill);
        }
        if self
            .inflight
            .fence_due(bytes, frees, || device.record_waits())
            && (device.record_waits() || self.pace.claim_fence(device.now(), false))
        {
            self.fence_in_free(device);
            self.release_empty(device, 0, Which::Retired);
            device.attend(false);
        }
        true
    }

    /// Records a fence that a free found due. Where recording waits for the
    /// GPU, and other threads' frees already fill the in-flight limit, this one
    /// takes its turn, as it natively would: allocations cannot wait for it.
    fn fence_in_free<D: Device>(&self, device: &D) {
        self.grace.poll(device);
        if self.pace.claim_sweep(device.now()) {
            let mut unused = Vec::new();
            self.front.sweep(|epoch, index| unused.push((epoch, index)));
            self.take_back(unused);
        }
        if !self.grace.has_pending() {
            self.inflight.drained(|| {
                let carved = self.inner().arena.carved;
                carved.saturating_sub(self.front.bytes())
            });
        }
        let closed = if device.record_waits() && self.waiting() >= self.inflight.limit() {
            self.grace.close_in_turn(device)
        } else {
            self.grace.close(device)
        };
        self.fenced(device, closed);
    }

    /// After an attempt to record a fence: one that passes at once shows that
    /// nothing else runs.
    fn fenced<D: Device>(&self, device: &D, closed: Closed) {
        if let Closed::Epoch(epoch) = closed {
            self.inflight.fenced();
            if !device.record_waits() {
                self.grace.poll(device);
                self.pace.fenced(self.grace.completed() >= epoch);
            }
        }
        self.show_state();
    }

    /// Returns a block, whose header is the arena's, to the arena.
    fn give(&self, index: u32, epoch: Epoch) {
        self.inner()
            .arena
            .give(&self.shared, index, epoch, self.grace.completed());
    }

    /// Returns blocks that left a cache to the arena.
    fn take_back(&self, blocks: Vec<(Epoch, u32)>) {
        if blocks.is_empty() {
            return;
        }
        let completed = self.grace.completed();
        let mut inner = self.inner();
        for (epoch, index) in blocks {
            let header = self.shared.headers.get(index);
            if header.is_some_and(|header| header.pass(owner::CACHED, owner::ARENA)) {
                inner.arena.give(&self.shared, index, epoch, completed);
            }
        }
    }

    /// Empties all caches into the arena, where what is complete coalesces.
    fn flush(&self) {
        let mut blocks = Vec::new();
        self.front.flush(|epoch, index| blocks.push((epoch, index)));
        self.take_back(blocks);
    }

    /// Empties the caches if they were not emptied since `completed` last
    /// moved and hold much of what may wait: a block of another size or in
    /// another thread's cache that has become complete does not wait any more.
    fn flush_since(&self, completed: Epoch) {
        let much = self.front.bytes() * 2 >= self.inflight.limit();
        if much && self.flushed_at.swap(completed, Ordering::Relaxed) != completed {
            self.flush();
        }
    }

    /// Records a fence for an allocation if that is possible without waiting.
    fn fence<D: Device>(&self, device: &D) -> Closed {
        if device.record_waits() {
            return Closed::NotNow;
        }
        let closed = self.grace.close(device);
        self.fenced(device, closed);
        closed
    }

    /// Bytes that wait for grace, or may: a cache does not know.
    fn waiting(&self) -> u64 {
        self.arena_waiting.load(Ordering::Relaxed) + self.front.bytes()
    }

    /// The arena, locked.
    fn inner(&self) -> InnerGuard<'_> {
        InnerGuard {
            pool: self,
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

fn info(header: &Header, used: bool) -> BlockInfo {
    BlockInfo {
        address: header.address.load(Ordering::Relaxed),
        requested: header.requested.load(Ordering::Relaxed),
        size: header.size.load(Ordering::Relaxed),
        id: header.id.load(Ordering::Relaxed),
        used,
        sync_memops: header.sync_memops.load(Ordering::Relaxed) != 0,
    }
}

/// The block becomes the program's.
#[inline]
fn hand_out(mine: &mut Mine<'_>, header: &Header, requested: u64, used: bool) -> BlockInfo {
    stats::add(&mine.cache.counts.hits, 1);
    stats::add(&mine.cache.counts.reissues, u64::from(used));
    header.requested.store(requested, Ordering::Relaxed);
    header.id.store(mine.next_id(), Ordering::Relaxed);
    header.sync_memops.store(0, Ordering::Relaxed);
    header.owner.store(owner::LIVE, Ordering::Release);
    info(header, used)
}

/// How a real device lets time pass between polls: first by spinning, then by
/// letting others run, then by short sleeps, so that a long wait costs little.
pub fn pause(round: u32) {
    match round {
        0..64 => std::hint::spin_loop(),
        64..4096 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(20)),
    }
}
