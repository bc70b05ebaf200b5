//! The exported functions of the runtime: the fast path of programs that use
//! the shared libcudart. What they cannot serve at once goes to the caller's
//! own libcudart, and comes back in at the driver's entry points.

use super::next::next_symbol;
use super::pinned;
use super::serve::{self, pooled};
use super::traced;
use crate::cuda::abi::{CUdevice, Extent, PitchedPtr};
use crate::cuda::{SEGMENTS, context};
use crate::process::trace::with_site;
use crate::process::{self, State, shielded};
use crate::trace::Memory::Device;
use dashmap::DashMap;
use once_cell::sync::Lazy;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A runtime status: 0 is success.
type CudaError = i32;

/// cudaErrorInitializationError: there is no libcudart to ask.
const NO_RUNTIME: CudaError = 3;

/// Whether the driver's current context is the one that the caller's runtime
/// would use: from 12.0 on `cudaSetDevice` makes it current at once, before
/// only with the next call.
fn runtime_is_current(return_address: usize) -> bool {
    /// Callers whose runtime was found to be 12.0 or later.
    static MODERN: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
    let place = &MODERN[(return_address ^ (return_address >> 8)) & 255];
    if place.load(Ordering::Relaxed) == return_address {
        return true;
    }
    let Some(version) = runtime_version(return_address) else {
        return false;
    };
    if version >= 12_000 {
        place.store(return_address, Ordering::Relaxed);
    }
    version >= 12_000
}

/// The version of the caller's runtime, e.g. 13000.
fn runtime_version(return_address: usize) -> Option<i32> {
    let address = shielded(|| next_symbol(c"cudaRuntimeGetVersion", return_address)).flatten()?;
    // SAFETY: the address is libcudart's function of this name, whose
    // prototype this is.
    let call: unsafe extern "C" fn(*mut i32) -> CudaError = unsafe { std::mem::transmute(address) };
    let mut version = 0;
    // SAFETY: the argument is valid for a write; the call has no other effect.
    (unsafe { call(&raw mut version) } == 0).then_some(version)
}

/// Whether a call from there may be served here at all.
fn may_serve(return_address: usize) -> bool {
    process::state() == State::Pool && runtime_is_current(return_address)
}

/// The caller's own function of that name.
fn real(name: &'static CStr, return_address: usize) -> Option<usize> {
    shielded(|| next_symbol(name, return_address)).flatten()
}

/// cudaMalloc, called from `return_address`.
///
/// # Safety
/// As cudaMalloc.
pub unsafe extern "C" fn cuda_malloc(
    out: *mut *mut c_void,
    bytes: usize,
    return_address: usize,
) -> CudaError {
    let begun = traced::begin();
    if !out.is_null()
        && may_serve(return_address)
        && let Some(address) = shielded(|| pooled(bytes)).flatten()
    {
        // SAFETY: not null, and the program's to be written.
        unsafe { out.write_unaligned(address as *mut c_void) };
        let block = (address, bytes as u64);
        traced::allocated(begun, Device, block, None, 0, return_address);
        return 0;
    }
    let Some(address) = real(c"cudaMalloc", return_address) else {
        return NO_RUNTIME;
    };
    // SAFETY: libcudart's function of this name, whose prototype this is, with
    // the program's arguments.
    unsafe {
        let call: unsafe extern "C" fn(*mut *mut c_void, usize) -> CudaError =
            std::mem::transmute(address);
        with_site(return_address, || call(out, bytes))
    }
}

/// cudaFree, called from `return_address`.
///
/// # Safety
/// As cudaFree.
pub unsafe extern "C" fn cuda_free(pointer: *mut c_void, return_address: usize) -> CudaError {
    let begun = traced::begin();
    let owner = begun.and_then(|_| SEGMENTS.get(pointer as u64));
    if serve::free_fast(pointer as u64) {
        let block = (pointer as u64, owner);
        traced::freed(begun, Device, block, None, 0, return_address);
        return 0;
    }
    let Some(address) = real(c"cudaFree", return_address) else {
        return NO_RUNTIME;
    };
    // SAFETY: as in `cuda_malloc`.
    unsafe {
        let call: unsafe extern "C" fn(*mut c_void) -> CudaError = std::mem::transmute(address);
        with_site(return_address, || call(pointer))
    }
}

