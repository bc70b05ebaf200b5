//! The helper thread, the only thread that the library starts, and only where
//! GPUPOOL_HELPER or GPUPOOL_IDLE_RELEASE asks for it. It answers requests while
//! the program makes no call, and gives back what has not been used for long.

use super::{State, config, page, shielded, state};
use crate::cuda::{context, host};
use crate::pool::IdleLog;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Held while it may make a CUDA call.
static ACTING: Mutex<()> = Mutex::new(());

/// Longest that the end of the process waits for a call that it is in.
const AT_MOST: Duration = Duration::from_secs(1);

/// Starts it, once, if an option asks for it. The page is there.
pub fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    let config = config();
    let wanted = config.helper || config.idle_release.is_some();
    let Some(page) = page::own().filter(|_| wanted) else {
        return;
    };
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    // The program's signals are for its own threads: the new one inherits a
    // mask that blocks all.
    // SAFETY: sigset_t is plain data; only this thread's mask changes, and it
    // is put back.
    let started = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = std::thread::Builder::new()
            .name(String::from("gpupool"))
            .stack_size(256 << 10)
            .spawn(move || run(page));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started
    };
    match started {
        Ok(_) => page.set_helper(),
        Err(error) => log::warn!("no helper thread: {error}; GPUPOOL_IDLE_RELEASE has no effect"),
    }
}

fn run(page: &'static page::Page) {
    let age = config().idle_release;
    // Often enough that memory goes back when a quarter more than the time has
    // passed.
    let tick = age.map(|age| (age / 4).clamp(Duration::from_millis(10), Duration::from_secs(5)));
    let mut logs = Logs::default();
    while state() != State::Inert {
        page.mailbox().wait_for_request(tick);
        shielded(|| {
            let _acting = ACTING.lock().unwrap_or_else(PoisonError::into_inner);
            if state() == State::Inert {
                return;
            }
            page.mailbox().attend(true);
            if let Some(age) = age {
                give_back(age, &mut logs);
            }
        });
    }
}

/// What was seen unused, by the ordinals of the pools of device memory and of
/// pinned memory.
type Logs = [HashMap<u64, IdleLog>; 2];

fn give_back(age: Duration, [of_devices, of_host]: &mut Logs) {
    for context in context::all() {
        if !context.serves() {
            continue;
        }
        let log = of_devices.entry(context.ordinal).or_default();
        let given = context.pool.release_unused(&context, log, age);
        if given > 0 {
            log::info!(
                "gave {given} bytes of device {} back that were unused for {age:?}",
                context.device
            );
        }
    }
    for host in host::serving() {
        let log = of_host.entry(host.ordinal).or_default();
        let given = host.pool.release_unused(&host, log, age);
        if given > 0 {
            log::info!("gave {given} bytes of pinned memory back that were unused for {age:?}");
        }
    }
}

/// At the end of the process, after the state has changed: the helper makes no
/// further CUDA call, and is in none when this returns, unless the driver holds
/// it for longer than a second.
pub fn stop() {
    let start = std::time::Instant::now();
    let acts = || matches!(ACTING.try_lock(), Err(TryLockError::WouldBlock));
    while acts() && start.elapsed() < AT_MOST {
        std::thread::sleep(Duration::from_micros(200));
    }
}
