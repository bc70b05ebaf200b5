//! The replacements of the driver's entry points. Each is one line: what is
//! decided stands in `serve` and `query`.
//!
//! # Safety
//! All are called by the program in place of the driver's function of the same
//! name, with its prototype and its requirements on the arguments; pointers
//! are written through only where that function would.

#![allow(non_snake_case, clippy::missing_safety_doc)]

use super::{query, serve};
use crate::cuda::abi::{CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream};
use crate::cuda::driver::real;
use std::ffi::c_void;

/// The handle by which the per-thread forms (`_ptsz`) mean NULL.
fn per_thread(stream: CUstream) -> CUstream {
    if stream == 0 { 2 } else { stream }
}

macro_rules! entries {
    ($($name:ident($($arg:ident: $ty:ty),*) => $body:expr;)*) => {
        $(
            #[doc = concat!("Replaces `", stringify!($name), "`.")]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                // SAFETY: the program's arguments, handed on as they came (see
                // the module's documentation).
                unsafe { $body }
            }
        )*
    };
}

entries! {
    cuInit(flags: u32) => serve::init(|| real::cuInit(flags));

    cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize) => serve::alloc(out, bytes, || real::cuMemAlloc_v2(out, bytes));
    cuMemAllocPitch_v2(out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32) =>
        serve::alloc_pitch(out, pitch, width, height, element);
    cuMemFree_v2(address: CUdeviceptr) => serve::free(address, |address| real::cuMemFree_v2(address));
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) =>
        serve::free_async(address, stream, |address| real::cuMemFreeAsync(address, stream));
    cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) =>
        serve::free_async(address, per_thread(stream), |address| real::cuMemFreeAsync_ptsz(address, stream));

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => query::memory_info(free, total);
    cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) =>
        query::address_range(base, size, address);
    cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: CUdeviceptr) =>
        query::attribute(data, attribute, address);
    cuPointerGetAttributes(count: u32, attributes: *mut i32, data: *mut *mut c_void, address: CUdeviceptr) =>
        query::attributes(count, attributes, data, address);
    cuPointerSetAttribute(data: *const c_void, attribute: i32, address: CUdeviceptr) =>
        query::set_attribute(data, attribute, address);
    cuIpcGetMemHandle(handle: *mut c_void, address: CUdeviceptr) => query::ipc_handle(handle, address);
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: CUdeviceptr, size: usize, kind: i32, flags: u64) =>
        query::range_handle(handle, address, size, kind, flags);

    cuMemAllocManaged(out: *mut CUdeviceptr, bytes: usize, flags: u32) =>
        serve::or_give_back(|| real::cuMemAllocManaged(out, bytes, flags));
    cuMemCreate(handle: *mut u64, size: usize, properties: *const c_void, flags: u64) =>
        serve::or_give_back(|| real::cuMemCreate(handle, size, properties, flags));
    cuArrayCreate_v2(array: *mut *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuArrayCreate_v2(array, descriptor));
    cuArray3DCreate_v2(array: *mut *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuArray3DCreate_v2(array, descriptor));
    cuMipmappedArrayCreate(array: *mut *mut c_void, descriptor: *const c_void, levels: u32) =>
        serve::or_give_back(|| real::cuMipmappedArrayCreate(array, descriptor, levels));
    cuMemAllocAsync(out: *mut CUdeviceptr, bytes: usize, stream: CUstream) =>
        serve::or_give_back(|| real::cuMemAllocAsync(out, bytes, stream));
    cuMemAllocAsync_ptsz(out: *mut CUdeviceptr, bytes: usize, stream: CUstream) =>
        serve::or_give_back(|| real::cuMemAllocAsync_ptsz(out, bytes, stream));
    cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream) =>
        serve::or_give_back(|| real::cuMemAllocFromPoolAsync(out, bytes, pool, stream));
    cuMemAllocFromPoolAsync_ptsz(out: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream) =>
        serve::or_give_back(|| real::cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream));

    cuCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice) =>
        serve::context_created(context, || real::cuCtxCreate_v2(context, flags, device));
    cuCtxCreate_v3(context: *mut CUcontext, params: *mut c_void, count: i32, flags: u32, device: CUdevice) =>
        serve::context_created(context, || real::cuCtxCreate_v3(context, params, count, flags, device));
    cuCtxCreate_v4(context: *mut CUcontext, params: *mut c_void, flags: u32, device: CUdevice) =>
        serve::context_created(context, || real::cuCtxCreate_v4(context, params, flags, device));
    cuCtxDestroy(context: CUcontext) => serve::context_destroyed(context, || real::cuCtxDestroy(context));
    cuCtxDetach(context: CUcontext) => serve::context_destroyed(context, || real::cuCtxDetach(context));
    cuCtxDestroy_v2(context: CUcontext) => serve::context_destroyed(context, || real::cuCtxDestroy_v2(context));
    cuCtxFromGreenCtx(context: *mut CUcontext, green: *mut c_void) =>
        serve::green_context(context, || real::cuCtxFromGreenCtx(context, green));
    cuDevicePrimaryCtxRelease(device: CUdevice) =>
        serve::primary_released(device, || real::cuDevicePrimaryCtxRelease(device));
    cuDevicePrimaryCtxReset(device: CUdevice) =>
        serve::primary_reset(device, || real::cuDevicePrimaryCtxReset(device));
    cuDevicePrimaryCtxRelease_v2(device: CUdevice) =>
        serve::primary_released(device, || real::cuDevicePrimaryCtxRelease_v2(device));
    cuDevicePrimaryCtxReset_v2(device: CUdevice) =>
        serve::primary_reset(device, || real::cuDevicePrimaryCtxReset_v2(device));

    cuStreamDestroy(stream: CUstream) => serve::stream_destroyed(stream, || real::cuStreamDestroy(stream));
    cuStreamDestroy_v2(stream: CUstream) => serve::stream_destroyed(stream, || real::cuStreamDestroy_v2(stream));
    cuStreamBeginCapture(stream: CUstream) =>
        serve::capture_begun(stream, 0, || real::cuStreamBeginCapture(stream));
    cuStreamBeginCapture_ptsz(stream: CUstream) =>
        serve::capture_begun(per_thread(stream), 0, || real::cuStreamBeginCapture_ptsz(stream));
    cuStreamBeginCapture_v2(stream: CUstream, mode: i32) =>
        serve::capture_begun(stream, mode, || real::cuStreamBeginCapture_v2(stream, mode));
    cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: i32) =>
        serve::capture_begun(per_thread(stream), mode, || real::cuStreamBeginCapture_v2_ptsz(stream, mode));
    cuStreamBeginCaptureToGraph(stream: CUstream, graph: *mut c_void, deps: *const c_void, data: *const c_void, count: usize, mode: i32) =>
        serve::capture_begun(stream, mode, || real::cuStreamBeginCaptureToGraph(stream, graph, deps, data, count, mode));
    cuStreamBeginCaptureToGraph_ptsz(stream: CUstream, graph: *mut c_void, deps: *const c_void, data: *const c_void, count: usize, mode: i32) =>
        serve::capture_begun(per_thread(stream), mode, || real::cuStreamBeginCaptureToGraph_ptsz(stream, graph, deps, data, count, mode));
    cuStreamEndCapture(stream: CUstream, graph: *mut *mut c_void) =>
        serve::capture_ended(stream, || real::cuStreamEndCapture(stream, graph));
    cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut *mut c_void) =>
        serve::capture_ended(per_thread(stream), || real::cuStreamEndCapture_ptsz(stream, graph));
}
