//! The driver's ABI: result codes, structures and the few constants needed.
//! Values are those of CUDA 13.0.

#![allow(non_snake_case)]

/// What a call does inside: nothing, or an error code.
pub(crate) type Answer = Result<(), i32>;

/// Result codes, with NVIDIA's names without `CUDA_ERROR_`.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NOT_INITIALIZED: i32 = 3;
    pub(crate) const DEVICE_UNAVAILABLE: i32 = 46;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_IMAGE: i32 = 200;
    pub(crate) const INVALID_CONTEXT: i32 = 201;
    pub(crate) const MAP_FAILED: i32 = 205;
    pub(crate) const ALREADY_MAPPED: i32 = 208;
    pub(crate) const UNSUPPORTED_LIMIT: i32 = 215;
    pub(crate) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    pub(crate) const FILE_NOT_FOUND: i32 = 301;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const ILLEGAL_STATE: i32 = 401;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub(crate) const PEER_ACCESS_NOT_ENABLED: i32 = 705;
    pub(crate) const CONTEXT_IS_DESTROYED: i32 = 709;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
    pub(crate) const CAPTURE_INVALIDATED: i32 = 901;
    pub(crate) const CAPTURE_MERGE: i32 = 902;
    pub(crate) const CAPTURE_UNMATCHED: i32 = 903;
    pub(crate) const CAPTURE_UNJOINED: i32 = 904;
    pub(crate) const CAPTURE_ISOLATION: i32 = 905;
    pub(crate) const CAPTURE_IMPLICIT: i32 = 906;
    pub(crate) const CAPTURED_EVENT: i32 = 907;
    pub(crate) const CAPTURE_WRONG_THREAD: i32 = 908;
}

/// (code, name without prefix, text) of every result that has one here.
pub(crate) const RESULTS: &[(i32, &str, &str)] = &[
    (0, "CUDA_SUCCESS\0", "no error\0"),
    (1, "CUDA_ERROR_INVALID_VALUE\0", "invalid argument\0"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY\0", "out of memory\0"),
    (3, "CUDA_ERROR_NOT_INITIALIZED\0", "initialization error\0"),
    (4, "CUDA_ERROR_DEINITIALIZED\0", "driver shutting down\0"),
    (
        46,
        "CUDA_ERROR_DEVICE_UNAVAILABLE\0",
        "CUDA-capable device(s) is/are busy or unavailable\0",
    ),
    (
        100,
        "CUDA_ERROR_NO_DEVICE\0",
        "no CUDA-capable device is detected\0",
    ),
    (
        101,
        "CUDA_ERROR_INVALID_DEVICE\0",
        "invalid device ordinal\0",
    ),
    (
        200,
        "CUDA_ERROR_INVALID_IMAGE\0",
        "device kernel image is invalid\0",
    ),
    (
        201,
        "CUDA_ERROR_INVALID_CONTEXT\0",
        "invalid device context\0",
    ),
    (
        205,
        "CUDA_ERROR_MAP_FAILED\0",
        "mapping of buffer object failed\0",
    ),
    (
        208,
        "CUDA_ERROR_ALREADY_MAPPED\0",
        "resource already mapped\0",
    ),
    (211, "CUDA_ERROR_NOT_MAPPED\0", "resource not mapped\0"),
    (
        215,
        "CUDA_ERROR_UNSUPPORTED_LIMIT\0",
        "limit is not supported on this architecture\0",
    ),
    (
        217,
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\0",
        "peer access is not supported between these two devices\0",
    ),
    (
        304,
        "CUDA_ERROR_OPERATING_SYSTEM\0",
        "OS call failed or operation not supported on this OS\0",
    ),
    (
        400,
        "CUDA_ERROR_INVALID_HANDLE\0",
        "invalid resource handle\0",
    ),
    (
        401,
        "CUDA_ERROR_ILLEGAL_STATE\0",
        "the operation cannot be performed in the present state\0",
    ),
    (500, "CUDA_ERROR_NOT_FOUND\0", "named symbol not found\0"),
    (600, "CUDA_ERROR_NOT_READY\0", "device not ready\0"),
    (
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS\0",
        "an illegal memory access was encountered\0",
    ),
    (
        704,
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0",
        "peer access is already enabled\0",
    ),
    (
        705,
        "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED\0",
        "peer access has not been enabled\0",
    ),
    (
        708,
        "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE\0",
        "cannot set while device is active in this process\0",
    ),
    (
        709,
        "CUDA_ERROR_CONTEXT_IS_DESTROYED\0",
        "context is destroyed\0",
    ),
    (
        712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0",
        "part or all of the requested memory range is already mapped\0",
    ),
    (
        713,
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0",
        "pointer does not correspond to a registered memory region\0",
    ),
    (
        719,
        "CUDA_ERROR_LAUNCH_FAILED\0",
        "unspecified launch failure\0",
    ),
    (
        800,
        "CUDA_ERROR_NOT_PERMITTED\0",
        "operation not permitted\0",
    ),
    (
        801,
        "CUDA_ERROR_NOT_SUPPORTED\0",
        "operation not supported\0",
    ),
    (
        900,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0",
        "operation not permitted when stream is capturing\0",
    ),
    (
        901,
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
        "operation failed due to a previous error during capture\0",
    ),
    (
        902,
        "CUDA_ERROR_STREAM_CAPTURE_MERGE\0",
        "operation would result in a merge of separate capture sequences\0",
    ),
    (
        903,
        "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0",
        "capture was not ended in the same stream as it began\0",
    ),
    (
        904,
        "CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0",
        "capturing stream has unjoined work\0",
    ),
    (
        905,
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0",
        "dependency created on uncaptured work in another stream\0",
    ),
    (
        906,
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0",
        "operation would make the legacy stream depend on a capturing blocking stream\0",
    ),
    (
        907,
        "CUDA_ERROR_CAPTURED_EVENT\0",
        "operation not permitted on an event last recorded in a capturing stream\0",
    ),
    (
        908,
        "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD\0",
        "attempt to terminate a thread-local capture sequence from another thread\0",
    ),
    (999, "CUDA_ERROR_UNKNOWN\0", "unknown error\0"),
];

/// The handle that stands for the legacy default stream, besides NULL.
pub(crate) const STREAM_LEGACY: u64 = 1;
/// The handle that stands for the calling thread's default stream.
pub(crate) const STREAM_PER_THREAD: u64 = 2;

/// CU_STREAM_NON_BLOCKING.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// CU_EVENT_DISABLE_TIMING.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;

/// CUmemorytype.
pub(crate) mod memory_type {
    pub(crate) const HOST: u32 = 1;
    pub(crate) const DEVICE: u32 = 2;
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const UNIFIED: u32 = 4;
}

/// CUDA_MEMCPY2D.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memcpy2D {
    pub(crate) srcXInBytes: usize,
    pub(crate) srcY: usize,
    pub(crate) srcMemoryType: u32,
    pub(crate) srcHost: u64,
    pub(crate) srcDevice: u64,
    pub(crate) srcArray: u64,
    pub(crate) srcPitch: usize,
    pub(crate) dstXInBytes: usize,
    pub(crate) dstY: usize,
    pub(crate) dstMemoryType: u32,
    pub(crate) dstHost: u64,
    pub(crate) dstDevice: u64,
    pub(crate) dstArray: u64,
    pub(crate) dstPitch: usize,
    pub(crate) WidthInBytes: usize,
    pub(crate) Height: usize,
}

/// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER: one layout; the context fields are
/// reserved in the former.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memcpy3D {
    pub(crate) srcXInBytes: usize,
    pub(crate) srcY: usize,
    pub(crate) srcZ: usize,
    pub(crate) srcLOD: usize,
    pub(crate) srcMemoryType: u32,
    pub(crate) srcHost: u64,
    pub(crate) srcDevice: u64,
    pub(crate) srcArray: u64,
    pub(crate) srcContext: u64,
    pub(crate) srcPitch: usize,
    pub(crate) srcHeight: usize,
    pub(crate) dstXInBytes: usize,
    pub(crate) dstY: usize,
    pub(crate) dstZ: usize,
    pub(crate) dstLOD: usize,
    pub(crate) dstMemoryType: u32,
    pub(crate) dstHost: u64,
    pub(crate) dstDevice: u64,
    pub(crate) dstArray: u64,
    pub(crate) dstContext: u64,
    pub(crate) dstPitch: usize,
    pub(crate) dstHeight: usize,
    pub(crate) WidthInBytes: usize,
    pub(crate) Height: usize,
    pub(crate) Depth: usize,
}

/// CUDA_ARRAY3D_DESCRIPTOR; the two-dimensional one lacks Depth and Flags.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Array3D {
    pub(crate) Width: usize,
    pub(crate) Height: usize,
    pub(crate) Depth: usize,
    pub(crate) Format: u32,
    pub(crate) NumChannels: u32,
    pub(crate) Flags: u32,
}

/// CUDA_ARRAY_DESCRIPTOR.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Array2D {
    pub(crate) Width: usize,
    pub(crate) Height: usize,
    pub(crate) Format: u32,
    pub(crate) NumChannels: u32,
}

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: u64,
    pub(crate) flags: [u8; 8],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// CUmemPoolProps.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProps {
    pub(crate) alloc_type: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: u64,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// CUipcMemHandle as it is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcMemHandle {
    pub(crate) bytes: [u8; 64],
}

/// Writes an output argument; a null pointer is an invalid value, as the
/// driver answers for its required outputs.
pub(crate) fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller of the C interface passes a valid pointer to a T for
    // this output, or null, which was excluded.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Writes an optional output argument.
pub(crate) fn put_opt<T>(out: *mut T, value: T) {
    let _ = put(out, value);
}

/// Reads a structure that the caller passes by pointer.
pub(crate) fn get<T: Copy>(from: *const T) -> Result<T, i32> {
    if from.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: non-null, and by the C interface a valid pointer to a T.
    Ok(unsafe { from.read_unaligned() })
}
