//! Pinned host memory: pools of it, the driver as their [`Device`], and whose
//! an address is.
//!
//! A context has a pool for each way of asking ([`Class`]), as the driver keeps
//! the flags with the memory, and for each NUMA node: the pages of new pinned
//! memory come from the node that the asking thread runs on, and stay there.
//! Grace is that of device memory, with fences over all contexts, since portable
//! memory is used by all of them; and it has to be seen by the CPU, which writes
//! to a new block at once. The pool hands out nothing else.

use super::abi::{OUT_OF_MEMORY, SUCCESS};
use super::above::{self, ABOVE};
use super::capture;
use super::context::{self, Context};
use super::device::now;
use super::driver::real;
use super::entered::Entered;
use super::fence::Fences;
use crate::pool::Pool;
use crate::pool::device::{Device, Passed, Recorded, Refusal};
use crate::pool::page_map::PageMap;
use crate::pool::stats::Shown;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Whose segment of pinned memory an address lies in, for all pools.
pub static SEGMENTS: PageMap<HostPool> = PageMap::new();

/// Bytes that all pools hold of the host, which GPUPOOL_HOST_MAX limits.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Calls that the library itself makes of the driver for pinned memory, for the
/// statistics.
pub static CALLS: Calls = Calls {
    allocs: Shown::new(AtomicU64::new(0)),
    frees: Shown::new(AtomicU64::new(0)),
};

/// See [`CALLS`].
#[derive(Debug)]
pub struct Calls {
    /// Allocations asked of the driver, also those that it refused.
    pub allocs: Shown<AtomicU64>,
    /// Frees asked of the driver.
    pub frees: Shown<AtomicU64>,
}

/// How pinned memory was asked for: what the driver answers about its flags
/// depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// cuMemAllocHost.
    Plain,
    /// cuMemHostAlloc with these flags.
    Flags(u32),
}

impl Class {
    /// CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP and _WRITECOMBINED.
    const KNOWN: u32 = 7;

    /// The class of cuMemHostAlloc with `flags`; `None` where it is not known
    /// what they mean.
    #[must_use]
    pub fn of_flags(flags: u32) -> Option<Self> {
        (flags & !Self::KNOWN == 0).then_some(Self::Flags(flags))
    }

    /// A number for the statistics: the flags, or 8.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Plain => u64::from(Self::KNOWN) + 1,
            Self::Flags(flags) => u64::from(flags),
        }
    }
}

/// A pool of pinned memory. Never freed, as its context is not.
pub struct HostPool {
    /// The context that its memory was asked for in, and ends with.
    pub context: &'static Context,
    /// How it was asked for.
    pub class: Class,
    /// The NUMA node that its segments were asked for on.
    pub node: u32,
    /// How many such pools were made before it, in any context.
    pub ordinal: u64,
    /// The blocks.
    pub pool: Pool,
    fences: Fences,
    next: OnceLock<&'static HostPool>,
}

/// The pools of a context. Thread-safe; pools are added, and never removed.
#[derive(Default)]
pub struct Hosts {
    first: OnceLock<&'static HostPool>,
    adding: Mutex<()>,
}

impl Hosts {
    /// All that there are.
    pub fn iter(&self) -> impl Iterator<Item = &'static HostPool> {
        std::iter::successors(self.first.get().copied(), |pool| pool.next.get().copied())
    }

    fn find(&self, class: Class, node: u32) -> Option<&'static HostPool> {
        self.iter()
            .find(|pool| (pool.class, pool.node) == (class, node))
    }

    /// The context has ended: forgets all blocks without touching the driver.
    pub(super) fn abandon(&self) {
        for host in self.iter() {
            for (base, size) in host.pool.abandon() {
                SEGMENTS.remove(base, size, host);
                RESERVED.fetch_sub(size, Ordering::Relaxed);
            }
        }
    }

    fn add(&self, context: &'static Context, class: Class, node: u32) -> Option<&'static HostPool> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if let Some(known) = self.find(class, node) {
            return Some(known);
        }
        let above = ABOVE.get()?;
        let policy = above::host_policy((above.config)(), memory());
        let host: &'static HostPool = Box::leak(Box::new(HostPool {
            context,
            class,
            node,
            ordinal: MADE.fetch_add(1, Ordering::Relaxed),
            pool: Pool::new(policy),
            fences: Fences::default(),
            next: OnceLock::new(),
        }));
        (above.host_registered)(host);
        let last = match self.iter().last() {
            Some(last) => &last.next,
            None => &self.first,
        };
        let _ = last.set(host);
        log::debug!(
            "pinned memory {class:?} of node {node} in context {:#x}: {policy:?}",
            context.id
        );
        Some(host)
    }
}

impl Context {
    /// The pool for pinned memory that is asked for like this in the calling
    /// thread.
    pub fn host(&'static self, class: Class) -> Option<&'static HostPool> {
        let node = node();
        self.hosts
            .find(class, node)
            .or_else(|| self.hosts.add(self, class, node))
    }
}

/// The pools of all contexts that have not ended.
pub fn all() -> Vec<&'static HostPool> {
    context::all()
        .into_iter()
        .flat_map(|context| context.hosts.iter())
        .collect()
}

