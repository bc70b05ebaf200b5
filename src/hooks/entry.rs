//! The replacements of the driver's entry points. Each is one line: what is
//! decided stands in `serve` and `query`.
//!
//! # Safety
//! All are called by the program in place of the driver's function of the same
//! name, with its prototype and its requirements on the arguments; pointers
//! are written through only where that function would.

#![allow(non_snake_case, clippy::missing_safety_doc)]

use super::{checkpoint, passing, peers, pinned, query, serve, traced};
use crate::cuda::abi::{
    CAPTURE_MODE_RELAXED, CUcontext, CUdevice, CUdeviceptr, CUgreenCtx, CUresult, CUstream,
};
use crate::cuda::driver::real;
use crate::cuda::host::Class;
use crate::trace::Memory::{Async, Device, Managed};
use std::arch::naked_asm;
use std::ffi::{c_char, c_void};

/// The mode of a capture that was begun without naming one: relaxed (an
/// allocation and a free in the same thread succeeded, on an H200 with driver
/// 580.159).
const FIRST_FORM: i32 = CAPTURE_MODE_RELAXED;

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

/// Entries that are told where they were called: the return address becomes one
/// more argument, in the register named, which the last one receives. The stub
/// of a patched function jumps, so it is the program's.
macro_rules! sited_entries {
    ($($name:ident($($arg:ident: $ty:ty),*), $register:literal => $body:expr;)*) => {
        $(
            #[doc = concat!("Replaces `", stringify!($name), "`.")]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> CUresult {
                naked_asm!(
                    ".cfi_startproc",
                    "endbr64",
                    concat!("mov ", $register, ", [rsp]"),
                    "jmp {target}",
                    ".cfi_endproc",
                    target = sym sited::$name,
                )
            }
        )*
        mod sited {
            use super::*;
            $(
                pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                    // SAFETY: as in `entries`.
                    unsafe { $body }
                }
            )*
        }
    };
}

sited_entries! {
    cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize, site: usize), "rdx" =>
        traced::alloc(Device, (out, bytes), None, site,
            || serve::alloc(out, bytes, || real::cuMemAlloc_v2(out, bytes)));
    cuMemAllocPitch_v2(out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32, site: usize), "r9" =>
        traced::alloc_pitch((out, pitch), height, site,
            || serve::alloc_pitch(out, pitch, width, height, element));
    cuMemAllocManaged(out: *mut CUdeviceptr, bytes: usize, flags: u32, site: usize), "rcx" =>
        traced::alloc(Managed, (out, bytes), None, site,
            || serve::or_give_back(|| real::cuMemAllocManaged(out, bytes, flags)));
    cuMemAllocAsync(out: *mut CUdeviceptr, bytes: usize, stream: CUstream, site: usize), "rcx" =>
        traced::alloc(Async, (out, bytes), Some(stream), site,
            || serve::or_give_back(|| real::cuMemAllocAsync(out, bytes, stream)));
    cuMemAllocAsync_ptsz(out: *mut CUdeviceptr, bytes: usize, stream: CUstream, site: usize), "rcx" =>
        traced::alloc(Async, (out, bytes), Some(per_thread(stream)), site,
            || serve::or_give_back(|| real::cuMemAllocAsync_ptsz(out, bytes, stream)));
    cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream, site: usize), "r8" =>
        traced::alloc(Async, (out, bytes), Some(stream), site,
            || serve::or_give_back(|| real::cuMemAllocFromPoolAsync(out, bytes, pool, stream)));
    cuMemAllocFromPoolAsync_ptsz(out: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream, site: usize), "r8" =>
        traced::alloc(Async, (out, bytes), Some(per_thread(stream)), site,
            || serve::or_give_back(|| real::cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream)));

    cuMemFree_v2(address: CUdeviceptr, site: usize), "rsi" =>
        traced::free(Device, address, None, site,
            || serve::free(address, |address| real::cuMemFree_v2(address)));
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream, site: usize), "rdx" =>
        traced::free(Async, address, Some(stream), site,
            || serve::free_async(address, stream, |address| real::cuMemFreeAsync(address, stream)));
    cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream, site: usize), "rdx" =>
        traced::free(Async, address, Some(per_thread(stream)), site,
            || serve::free_async(address, per_thread(stream), |address| real::cuMemFreeAsync_ptsz(address, stream)));
}

