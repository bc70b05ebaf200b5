//! GPUPOOL_FILL: what a new block holds.

use super::abi::{CUdeviceptr, CUstream, NOT_READY, STREAM_NON_BLOCKING, SUCCESS};
use super::capture::Relaxed;
use super::context::Context;
use super::driver::real;
use super::entered::Entered;
use std::time::{Duration, Instant};

/// The byte of `GPUPOOL_FILL=poison`: as a float it is a large negative
/// number, as a pointer not canonical.
pub const POISON: u8 = 0xDB;

/// Writes `value` to `bytes` bytes at `address`, and returns when that is
/// done, so that the program may use the block on any stream. On a stream of
/// its own, so that it waits for no work of the program. False if it was not
/// done within `limit`, after which the block must not be used.
pub fn fill(
    context: &Context,
    address: CUdeviceptr,
    bytes: u64,
    value: u8,
    limit: Duration,
) -> bool {
    let Some(_entered) = Entered::enter(context.handle) else {
        return false;
    };
    let mut stream: CUstream = 0;
    let start = Instant::now();
    let _relaxed = Relaxed::enter();
    // SAFETY: `stream` is valid for a write; the range is a block of ours that
    // nobody else uses; the stream is destroyed by whoever made it, and the
    // driver completes its work first.
    unsafe {
        if real::cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING) != SUCCESS {
            return false;
        }
        let mut result = real::cuMemsetD8Async(address, value, bytes as usize, stream);
        for round in 0.. {
            if result != SUCCESS && result != NOT_READY {
                break;
            }
            result = real::cuStreamQuery(stream);
            if result == SUCCESS || start.elapsed() > limit {
                break;
            }
            crate::pool::pause(round);
        }
        real::cuStreamDestroy_v2(stream);
        result == SUCCESS
    }
}
