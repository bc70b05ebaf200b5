//! What a hooked call does: allocation, free, and the calls that begin and end
//! contexts and captures. The order is always the same: what is the library to
//! this process, whose memory or context is it, what does the pool say; and
//! where the answer is "not ours", the real call, with the program's arguments.

use super::{guarded, passing};
use crate::config::{Fill, FreePolicy};
use crate::cuda::abi::{
    CUcontext, CUdevice, CUdeviceptr, CUgreenCtx, CUresult, CUstream, OUT_OF_MEMORY, SUCCESS,
};
use crate::cuda::context::{self, Context, Status};
use crate::cuda::driver::{NEVER_VALID, real};
use crate::cuda::{SEGMENTS, capture, fill, green, guard, host, identity};
use crate::nvtx;
use crate::pool::{BlockInfo, Outcome, Pool};
use crate::process::{
    self, FOREIGN_FREES, PASSED_ALLOCS, State, mailbox, observe, shielded, shortage,
};
use dashmap::DashMap;
use once_cell::sync::Lazy;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A block of `bytes` from the pool of the calling thread's context. `None`:
/// the driver shall answer, and nothing has happened.
pub fn pooled(bytes: usize) -> Option<CUdeviceptr> {
    let context = context::current()?;
    // In a thread with a non-relaxed capture of its own a hit would bake a
    // block into the graph that is later reissued; natively it is an error.
    if bytes == 0 || capture::own_thread_restricted() {
        return None;
    }
    if !context.serves() {
        passing::not_served(context);
        return None;
    }
    context.preallocate_once();
    if let Some(guard) = &context.guard {
        return guarded::alloc(context, guard, bytes as u64);
    }
    let Outcome::Block(block) = context.pool.alloc(&context, bytes as u64) else {
        return None;
    };
    filled(context, block).then_some(block.address)
}

/// The driver had no memory either: says why, as far as can be seen.
#[cold]
fn tell_out_of_memory(bytes: usize) {
    if let Some(context) = context::current()
        && !capture::own_thread_restricted()
    {
        shortage::tell(context, bytes as u64);
    }
}

/// GPUPOOL_FILL. False if it could not be done; the block then is given back.
pub(super) fn filled(context: &'static Context, block: BlockInfo) -> bool {
    let config = process::config();
    let value = match config.fill {
        Fill::None => return true,
        Fill::Zero => 0,
        Fill::Poison => fill::POISON,
    };
    let done = fill::fill(context, block.address, block.size, value, config.wait);
    if !done {
        context.pool.free(&context, block.address);
    }
    done
}

/// cuMemAlloc.
///
/// # Safety
/// `out` is the program's, as cuMemAlloc takes it; `call` is the real one.
pub unsafe fn alloc(out: *mut CUdeviceptr, bytes: usize, call: impl Fn() -> CUresult) -> CUresult {
    match process::state() {
        State::Pool if !out.is_null() => {
            if let Some(address) = shielded(|| pooled(bytes)).flatten() {
                // SAFETY: not null, and the program's to be written.
                unsafe { out.write_unaligned(address) };
                return SUCCESS;
            }
            PASSED_ALLOCS.fetch_add(1, Ordering::Relaxed);
            shielded(|| mailbox::attend(true));
            let result = call();
            if result == OUT_OF_MEMORY {
                shielded(|| tell_out_of_memory(bytes));
            }
            result
        }
        // SAFETY: as this function's.
        State::Observe => unsafe { observe::alloc(out, bytes as u64, call) },
        State::Passing if !out.is_null() => {
            PASSED_ALLOCS.fetch_add(1, Ordering::Relaxed);
            passing::drain();
            shielded(|| mailbox::attend(true));
            or_give_back(call)
        }
        _ => call(),
    }
}

/// Pitches that the driver gave, by (device, width, height, element size).
static PITCHES: Lazy<DashMap<(CUdevice, usize, usize, u32), usize>> = Lazy::new(DashMap::new);

/// cuMemAllocPitch: the first request of a shape is the driver's, and tells
/// the pitch for the others.
///
/// # Safety
/// As cuMemAllocPitch.
pub unsafe fn alloc_pitch(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    // SAFETY: the program's arguments as they came.
    let call = || unsafe { real::cuMemAllocPitch_v2(out, pitch, width, height, element) };
    if process::state() == State::Observe {
        // SAFETY: as this function's.
        return unsafe { observe::alloc(out, width.saturating_mul(height) as u64, call) };
    }
    if out.is_null() || pitch.is_null() || process::state() != State::Pool {
        return call();
    }
    let key =
        shielded(|| context::current().map(|context| (context.device, width, height, element)))
            .flatten();
    if let Some(key) = key {
        let known = shielded(|| PITCHES.get(&key).map(|pitch| *pitch)).flatten();
        if let Some(known) = known {
            let address = known
                .checked_mul(height)
                .and_then(|bytes| shielded(|| pooled(bytes)).flatten());
            if let Some(address) = address {
                // SAFETY: neither is null, and both are the program's to be written.
                unsafe {
                    out.write_unaligned(address);
                    pitch.write_unaligned(known);
                }
                return SUCCESS;
            }
        }
    }
    PASSED_ALLOCS.fetch_add(1, Ordering::Relaxed);
    let result = or_give_back(call);
    if let Some(key) = key.filter(|_| result == SUCCESS) {
        // SAFETY: the successful call has just written it.
        let learnt = unsafe { pitch.read_unaligned() };
        shielded(|| PITCHES.insert(key, learnt));
    }
    result
}

