//! The one global: what the library is to this process, from its start to its
//! end, in forks, and after a fault of its own.

pub mod observe;
pub mod report;

use crate::config::{Config, Mode, Warning};
use crate::cuda::context;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What the hooks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nothing: before the driver arrives, or GPUPOOL_MODE=off.
    Off = 0,
    /// Serve from the pool.
    Pool = 1,
    /// Count and time native calls.
    Observe = 2,
    /// The process ends, is a forked child, or the library had a fault: every
    /// call passes, frees of pooled memory succeed and do nothing.
    Inert = 3,
}

static STATE: AtomicU8 = AtomicU8::new(State::Off as u8);
static CONFIG: OnceLock<Config> = OnceLock::new();
static WARNINGS: Mutex<Vec<Warning>> = Mutex::new(Vec::new());
static FORKED: AtomicBool = AtomicBool::new(false);

/// Allocations that went to the driver without asking the pool.
pub static PASSED_ALLOCS: AtomicU64 = AtomicU64::new(0);
/// Frees of memory that the pool does not own.
pub static FOREIGN_FREES: AtomicU64 = AtomicU64::new(0);

/// What the hooks do now.
#[inline]
pub fn state() -> State {
    match STATE.load(Ordering::Acquire) {
        0 => State::Off,
        1 => State::Pool,
        2 => State::Observe,
        _ => State::Inert,
    }
}

fn set_state(state: State) {
    STATE.store(state as u8, Ordering::Release);
}

/// The options in force.
pub fn config() -> &'static Config {
    CONFIG.get_or_init(Config::default)
}

/// At load: reads the options. Says nothing and starts nothing: most processes
/// that inherit a preload never use a GPU.
pub fn start() {
    let (config, warnings) = Config::from_env();
    crate::logging::init(&config.log);
    let _ = CONFIG.set(config);
    *WARNINGS.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
}

/// The driver has arrived: says what the options had to say, and prepares for
/// forks and the end. False if nothing is to be hooked.
pub fn driver_arrived() -> bool {
    for warning in WARNINGS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        log::warn!("{warning}");
    }
    let config = config();
    if config.mode == Mode::Off {
        return false;
    }
    context::configure(config);
    std::panic::set_hook(Box::new(|panic| {
        // A fault of the library; `shielded` decides what follows.
        log::error!("internal fault, please report it: {panic}");
    }));
    // SAFETY: both functions are valid for the life of the process (the
    // library is linked with -z nodelete).
    unsafe {
        libc::pthread_atfork(None, None, Some(in_forked_child));
        libc::atexit(report_at_exit);
    }
    true
}

/// The entry points are patched: from here on the hooks act.
pub fn activate(mode: Mode) {
    set_state(match mode {
        Mode::Pool => State::Pool,
        Mode::Observe => State::Observe,
        Mode::Off => State::Off,
    });
}

/// The driver is initialised, or memory was taken from it. What is registered
/// with atexit now runs before the driver's own handlers, which were
/// registered earlier.
pub fn prepare_for_exit() {
    // SAFETY: as in `driver_arrived`.
    unsafe { libc::atexit(go_inert) };
}

extern "C" fn go_inert() {
    if state() != State::Off {
        set_state(State::Inert);
    }
}

extern "C" fn report_at_exit() {
    go_inert();
    if !FORKED.load(Ordering::Relaxed) {
        let _ = catch_unwind(|| report::write(&config().stats));
    }
}

extern "C" fn in_forked_child() {
    FORKED.store(true, Ordering::Relaxed);
    go_inert();
}

/// Runs `body`; a panic in it is a fault of the library, which turns inert:
/// no panic crosses into the program. `None` after a panic.
#[inline]
pub fn shielded<R>(body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => Some(result),
        Err(_) => {
            go_inert();
            None
        }
    }
}
