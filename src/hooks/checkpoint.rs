//! A process that checkpoints itself (`cuCheckpointProcessLock`, driver 12.8
//! and later): what lies empty in the pools would be copied with the rest, so
//! it goes back first.
//!
//! The lock is the last moment for it: from then on every other call blocks
//! until the process is unlocked, also a free of ours. A process that another
//! one checkpoints, as the command `cuda-checkpoint` does, makes no call of its
//! own; there `gpupool trim PID` comes first.

use crate::config::Control;
use crate::cuda::abi::CUresult;
use crate::cuda::capture;
use crate::cuda::context::{self, Context};
use crate::process::{self, shielded};
use std::time::{Duration, Instant};

/// Between two attempts.
const PAUSE: Duration = Duration::from_micros(200);

/// cuCheckpointProcessLock. Waits for the GPU at most twice GPUPOOL_WAIT a context, while the
/// lock itself waits for all of its work.
pub fn begins(process: i32, call: impl FnOnce() -> CUresult) -> CUresult {
    let own = i64::from(process) == i64::from(std::process::id());
    if own
        && process::keeps_books()
        && !Control::Checkpoint.is_off()
        && !capture::own_thread_restricted()
    {
        shielded(|| {
            let given: u64 = context::all()
                .into_iter()
                .filter(|context| context.serves())
                .map(empty)
                .sum();
            log::info!("gave {given} bytes back before a checkpoint");
        });
    }
    call()
}

/// Gives back what is empty in the pool. More often than once, as the GPU may
/// be busy at first, and other threads go on. Returns the bytes.
fn empty(context: &'static Context) -> u64 {
    let start = Instant::now();
    let mut given = 0;
    loop {
        given += context.pool.trim(&context);
        if context.pool.usage().unowned == 0 || start.elapsed() >= process::config().wait {
            return given;
        }
        std::thread::sleep(PAUSE);
    }
}
