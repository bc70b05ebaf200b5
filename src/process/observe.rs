//! GPUPOOL_MODE=observe: the program's own calls, counted and timed; nothing
//! is changed.

use crate::cuda::abi::{CUdeviceptr, CUresult, SUCCESS};
use dashmap::DashMap;
use once_cell::sync::Lazy;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Sizes of the blocks that are live now, by address.
static LIVE: Lazy<DashMap<CUdeviceptr, u64>> = Lazy::new(DashMap::new);
static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);
static ALLOCS: AtomicU64 = AtomicU64::new(0);
static ALLOC_NS: AtomicU64 = AtomicU64::new(0);
static FREES: AtomicU64 = AtomicU64::new(0);
static FREE_NS: AtomicU64 = AtomicU64::new(0);

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Allocation calls.
    pub allocs: u64,
    /// Nanoseconds inside them.
    pub alloc_ns: u64,
    /// Free calls.
    pub frees: u64,
    /// Nanoseconds inside them.
    pub free_ns: u64,
    /// Bytes allocated now.
    pub live: u64,
    /// Highest `live`.
    pub peak: u64,
}

/// Makes a native allocation call of `bytes` that writes to `out`.
///
/// # Safety
/// `out` is what the program passed, and the call writes an address to it if
/// it succeeds.
pub unsafe fn alloc(
    out: *const CUdeviceptr,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let start = Instant::now();
    let result = call();
    ALLOC_NS.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    ALLOCS.fetch_add(1, Ordering::Relaxed);
    if result == SUCCESS && !out.is_null() && bytes > 0 {
        // SAFETY: the successful call has just written it.
        LIVE.insert(unsafe { out.read_unaligned() }, bytes);
        let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
    }
    result
}

/// Makes a native free call of `address`.
pub fn free(address: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
    // Forgotten before the call, after which the address may come again.
    let known = LIVE.remove(&address);
    let start = Instant::now();
    let result = call();
    FREE_NS.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    FREES.fetch_add(1, Ordering::Relaxed);
    if let Some((_, bytes)) = known {
        if result == SUCCESS {
            LIVE_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        } else {
            LIVE.insert(address, bytes);
        }
    }
    result
}

/// What was seen so far.
#[must_use]
pub fn seen() -> Seen {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Seen {
        allocs: read(&ALLOCS),
        alloc_ns: read(&ALLOC_NS),
        frees: read(&FREES),
        free_ns: read(&FREE_NS),
        live: read(&LIVE_BYTES),
        peak: read(&PEAK_BYTES),
    }
}
