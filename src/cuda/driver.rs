//! The driver's functions: one table of everything that is called here, hooked
//! or not.
//!
//! Each function has a slot. It is filled with the address that libcuda
//! exports; where the entry point is patched, with the trampoline that leads
//! past the patch, so that [`real`] never comes back into a hook.

use super::abi::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgreenCtx, CUresult, CUstream, NOT_INITIALIZED,
};
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A driver function that may be there or not.
pub struct Function {
    /// The exported name.
    pub name: &'static CStr,
    /// Its address, or that of the trampoline; 0 while unknown.
    pub slot: AtomicUsize,
}

impl Function {
    /// Whether this driver has it.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.address() != 0
    }

    /// The address to call, 0 if there is none.
    #[inline]
    pub fn address(&self) -> usize {
        self.slot.load(Ordering::Acquire)
    }

    /// The name as text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or("")
    }
}

macro_rules! driver_functions {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// The slots.
        #[allow(non_upper_case_globals)]
        pub mod function {
            use super::{AtomicUsize, Function};
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub static $name: Function = Function {
                    name: match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    },
                    slot: AtomicUsize::new(0),
                };
            )*
        }

        /// Calls of the driver that no hook sees. A function that this driver
        /// lacks answers CUDA_ERROR_NOT_INITIALIZED.
        ///
        /// # Safety
        /// As for the driver's function of the same name.
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub mod real {
            use super::*;
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                #[inline]
                pub unsafe fn $name($($arg: $ty),*) -> CUresult {
                    let address = function::$name.address();
                    if address == 0 {
                        return NOT_INITIALIZED;
                    }
                    // SAFETY: the slot holds the address of the driver's
                    // function of this name (or of a trampoline to it), whose
                    // prototype is the one in this table.
                    let call: unsafe extern "C" fn($($ty),*) -> CUresult = unsafe { std::mem::transmute(address) };
                    // SAFETY: the caller vouches for the arguments.
                    unsafe { call($($arg),*) }
                }
            )*
        }

        /// All of them.
        pub static ALL: &[&Function] = &[$(&function::$name),*];
    };
}

