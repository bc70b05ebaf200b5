//! The hooked functions of the driver, one row each.

use super::entry;
use crate::cuda::driver::{Function, function};

/// A row: whose entry point is patched, and where it leads.
pub struct Row {
    /// The driver's function.
    pub function: &'static Function,
    /// The replacement, of the same prototype.
    pub hook: usize,
    /// Without it pooling would not be safe: it could be given a pooled
    /// pointer, end a context, or begin a capture unseen.
    pub required: bool,
}

macro_rules! rows {
    ($($need:ident $name:ident)*) => {
        vec![$(Row {
            function: &function::$name,
            hook: entry::$name as *const () as usize,
            required: matches!(stringify!($need).as_bytes(), b"required"),
        }),*]
    };
}

/// Rows besides, for a process whose driver is in use before it is patched:
/// what shows that no capture is open, and which contexts there are.
pub fn late_rows() -> Vec<Row> {
    rows! {
        required cuCtxSynchronize
        required cuCtxSynchronize_v2
        optional cuCtxSetCurrent
        optional cuCtxPushCurrent
        optional cuCtxPushCurrent_v2
    }
}

/// All rows. A function that the driver lacks is left out by the caller.
pub fn rows() -> Vec<Row> {
    rows! {
        required cuInit

        required cuMemAlloc_v2
        optional cuMemAllocPitch_v2
        required cuMemFree_v2
        required cuMemFreeAsync
        required cuMemFreeAsync_ptsz
        required cuMemGetInfo_v2
        required cuMemGetAddressRange_v2
        optional cuMemGetAccess
        required cuPointerGetAttribute
        required cuPointerGetAttributes
        required cuPointerSetAttribute
        required cuIpcGetMemHandle
        required cuMemGetHandleForAddressRange

        optional cuMemHostAlloc
        optional cuMemAllocHost
        optional cuMemAllocHost_v2
        required cuMemFreeHost
        required cuMemHostGetFlags
        required cuMemHostGetDevicePointer_v2

        optional cuMemAllocManaged
        optional cuMemCreate
        optional cuMemMap
        optional cuMemSetAccess
        optional cuMemHostRegister
        optional cuMemHostRegister_v2
        optional cuImportExternalMemory
        optional cuExternalMemoryGetMappedBuffer
        optional cuExternalMemoryGetMappedMipmappedArray
        optional cuArrayCreate_v2
        optional cuArray3DCreate_v2
        optional cuMipmappedArrayCreate
        optional cuMemAllocAsync
        optional cuMemAllocAsync_ptsz
        optional cuMemAllocFromPoolAsync
        optional cuMemAllocFromPoolAsync_ptsz

        optional cuCtxSetLimit
        optional cuModuleLoad
        optional cuModuleLoadData
        optional cuModuleLoadDataEx
        optional cuModuleLoadFatBinary
        optional cuLibraryLoadData
        optional cuLibraryLoadFromFile
        optional cuLibraryGetModule
        optional cuModuleGetFunction
        optional cuKernelGetFunction
        optional cuFuncLoad
        optional cuGraphAddMemAllocNode
        optional cuGraphInstantiate
        optional cuGraphInstantiate_v2
        optional cuGraphInstantiateWithFlags
        optional cuGraphInstantiateWithParams
        optional cuGraphInstantiateWithParams_ptsz
        optional cuGraphUpload
        optional cuGraphUpload_ptsz
        optional cuGraphLaunch
        optional cuGraphLaunch_ptsz
        optional cuStreamCreate
        optional cuStreamCreateWithPriority

        optional cuCtxEnablePeerAccess
        optional cuCtxDisablePeerAccess
        optional cuDevicePrimaryCtxRetain
        optional cuCtxCreate
        required cuCtxCreate_v2
        required cuCtxCreate_v3
        required cuCtxCreate_v4
        optional cuGLCtxCreate
        optional cuGLCtxCreate_v2
        optional cuVDPAUCtxCreate
        optional cuVDPAUCtxCreate_v2
        required cuCtxDestroy
        required cuCtxDestroy_v2
        required cuCtxDetach
        optional cuGreenCtxCreate
        required cuGreenCtxDestroy
        required cuCtxFromGreenCtx
        required cuDevicePrimaryCtxRelease
        required cuDevicePrimaryCtxRelease_v2
        required cuDevicePrimaryCtxReset
        required cuDevicePrimaryCtxReset_v2

        required cuStreamDestroy
        required cuStreamDestroy_v2
        required cuStreamBeginCapture
        required cuStreamBeginCapture_ptsz
        required cuStreamBeginCapture_v2
        required cuStreamBeginCapture_v2_ptsz
        required cuStreamBeginCaptureToGraph
        required cuStreamBeginCaptureToGraph_ptsz
        required cuStreamBeginRecaptureToGraph
        required cuStreamBeginRecaptureToGraph_ptsz
        required cuStreamBeginCaptureToCig
        required cuStreamBeginCaptureToCig_ptsz
        required cuStreamEndCaptureToCig
        required cuStreamEndCaptureToCig_ptsz
        required cuStreamEndCapture
        required cuStreamEndCapture_ptsz

        optional cuCheckpointProcessLock
    }
}
