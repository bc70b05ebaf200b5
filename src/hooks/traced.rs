//! GPUPOOL_TRACE: what is noted of an allocation or a free around the call
//! itself, which knows nothing of it.

use crate::cuda::abi::{CUdevice, CUdeviceptr, CUresult, CUstream, SUCCESS};
use crate::cuda::driver::real;
use crate::cuda::{Context, SEGMENTS, context, identity};
use crate::process::{self, State, shielded, trace};
use crate::trace::{Call, Memory, Place};

/// When a call began; `None` if calls are not recorded.
pub type Begun = Option<u64>;

/// A call begins.
#[inline]
pub fn begin() -> Begun {
    trace::is_on().then(trace::now_ns)
}

fn place_of(owner: &Context) -> Place {
    Place {
        device: owner.device as u32,
        context: owner.id,
    }
}

/// The calling thread's context. After the process's end has begun no CUDA call
/// may be made to find out.
fn current_place() -> Option<Place> {
    match process::state() {
        State::Observe => {
            let (mut handle, mut device): (_, CUdevice) = (0, 0);
            // SAFETY: both are valid for writes.
            let found = unsafe {
                real::cuCtxGetCurrent(&raw mut handle) == SUCCESS
                    && handle != 0
                    && real::cuCtxGetDevice(&raw mut device) == SUCCESS
            };
            let context = found.then(|| identity::id_of(handle).ok()).flatten()?;
            Some(Place {
                device: device as u32,
                context,
            })
        }
        State::Off | State::Inert => None,
        _ => context::current().map(place_of),
    }
}

/// An allocation of `size` bytes has ended with this address, or 0.
#[inline]
pub fn allocated(
    begun: Begun,
    memory: Memory,
    (address, size): (CUdeviceptr, u64),
    stream: Option<CUstream>,
    result: CUresult,
    site: usize,
) {
    if let Some(at_ns) = begun {
        note_alloc(at_ns, memory, (address, size), stream, result, site);
    }
}

#[cold]
fn note_alloc(
    at_ns: u64,
    memory: Memory,
    (address, size): (CUdeviceptr, u64),
    stream: Option<CUstream>,
    result: CUresult,
    site: usize,
) {
    let took_ns = trace::now_ns().saturating_sub(at_ns);
    shielded(|| {
        let owner = SEGMENTS.get(address).filter(|_| address != 0);
        trace::record(Call {
            is_free: false,
            memory,
            thread: 0,
            at_ns,
            took_ns,
            address,
            size,
            result: result as u32,
            pooled: owner.is_some(),
            place: owner.map(place_of).or_else(current_place),
            stream: stream.map(|stream| stream as u64),
            site: site as u64,
            stack: 0,
        });
    });
}

/// Makes an allocation call that writes an address to `out`.
///
/// # Safety
/// `out` is the program's, and `call` writes to it if it succeeds.
#[inline]
pub unsafe fn alloc(
    memory: Memory,
    (out, bytes): (*const CUdeviceptr, usize),
    stream: Option<CUstream>,
    site: usize,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let begun = begin();
    let result = call();
    if begun.is_some() {
        let address = if result == SUCCESS && !out.is_null() {
            // SAFETY: the successful call has just written it.
            unsafe { out.read_unaligned() }
        } else {
            0
        };
        let block = (address, bytes as u64);
        allocated(begun, memory, block, stream, result, site);
    }
    result
}

/// Makes a pitched allocation call of `rows` rows; its size is known when it
/// has succeeded.
///
/// # Safety
/// As [`alloc`], for both outputs.
#[inline]
pub unsafe fn alloc_pitch(
    (out, pitch): (*const CUdeviceptr, *const usize),
    rows: usize,
    site: usize,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let begun = begin();
    let result = call();
    if begun.is_some() {
        let block = if result == SUCCESS && !out.is_null() && !pitch.is_null() {
            // SAFETY: the successful call has just written both.
            let (address, pitch) = unsafe { (out.read_unaligned(), pitch.read_unaligned()) };
            (address, pitch.saturating_mul(rows) as u64)
        } else {
            (0, 0)
        };
        allocated(begun, Memory::Device, block, None, result, site);
    }
    result
}

/// Makes a free call of `address`.
#[inline]
pub fn free(
    memory: Memory,
    address: CUdeviceptr,
    stream: Option<CUstream>,
    site: usize,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let begun = begin();
    if begun.is_none() {
        return call();
    }
    // Before the call, after which the memory may be anybody's.
    let owner = SEGMENTS.get(address);
    let result = call();
    freed(begun, memory, (address, owner), stream, result, site);
    result
}

/// A free of `address`, in the segment of `owner` if in any, has ended.
#[inline]
pub fn freed(
    begun: Begun,
    memory: Memory,
    block: (CUdeviceptr, Option<&'static Context>),
    stream: Option<CUstream>,
    result: CUresult,
    site: usize,
) {
    if let Some(at_ns) = begun {
        note_free(at_ns, memory, block, stream, result, site);
    }
}

#[cold]
fn note_free(
    at_ns: u64,
    memory: Memory,
    (address, owner): (CUdeviceptr, Option<&'static Context>),
    stream: Option<CUstream>,
    result: CUresult,
    site: usize,
) {
    let took_ns = trace::now_ns().saturating_sub(at_ns);
    shielded(|| {
        trace::record(Call {
            is_free: true,
            memory,
            thread: 0,
            at_ns,
            took_ns,
            address,
            size: 0,
            result: result as u32,
            pooled: owner.is_some() && result == SUCCESS,
            place: owner.map(place_of).or_else(current_place),
            stream: stream.map(|stream| stream as u64),
            site: site as u64,
            stack: 0,
        });
    });
}