driver_functions! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGetName(name: *mut c_char, len: i32, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: CUdevice);

    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxPushCurrent(context: CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxGetDevice(device: *mut CUdevice);
    cuCtxGetId(context: CUcontext, id: *mut u64);
    cuCtxSynchronize();
    cuCtxSynchronize_v2(context: CUcontext);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxRecordEvent(context: CUcontext, event: CUevent);
    cuCtxWaitEvent(context: CUcontext, event: CUevent);
    cuCtxCreate(context: *mut CUcontext, flags: u32, device: CUdevice);
    cuCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice);
    cuCtxCreate_v3(context: *mut CUcontext, params: *mut c_void, count: i32, flags: u32, device: CUdevice);
    cuCtxCreate_v4(context: *mut CUcontext, params: *mut c_void, flags: u32, device: CUdevice);
    cuCtxDestroy(context: CUcontext);
    cuCtxDestroy_v2(context: CUcontext);
    cuCtxDetach(context: CUcontext);
    cuGLCtxCreate(context: *mut CUcontext, flags: u32, device: CUdevice);
    cuGLCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice);
    cuVDPAUCtxCreate(context: *mut CUcontext, flags: u32, device: CUdevice, display: u32, look_up: *const c_void);
    cuVDPAUCtxCreate_v2(context: *mut CUcontext, flags: u32, device: CUdevice, display: u32, look_up: *const c_void);
    cuGreenCtxCreate(green: *mut CUgreenCtx, description: *mut c_void, device: CUdevice, flags: u32);
    cuGreenCtxDestroy(green: CUgreenCtx);
    cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx);
    cuCtxEnablePeerAccess(context: CUcontext, flags: u32);
    cuCtxDisablePeerAccess(context: CUcontext);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease(device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxReset(device: CUdevice);
    cuDevicePrimaryCtxReset_v2(device: CUdevice);
    cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut u32, active: *mut i32);

    cuEventCreate(event: *mut CUevent, flags: u32);
    cuEventDestroy_v2(event: CUevent);
    cuEventQuery(event: CUevent);

    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemAllocPitch_v2(address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32);
    cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: u32);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
    cuMemGetAccess(flags: *mut u64, location: *const c_void, address: CUdeviceptr);
    cuPointerGetAttribute(data: *mut c_void, attribute: i32, address: CUdeviceptr);
    cuPointerGetAttributes(count: u32, attributes: *mut i32, data: *mut *mut c_void, address: CUdeviceptr);
    cuPointerSetAttribute(data: *const c_void, attribute: i32, address: CUdeviceptr);
    cuIpcGetMemHandle(handle: *mut c_void, address: CUdeviceptr);
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: CUdeviceptr, size: usize, kind: i32, flags: u64);
    cuMemCreate(handle: *mut u64, size: usize, properties: *const c_void, flags: u64);
    cuMemRelease(handle: u64);
    cuMemAddressReserve(address: *mut CUdeviceptr, size: usize, alignment: usize, wanted: CUdeviceptr, flags: u64);
    cuMemAddressFree(address: CUdeviceptr, size: usize);
    cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: CUdeviceptr, size: usize);
    cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const c_void, count: usize);
    cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const c_void, option: i32);
    cuArrayCreate_v2(array: *mut *mut c_void, descriptor: *const c_void);
    cuArray3DCreate_v2(array: *mut *mut c_void, descriptor: *const c_void);
    cuMipmappedArrayCreate(array: *mut *mut c_void, descriptor: *const c_void, levels: u32);
    cuMemHostRegister(start: *mut c_void, bytes: usize, flags: u32);
    cuImportExternalMemory(memory: *mut *mut c_void, descriptor: *const c_void);
    cuExternalMemoryGetMappedBuffer(address: *mut CUdeviceptr, memory: *mut c_void, descriptor: *const c_void);
    cuExternalMemoryGetMappedMipmappedArray(array: *mut *mut c_void, memory: *mut c_void, descriptor: *const c_void);
    cuCtxSetLimit(limit: i32, value: usize);
    cuModuleLoad(module: *mut *mut c_void, file: *const c_char);
    cuModuleLoadData(module: *mut *mut c_void, image: *const c_void);
    cuModuleLoadDataEx(module: *mut *mut c_void, image: *const c_void, count: u32, options: *mut i32, values: *mut *mut c_void);
    cuModuleLoadFatBinary(module: *mut *mut c_void, image: *const c_void);
    cuLibraryLoadData(library: *mut *mut c_void, code: *const c_void, jit: *mut i32, jit_values: *mut *mut c_void, jit_count: u32, options: *mut i32, values: *mut *mut c_void, count: u32);
    cuLibraryLoadFromFile(library: *mut *mut c_void, file: *const c_char, jit: *mut i32, jit_values: *mut *mut c_void, jit_count: u32, options: *mut i32, values: *mut *mut c_void, count: u32);
    cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char);
    cuLibraryGetModule(module: *mut *mut c_void, library: *mut c_void);
    cuKernelGetFunction(function: *mut *mut c_void, kernel: *mut c_void);
    cuFuncLoad(function: *mut c_void);
    cuGraphAddMemAllocNode(node: *mut *mut c_void, graph: *mut c_void, dependencies: *const c_void, count: usize, params: *mut c_void);
    cuGraphInstantiate(executable: *mut *mut c_void, graph: *mut c_void, node: *mut *mut c_void, message: *mut c_char, room: usize);
    cuGraphInstantiate_v2(executable: *mut *mut c_void, graph: *mut c_void, node: *mut *mut c_void, message: *mut c_char, room: usize);
    cuGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, flags: u64);
    cuGraphInstantiateWithParams(executable: *mut *mut c_void, graph: *mut c_void, params: *mut c_void);
    cuGraphInstantiateWithParams_ptsz(executable: *mut *mut c_void, graph: *mut c_void, params: *mut c_void);
    cuGraphUpload(executable: *mut c_void, stream: CUstream);
    cuGraphUpload_ptsz(executable: *mut c_void, stream: CUstream);
    cuGraphLaunch(executable: *mut c_void, stream: CUstream);
    cuGraphLaunch_ptsz(executable: *mut c_void, stream: CUstream);
    cuStreamCreateWithPriority(stream: *mut CUstream, flags: u32, priority: i32);
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32);
    cuMemAllocHost(pointer: *mut *mut c_void, bytes: u32);
    cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemHostGetFlags(flags: *mut u32, pointer: *mut c_void);
    cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, pointer: *mut c_void, flags: u32);
    cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: u32);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemsetD8Async(address: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);

    cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemAllocAsync_ptsz(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream);
    cuMemAllocFromPoolAsync_ptsz(address: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream);

    cuStreamCreate(stream: *mut CUstream, flags: u32);
    cuStreamDestroy(stream: CUstream);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamQuery(stream: CUstream);
    cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    cuStreamIsCapturing(stream: CUstream, status: *mut i32);
    cuStreamBeginCapture(stream: CUstream);
    cuStreamBeginCapture_ptsz(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: i32);
    cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: i32);
    cuStreamBeginCaptureToGraph(stream: CUstream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: i32);
    cuStreamBeginCaptureToGraph_ptsz(stream: CUstream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: i32);
    cuStreamBeginRecaptureToGraph(stream: CUstream, mode: i32, graph: *mut c_void, differs: *const c_void, data: *mut c_void);
    cuStreamBeginRecaptureToGraph_ptsz(stream: CUstream, mode: i32, graph: *mut c_void, differs: *const c_void, data: *mut c_void);
    cuStreamBeginCaptureToCig(stream: CUstream, params: *mut c_void);
    cuStreamBeginCaptureToCig_ptsz(stream: CUstream, params: *mut c_void);
    cuStreamEndCaptureToCig(stream: CUstream);
    cuStreamEndCaptureToCig_ptsz(stream: CUstream);
    cuStreamEndCapture(stream: CUstream, graph: *mut *mut c_void);
    cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut *mut c_void);
    cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    cuCheckpointProcessLock(process: i32, args: *mut c_void);
}

/// An address at which nothing can ever be allocated: in the page of the null
/// pointer. The driver's answer about it is its answer about any pointer that
/// is no allocation.
pub const NEVER_VALID: CUdeviceptr = 0x200;

/// Whether the driver has context-wide events (12.5 and later).
#[inline]
pub fn has_context_events() -> bool {
    function::cuCtxRecordEvent.is_available()
}