/// What to do with a free of an address in one of our segments.
pub(super) enum Freed {
    /// Done.
    Yes,
    /// Natively an error: ask the driver about an address that is none.
    Error,
}

/// cuMemFree.
pub fn free(address: CUdeviceptr, call: impl FnOnce(CUdeviceptr) -> CUresult) -> CUresult {
    let Some(owner) = SEGMENTS.get(address) else {
        // Pinned memory is not its to free: natively an error.
        if host::SEGMENTS.get(address).is_some() {
            return call(NEVER_VALID);
        }
        return match process::state() {
            State::Observe => observe::free(address, || call(address)),
            state @ (State::Pool | State::Passing) if address != 0 => {
                FOREIGN_FREES.fetch_add(1, Ordering::Relaxed);
                if state == State::Passing {
                    passing::drain();
                }
                call(address)
            }
            _ => call(address),
        };
    };
    match free_owned(owner, address) {
        Freed::Yes => SUCCESS,
        // The program's pointer does not go on: at the start of a segment it
        // would free everybody's blocks.
        Freed::Error => call(NEVER_VALID),
    }
}

/// A free that succeeds at once, or `false` if there is anything else to do.
pub fn free_fast(address: CUdeviceptr) -> bool {
    let Some(owner) = SEGMENTS.get(address) else {
        return false;
    };
    match process::state() {
        // A thread without a context gets one from the runtime's own call.
        State::Pool | State::Passing => {
            context::any_is_current()
                && !capture::any_open()
                && matches!(free_owned(owner, address), Freed::Yes)
        }
        // The runtime would fail in a forked child, and may be gone at the end.
        _ => true,
    }
}

fn free_owned(owner: &'static Context, address: CUdeviceptr) -> Freed {
    end_of_block(owner, &owner.pool, owner.pool.is_lost(), address, || {
        give_back(owner, address, None)
    })
}

/// Ends the life of the block at `address`, if there is one in `pool`, with
/// `give_back`, as the state of the process and GPUPOOL_FREE ask. `lost`: a
/// fence has seen a fault.
pub(super) fn end_of_block(
    owner: &'static Context,
    pool: &Pool,
    lost: bool,
    address: CUdeviceptr,
    give_back: impl FnOnce() -> bool,
) -> Freed {
    if !process::keeps_books() {
        return Freed::Yes;
    }
    // After a fault of our own the memory is left to the system.
    shielded(|| {
        if owner.status() == Status::Gone || capture::own_thread_restricted() {
            return Freed::Error;
        }
        if lost && owner.answers_errors() {
            return Freed::Error;
        }
        let policy = process::config().free;
        if policy == FreePolicy::Strict && pool.begins_block(address) {
            owner.wait_for_earlier_work(None);
        }
        if !give_back() {
            return Freed::Error;
        }
        if policy == FreePolicy::Ordered {
            owner.order_later_work();
        }
        Freed::Yes
    })
    .unwrap_or(Freed::Yes)
}

/// Ends the life of the block at `address`; false if there is none. With
/// GPUPOOL_GUARD it waits for earlier work, at most `limit` if there is one.
#[inline]
fn give_back(owner: &'static Context, address: CUdeviceptr, limit: Option<Duration>) -> bool {
    let freed = match &owner.guard {
        None => owner.pool.free(&owner, address),
        Some(guard) => guarded::free(owner, guard, address, limit),
    };
    if freed && nvtx::is_on() {
        nvtx::mark(nvtx::Kind::Free, format_args!("free"), 0);
    }
    if process::state() == State::Passing {
        passing::drain();
    }
    freed
}

/// cuMemFreeAsync: a pooled block comes back at once, as its grace covers all
/// that was submitted to the stream so far; later work of the stream must not
/// use it, as natively.
pub fn free_async(
    address: CUdeviceptr,
    stream: CUstream,
    call: impl FnOnce(CUdeviceptr) -> CUresult,
) -> CUresult {
    let Some(owner) = SEGMENTS.get(address) else {
        return match host::SEGMENTS.get(address) {
            Some(_) => call(NEVER_VALID),
            None => call(address),
        };
    };
    if !process::keeps_books() {
        return SUCCESS;
    }
    if owner.status() == Status::Gone || (owner.pool.is_lost() && owner.answers_errors()) {
        return call(NEVER_VALID);
    }
    if capture::own_thread_restricted() {
        return call(NEVER_VALID);
    }
    match capture::is_capturing(stream) {
        Err(error) => error,
        // A free of such memory cannot be captured.
        Ok(true) => call(NEVER_VALID),
        Ok(false) => match shielded(|| give_back(owner, address, Some(process::config().wait))) {
            Some(false) => call(NEVER_VALID),
            Some(true) | None => SUCCESS,
        },
    }
}

