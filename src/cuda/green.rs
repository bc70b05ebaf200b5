//! Green contexts: parts of a device with streams of their own, on the memory
//! of its primary context, whose pool serves them.
//!
//! Each holds the primary context as a retain does, until it is destroyed. It
//! has a handle of its own, and one as an ordinary context that
//! `cuCtxFromGreenCtx` makes; both can come again.

use super::abi::{CUcontext, CUdevice, CUgreenCtx, SUCCESS};
use super::context;
use super::driver::real;
use super::entered::Entered;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is known of one.
#[derive(Debug)]
struct Green {
    green: CUgreenCtx,
    device: CUdevice,
    /// Its handle as an ordinary context; 0 while none was asked for.
    as_context: CUcontext,
}

static KNOWN: Mutex<Vec<Green>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<Green>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuGreenCtxCreate` made `green` on `device`.
pub fn created(green: CUgreenCtx, device: CUdevice) {
    let mut known = known();
    // One that ended unseen had this handle.
    known.retain(|other| other.green != green);
    known.push(Green {
        green,
        device,
        as_context: 0,
    });
}

/// `cuCtxFromGreenCtx` made `handle` from `green`.
pub fn as_context(green: CUgreenCtx, handle: CUcontext) {
    let device = device_of(green).or_else(|| {
        // Made before anybody looked.
        let _entered = Entered::enter(handle)?;
        let mut device: CUdevice = 0;
        // SAFETY: `device` is valid for a write.
        (unsafe { real::cuCtxGetDevice(&raw mut device) } == SUCCESS).then_some(device)
    });
    let Some(device) = device else { return };
    let mut known = known();
    known.retain(|other| other.green != green && other.as_context != handle);
    known.push(Green {
        green,
        device,
        as_context: handle,
    });
    drop(known);
    context::look_up_again();
}

/// The device of a green context, if it is known.
pub fn device_of(green: CUgreenCtx) -> Option<CUdevice> {
    let known = known();
    let found = known.iter().find(|one| one.green == green)?;
    Some(found.device)
}

/// The device of the green context that `handle` was made from, if it was made
/// from one.
pub(super) fn device_of_context(handle: CUcontext) -> Option<CUdevice> {
    let known = known();
    let found = known.iter().find(|one| one.as_context == handle)?;
    Some(found.device)
}

/// `cuGreenCtxDestroy` ended `green`: its handles mean nothing any more.
pub fn destroyed(green: CUgreenCtx) {
    known().retain(|one| one.green != green);
    context::look_up_again();
}
