//! While allocations pass: after a detach, and in a process that was attached
//! to as long as nobody knows whether a stream is being captured.
//!
//! A capture that was open at the moment of an attach cannot be seen, and the
//! first fence would break it. While one is open every `cuCtxSynchronize`
//! fails (facts: 900, whatever the mode and the thread), so a successful one of
//! the program's own proves that none is open there; those that begin later are
//! seen by the hooks. Each active primary context needs its own.

use crate::cuda::abi::{CUcontext, CUresult, SUCCESS};
use crate::cuda::context::{self, Context, Status};
use crate::cuda::host;
use crate::process::{self, State, attach, shielded};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Milliseconds between two attempts to give memory back.
const DRAIN_EVERY: u64 = 10;

/// Gives segments back that have become empty, if the GPU is seen idle; at most
/// once in [`DRAIN_EVERY`]. Called from allocations and frees while they pass.
/// Does not wait for the GPU, but where the driver cannot be asked otherwise.
pub fn drain() {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + DRAIN_EVERY;
    let last = LAST.load(Ordering::Relaxed);
    if now < last + DRAIN_EVERY
        || LAST
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    shielded(|| {
        for context in context::all() {
            if context.serves() && context.pool.usage().reserved > 0 {
                context.pool.give_back_idle(&context);
            }
        }
        for host in host::serving().filter(|host| host.pool.usage().reserved > 0) {
            host.pool.give_back_idle(&host);
        }
    });
}

/// Bytes that the pools hold of the driver, pinned memory too.
pub fn reserved() -> u64 {
    let of_devices = context::all()
        .iter()
        .map(|context| context.pool.usage().reserved)
        .sum::<u64>();
    let of_host = host::all()
        .iter()
        .map(|host| host.pool.usage().reserved)
        .sum::<u64>();
    of_devices + of_host
}

/// A request came in a context whose pool does not serve.
#[cold]
pub fn not_served(context: &'static Context) {
    if context.status() == Status::Aside && attach::is_late() {
        step_aside();
    }
}

/// A context of a kind that fences do not cover is in use: from here on
/// allocations pass. Only in a process that was attached to: in another one
/// every context is known from its creation.
fn step_aside() {
    attach::WANTED.store(attach::PASS, Ordering::Release);
    if process::change_state(State::Pool, State::Passing) {
        log::warn!(
            "the pool steps aside: a context that existed before the library was attached, and is no device's primary one, is in use"
        );
    }
}

/// cuCtxSetCurrent, cuCtxPushCurrent: is it a context that fences cover?
pub fn context_chosen(handle: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    /// The one that was looked at last. A handle that comes again belongs to a
    /// context whose creation was seen.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let result = call();
    if result == SUCCESS
        && handle != 0
        && KNOWN.load(Ordering::Relaxed) != handle as u64
        && process::state() == State::Pool
    {
        shielded(|| match context::current() {
            Some(context) if context.status() == Status::Aside => step_aside(),
            Some(_) => KNOWN.store(handle as u64, Ordering::Relaxed),
            None => {}
        });
    }
    result
}

/// cuCtxSynchronize of the current context, or of `other`.
pub fn synchronized(other: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let result = call();
    if result == SUCCESS
        && process::state() == State::Passing
        && attach::PROOF.load(Ordering::Acquire) == attach::MISSING
    {
        shielded(|| prove(other));
    }
    result
}

/// No capture is open in the context that was just synchronised; if that holds
/// for all of them, the pool serves.
fn prove(other: CUcontext) {
    /// Ids of contexts that were synchronised.
    static SEEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    // The runtime of CUDA 13 names the context, which may have been made before
    // the library came.
    let context = if other == 0 {
        context::current()
    } else {
        context::behind(other)
    };
    let Some(context) = context else { return };
    if context.status() == Status::Aside {
        return step_aside();
    }
    context::discover_primaries();
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.contains(&context.id) {
        seen.push(context.id);
    }
    if context::all().iter().all(|known| seen.contains(&known.id)) {
        seen.clear();
        attach::PROOF.store(attach::GIVEN, Ordering::Release);
        if attach::WANTED.load(Ordering::Acquire) == attach::SERVE
            && process::change_state(State::Passing, State::Pool)
        {
            log::info!("the program has synchronised: no capture is open, the pool serves");
        }
    }
}
