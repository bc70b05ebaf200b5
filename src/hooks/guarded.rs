//! Allocation and free with GPUPOOL_GUARD: what the pool does, between the
//! steps of the guard. Debugging is its purpose, so it may wait.

use super::serve::filled;
use crate::cuda::Context;
use crate::cuda::abi::CUdeviceptr;
use crate::cuda::guard::{self, Guard};
use crate::logging::callsite::CallSite;
use crate::pool::Outcome;
use std::time::Duration;

/// A block of `bytes` with a red zone behind it. `None`: the driver shall
/// answer, and its block is not guarded.
#[cold]
pub fn alloc(context: &'static Context, guard: &Guard, bytes: u64) -> Option<CUdeviceptr> {
    let address = alloc_unreported(context, guard, bytes);
    guard::report_pending();
    address
}

fn alloc_unreported(context: &'static Context, guard: &Guard, bytes: u64) -> Option<CUdeviceptr> {
    let site = CallSite::here();
    let Outcome::Block(block) = context.pool.alloc(&context, guard::enlarged(bytes)) else {
        log::debug!("GPUPOOL_GUARD: {bytes} bytes are allocated by the driver, and not guarded");
        return None;
    };
    guard.leaving_the_pool(context, &block);
    if !filled(context, block) {
        return None;
    }
    guard.allocated(context, &block, bytes, site);
    Some(block.address)
}

/// Ends the life of the block at `address`; false if no live block begins
/// there. Waits for earlier work, at most `limit` if there is one: without
/// that, nothing can be said about the block, and it is only freed.
#[cold]
pub fn free(
    owner: &'static Context,
    guard: &Guard,
    address: CUdeviceptr,
    limit: Option<Duration>,
) -> bool {
    let Some(claimed) = guard.claim(address) else {
        return false;
    };
    if guard::earlier_work_is_done(owner, limit) {
        guard.freed(owner, claimed, CallSite::here());
    }
    let freed = owner.pool.free(&owner, address);
    guard::report_pending();
    freed
}