/// An allocation of another kind: where the device is out of memory, the pool
/// gives back what is idle, and the call is made once more.
pub fn or_give_back(call: impl Fn() -> CUresult) -> CUresult {
    or_give_back_on(|| context::current().map(|context| context.device), call)
}

/// [`or_give_back`] for a call that names its device, or needs no context.
pub fn or_give_back_on(
    device: impl Fn() -> Option<CUdevice>,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let result = call();
    if result != OUT_OF_MEMORY || !process::keeps_books() || capture::own_thread_restricted() {
        return result;
    }
    let given_back = shielded(|| device().map_or(0, give_back_on));
    shielded(guard::report_pending);
    match given_back {
        Some(bytes) if bytes > 0 => {
            log::info!("gave {bytes} bytes back for an allocation of another kind");
            call()
        }
        _ => result,
    }
}

/// Gives back what is idle of a device's memory. Returns the bytes.
pub(super) fn give_back_on(device: CUdevice) -> u64 {
    context::all()
        .into_iter()
        .filter(|context| context.device == device && context.serves())
        .map(|context| context.pool.trim_anyway(&context))
        .sum()
}

/// cuInit.
pub fn init(call: impl FnOnce() -> CUresult) -> CUresult {
    let result = call();
    if result == SUCCESS {
        process::prepare_for_exit();
    }
    result
}

/// cuCtxCreate, all forms.
///
/// # Safety
/// `out` is the program's, and `call` writes a handle to it if it succeeds.
pub unsafe fn context_created(
    out: *mut CUcontext,
    device: CUdevice,
    call: impl Fn() -> CUresult,
) -> CUresult {
    // A context takes some hundred megabytes of its own.
    let result = or_give_back_on(|| Some(device), call);
    if result == SUCCESS && process::keeps_books() && !out.is_null() {
        // SAFETY: the successful call has just written it.
        let handle = unsafe { out.read_unaligned() };
        shielded(|| context::created(handle));
    }
    result
}

/// cuGreenCtxCreate.
///
/// # Safety
/// As [`context_created`].
pub unsafe fn green_created(
    out: *mut CUgreenCtx,
    device: CUdevice,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let result = or_give_back_on(|| Some(device), call);
    if result == SUCCESS && process::keeps_books() && !out.is_null() {
        // SAFETY: the successful call has just written it.
        let green = unsafe { out.read_unaligned() };
        shielded(|| green::created(green, device));
    }
    result
}

/// cuGreenCtxDestroy: gives up the hold on the primary context that the green
/// one had, which can be the last.
pub fn green_destroyed(green: CUgreenCtx, call: impl FnOnce() -> CUresult) -> CUresult {
    if !process::keeps_books() {
        return call();
    }
    let device = shielded(|| green::device_of(green)).flatten();
    let result = match device {
        Some(device) => primary_released(device, call),
        None => call(),
    };
    if result == SUCCESS {
        shielded(|| green::destroyed(green));
    }
    result
}

/// cuCtxFromGreenCtx.
///
/// # Safety
/// As [`context_created`].
pub unsafe fn green_context(
    out: *mut CUcontext,
    green: CUgreenCtx,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    if result == SUCCESS && process::keeps_books() && !out.is_null() {
        // SAFETY: the successful call has just written it.
        let handle = unsafe { out.read_unaligned() };
        shielded(|| green::as_context(green, handle));
    }
    result
}

/// cuCtxDestroy.
pub fn context_destroyed(handle: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let known = if process::keeps_books() {
        context::by_handle(handle)
    } else {
        None
    };
    context::closing(known, call, |result| *result == SUCCESS)
}

/// cuDevicePrimaryCtxReset.
pub fn primary_reset(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let known = if process::keeps_books() {
        context::primary(device)
    } else {
        None
    };
    context::closing(known, call, |result| *result == SUCCESS)
}

/// cuDevicePrimaryCtxRelease: the last one ends the context.
pub fn primary_released(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let known = if process::keeps_books() {
        context::primary(device)
    } else {
        None
    };
    context::closing(known, call, |result| {
        *result == SUCCESS && !identity::primary_is_active(device)
    })
}

/// cuStreamDestroy.
pub fn stream_destroyed(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if process::keeps_books() {
        capture::end_for_sure(stream, call)
    } else {
        call()
    }
}

/// cuStreamBeginCapture, all forms.
pub fn capture_begun(stream: CUstream, mode: i32, call: impl FnOnce() -> CUresult) -> CUresult {
    if process::keeps_books() {
        capture::begin(stream, mode, call)
    } else {
        call()
    }
}

/// cuStreamEndCapture, all forms.
pub fn capture_ended(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if process::keeps_books() {
        capture::end(stream, call)
    } else {
        call()
    }
}

/// The end of a capture of which the driver cannot be asked whether it is open:
/// cuStreamEndCaptureToCig. Only a success ends it.
pub fn capture_ended_for_sure(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if process::keeps_books() {
        capture::end_for_sure(stream, call)
    } else {
        call()
    }
}
