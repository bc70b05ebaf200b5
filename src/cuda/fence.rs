//! Fences over all contexts of the process: a set of events, one per context.
//!
//! `cuCtxRecordEvent` captures everything submitted to a context so far, on
//! blocking, non-blocking, per-thread and green-context streams, and holds
//! nothing back (measured on an H200, driver 580.159; 0.2 µs with 8 busy
//! streams). A kernel of one context can use the memory of another (peer
//! access), so a fence covers every context that is known.

use super::abi::{CUevent, EVENT_DISABLE_TIMING, NOT_READY, SUCCESS};
use super::capture::{self, NoCapture, Relaxed};
use super::context::{self, Context, Status};
use super::driver::{has_context_events, real};
use super::entered::{Entered, Hold};
use crate::pool::device::{Passed, Recorded, SLOTS};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The recorded fences of a pool.
#[derive(Default)]
pub struct Fences {
    slots: Mutex<[Vec<(&'static Context, CUevent)>; SLOTS]>,
}

/// The spare events of a context.
#[derive(Default)]
pub struct Events {
    spare: Mutex<Vec<CUevent>>,
    /// Attempts to record that failed in a row.
    failures: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    /// The context has ended, and its events with it.
    pub fn forget(&self) {
        lock(&self.spare).clear();
    }
}

/// Why an event could not be recorded.
enum Failed {
    /// A later attempt may succeed: a capture of which nothing was known is
    /// open, the context is on its way out, or this one call failed.
    NotNow,
    /// The context answers every call with an error.
    Lost,
}

/// Attempts in a row that may fail while the context is otherwise well; after
/// that many it counts as lost, as nothing could ever be reissued.
const FAILURES: u32 = 64;

impl Context {
    /// An event of this context that is not pending.
    fn take_event(&self) -> Option<CUevent> {
        if let Some(event) = lock(&self.events.spare).pop() {
            return Some(event);
        }
        let _entered = Entered::enter(self.handle)?;
        let mut event: CUevent = 0;
        // SAFETY: `event` is valid for a write, and the context is current.
        (unsafe { real::cuEventCreate(&raw mut event, EVENT_DISABLE_TIMING) } == SUCCESS)
            .then_some(event)
    }

    /// Gives back an event that was seen to have passed, or never recorded.
    fn put_event(&self, event: CUevent) {
        lock(&self.events.spare).push(event);
    }

    /// Records an event over everything submitted to this context so far.
    fn record_event(&self, _gate: &NoCapture) -> Result<CUevent, Failed> {
        if matches!(self.status(), Status::Closing | Status::Gone) {
            return Err(Failed::NotNow);
        }
        let failed = |result| match self.status() {
            Status::Closing | Status::Gone => Failed::NotNow,
            _ if capture::says_capture(result) => Failed::NotNow,
            _ if !self.is_still_there() => Failed::NotNow,
            _ if self.answers_errors() => Failed::Lost,
            _ if self.events.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES => {
                Failed::Lost
            }
            _ => Failed::NotNow,
        };
        let Some(event) = self.take_event() else {
            return Err(failed(0));
        };
        // SAFETY: the context was known a moment ago, and the event is its
        // own and not pending; for a context that has just ended the driver
        // answers with an error.
        match unsafe { real::cuCtxRecordEvent(self.handle, event) } {
            SUCCESS => {
                self.events.failures.store(0, Ordering::Relaxed);
                Ok(event)
            }
            result => {
                log::debug!("cuCtxRecordEvent: error {result} in context {:#x}", self.id);
                discard(event);
                Err(failed(result))
            }
        }
    }

    /// [`crate::pool::Device::record`] for a pool of this context.
    pub(super) fn record_fence(&self, fences: &Fences, slot: usize) -> Recorded {
        let Some(gate) = capture::try_no_capture() else {
            return Recorded::NotNow;
        };
        context::forget_ended();
        context::discover_primaries();
        if !has_context_events() {
            return self.synchronize_all(&gate);
        }
        if matches!(self.status(), Status::Closing | Status::Gone) {
            return Recorded::NotNow;
        }
        let Some(_hold) = Hold::try_hold() else {
            return Recorded::NotNow;
        };
        let mut slots = lock(&fences.slots);
        let events = &mut slots[slot];
        let failed = context::with_all(|contexts| {
            for context in contexts {
                match context.record_event(&gate) {
                    Ok(event) => events.push((context, event)),
                    Err(failed) => return Some(failed),
                }
            }
            None
        });
        if let Some(failed) = failed {
            events.drain(..).for_each(|(_, event)| discard(event));
            return match failed {
                Failed::Lost => Recorded::Lost,
                Failed::NotNow => Recorded::NotNow,
            };
        }
        Recorded::Yes
    }

    /// [`crate::pool::Device::passed`].
    pub(super) fn fence_passed(fences: &Fences, slot: usize) -> Passed {
        let mut slots = lock(&fences.slots);
        if slots[slot].is_empty() {
            return Passed::Yes;
        }
        let Some(_hold) = Hold::try_hold() else {
            return Passed::NotYet;
        };
        // With the gate no capture can be broken by the query; where another
        // thread holds it, relaxed mode does.
        let gate = capture::try_no_capture();
        let _relaxed = gate.is_none().then(Relaxed::enter);
        while let Some(&(context, event)) = slots[slot].last() {
            match query(context, event) {
                Passed::Yes => {
                    slots[slot].pop();
                }
                other => return other,
            }
        }
        Passed::Yes
    }

    /// For drivers without context-wide events: waits for all work of every
    /// context. Called in frees only, which natively wait for the same.
    fn synchronize_all(&self, _gate: &NoCapture) -> Recorded {
        for context in context::all() {
            if matches!(context.status(), Status::Closing | Status::Gone) {
                return Recorded::NotNow;
            }
            let Some(_entered) = Entered::enter(context.handle) else {
                return Recorded::Lost;
            };
            // SAFETY: no arguments; the context is current, and the gate keeps
            // captures away, which this call would break.
            match unsafe { real::cuCtxSynchronize() } {
                SUCCESS => {}
                result if capture::says_capture(result) => return Recorded::NotNow,
                _ => return Recorded::Lost,
            }
        }
        Recorded::Yes
    }

    /// Returns when all work submitted so far to this context is done, as a
    /// native free does, without holding up other threads' launches. Without a
    /// `limit` not bounded, as natively. Does nothing while a capture is open.
    /// Returns whether the work is known to be done.
    pub fn wait_for_earlier_work(&self, limit: Option<Duration>) -> bool {
        let event = {
            let Some(gate) = capture::no_capture() else {
                return false;
            };
            if !has_context_events() {
                return matches!(self.synchronize_all(&gate), Recorded::Yes);
            }
            match self.record_event(&gate) {
                Ok(event) => event,
                Err(_) => return false,
            }
        };
        let start = Instant::now();
        for round in 0.. {
            let _relaxed = Relaxed::enter();
            match query_here(self, event) {
                Passed::NotYet if limit.is_some_and(|limit| start.elapsed() >= limit) => {
                    discard(event);
                    return false;
                }
                Passed::NotYet => crate::pool::pause(round),
                Passed::Yes => return true,
                Passed::Lost => {
                    self.pool.set_lost();
                    return false;
                }
            }
        }
        false
    }

    /// Makes all later work of this context wait for all earlier work, on the
    /// device; the CPU does not wait. Does nothing while a capture is open.
    /// Costs about 1 µs of GPU time; streams do not overlap across it.
    pub fn order_later_work(&self) {
        let Some(gate) = capture::no_capture() else {
            return;
        };
        if !has_context_events() {
            self.synchronize_all(&gate);
            return;
        }
        let Ok(event) = self.record_event(&gate) else {
            return;
        };
        // SAFETY: the event was just recorded in this context. The wait takes
        // what the event stands for now, so that it may be destroyed at once.
        let result = unsafe { real::cuCtxWaitEvent(self.handle, event) };
        if result != SUCCESS {
            log::debug!("cuCtxWaitEvent: error {result} in context {:#x}", self.id);
        }
        discard(event);
    }
}

/// Looks at one event; gives it back to its context when it has passed.
fn query(context: &Context, event: CUevent) -> Passed {
    match context.status() {
        // All work of a context that has ended is over.
        Status::Gone => return Passed::Yes,
        Status::Closing => return Passed::NotYet,
        Status::Serving | Status::Aside => {}
    }
    query_here(context, event)
}

fn query_here(context: &Context, event: CUevent) -> Passed {
    // SAFETY: the event belongs to the context; for one that has just ended
    // the driver answers with an error.
    match unsafe { real::cuEventQuery(event) } {
        SUCCESS => {
            context.put_event(event);
            Passed::Yes
        }
        NOT_READY => Passed::NotYet,
        // Of a capture of which nothing was known: later.
        result if capture::says_capture(result) => Passed::NotYet,
        _ if context.status() == Status::Gone => Passed::Yes,
        _ if context.status() == Status::Closing => Passed::NotYet,
        // Ended unseen, and its work with it; it is forgotten at the next record.
        _ if !context.is_still_there() => Passed::Yes,
        result => {
            log::debug!("cuEventQuery: error {result} in context {:#x}", context.id);
            Passed::Lost
        }
    }
}

/// Destroys an event that may be pending: the driver frees it when it is not.
fn discard(event: CUevent) {
    let _relaxed = Relaxed::enter();
    // SAFETY: the event is ours and nobody else knows it.
    unsafe { real::cuEventDestroy_v2(event) };
}
