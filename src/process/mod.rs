//! The one global: what the library is to this process, from its start to its
//! end, in forks, and after a fault of its own.

pub mod attach;
mod helper;
mod live;
pub mod mailbox;
pub mod observe;
pub mod page;
mod profile;
pub mod report;
pub mod shortage;
pub mod snapshot;
pub mod summary;
pub mod trace;

use crate::config::{Changeable, Config, Control, Mode, Warning};
use crate::cuda::above;
use crate::nvtx;
use crate::pool::stats::Shown;
use crate::pool::sync::Apart;
use std::ffi::OsString;
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
    /// Allocations pass to the driver; pooled memory from before is served in
    /// every other way, and goes back as it is freed. After a detach, and in a
    /// process that was attached to as long as a capture may be open.
    Passing = 4,
}

static STATE: Apart<AtomicU8> = Apart(AtomicU8::new(State::Off as u8));
static CONFIG: OnceLock<Changeable<Config>> = OnceLock::new();
static WARNINGS: Mutex<Vec<Warning>> = Mutex::new(Vec::new());
static FORKED: AtomicBool = AtomicBool::new(false);

/// Allocations that went to the driver without asking the pool.
pub static PASSED_ALLOCS: Shown<AtomicU64> = Shown::new(AtomicU64::new(0));
/// Frees of memory that the pool does not own.
pub static FOREIGN_FREES: Shown<AtomicU64> = Shown::new(AtomicU64::new(0));
/// Allocations of pinned memory that went to the driver.
pub static PASSED_HOST_ALLOCS: Shown<AtomicU64> = Shown::new(AtomicU64::new(0));
/// Frees of pinned memory that no pool owns.
pub static FOREIGN_HOST_FREES: Shown<AtomicU64> = Shown::new(AtomicU64::new(0));

/// What the hooks do now.
#[inline]
pub fn state() -> State {
    match STATE.load(Ordering::Acquire) {
        0 => State::Off,
        1 => State::Pool,
        2 => State::Observe,
        4 => State::Passing,
        _ => State::Inert,
    }
}

/// Whether contexts and captures are followed: wherever pooled memory may be.
#[inline]
pub fn keeps_books() -> bool {
    matches!(state(), State::Pool | State::Passing)
}

/// Goes from one state to another unless something else has happened meanwhile,
/// the process's end for one.
pub fn change_state(from: State, to: State) -> bool {
    STATE
        .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

fn set_state(state: State) {
    STATE.store(state as u8, Ordering::Release);
}

/// The options in force.
pub fn config() -> &'static Config {
    CONFIG.get_or_init(|| Changeable::new(Config::default()))
}

/// What the figures say of the library from now on: it was attached again, to
/// do something else than before.
pub fn set_mode(mode: Mode) {
    if config().mode != mode {
        change_config(Config {
            mode,
            ..config().clone()
        });
    }
    if let Some(page) = page::own() {
        page.set_mode(mode);
    }
}

fn change_config(changed: Config) {
    if let Some(config) = CONFIG.get() {
        config.set(changed);
    }
}

/// At load: reads the options. Says nothing and starts nothing: most processes
/// that inherit a preload never use a GPU.
pub fn start() {
    start_with(std::env::vars_os());
}

/// The same with options from elsewhere. Only the first call of either counts.
pub fn start_with(options: impl IntoIterator<Item = (OsString, OsString)>) {
    if CONFIG.get().is_some() {
        return;
    }
    let (config, warnings) = Config::parse(options.into_iter());
    crate::logging::init(&config.log);
    let _ = CONFIG.set(Changeable::new(config));
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
    above::configure(above::Above {
        config: self::config,
        registered: |context| {
            page::registered(context);
            profile::watch(context);
            helper::start();
        },
        host_registered: page::host_registered,
        first_use: profile::reserve,
        ended: page::ended,
        attend: mailbox::attend,
    });
    trace::start(config.trace.as_ref(), config.trace_stacks);
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

/// The entry points were patched before anyone used them: from here on the
/// hooks act.
pub fn activate(mode: Mode) {
    attach::PROOF.store(attach::GIVEN, Ordering::Release);
    set_state(match mode {
        Mode::Pool if attach::WANTED.load(Ordering::Acquire) == attach::PASS => State::Passing,
        Mode::Pool => State::Pool,
        Mode::Observe => State::Observe,
        Mode::Off => State::Off,
    });
}

/// The driver is initialised, or memory was taken from it. What is registered
/// with atexit now runs before the driver's own handlers, which were
/// registered earlier.
pub fn prepare_for_exit() {
    // Once: programs and libraries call cuInit as often as they like.
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.swap(true, Ordering::Relaxed) {
        // SAFETY: as in `driver_arrived`.
        unsafe { libc::atexit(at_exit) };
        shielded(|| {
            page::open();
            nvtx::start(config().nvtx);
            helper::start();
        });
    }
}

extern "C" fn at_exit() {
    if !Control::Exit.is_off() {
        go_inert();
        helper::stop();
    }
}

fn go_inert() {
    if state() != State::Off {
        set_state(State::Inert);
        if let Some(page) = page::own() {
            page.set_inert();
        }
    }
}

extern "C" fn report_at_exit() {
    at_exit();
    if !FORKED.load(Ordering::Relaxed) {
        let _ = catch_unwind(trace::finish);
        let _ = catch_unwind(profile::write);
        let _ = catch_unwind(|| report::write(&config().stats));
    }
}

extern "C" fn in_forked_child() {
    FORKED.store(true, Ordering::Relaxed);
    trace::forked();
    page::give_up();
    if !Control::Fork.is_off() {
        go_inert();
    }
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