/// Those that may serve a request now.
pub fn serving() -> impl Iterator<Item = &'static HostPool> {
    all().into_iter().filter(|host| host.serves())
}

/// Memory of the machine in bytes.
pub fn memory() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        // SAFETY: takes no pointer.
        let (pages, size) = unsafe {
            (
                libc::sysconf(libc::_SC_PHYS_PAGES),
                libc::sysconf(libc::_SC_PAGESIZE),
            )
        };
        u64::try_from(pages).unwrap_or(0) * u64::try_from(size).unwrap_or(0)
    })
}

/// The NUMA node that the calling thread runs on; 0 where there is one only.
fn node() -> u32 {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    let several = || {
        std::fs::read_to_string("/sys/devices/system/node/online")
            .is_ok_and(|nodes| nodes.trim() != "0")
    };
    if !SEVERAL.get_or_init(several) {
        return 0;
    }
    let (mut cpu, mut node) = (0u32, 0u32);
    // glibc has getcpu from 2.29 on only.
    // SAFETY: both are valid for writes; the third argument is not used.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getcpu,
            &raw mut cpu,
            &raw mut node,
            std::ptr::null_mut::<c_void>(),
        )
    };
    if result == 0 { node } else { 0 }
}

/// GPUPOOL_HOST_MAX in bytes.
fn limit() -> u64 {
    ABOVE
        .get()
        .and_then(|above| (above.config)().host_max)
        .map_or(u64::MAX, |size| size.of(memory()))
}

/// Takes `bytes` of what GPUPOOL_HOST_MAX allows; false if they are more.
fn claim(bytes: u64) -> bool {
    let limit = limit();
    RESERVED
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= limit)
        })
        .is_ok()
}

impl HostPool {
    /// Whether it may serve a request now.
    pub fn serves(&self) -> bool {
        self.context.serves() && !self.pool.is_lost()
    }

    /// Whether a fence of it, or of its context, has seen a fault.
    pub fn is_lost(&self) -> bool {
        self.pool.is_lost() || self.context.pool.is_lost()
    }
}

impl Device for &'static HostPool {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        let _entered = Entered::enter(self.context.handle).ok_or(Refusal::Lost)?;
        if !claim(bytes) {
            return Err(Refusal::OutOfMemory);
        }
        let mut pointer: *mut c_void = std::ptr::null_mut();
        CALLS.allocs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `pointer` is valid for a write, and the context is current.
        let result = unsafe {
            match self.class {
                Class::Plain => real::cuMemAllocHost_v2(&raw mut pointer, bytes as usize),
                Class::Flags(flags) => {
                    real::cuMemHostAlloc(&raw mut pointer, bytes as usize, flags)
                }
            }
        };
        let address = pointer as u64;
        // Entered before any block of it is published, so that a free of one
        // always finds its owner.
        if result == SUCCESS && SEGMENTS.insert(address, bytes, self) {
            return Ok(address);
        }
        RESERVED.fetch_sub(bytes, Ordering::Relaxed);
        match result {
            OUT_OF_MEMORY => Err(Refusal::OutOfMemory),
            // The context is well: the driver shall say it to the program.
            _ if capture::says_capture(result) => Err(Refusal::OutOfMemory),
            SUCCESS => {
                log::warn!(
                    "the driver gave pinned memory at {address:#x}, which the pool cannot use"
                );
                // SAFETY: just allocated, and known to nobody else.
                unsafe { real::cuMemFreeHost(pointer) };
                Err(Refusal::OutOfMemory)
            }
            other => {
                let id = self.context.id;
                log::debug!("pinned memory for a segment: error {other} in context {id:#x}");
                Err(Refusal::Lost)
            }
        }
    }

    fn release(&self, address: u64, bytes: u64) {
        // Owners go first: the driver may give the addresses to anybody.
        SEGMENTS.remove(address, bytes, self);
        RESERVED.fetch_sub(bytes, Ordering::Relaxed);
        let Some(_entered) = Entered::enter(self.context.handle) else {
            return;
        };
        CALLS.frees.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the segment came from the driver's allocator of pinned memory,
        // is empty, and its grace is complete.
        let result = unsafe { real::cuMemFreeHost(address as *mut c_void) };
        if result != SUCCESS {
            let id = self.context.id;
            log::debug!("cuMemFreeHost of a segment: error {result} in context {id:#x}");
        }
    }

    fn record(&self, slot: usize) -> Recorded {
        self.context.recorded(&self.fences, slot)
    }

    fn record_waits(&self) -> bool {
        self.context.record_waits()
    }

    fn passed(&self, slot: usize) -> Passed {
        Context::asked(&self.fences, slot)
    }

    fn headroom(&self) -> u64 {
        limit().saturating_sub(RESERVED.load(Ordering::Relaxed))
    }

    fn now(&self) -> Duration {
        now()
    }

    fn attend(&self, may_wait: bool) {
        above::attend(may_wait);
    }

    fn pause(&self, round: u32) {
        crate::pool::pause(round);
    }
}
