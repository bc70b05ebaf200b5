//! The device of a replay: memory with a limit, fences that pass a fixed time
//! after the last work before them, and the trace's clock.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use gpupool::cuda::device::reserved_share;
use gpupool::pool::device::{Passed, Recorded, Refusal, SLOTS};
use gpupool::pool::size_class::PAGE;
use gpupool::pool::{Device, Policy};

/// What the driver's calls take, as on an H200: nanoseconds, and bytes that
/// take one more.
const ALLOC: (u64, u64) = (30_000, 16_000);
const FREE: (u64, u64) = (26_000, 4_000);

/// The same of a mapped segment: a chunk of its size is made, mapped and made
/// accessible; unmapped and released. 7, 0.6, 23, 15 and 9 µs for
/// 2 MiB; mapping, access and unmapping of 100 MiB in one chunk took 100 µs.
const MAP: (u64, u64) = (31_000, 3_300);
const UNMAP: (u64, u64) = (24_000, 3_300);

/// What all contexts of a replay share.
#[derive(Debug, Default)]
pub struct World {
    /// Nanoseconds of the trace's clock, and of the waits on the way.
    pub now_ns: Cell<u64>,
    /// When the call under way was made: what the program submitted, it did
    /// before.
    pub called_ns: Cell<u64>,
    /// Bytes with the pools, and with the program beside them.
    held: Cell<u64>,
    /// Highest `held`.
    pub peak_held: Cell<u64>,
    next: Cell<u64>,
    /// Calls that the driver would have had.
    pub calls: RefCell<DriverCalls>,
}

/// Calls of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCalls {
    /// Allocations, those of single requests included.
    pub allocs: u64,
    /// Allocations that it refused.
    pub refused: u64,
    /// Frees.
    pub frees: u64,
    /// Fences recorded.
    pub records: u64,
    /// Fences asked for.
    pub queries: u64,
    /// Nanoseconds that allocations and frees took.
    pub ns: u64,
}

impl World {
    fn count(&self, count: impl FnOnce(&mut DriverCalls)) {
        count(&mut self.calls.borrow_mut());
    }

    fn spend(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
        self.count(|calls| calls.ns += ns);
    }

    fn hold(&self, bytes: u64) {
        self.held.set(self.held.get() + bytes);
        self.peak_held
            .set(self.peak_held.get().max(self.held.get()));
    }
}

/// One context's device.
#[derive(Debug)]
pub struct Gpu<'a> {
    world: &'a World,
    total: u64,
    /// Its segments are mapped.
    mapped: bool,
    used: Cell<u64>,
    delay_ns: u64,
    /// When the last work that the fence in each slot covers was submitted.
    slots: [Cell<u64>; SLOTS],
}

impl<'a> Gpu<'a> {
    /// A device with a pool's limits, whose fences pass after `delay`.
    pub fn new(world: &'a World, policy: &Policy, delay: Duration) -> Self {
        Self {
            world,
            total: policy.total,
            mapped: policy.mapped,
            used: Cell::new(0),
            delay_ns: delay.as_nanos() as u64,
            slots: [const { Cell::new(0) }; SLOTS],
        }
    }

    /// An allocation that the driver serves itself, as it rounds it. Whether it
    /// could.
    pub fn alloc_natively(&self, bytes: u64) -> bool {
        self.take(bytes, ALLOC)
    }

    /// Takes memory from the device at this price.
    fn take(&self, bytes: u64, price: (u64, u64)) -> bool {
        let fits = self.used.get() + bytes <= self.total;
        self.world.count(|calls| {
            calls.allocs += 1;
            calls.refused += u64::from(!fits);
        });
        if fits {
            self.used.set(self.used.get() + bytes);
            self.world.hold(bytes);
            self.world.spend(price.0 + bytes / price.1);
        }
        fits
    }

    /// The free of such an allocation.
    pub fn free_natively(&self, bytes: u64) {
        self.give(bytes, FREE);
    }

    fn give(&self, bytes: u64, price: (u64, u64)) {
        self.world.count(|calls| calls.frees += 1);
        self.world.spend(price.0 + bytes / price.1);
        self.used.set(self.used.get() - bytes);
        self.world.held.set(self.world.held.get() - bytes);
    }
}

impl Device for Gpu<'_> {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        if !self.take(bytes, if self.mapped { MAP } else { ALLOC }) {
            return Err(Refusal::OutOfMemory);
        }
        // No two at one address, and none side by side.
        let address = self.world.next.get().max(16 * PAGE);
        self.world.next.set(address + bytes + PAGE);
        Ok(address)
    }

    fn release(&self, _address: u64, bytes: u64) {
        self.give(bytes, if self.mapped { UNMAP } else { FREE });
    }

    fn record(&self, slot: usize) -> Recorded {
        self.world.count(|calls| calls.records += 1);
        self.slots[slot].set(self.world.called_ns.get());
        Recorded::Yes
    }

    fn record_waits(&self) -> bool {
        false
    }

    fn passed(&self, slot: usize) -> Passed {
        self.world.count(|calls| calls.queries += 1);
        match self.world.now_ns.get() >= self.slots[slot].get() + self.delay_ns {
            true => Passed::Yes,
            false => Passed::NotYet,
        }
    }

    fn headroom(&self) -> u64 {
        (self.total - self.used.get()).saturating_sub(reserved_share(self.total))
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.world.now_ns.get())
    }

    /// What a poll and its pause take on a real device, in about.
    fn pause(&self, round: u32) {
        let ns = match round {
            0..64 => 200,
            64..4096 => 1000,
            _ => 70_000,
        };
        self.world.now_ns.set(self.world.now_ns.get() + ns);
    }
}
