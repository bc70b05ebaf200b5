//! What the driver says of a context by its handle, and of primary contexts.

use super::abi::{CUcontext, CUdevice, CUresult, SUCCESS};
use super::driver::{function, real};

/// The driver's id of the context; where the driver has no ids (before 12.0),
/// the handle. An error is the driver's, and that of a fault too.
pub fn id_of(handle: CUcontext) -> Result<u64, CUresult> {
    if !function::cuCtxGetId.is_available() {
        return Ok(handle as u64);
    }
    let mut id = 0;
    // SAFETY: `id` is valid for a write; the driver checks the handle.
    match unsafe { real::cuCtxGetId(handle, &raw mut id) } {
        SUCCESS => Ok(id),
        error => Err(error),
    }
}

/// The handle of the device's primary context, if that is active.
pub(super) fn primary_of(device: CUdevice) -> Option<CUcontext> {
    let (mut flags, mut active) = (0, 0);
    let mut handle: CUcontext = 0;
    // SAFETY: all arguments are valid for writes. Retaining an active primary
    // context and releasing it again changes only its count.
    unsafe {
        if real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) != SUCCESS
            || active == 0
        {
            return None;
        }
        if real::cuDevicePrimaryCtxRetain(&raw mut handle, device) != SUCCESS {
            return None;
        }
        real::cuDevicePrimaryCtxRelease_v2(device);
    }
    Some(handle)
}

/// Whether the device's primary context is active.
pub fn primary_is_active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both are valid for writes.
    unsafe {
        real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) == SUCCESS
            && active != 0
    }
}
