//! Checkpoints (cuCheckpointProcess…, driver 12.8): of the own process only,
//! and into host memory, which here means that the bytes are counted.
//!
//! While the process is locked every other call blocks, as NVIDIA documents.

use crate::abi::{Answer, code, get, put};
use crate::{memory, state, stream, task};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(RUNNING);
static TURN: Mutex<()> = Mutex::new(());
static UNLOCKED: Condvar = Condvar::new();
/// Bytes of all devices that checkpoints had to copy.
static COPIED: AtomicU64 = AtomicU64::new(0);

/// What other calls do first.
pub(crate) fn wait_until_unlocked() {
    if STATE.load(Ordering::Acquire) == RUNNING {
        return;
    }
    let mut turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    while STATE.load(Ordering::Acquire) != RUNNING {
        turn = UNLOCKED.wait(turn).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Bytes that checkpoints have copied.
pub(crate) fn copied() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

fn change(pid: i32, from: u32, to: u32) -> Answer {
    if i64::from(pid) != i64::from(std::process::id()) {
        return Err(code::NOT_SUPPORTED);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if STATE.load(Ordering::Acquire) != from {
        return Err(code::ILLEGAL_STATE);
    }
    STATE.store(to, Ordering::Release);
    UNLOCKED.notify_all();
    Ok(())
}

/// Completes what was submitted, after which nothing more can be. The time
/// limit of the arguments is not looked at.
pub(crate) fn lock(pid: i32, args: *const u64) -> Answer {
    // The structure is 64 bytes, all but the first four of them reserved.
    if !args.is_null() && (get(args)? >> 32) != 0 {
        return Err(code::INVALID_VALUE);
    }
    change(pid, RUNNING, LOCKED)?;
    let pending = {
        let core = state::lock();
        let ids: Vec<u64> = core.contexts.keys().copied().collect();
        let all = ids.iter().map(|id| stream::context_frontier(&core, *id));
        all.filter_map(Result::ok).flatten().collect()
    };
    task::wait_all(&pending);
    Ok(())
}

pub(crate) fn checkpoint(pid: i32) -> Answer {
    change(pid, LOCKED, CHECKPOINTED)?;
    let bytes = memory::device_bytes().0.iter().sum();
    COPIED.fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn restore(pid: i32) -> Answer {
    change(pid, CHECKPOINTED, LOCKED)
}

pub(crate) fn unlock(pid: i32) -> Answer {
    change(pid, LOCKED, RUNNING)
}

pub(crate) fn state(pid: i32, out: *mut u32) -> Answer {
    if i64::from(pid) != i64::from(std::process::id()) {
        return Err(code::NOT_SUPPORTED);
    }
    put(out, STATE.load(Ordering::Acquire))
}
