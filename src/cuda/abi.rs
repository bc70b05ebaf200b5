//! Types and constants of the CUDA driver's ABI, as far as they are used here.
//! Names and values are NVIDIA's, from the public documentation of the driver
//! API (CUDA 13.0).

#![allow(non_camel_case_types)]

use std::ffi::c_void;

/// A driver or runtime status: 0 is success.
pub type CUresult = i32;
/// A device address.
pub type CUdeviceptr = u64;
/// A device's ordinal.
pub type CUdevice = i32;
/// A context handle: an opaque pointer, never followed here, hence a number;
/// 0 is none. Handles come again after their context is gone.
pub type CUcontext = usize;
/// A green context's own handle; another one makes it an ordinary context's.
pub type CUgreenCtx = usize;
/// A stream handle.
pub type CUstream = usize;
/// An event handle.
pub type CUevent = usize;

/// Success.
pub const SUCCESS: CUresult = 0;
/// CUDA_ERROR_INVALID_VALUE.
pub const INVALID_VALUE: CUresult = 1;
/// CUDA_ERROR_OUT_OF_MEMORY.
pub const OUT_OF_MEMORY: CUresult = 2;
/// CUDA_ERROR_NOT_INITIALIZED.
pub const NOT_INITIALIZED: CUresult = 3;
/// CUDA_ERROR_INVALID_CONTEXT.
pub const INVALID_CONTEXT: CUresult = 201;
/// CUDA_ERROR_CONTEXT_IS_DESTROYED.
pub const CONTEXT_IS_DESTROYED: CUresult = 709;
/// CUDA_ERROR_NOT_READY.
pub const NOT_READY: CUresult = 600;
/// CUDA_ERROR_NOT_SUPPORTED.
pub const NOT_SUPPORTED: CUresult = 801;
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
pub const STREAM_CAPTURE_UNSUPPORTED: CUresult = 900;

/// CU_EVENT_DISABLE_TIMING.
pub const EVENT_DISABLE_TIMING: u32 = 2;
/// CU_STREAM_NON_BLOCKING.
pub const STREAM_NON_BLOCKING: u32 = 1;

/// CU_STREAM_CAPTURE_MODE_RELAXED.
pub const CAPTURE_MODE_RELAXED: i32 = 2;
/// CU_STREAM_CAPTURE_STATUS_NONE.
pub const CAPTURE_STATUS_NONE: i32 = 0;

/// CU_POINTER_ATTRIBUTE_CONTEXT.
pub const ATTRIBUTE_CONTEXT: i32 = 1;
/// CU_POINTER_ATTRIBUTE_HOST_POINTER.
pub const ATTRIBUTE_HOST_POINTER: i32 = 4;
/// CU_POINTER_ATTRIBUTE_P2P_TOKENS.
pub const ATTRIBUTE_P2P_TOKENS: i32 = 5;
/// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
pub const ATTRIBUTE_SYNC_MEMOPS: i32 = 6;
/// CU_POINTER_ATTRIBUTE_BUFFER_ID.
pub const ATTRIBUTE_BUFFER_ID: i32 = 7;
/// CU_POINTER_ATTRIBUTE_RANGE_START_ADDR.
pub const ATTRIBUTE_RANGE_START_ADDR: i32 = 11;
/// CU_POINTER_ATTRIBUTE_RANGE_SIZE.
pub const ATTRIBUTE_RANGE_SIZE: i32 = 12;
/// `cudaPitchedPtr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PitchedPtr {
    /// Address.
    pub ptr: *mut c_void,
    /// Bytes from row to row.
    pub pitch: usize,
    /// Width of the allocation in bytes.
    pub xsize: usize,
    /// Height of the allocation in rows.
    pub ysize: usize,
}

/// `cudaExtent`: width in bytes, height in rows, depth in slices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Bytes.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocationProp {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    win32: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// CU_MEM_ALLOCATION_TYPE_PINNED, and CU_MEM_LOCATION_TYPE_DEVICE.
const PINNED_ON_DEVICE: (i32, i32) = (1, 1);

impl AllocationProp {
    /// Memory of a device, not exportable by a handle; `rdma`: devices may be
    /// given access to it, as to that of cuMemAlloc.
    #[must_use]
    pub fn pinned(device: CUdevice, rdma: bool) -> Self {
        Self {
            kind: PINNED_ON_DEVICE.0,
            location: [PINNED_ON_DEVICE.1, device],
            rdma: u8::from(rdma),
            ..Self::default()
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    location: [i32; 2],
    flags: i32,
}

impl AccessDesc {
    /// What `device` may do, a `CUmemAccess_flags`.
    #[must_use]
    pub fn of(device: CUdevice, flags: i32) -> Self {
        Self {
            location: [PINNED_ON_DEVICE.1, device],
            flags,
        }
    }
}
