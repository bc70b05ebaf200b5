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
use crate::config::Control;
use crate::pool::sync::Apart;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// An open capture. A stream is known by its handle here: it cannot come again
/// while this stream lives, and the hooks see the stream's end. (The per-thread
/// default stream has the same handle in every thread.)
#[derive(Debug)]
struct Capture {
    stream: CUstream,
    context: CUcontext,
    thread: i32,
    mode: i32,
}

impl Capture {
    fn is_on(&self, stream: CUstream) -> bool {
        const PER_THREAD: CUstream = 2;
        self.stream == stream && (stream != PER_THREAD || self.thread == thread_id())
    }
}

static GATE: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
/// Length of the vector behind the gate, for a look without the lock.
static OPEN: Apart<AtomicUsize> = Apart(AtomicUsize::new(0));

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
    (gate.is_empty() || Control::Gate.is_off()).then(|| NoCapture(gate))
}

/// Like [`try_no_capture`], but waits for other threads at the gate.
pub fn no_capture() -> Option<NoCapture> {
    let gate = lock();
    (gate.is_empty() || Control::Gate.is_off()).then(|| NoCapture(gate))
}

fn lock() -> MutexGuard<'static, Vec<Capture>> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread_id() -> i32 {
    // SAFETY: gettid has no arguments and cannot fail. By its number, as
    // glibc has the function only from 2.30 on.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Makes the real call that begins a capture on `stream` in `mode`.
pub fn begin(stream: CUstream, mode: i32, call: impl FnOnce() -> CUresult) -> CUresult {
    let mut gate = lock();
    let mut context = 0;
    // Harmless also where the stream is being captured, while cuStreamGetId and
    // cuStreamGetFlags would break that capture (seen on an H200).
    // SAFETY: `context` is valid for a write; the driver checks the handle.
    unsafe { real::cuStreamGetCtx(stream, &raw mut context) };
    let result = call();
    if result == SUCCESS {
        gate.push(Capture {
            stream,
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
    let result = call();
    let mut status = CAPTURE_STATUS_NONE;
    let _relaxed = Relaxed::enter();
    // SAFETY: `status` is valid for a write; the driver checks the handle.
    let asked = unsafe { real::cuStreamIsCapturing(stream, &raw mut status) };
    if asked == SUCCESS && status == CAPTURE_STATUS_NONE {
        gate.retain(|capture| !capture.is_on(stream));
        OPEN.store(gate.len(), Ordering::Release);
    }
    result
}

/// Makes a real call that, where it succeeds, ends a capture on `stream`:
/// cuStreamDestroy, and the end of a capture into a graphics library's commands,
/// of which cuStreamIsCapturing is not known to tell.
pub fn end_for_sure(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if !any_open() {
        return call();
    }
    // Under the gate, so that nobody captures on a stream that was given the
    // same handle before this one is forgotten. The driver does not wait for
    // the stream's work in cuStreamDestroy.
    let mut gate = lock();
    let result = call();
    if result == SUCCESS {
        gate.retain(|capture| !capture.is_on(stream));
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

/// Forgets all captures: their ends may not have been seen.
pub fn forget_all() {
    let mut gate = lock();
    gate.clear();
    OPEN.store(0, Ordering::Release);
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
