//! Stream captures: which are open, and the gate that keeps fences out of them.
//!
//! While any stream of the process is captured, `cuCtxRecordEvent` fails with
//! 900 *and invalidates the capture*, in every mode and thread; `cuEventQuery`,
//! `cuMemAlloc` and `cuMemFree` do so unless the calling thread's capture mode
//! is exchanged to relaxed (measured on an H200, driver 580.159). So:
//!
//! - the real begin call runs under the gate, and so does every record: no
//!   fence can fall into a capture;
//! - our other calls are made in relaxed mode ([`Relaxed`]).
//!
//! A fence that is still pending when a capture begins does no harm.

use super::abi::{
    CAPTURE_MODE_RELAXED, CAPTURE_STATUS_NONE, CUcontext, CUresult, CUstream,
    STREAM_CAPTURE_UNSUPPORTED, SUCCESS,
};
use super::driver::{function, real};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// An open capture.
#[derive(Debug)]
struct Capture {
    /// The stream's id: handles come again. Where the driver has no ids
    /// (before 12.0), its handle.
    stream: u64,
    context: CUcontext,
    thread: i32,
    mode: i32,
}

static GATE: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
/// Length of the vector behind the gate, for a look without the lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether any capture is open.
#[inline]
pub fn any_open() -> bool {
    OPEN.load(Ordering::Acquire) != 0
}

/// While this lives, no capture can begin.
pub struct NoCapture(#[allow(dead_code)] MutexGuard<'static, Vec<Capture>>);

/// The right to record, if no capture is open and no other thread is at the
/// gate. Does not wait.
pub fn try_no_capture() -> Option<NoCapture> {
    let gate = match GATE.try_lock() {
        Ok(gate) => gate,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    gate.is_empty().then(|| NoCapture(gate))
}

/// Like [`try_no_capture`], but waits for other threads at the gate.
pub fn no_capture() -> Option<NoCapture> {
    let gate = lock();
    gate.is_empty().then(|| NoCapture(gate))
}

fn lock() -> MutexGuard<'static, Vec<Capture>> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread_id() -> i32 {
    // SAFETY: gettid has no arguments and cannot fail. By its number, as
    // glibc has the function only from 2.30 on.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// The id of `stream`, which must be valid.
fn stream_id(stream: CUstream) -> u64 {
    let mut id = 0;
    // SAFETY: `id` is valid for a write; the driver checks the handle.
    match unsafe { real::cuStreamGetId(stream, &raw mut id) } {
        SUCCESS => id,
        _ => stream as u64,
    }
}

/// Makes the real call that begins a capture on `stream` in `mode`.
pub fn begin(stream: CUstream, mode: i32, call: impl FnOnce() -> CUresult) -> CUresult {
    let mut gate = lock();
    let result = call();
    if result == SUCCESS {
        let mut context = 0;
        // SAFETY: `context` is valid for a write; the stream has just been
        // accepted by the driver.
        unsafe { real::cuStreamGetCtx(stream, &raw mut context) };
        gate.push(Capture {
            stream: stream_id(stream),
            context,
            thread: thread_id(),
            mode,
        });
        OPEN.store(gate.len(), Ordering::Release);
    }
    result
}

/// Makes a real call that may end the capture on `stream`, and asks the driver
/// whether it did: a failed end can have ended it (an invalidated capture) or
/// not (the wrong stream or thread).
pub fn end(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if !any_open() {
        return call();
    }
    let mut gate = lock();
    let id = stream_id(stream);
    let result = call();
    let mut status = CAPTURE_STATUS_NONE;
    let _relaxed = Relaxed::enter();
    // SAFETY: `status` is valid for a write; the driver checks the handle.
    let asked = unsafe { real::cuStreamIsCapturing(stream, &raw mut status) };
    if asked == SUCCESS && status == CAPTURE_STATUS_NONE {
        gate.retain(|capture| capture.stream != id);
        OPEN.store(gate.len(), Ordering::Release);
    }
    result
}

/// Makes the real call that destroys `stream`, which ends a capture on it.
pub fn stream_destroyed(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if !any_open() {
        return call();
    }
    let id = stream_id(stream);
    let result = call();
    if result == SUCCESS {
        let mut gate = lock();
        gate.retain(|capture| capture.stream != id);
        OPEN.store(gate.len(), Ordering::Release);
    }
    result
}

/// The context behind `handle` is gone, and with it its captures.
pub fn context_gone(handle: CUcontext) {
    if any_open() {
        let mut gate = lock();
        gate.retain(|capture| capture.context != handle);
        OPEN.store(gate.len(), Ordering::Release);
    }
}

/// Whether an allocation or a free in this thread is natively an error because
/// of a capture of its own: a non-relaxed one, with the thread's mode not
/// exchanged to relaxed.
pub fn own_thread_restricted() -> bool {
    if !any_open() {
        return false;
    }
    let me = thread_id();
    let own = lock()
        .iter()
        .any(|capture| capture.thread == me && capture.mode != CAPTURE_MODE_RELAXED);
    own && Relaxed::enter().previous() != CAPTURE_MODE_RELAXED
}

/// The status of `stream`: `Ok(true)` if it is being captured.
pub fn is_capturing(stream: CUstream) -> Result<bool, CUresult> {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: `status` is valid for a write; the driver checks the handle.
    match unsafe { real::cuStreamIsCapturing(stream, &raw mut status) } {
        SUCCESS => Ok(status != CAPTURE_STATUS_NONE),
        error => Err(error),
    }
}

/// While this lives, the calling thread's capture mode is relaxed, so that our
/// calls break no capture. 40 ns each way.
pub struct Relaxed {
    previous: i32,
}

impl Relaxed {
    /// Exchanges the mode.
    #[must_use]
    pub fn enter() -> Self {
        let mut previous = CAPTURE_MODE_RELAXED;
        if function::cuThreadExchangeStreamCaptureMode.is_available() {
            // SAFETY: the argument is valid for read and write; the mode is
            // the thread's own and is exchanged back on drop.
            let result = unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut previous) };
            if result != SUCCESS {
                previous = CAPTURE_MODE_RELAXED;
            }
        }
        Self { previous }
    }

    /// The mode that the thread was in.
    #[must_use]
    pub fn previous(&self) -> i32 {
        self.previous
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if self.previous != CAPTURE_MODE_RELAXED {
            let mut mode = self.previous;
            // SAFETY: as in `enter`.
            unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}

/// Whether `result` says that a capture is open (which then was broken).
#[must_use]
pub fn says_capture(result: CUresult) -> bool {
    result == STREAM_CAPTURE_UNSUPPORTED || result == STREAM_CAPTURE_UNSUPPORTED + 1
}
