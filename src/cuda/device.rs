//! The driver as the pool's [`Device`].

use super::abi::{CUdeviceptr, OUT_OF_MEMORY, SUCCESS};
use super::capture::Relaxed;
use super::context::{Context, SEGMENTS};
use super::driver::real;
use super::entered::Entered;
use super::fence::Fences;
use crate::nvtx::{self, Kind, Range};
use crate::pool::device::{Device, Event, Passed, Recorded, Refusal};
use crate::pool::size_class::PAGE;
use crate::pool::stats::Shown;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Calls that the library itself makes of the driver's allocator, for the
/// statistics.
pub static CALLS: Calls = Calls {
    allocs: Shown::new(AtomicU64::new(0)),
    frees: Shown::new(AtomicU64::new(0)),
    fence_records: Shown::new(AtomicU64::new(0)),
    fence_queries: Shown::new(AtomicU64::new(0)),
};

/// See [`CALLS`].
#[derive(Debug)]
pub struct Calls {
    /// Allocations asked of the driver, also those that it refused.
    pub allocs: Shown<AtomicU64>,
    /// Frees asked of the driver.
    pub frees: Shown<AtomicU64>,
    /// Fences recorded.
    pub fence_records: Shown<AtomicU64>,
    /// Fences asked for.
    pub fence_queries: Shown<AtomicU64>,
}

/// The share of a device that growth leaves to the driver, which needs memory
/// of its own at launches: 1%, at least 128 MiB.
#[must_use]
pub fn reserved_share(total: u64) -> u64 {
    (total / 100).max(128 << 20)
}

/// [`Device::now`] of all pools.
pub(super) fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl Context {
    /// [`Device::record`] of a pool of this context, counted.
    pub(super) fn recorded(&self, fences: &Fences, slot: usize) -> Recorded {
        let recorded = self.record_fence(fences, slot);
        if recorded == Recorded::Yes {
            CALLS.fence_records.fetch_add(1, Ordering::Relaxed);
        }
        recorded
    }

    /// [`Device::passed`] of any pool, counted.
    pub(super) fn asked(fences: &Fences, slot: usize) -> Passed {
        CALLS.fence_queries.fetch_add(1, Ordering::Relaxed);
        Self::fence_passed(fences, slot)
    }

    /// Bytes that the driver has free on the device, and all that there are;
    /// `None` if it does not say.
    pub fn driver_memory(&self) -> Option<(u64, u64)> {
        let _entered = Entered::enter(self.handle)?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both are valid for writes, and the context is current.
        let result = unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        (result == SUCCESS).then_some((free as u64, total as u64))
    }
}

impl Context {
    /// A segment by cuMemAlloc.
    fn allocate_segment(&self, bytes: u64) -> Result<CUdeviceptr, Refusal> {
        let _entered = Entered::enter(self.handle).ok_or(Refusal::Lost)?;
        let mut address: CUdeviceptr = 0;
        CALLS.allocs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `address` is valid for a write, and the context is current.
        match unsafe { real::cuMemAlloc_v2(&raw mut address, bytes as usize) } {
            SUCCESS => Ok(address),
            OUT_OF_MEMORY => Err(Refusal::OutOfMemory),
            other => {
                log::debug!(
                    "cuMemAlloc of a segment: error {other} in context {:#x}",
                    self.id
                );
                Err(Refusal::Lost)
            }
        }
    }

    /// Gives a segment back in which nothing lives, its grace complete.
    fn free_segment(&self, address: CUdeviceptr) {
        if let Some(mapped) = &self.mapped {
            return mapped.unmap(address);
        }
        let _relaxed = Relaxed::enter();
        CALLS.frees.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the segment came from cuMemAlloc and is the pool's alone;
        // cuMemFree needs no current context.
        let result = unsafe { real::cuMemFree_v2(address) };
        if result != SUCCESS {
            log::debug!(
                "cuMemFree of a segment: error {result} in context {:#x}",
                self.id
            );
        }
    }
}

impl Device for &'static Context {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        let _range = Range::new(Kind::Grow, format_args!("grow {bytes}"), bytes);
        let address = match &self.mapped {
            Some(mapped) => mapped.map(self, bytes)?,
            None => self.allocate_segment(bytes)?,
        };
        // Entered before any block of it is published, so that a free of one
        // always finds its owner.
        if address.is_multiple_of(PAGE) && SEGMENTS.insert(address, bytes, self) {
            if let Some(guard) = &self.guard
                && !guard.segment_taken(self, address, bytes)
            {
                // Work on it is under way: it is left alone for good, as
                // freeing it would wait for the GPU.
                SEGMENTS.remove(address, bytes, self);
                return Err(Refusal::OutOfMemory);
            }
            return Ok(address);
        }
        log::warn!("the driver gave a segment at {address:#x}, which the pool cannot use");
        self.free_segment(address);
        Err(Refusal::OutOfMemory)
    }

    fn release(&self, address: u64, bytes: u64) {
        let _range = Range::new(Kind::GiveBack, format_args!("give back {bytes}"), bytes);
        if let Some(guard) = &self.guard {
            guard.segment_given(self, address, bytes);
        }
        // Owners go first: the driver may give the addresses to anybody.
        SEGMENTS.remove(address, bytes, self);
        self.free_segment(address);
    }

    fn record(&self, slot: usize) -> Recorded {
        self.recorded(&self.fences, slot)
    }

    fn record_waits(&self) -> bool {
        !super::driver::has_context_events()
    }

    fn passed(&self, slot: usize) -> Passed {
        Context::asked(&self.fences, slot)
    }

    fn headroom(&self) -> u64 {
        self.driver_memory().map_or(0, |(free, total)| {
            free.saturating_sub(reserved_share(total))
        })
    }

    fn now(&self) -> Duration {
        now()
    }

    fn attend(&self, may_wait: bool) {
        super::above::attend(may_wait);
    }

    #[inline]
    fn tell(&self, event: Event) {
        if !nvtx::is_on() {
            return;
        }
        match event {
            Event::Hit(bytes) => nvtx::mark(Kind::Hit, format_args!("alloc {bytes} hit"), bytes),
            Event::Miss(bytes) => nvtx::mark(Kind::Miss, format_args!("alloc {bytes} miss"), bytes),
            Event::WaitBegins => nvtx::begin(Kind::Wait, format_args!("wait for the GPU"), 0),
            Event::WaitEnds => nvtx::end(),
        }
    }

    fn pause(&self, round: u32) {
        crate::pool::pause(round);
    }
}
