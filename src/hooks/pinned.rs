//! Pinned host memory: cuMemHostAlloc, cuMemAllocHost and cuMemFreeHost. The
//! order of the questions is that of [`super::serve`]. GPUPOOL_GUARD does not
//! watch it.

use super::serve::{Freed, end_of_block};
use super::{passing, serve};
use crate::config::Fill;
use crate::cuda::abi::{CUdeviceptr, CUresult, OUT_OF_MEMORY, SUCCESS};
use crate::cuda::driver::{NEVER_VALID, real};
use crate::cuda::host::{self, Class, HostPool};
use crate::cuda::{SEGMENTS, capture, context, fill};
use crate::pool::{BlockInfo, Outcome};
use crate::process::{
    self, FOREIGN_HOST_FREES, PASSED_HOST_ALLOCS, State, mailbox, observe, shielded,
};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// A block of `bytes` from the pool of the calling thread's context. `None`:
/// the driver shall answer, and nothing has happened.
fn pooled(bytes: usize, class: Class) -> Option<*mut c_void> {
    let context = context::current()?;
    if bytes == 0 || capture::own_thread_restricted() {
        return None;
    }
    if !context.serves() {
        passing::not_served(context);
        return None;
    }
    let host = context.host(class).filter(|host| host.serves())?;
    let mut outcome = host.pool.alloc(&host, bytes as u64);
    // The cap is that of all pools together.
    if outcome == Outcome::Native && process::config().host_max.is_some() && spared(host) {
        outcome = host.pool.alloc(&host, bytes as u64);
    }
    let Outcome::Block(block) = outcome else {
        return None;
    };
    filled(&block);
    Some(block.address as *mut c_void)
}

/// Gives back what the pools other than `wanting` have idle; whether there was
/// anything.
fn spared(wanting: &HostPool) -> bool {
    host::serving()
        .filter(|host| !std::ptr::eq(*host, wanting))
        .map(|host| host.pool.give_back_idle(&host))
        .sum::<u64>()
        > 0
}

/// GPUPOOL_FILL. The GPU is done with the block.
fn filled(block: &BlockInfo) {
    let value = match process::config().fill {
        Fill::None => return,
        Fill::Zero => 0,
        Fill::Poison => fill::POISON,
    };
    // SAFETY: the block is host memory of this size, the caller's alone, and is
    // not known to the program yet.
    unsafe { std::ptr::write_bytes(block.address as *mut u8, value, block.size as usize) };
}

/// cuMemHostAlloc, cuMemAllocHost. `class`: how it is asked for, if that is
/// known.
///
/// # Safety
/// `out` is the program's, as these functions take it; `call` is the real one.
pub unsafe fn alloc(
    out: *mut *mut c_void,
    bytes: usize,
    class: Option<Class>,
    call: impl Fn() -> CUresult,
) -> CUresult {
    match process::state() {
        State::Pool if !out.is_null() => {
            let class = class.filter(|_| process::config().host);
            if let Some(class) = class
                && let Some(pointer) = shielded(|| pooled(bytes, class)).flatten()
            {
                // SAFETY: not null, and the program's to be written.
                unsafe { out.write_unaligned(pointer) };
                return SUCCESS;
            }
            PASSED_HOST_ALLOCS.fetch_add(1, Ordering::Relaxed);
            shielded(|| mailbox::attend(true));
            or_give_back(call)
        }
        // SAFETY: as this function's.
        State::Observe => unsafe { observe::alloc_host(out, bytes as u64, call) },
        State::Passing if !out.is_null() => {
            PASSED_HOST_ALLOCS.fetch_add(1, Ordering::Relaxed);
            passing::drain();
            shielded(|| mailbox::attend(true));
            or_give_back(call)
        }
        _ => call(),
    }
}

/// Where the driver is out of memory, the pools give back what is idle, and the
/// call is made once more. Device memory only where nothing is pinned: mapping
/// pinned memory takes a little of it.
fn or_give_back(call: impl Fn() -> CUresult) -> CUresult {
    let result = call();
    if result != OUT_OF_MEMORY || !process::keeps_books() || capture::own_thread_restricted() {
        return result;
    }
    let given_back = shielded(|| {
        let pinned: u64 = host::serving()
            .map(|host| host.pool.trim_anyway(&host))
            .sum();
        match context::current() {
            Some(context) if pinned == 0 => serve::give_back_on(context.device),
            _ => pinned,
        }
    });
    match given_back {
        Some(bytes) if bytes > 0 => {
            log::info!("gave {bytes} bytes back for pinned memory of the driver's");
            call()
        }
        _ => result,
    }
}

/// cuMemFreeHost.
pub fn free(pointer: *mut c_void, call: impl FnOnce(*mut c_void) -> CUresult) -> CUresult {
    let address = pointer as u64;
    let never_valid = NEVER_VALID as *mut c_void;
    let Some(host) = host::SEGMENTS.get(address) else {
        // Natively an error; the pointer could be the start of a segment.
        if SEGMENTS.get(address).is_some() {
            return call(never_valid);
        }
        return match process::state() {
            State::Observe => observe::free_host(address, || call(pointer)),
            state @ (State::Pool | State::Passing) if address != 0 => {
                FOREIGN_HOST_FREES.fetch_add(1, Ordering::Relaxed);
                if state == State::Passing {
                    passing::drain();
                }
                call(pointer)
            }
            _ => call(pointer),
        };
    };
    match free_owned(host, address) {
        Freed::Yes => SUCCESS,
        Freed::Error => call(never_valid),
    }
}

/// A free that succeeds at once, or `false` if there is anything else to do; as
/// [`serve::free_fast`].
pub fn free_fast(address: u64) -> bool {
    let Some(host) = host::SEGMENTS.get(address) else {
        return false;
    };
    match process::state() {
        State::Pool | State::Passing => {
            context::any_is_current()
                && !capture::any_open()
                && matches!(free_owned(host, address), Freed::Yes)
        }
        _ => true,
    }
}

fn free_owned(host: &'static HostPool, address: u64) -> Freed {
    end_of_block(host.context, &host.pool, host.is_lost(), address, || {
        let freed = host.pool.free(&host, address);
        if process::state() == State::Passing {
            passing::drain();
        }
        freed
    })
}

/// The address to ask the driver about in place of `pointer`: in a segment of
/// ours that has no live block there, natively nothing is allocated.
fn to_ask(pointer: *mut c_void) -> *mut c_void {
    let address = pointer as u64;
    let Some(host) = host::SEGMENTS
        .get(address)
        .filter(|_| process::keeps_books())
    else {
        return pointer;
    };
    match shielded(|| host.pool.containing(address)) {
        Some(None) => NEVER_VALID as *mut c_void,
        _ => pointer,
    }
}

/// cuMemHostGetFlags: those that the segment was asked for with are the block's.
///
/// # Safety
/// As cuMemHostGetFlags.
pub unsafe fn flags(out: *mut u32, pointer: *mut c_void) -> CUresult {
    // SAFETY: the program's arguments, but for the address.
    unsafe { real::cuMemHostGetFlags(out, to_ask(pointer)) }
}

/// cuMemHostGetDevicePointer.
///
/// # Safety
/// As cuMemHostGetDevicePointer.
pub unsafe fn device_pointer(out: *mut CUdeviceptr, pointer: *mut c_void, flags: u32) -> CUresult {
    // SAFETY: the program's arguments, but for the address.
    unsafe { real::cuMemHostGetDevicePointer_v2(out, to_ask(pointer), flags) }
}
