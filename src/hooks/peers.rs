//! Access to another context's memory. The driver gives it to all memory of
//! cuMemAlloc at once, from before and later; mapped segments
//! ([`crate::cuda::vmm`]) get it here.

use crate::cuda::abi::{CUcontext, CUresult, SUCCESS};
use crate::cuda::context;
use crate::cuda::driver::real;
use crate::cuda::vmm::Mapped;
use crate::process::{self, shielded};

/// cuCtxEnablePeerAccess: the current context may access the memory of `owner`.
pub fn enabled(owner: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    changed(owner, call, |mapped, peer, device| {
        mapped.grant(peer, device)
    })
}

/// cuCtxDisablePeerAccess.
pub fn disabled(owner: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    changed(owner, call, |mapped, peer, _| mapped.revoke(peer))
}

fn changed(
    owner: CUcontext,
    call: impl FnOnce() -> CUresult,
    follow: impl FnOnce(&Mapped, CUcontext, i32),
) -> CUresult {
    let result = call();
    if result == SUCCESS && process::keeps_books() {
        shielded(|| {
            let mapped = context::behind(owner)?.mapped.as_ref()?;
            let (mut peer, mut device) = (0, 0);
            // SAFETY: both are valid for writes.
            let known = unsafe {
                real::cuCtxGetCurrent(&raw mut peer) == SUCCESS
                    && real::cuCtxGetDevice(&raw mut device) == SUCCESS
            };
            known.then(|| follow(mapped, peer, device))
        });
    }
    result
}