entries! {
    cuInit(flags: u32) => serve::init(|| real::cuInit(flags));

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => query::memory_info(free, total);
    cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) =>
        query::address_range(base, size, address);
    cuMemGetAccess(flags: *mut u64, location: *const c_void, address: CUdeviceptr) =>
        query::access(flags, location, address);
    cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: CUdeviceptr) =>
        query::attribute(data, attribute, address);
    cuPointerGetAttributes(count: u32, attributes: *mut i32, data: *mut *mut c_void, address: CUdeviceptr) =>
        query::attributes(count, attributes, data, address);
    cuPointerSetAttribute(data: *const c_void, attribute: i32, address: CUdeviceptr) =>
        query::set_attribute(data, attribute, address);
    cuIpcGetMemHandle(handle: *mut c_void, address: CUdeviceptr) => query::ipc_handle(handle, address);
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: CUdeviceptr, size: usize, kind: i32, flags: u64) =>
        query::range_handle(handle, address, size, kind, flags);

    cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, flags: u32) =>
        pinned::alloc(out, bytes, Class::of_flags(flags), || real::cuMemHostAlloc(out, bytes, flags));
    cuMemAllocHost(out: *mut *mut c_void, bytes: u32) =>
        pinned::alloc(out, bytes as usize, Some(Class::Plain), || real::cuMemAllocHost(out, bytes));
    cuMemAllocHost_v2(out: *mut *mut c_void, bytes: usize) =>
        pinned::alloc(out, bytes, Some(Class::Plain), || real::cuMemAllocHost_v2(out, bytes));
    cuMemFreeHost(pointer: *mut c_void) => pinned::free(pointer, |pointer| real::cuMemFreeHost(pointer));
    cuMemHostGetFlags(flags: *mut u32, pointer: *mut c_void) => pinned::flags(flags, pointer);
    cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, pointer: *mut c_void, flags: u32) =>
        pinned::device_pointer(address, pointer, flags);

    cuMemCreate(handle: *mut u64, size: usize, properties: *const c_void, flags: u64) =>
        serve::or_give_back(|| real::cuMemCreate(handle, size, properties, flags));
    cuArrayCreate_v2(array: *mut *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuArrayCreate_v2(array, descriptor));
    cuArray3DCreate_v2(array: *mut *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuArray3DCreate_v2(array, descriptor));
    cuMipmappedArrayCreate(array: *mut *mut c_void, descriptor: *const c_void, levels: u32) =>
        serve::or_give_back(|| real::cuMipmappedArrayCreate(array, descriptor, levels));

    cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64) =>
        serve::or_give_back(|| real::cuMemMap(address, bytes, offset, handle, flags));
    cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const c_void, count: usize) =>
        serve::or_give_back(|| real::cuMemSetAccess(address, bytes, access, count));
    cuMemHostRegister(start: *mut c_void, bytes: usize, flags: u32) =>
        serve::or_give_back(|| real::cuMemHostRegister(start, bytes, flags));
    cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: u32) =>
        serve::or_give_back(|| real::cuMemHostRegister_v2(start, bytes, flags));
    cuImportExternalMemory(memory: *mut *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuImportExternalMemory(memory, descriptor));
    cuExternalMemoryGetMappedBuffer(address: *mut CUdeviceptr, memory: *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuExternalMemoryGetMappedBuffer(address, memory, descriptor));
    cuExternalMemoryGetMappedMipmappedArray(array: *mut *mut c_void, memory: *mut c_void, descriptor: *const c_void) =>
        serve::or_give_back(|| real::cuExternalMemoryGetMappedMipmappedArray(array, memory, descriptor));

    cuCtxSetLimit(limit: i32, value: usize) => serve::or_give_back(|| real::cuCtxSetLimit(limit, value));
    cuModuleLoad(module: *mut *mut c_void, file: *const c_char) =>
        serve::or_give_back(|| real::cuModuleLoad(module, file));
    cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) =>
        serve::or_give_back(|| real::cuModuleLoadData(module, image));
    cuModuleLoadDataEx(module: *mut *mut c_void, image: *const c_void, count: u32, options: *mut i32, values: *mut *mut c_void) =>
        serve::or_give_back(|| real::cuModuleLoadDataEx(module, image, count, options, values));
    cuModuleLoadFatBinary(module: *mut *mut c_void, image: *const c_void) =>
        serve::or_give_back(|| real::cuModuleLoadFatBinary(module, image));
    cuLibraryLoadData(library: *mut *mut c_void, code: *const c_void, jit: *mut i32, jit_values: *mut *mut c_void, jit_count: u32, options: *mut i32, values: *mut *mut c_void, count: u32) =>
        serve::or_give_back(|| real::cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count));
    cuLibraryLoadFromFile(library: *mut *mut c_void, file: *const c_char, jit: *mut i32, jit_values: *mut *mut c_void, jit_count: u32, options: *mut i32, values: *mut *mut c_void, count: u32) =>
        serve::or_give_back(|| real::cuLibraryLoadFromFile(library, file, jit, jit_values, jit_count, options, values, count));
    cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) =>
        serve::or_give_back(|| real::cuModuleGetFunction(function, module, name));
    cuLibraryGetModule(module: *mut *mut c_void, library: *mut c_void) =>
        serve::or_give_back(|| real::cuLibraryGetModule(module, library));
    cuKernelGetFunction(function: *mut *mut c_void, kernel: *mut c_void) =>
        serve::or_give_back(|| real::cuKernelGetFunction(function, kernel));
    cuFuncLoad(function: *mut c_void) => serve::or_give_back(|| real::cuFuncLoad(function));
    cuGraphAddMemAllocNode(node: *mut *mut c_void, graph: *mut c_void, dependencies: *const c_void, count: usize, params: *mut c_void) =>
        serve::or_give_back(|| real::cuGraphAddMemAllocNode(node, graph, dependencies, count, params));
    cuGraphInstantiate(executable: *mut *mut c_void, graph: *mut c_void, node: *mut *mut c_void, message: *mut c_char, room: usize) =>
        serve::or_give_back(|| real::cuGraphInstantiate(executable, graph, node, message, room));
    cuGraphInstantiate_v2(executable: *mut *mut c_void, graph: *mut c_void, node: *mut *mut c_void, message: *mut c_char, room: usize) =>
        serve::or_give_back(|| real::cuGraphInstantiate_v2(executable, graph, node, message, room));
    cuGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, flags: u64) =>
        serve::or_give_back(|| real::cuGraphInstantiateWithFlags(executable, graph, flags));
    cuGraphInstantiateWithParams(executable: *mut *mut c_void, graph: *mut c_void, params: *mut c_void) =>
        serve::or_give_back(|| real::cuGraphInstantiateWithParams(executable, graph, params));
    cuGraphInstantiateWithParams_ptsz(executable: *mut *mut c_void, graph: *mut c_void, params: *mut c_void) =>
        serve::or_give_back(|| real::cuGraphInstantiateWithParams_ptsz(executable, graph, params));
    cuGraphUpload(executable: *mut c_void, stream: CUstream) =>
        serve::or_give_back(|| real::cuGraphUpload(executable, stream));
    cuGraphUpload_ptsz(executable: *mut c_void, stream: CUstream) =>
        serve::or_give_back(|| real::cuGraphUpload_ptsz(executable, stream));
    cuGraphLaunch(executable: *mut c_void, stream: CUstream) =>
        serve::or_give_back(|| real::cuGraphLaunch(executable, stream));
    cuGraphLaunch_ptsz(executable: *mut c_void, stream: CUstream) =>
        serve::or_give_back(|| real::cuGraphLaunch_ptsz(executable, stream));
    cuStreamCreate(stream: *mut CUstream, flags: u32) => serve::or_give_back(|| real::cuStreamCreate(stream, flags));
    cuStreamCreateWithPriority(stream: *mut CUstream, flags: u32, priority: i32) =>
        serve::or_give_back(|| real::cuStreamCreateWithPriority(stream, flags, priority));

    cuCtxCreate(context: *mut CUcontext, flags: u32, device: CUdevice) =>
        serve::context_created(context, device, || real::cuCtxCreate(context, flags, device));
    cuCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice) =>
        serve::context_created(context, device, || real::cuCtxCreate_v2(context, flags, device));
    cuCtxCreate_v3(context: *mut CUcontext, params: *mut c_void, count: i32, flags: u32, device: CUdevice) =>
        serve::context_created(context, device, || real::cuCtxCreate_v3(context, params, count, flags, device));
    cuCtxCreate_v4(context: *mut CUcontext, params: *mut c_void, flags: u32, device: CUdevice) =>
        serve::context_created(context, device, || real::cuCtxCreate_v4(context, params, flags, device));
    cuGLCtxCreate(context: *mut CUcontext, flags: u32, device: CUdevice) =>
        serve::context_created(context, device, || real::cuGLCtxCreate(context, flags, device));
    cuGLCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice) =>
        serve::context_created(context, device, || real::cuGLCtxCreate_v2(context, flags, device));
    cuVDPAUCtxCreate(context: *mut CUcontext, flags: u32, device: CUdevice, display: u32, look_up: *const c_void) =>
        serve::context_created(context, device, || real::cuVDPAUCtxCreate(context, flags, device, display, look_up));
    cuVDPAUCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice, display: u32, look_up: *const c_void) =>
        serve::context_created(context, device, || real::cuVDPAUCtxCreate_v2(context, flags, device, display, look_up));
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) =>
        serve::or_give_back_on(|| Some(device), || real::cuDevicePrimaryCtxRetain(context, device));
    cuCtxDestroy(context: CUcontext) => serve::context_destroyed(context, || real::cuCtxDestroy(context));
    cuCtxDetach(context: CUcontext) => serve::context_destroyed(context, || real::cuCtxDetach(context));
    cuCtxDestroy_v2(context: CUcontext) => serve::context_destroyed(context, || real::cuCtxDestroy_v2(context));
    cuGreenCtxCreate(green: *mut CUgreenCtx, description: *mut c_void, device: CUdevice, flags: u32) =>
        serve::green_created(green, device, || real::cuGreenCtxCreate(green, description, device, flags));
    cuGreenCtxDestroy(green: CUgreenCtx) =>
        serve::green_destroyed(green, || real::cuGreenCtxDestroy(green));
    cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx) =>
        serve::green_context(context, green, || real::cuCtxFromGreenCtx(context, green));
    cuDevicePrimaryCtxRelease(device: CUdevice) =>
        serve::primary_released(device, || real::cuDevicePrimaryCtxRelease(device));
    cuDevicePrimaryCtxReset(device: CUdevice) =>
        serve::primary_reset(device, || real::cuDevicePrimaryCtxReset(device));
    cuDevicePrimaryCtxRelease_v2(device: CUdevice) =>
        serve::primary_released(device, || real::cuDevicePrimaryCtxRelease_v2(device));
    cuDevicePrimaryCtxReset_v2(device: CUdevice) =>
        serve::primary_reset(device, || real::cuDevicePrimaryCtxReset_v2(device));

    cuCtxEnablePeerAccess(context: CUcontext, flags: u32) =>
        peers::enabled(context, || serve::or_give_back(|| real::cuCtxEnablePeerAccess(context, flags)));
    cuCtxDisablePeerAccess(context: CUcontext) =>
        peers::disabled(context, || real::cuCtxDisablePeerAccess(context));

    cuCtxSynchronize() => passing::synchronized(0, || real::cuCtxSynchronize());
    cuCtxSynchronize_v2(context: CUcontext) =>
        passing::synchronized(context, || real::cuCtxSynchronize_v2(context));
    cuCtxSetCurrent(context: CUcontext) =>
        passing::context_chosen(context, || real::cuCtxSetCurrent(context));
    cuCtxPushCurrent(context: CUcontext) =>
        passing::context_chosen(context, || real::cuCtxPushCurrent(context));
    cuCtxPushCurrent_v2(context: CUcontext) =>
        passing::context_chosen(context, || real::cuCtxPushCurrent_v2(context));

    cuStreamDestroy(stream: CUstream) => serve::stream_destroyed(stream, || real::cuStreamDestroy(stream));
    cuStreamDestroy_v2(stream: CUstream) => serve::stream_destroyed(stream, || real::cuStreamDestroy_v2(stream));
    cuStreamBeginCapture(stream: CUstream) =>
        serve::capture_begun(stream, FIRST_FORM, || real::cuStreamBeginCapture(stream));
    cuStreamBeginCapture_ptsz(stream: CUstream) =>
        serve::capture_begun(per_thread(stream), FIRST_FORM, || real::cuStreamBeginCapture_ptsz(stream));
    cuStreamBeginCapture_v2(stream: CUstream, mode: i32) =>
        serve::capture_begun(stream, mode, || real::cuStreamBeginCapture_v2(stream, mode));
    cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: i32) =>
        serve::capture_begun(per_thread(stream), mode, || real::cuStreamBeginCapture_v2_ptsz(stream, mode));
    cuStreamBeginCaptureToGraph(stream: CUstream, graph: *mut c_void, deps: *const c_void, data: *const c_void, count: usize, mode: i32) =>
        serve::capture_begun(stream, mode, || real::cuStreamBeginCaptureToGraph(stream, graph, deps, data, count, mode));
    cuStreamBeginCaptureToGraph_ptsz(stream: CUstream, graph: *mut c_void, deps: *const c_void, data: *const c_void, count: usize, mode: i32) =>
        serve::capture_begun(per_thread(stream), mode, || real::cuStreamBeginCaptureToGraph_ptsz(stream, graph, deps, data, count, mode));
    cuStreamBeginRecaptureToGraph(stream: CUstream, mode: i32, graph: *mut c_void, differs: *const c_void, data: *mut c_void) =>
        serve::capture_begun(stream, mode, || real::cuStreamBeginRecaptureToGraph(stream, mode, graph, differs, data));
    cuStreamBeginRecaptureToGraph_ptsz(stream: CUstream, mode: i32, graph: *mut c_void, differs: *const c_void, data: *mut c_void) =>
        serve::capture_begun(per_thread(stream), mode, || real::cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, differs, data));
    cuStreamBeginCaptureToCig(stream: CUstream, params: *mut c_void) =>
        serve::capture_begun(stream, CAPTURE_MODE_RELAXED, || real::cuStreamBeginCaptureToCig(stream, params));
    cuStreamBeginCaptureToCig_ptsz(stream: CUstream, params: *mut c_void) =>
        serve::capture_begun(per_thread(stream), CAPTURE_MODE_RELAXED, || real::cuStreamBeginCaptureToCig_ptsz(stream, params));
    cuStreamEndCaptureToCig(stream: CUstream) =>
        serve::capture_ended_for_sure(stream, || real::cuStreamEndCaptureToCig(stream));
    cuStreamEndCaptureToCig_ptsz(stream: CUstream) =>
        serve::capture_ended_for_sure(per_thread(stream), || real::cuStreamEndCaptureToCig_ptsz(stream));
    cuStreamEndCapture(stream: CUstream, graph: *mut *mut c_void) =>
        serve::capture_ended(stream, || real::cuStreamEndCapture(stream, graph));
    cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut *mut c_void) =>
        serve::capture_ended(per_thread(stream), || real::cuStreamEndCapture_ptsz(stream, graph));

    cuCheckpointProcessLock(process: i32, args: *mut c_void) =>
        checkpoint::begins(process, || real::cuCheckpointProcessLock(process, args));
}