/// cudaFreeHost, called from `return_address`. There is no such way for the
/// allocations: with which flags a runtime asks the driver is its own affair.
///
/// # Safety
/// As cudaFreeHost.
pub unsafe extern "C" fn cuda_free_host(pointer: *mut c_void, return_address: usize) -> CudaError {
    if pinned::free_fast(pointer as u64) {
        return 0;
    }
    let Some(address) = real(c"cudaFreeHost", return_address) else {
        return NO_RUNTIME;
    };
    // SAFETY: as in `cuda_malloc`.
    unsafe {
        let call: unsafe extern "C" fn(*mut c_void) -> CudaError = std::mem::transmute(address);
        call(pointer)
    }
}

/// Pitches that the runtime gave, by (device, width, height, depth).
static PITCHES: Lazy<DashMap<(CUdevice, usize, usize, usize), usize>> = Lazy::new(DashMap::new);

/// A pitched block from the pool, if the pitch of its shape is known.
fn pooled_pitched(shape: (usize, usize, usize)) -> Option<(u64, usize)> {
    shielded(|| {
        let device = context::current()?.device;
        let pitch = *PITCHES.get(&(device, shape.0, shape.1, shape.2))?;
        let bytes = pitch.checked_mul(shape.1)?.checked_mul(shape.2)?;
        Some((pooled(bytes)?, pitch))
    })
    .flatten()
}

/// The runtime gave a block of this shape that pitch.
fn learn(shape: (usize, usize, usize), pitch: usize) {
    shielded(|| {
        if let Some(context) = context::current() {
            PITCHES.insert((context.device, shape.0, shape.1, shape.2), pitch);
        }
    });
}

/// cudaMallocPitch, called from `return_address`: the first request of a shape
/// is the driver's, and tells the pitch for the others.
///
/// # Safety
/// As cudaMallocPitch.
pub unsafe extern "C" fn cuda_malloc_pitch(
    out: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
    return_address: usize,
) -> CudaError {
    let begun = traced::begin();
    let ours = !out.is_null() && !pitch.is_null() && may_serve(return_address);
    if ours && let Some((address, known)) = pooled_pitched((width, height, 1)) {
        // SAFETY: neither is null, and both are the program's to be written.
        unsafe {
            out.write_unaligned(address as *mut c_void);
            pitch.write_unaligned(known);
        }
        let block = (address, (known * height) as u64);
        traced::allocated(begun, Device, block, None, 0, return_address);
        return 0;
    }
    let Some(address) = real(c"cudaMallocPitch", return_address) else {
        return NO_RUNTIME;
    };
    // SAFETY: as in `cuda_malloc`; what a successful call has written is read.
    unsafe {
        let call: unsafe extern "C" fn(*mut *mut c_void, *mut usize, usize, usize) -> CudaError =
            std::mem::transmute(address);
        let result = with_site(return_address, || call(out, pitch, width, height));
        if ours && result == 0 && width > 0 && height > 0 {
            learn((width, height, 1), pitch.read_unaligned());
        }
        result
    }
}

/// cudaMalloc3D, called from `return_address`. `extent` is on the stack, as
/// the ABI passes a structure of its size.
///
/// # Safety
/// As cudaMalloc3D.
pub unsafe extern "C" fn cuda_malloc_3d(
    out: *mut PitchedPtr,
    return_address: usize,
    extent: Extent,
) -> CudaError {
    let Extent {
        width,
        height,
        depth,
    } = extent;
    let begun = traced::begin();
    let ours = !out.is_null() && may_serve(return_address);
    if ours && let Some((address, pitch)) = pooled_pitched((width, height, depth)) {
        let block = PitchedPtr {
            ptr: address as *mut c_void,
            pitch,
            xsize: width,
            ysize: height,
        };
        // SAFETY: not null, and the program's to be written.
        unsafe { out.write_unaligned(block) };
        let block = (address, (pitch * height * depth) as u64);
        traced::allocated(begun, Device, block, None, 0, return_address);
        return 0;
    }
    let Some(address) = real(c"cudaMalloc3D", return_address) else {
        return NO_RUNTIME;
    };
    // SAFETY: as in `cuda_malloc_pitch`.
    unsafe {
        let call: unsafe extern "C" fn(*mut PitchedPtr, Extent) -> CudaError =
            std::mem::transmute(address);
        let result = with_site(return_address, || call(out, extent));
        if ours && result == 0 && width > 0 && height > 0 && depth > 0 {
            learn((width, height, depth), out.read_unaligned().pitch);
        }
        result
    }
}
