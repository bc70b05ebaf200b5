//! The allocator of one device context. Pure: it knows no CUDA and has no
//! global state; whatever it needs of the GPU goes through [`Device`].
//!
//! A request is served from a free block whose grace is complete ([`Arena`]),
//! else from what grace completes meanwhile, else from a new segment, and when
//! memory is short from what can be given back; where none of it helps, the
//! answer is [`Outcome::Native`] and the caller asks the driver itself.

pub mod arena;
pub mod device;
pub mod free_list;
pub mod grace;
pub mod owners;
pub mod policy;
pub mod segment;
pub mod segment_map;
pub mod size_class;
pub mod stats;
pub mod sync;

pub use arena::{Arena, BlockInfo, Which};
pub use device::Device;
pub use policy::Policy;

use device::Refusal;
use grace::{Closed, Grace};
use size_class::{Kind, Layout, PAGE};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Freed by the program, waiting for grace.
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
    /// Live blocks.
    pub live_blocks: u64,
    /// Segments.
    pub segments: u64,
}

#[derive(Debug, Default)]
struct Inner {
    arena: Arena,
    /// Bytes and frees since the last fence.
    unfenced: (u64, u32),
    peak_live: u64,
    peak_reserved: u64,
}

/// The pool of one context. Thread-safe; no lock is held while it waits.
#[derive(Debug)]
pub struct Pool {
    inner: Mutex<Inner>,
    grace: Grace,
    /// Held while the driver is asked for a segment, so that threads that
    /// miss together do not each take one.
    growth: Mutex<()>,
    policy: Policy,
    /// Counters of the pool.
    pub counters: stats::Counters,
    /// Nanoseconds that misses have polled since the pool last grew.
    polled_ns: AtomicU64,
    /// `completed` when a wait last ran out: no further wait until it moves.
    stalled_at: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            inner: Mutex::default(),
            grace: Grace::default(),
            growth: Mutex::new(()),
            policy,
            counters: stats::Counters::default(),
            polled_ns: AtomicU64::new(0),
            stalled_at: AtomicU64::new(u64::MAX),
        }
    }

    /// Serves a request of `requested` bytes. Waits for the GPU at most
    /// [`Policy::wait`] (a few times that when memory is short), by polling.
    pub fn alloc<D: Device>(&self, device: &D, requested: u64) -> Outcome {
        let Some(layout) = size_class::layout(requested, self.policy.isolate) else { return Outcome::Native };
        if self.grace.is_lost() {
            return Outcome::Native;
        }
        let hit = self
            .try_take(&layout, requested, false)
            .or_else(|| self.wait_for_grace(device, &layout, requested));
        if let Some(block) = hit {
            return self.served(block, &self.counters.hits);
        }
        if let Some(block) = self.grow(device, &layout, requested) {
            return self.served(block, &self.counters.misses);
        }
        if let Some(block) = self.scrape_together(device, &layout, requested) {
            return self.served(block, &self.counters.misses);
        }
        stats::bump(&self.counters.bypasses);
        Outcome::Native
    }

    fn served(&self, block: BlockInfo, counter: &AtomicU64) -> Outcome {
        stats::bump(counter);
        if block.used {
            stats::bump(&self.counters.reissues);
        }
        Outcome::Block(block)
    }

    /// Ends the life of the block that begins at `address`; false if no live
    /// block does. Never waits for the GPU.
    pub fn free<D: Device>(&self, device: &D, address: u64) -> bool {
        let due = {
            let mut inner = lock(&self.inner);
            // The stamp is read here, in this call and under the lock: see
            // `grace`, and epochs enter the queue in order.
            let Some(size) = inner.arena.give(address, self.grace.stamp()) else { return false };
            inner.unfenced.0 += size;
            inner.unfenced.1 += 1;
            self.policy.fence_due(inner.unfenced.0, inner.unfenced.1, device.record_waits())
        };
        stats::bump(&self.counters.frees);
        if due {
            self.fence_in_free(device);
            self.release_empty(device, 0, Which::Retired);
        }
        true
    }

    /// Records a fence for an allocation if that is possible without waiting.
    fn fence<D: Device>(&self, device: &D) -> Closed {
        if device.record_waits() { Closed::NotNow } else { self.fence_in_free(device) }
    }

    /// Records a fence now if that is possible.
    fn fence_in_free<D: Device>(&self, device: &D) -> Closed {
        let closed = self.grace.close(device);
        if matches!(closed, Closed::Epoch(_)) {
            lock(&self.inner).unfenced = (0, 0);
        }
        closed
    }

    fn try_take(&self, layout: &Layout, requested: u64, short: bool) -> Option<BlockInfo> {
        let mut inner = lock(&self.inner);
        inner.arena.complete(self.grace.completed());
        let block = inner.arena.take(layout, requested, short)?;
        inner.peak_live = inner.peak_live.max(inner.arena.live);
        Some(block)
    }

    /// Polls for grace: briefly in any case, longer if more memory waits than
    /// the in-flight limit allows.
    fn wait_for_grace<D: Device>(&self, device: &D, layout: &Layout, requested: u64) -> Option<BlockInfo> {
        let start = device.now();
        let polled = Duration::from_nanos(self.polled_ns.load(Ordering::Relaxed));
        let patience = policy::PATIENCE.saturating_sub(polled);
        let mut seen = self.grace.completed();
        let mut long = false;
        let mut found = None;
        for round in 0.. {
            if !self.grace.has_pending() {
                if device.record_waits() || lock(&self.inner).arena.waiting_bytes == 0 {
                    break;
                }
                self.fence(device);
            }
            self.grace.poll(device);
            let completed = self.grace.completed();
            if completed != seen {
                seen = completed;
                found = self.try_take(layout, requested, false);
            }
            if found.is_some() || self.grace.is_lost() {
                break;
            }
            let waiting = lock(&self.inner).arena.waiting_bytes;
            let elapsed = device.now().saturating_sub(start);
            if waiting == 0 {
                break;
            }
            if elapsed >= patience {
                let may_wait = waiting >= self.policy.inflight
                    && self.grace.has_pending()
                    && self.stalled_at.load(Ordering::Relaxed) != completed;
                if !may_wait {
                    break;
                }
                long = true;
                if elapsed >= self.policy.wait {
                    // A fence may depend on what this thread does next: not
                    // again until one has passed.
                    self.stalled_at.store(completed, Ordering::Relaxed);
                    stats::bump(&self.counters.wait_timeouts);
                    break;
                }
            }
            device.pause(round);
        }
        let spent = device.now().saturating_sub(start).as_nanos() as u64;
        if long {
            stats::bump(&self.counters.waits);
            self.counters.wait_ns.fetch_add(spent, Ordering::Relaxed);
        } else {
            self.polled_ns.fetch_add(spent, Ordering::Relaxed);
        }
        found
    }

    /// Takes a new segment from the driver. `None` if there is no room.
    fn grow<D: Device>(&self, device: &D, layout: &Layout, requested: u64) -> Option<BlockInfo> {
        let _growing = lock(&self.growth);
        // Another thread may have grown the pool while this one waited.
        if let Some(block) = self.try_take(layout, requested, false) {
            return Some(block);
        }
        let exact = self.policy.exact_size(layout);
        if layout.kind != Kind::Small {
            // What is empty of its kind does not fit this request.
            self.release_empty(device, exact, Which::Kind(layout.kind));
        }
        let reserved = lock(&self.inner).arena.reserved;
        let room = self.policy.max.saturating_sub(reserved).min(device.headroom());
        let wanted = self.policy.segment_size(layout, reserved);
        let sizes = if wanted > exact { [wanted, exact] } else { [exact, exact] };
        let mut last = 0;
        for size in sizes {
            if size > room || size == last {
                continue;
            }
            last = size;
            match device.reserve(size) {
                Ok(base) => {
                    stats::bump(&self.counters.segment_allocs);
                    self.polled_ns.store(0, Ordering::Relaxed);
                    let mut inner = lock(&self.inner);
                    inner.arena.add_segment(base, size, layout.kind);
                    inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
                    let block = inner.arena.take(layout, requested, false);
                    inner.peak_live = inner.peak_live.max(inner.arena.live);
                    return block;
                }
                Err(Refusal::OutOfMemory) => {}
                Err(Refusal::Lost) => {
                    self.grace.set_lost();
                    return None;
                }
            }
        }
        None
    }

    /// Memory is short: all grace, blocks meant for others, giving back.
    fn scrape_together<D: Device>(&self, device: &D, layout: &Layout, requested: u64) -> Option<BlockInfo> {
        self.complete_all(device);
        if let Some(block) = self.try_take(layout, requested, true) {
            return Some(block);
        }
        if self.grace.is_lost() || self.release_empty(device, self.policy.exact_size(layout), Which::All) == 0 {
            return None;
        }
        self.grow(device, layout, requested)
    }

    /// Waits until nothing waits for grace any more, at most
    /// [`Policy::wait`]. Returns whether that was reached.
    pub fn complete_all<D: Device>(&self, device: &D) -> bool {
        let start = device.now();
        for round in 0.. {
            {
                let mut inner = lock(&self.inner);
                inner.arena.complete(self.grace.completed());
                if inner.arena.waiting_bytes == 0 {
                    return true;
                }
            }
            if !self.grace.has_pending() && !matches!(self.fence(device), Closed::Epoch(_)) {
                return false;
            }
            if self.grace.poll(device) {
                continue;
            }
            let completed = self.grace.completed();
            if self.grace.is_lost() || self.stalled_at.load(Ordering::Relaxed) == completed {
                return false;
            }
            if device.now().saturating_sub(start) >= self.policy.wait {
                self.stalled_at.store(completed, Ordering::Relaxed);
                return false;
            }
            device.pause(round);
        }
        false
    }

    /// Whether the GPU has just been seen idle: a fence over everything
    /// submitted so far passes within [`policy::PATIENCE`].
    fn seen_idle<D: Device>(&self, device: &D) -> bool {
        let Closed::Epoch(epoch) = self.fence(device) else { return false };
        let start = device.now();
        for round in 0.. {
            self.grace.poll(device);
            if self.grace.completed() >= epoch && !cfg!(feature = "unsafe-no-grace") {
                return true;
            }
            if self.grace.is_lost() || device.now().saturating_sub(start) >= policy::PATIENCE {
                break;
            }
            device.pause(round);
        }
        false
    }

    /// Whether giving memory back now holds nobody up. A driver that cannot be
    /// asked without waiting is made to wait only where all is asked for:
    /// because an allocation would fail otherwise.
    fn may_release<D: Device>(&self, device: &D, which: Which) -> bool {
        if device.record_waits() { which == Which::All } else { self.seen_idle(device) }
    }

    /// Gives empty segments back to the driver, at least `wanted` bytes of
    /// them if there are so many, provided that the GPU is seen idle (the
    /// driver would wait for it). Returns the bytes given back.
    fn release_empty<D: Device>(&self, device: &D, wanted: u64, which: Which) -> u64 {
        let mut released = 0;
        loop {
            let candidate = {
                let mut inner = lock(&self.inner);
                inner.arena.complete(self.grace.completed());
                inner.arena.has_empty(which)
            };
            if !candidate || (released == 0 && !self.may_release(device, which)) {
                break;
            }
            let taken = lock(&self.inner).arena.remove_empty(wanted.saturating_sub(released), which);
            let Some((base, size)) = taken else { break };
            device.release(base, size);
            stats::bump(&self.counters.segment_frees);
            released += size;
            if which != Which::Retired && released >= wanted {
                break;
            }
        }
        released
    }

    /// Gives back all that is empty, after waiting for grace as an allocation
    /// would. Returns the bytes given back.
    pub fn trim<D: Device>(&self, device: &D) -> u64 {
        self.complete_all(device);
        self.release_empty(device, u64::MAX, Which::All)
    }

    /// Takes `bytes` from the driver ahead of need. Returns what was taken.
    pub fn preallocate<D: Device>(&self, device: &D, bytes: u64) -> u64 {
        let _growing = lock(&self.growth);
        let mut taken = 0;
        while taken < bytes {
            let size = (bytes - taken).min(1 << 30).next_multiple_of(PAGE);
            let reserved = lock(&self.inner).arena.reserved;
            if size > self.policy.max.saturating_sub(reserved).min(device.headroom()) {
                break;
            }
            let Ok(base) = device.reserve(size) else { break };
            stats::bump(&self.counters.segment_allocs);
            let mut inner = lock(&self.inner);
            inner.arena.add_segment(base, size, Kind::Large);
            inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
            taken += size;
        }
        taken
    }

    /// Whether a live block begins at `address`.
    pub fn begins_block(&self, address: u64) -> bool {
        lock(&self.inner).arena.exact(address).is_some()
    }

    /// The live block that contains `address`.
    pub fn containing(&self, address: u64) -> Option<BlockInfo> {
        lock(&self.inner).arena.containing(address)
    }

    /// Notes SYNC_MEMOPS for the live block that contains `address`.
    pub fn set_sync_memops(&self, address: u64, on: bool) {
        lock(&self.inner).arena.set_sync_memops(address, on);
    }

    /// The segment of the live block that contains `address` takes no new
    /// blocks, and goes back to the driver when its last block is freed.
    /// Returns the segment's address and size.
    pub fn retire(&self, address: u64) -> Option<(u64, u64)> {
        lock(&self.inner).arena.retire(address)
    }

    /// Forgets all blocks and segments without touching the device, and
    /// returns the segments that there were.
    pub fn abandon(&self) -> Vec<(u64, u64)> {
        lock(&self.inner).arena.drain()
    }

    /// Whether the context was seen to be lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.grace.is_lost()
    }

    /// Marks the context as lost.
    pub fn set_lost(&self) {
        self.grace.set_lost();
    }

    /// What the pool holds now.
    pub fn usage(&self) -> Usage {
        let inner = lock(&self.inner);
        let arena = &inner.arena;
        Usage {
            live: arena.live,
            waiting: arena.waiting_bytes,
            reserved: arena.reserved,
            peak_live: inner.peak_live,
            peak_reserved: inner.peak_reserved,
            unowned: arena.unowned,
            largest_free: arena.largest_free(),
            live_blocks: arena.live_blocks() as u64,
            segments: arena.segment_count() as u64,
        }
    }

    /// Bytes of segments without a live block.
    pub fn unowned(&self) -> u64 {
        lock(&self.inner).arena.unowned
    }

    /// Checks the structure; an error says what is wrong. For tests.
    pub fn validate(&self) -> Result<(), String> {
        lock(&self.inner).arena.validate()
    }

    /// The limits in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

/// How a real device lets time pass between polls: first by spinning, then by
/// letting others run, then by short sleeps, so that a long wait costs little.
pub fn pause(round: u32) {
    match round {
        0..64 => std::hint::spin_loop(),
        64..512 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(20)),
    }
}
