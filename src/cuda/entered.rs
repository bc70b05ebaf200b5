//! Another context for a while, and the promise that none ends.

use super::abi::{CUcontext, SUCCESS};
use super::capture::Relaxed;
use super::driver::real;
use crate::config::Control;
use std::sync::atomic::{AtomicU32, Ordering};

/// Calls under way that may end a context, and threads inside [`Hold`].
static ENDING: AtomicU32 = AtomicU32::new(0);
static HELD: AtomicU32 = AtomicU32::new(0);

/// While this lives no context ends: the driver crashed when an event was
/// queried while its context was being destroyed, or after (seen on an H200,
/// driver 580.159).
pub struct Hold(());

impl Hold {
    /// `None` while a call that may end a context is under way; does not wait.
    pub fn try_hold() -> Option<Self> {
        // Each side announces itself before it looks at the other.
        HELD.fetch_add(1, Ordering::SeqCst);
        let hold = Self(());
        (ENDING.load(Ordering::SeqCst) == 0 || Control::Hold.is_off()).then_some(hold)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::SeqCst);
    }
}

/// While this lives a call may end a context: nobody gets a [`Hold`].
pub(super) struct Ending(());

impl Ending {
    /// Waits for those that have one: microseconds, for one record or query.
    pub(super) fn begin() -> Self {
        ENDING.fetch_add(1, Ordering::SeqCst);
        while HELD.load(Ordering::SeqCst) != 0 && !Control::Hold.is_off() {
            std::thread::yield_now();
        }
        Self(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        ENDING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// While this lives, a context is current in this thread and the thread's
/// capture mode is relaxed.
pub struct Entered {
    pushed: bool,
    _relaxed: Relaxed,
}

impl Entered {
    /// Makes `handle` current. `None` if the driver refuses.
    pub fn enter(handle: CUcontext) -> Option<Self> {
        let relaxed = Relaxed::enter();
        let mut current: CUcontext = 0;
        // SAFETY: `current` is valid for a write; the driver checks `handle`.
        unsafe {
            let known = real::cuCtxGetCurrent(&raw mut current) == SUCCESS && current == handle;
            if !known && real::cuCtxPushCurrent_v2(handle) != SUCCESS {
                return None;
            }
            Some(Self {
                pushed: !known,
                _relaxed: relaxed,
            })
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped: CUcontext = 0;
            // SAFETY: `popped` is valid for a write; we pop what we pushed.
            unsafe { real::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}
