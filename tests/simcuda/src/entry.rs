//! What every exported call does before its own work.

use crate::abi::code;
use crate::config::{self, Fault};
use crate::report;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

static INITIALIZED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

struct Rules {
    faults: Vec<Fault>,
    slow: Option<Duration>,
}

/// One exported function: its count and the rules that apply to it.
pub(crate) struct Entry {
    name: &'static str,
    calls: AtomicU64,
    rules: OnceLock<Option<Box<Rules>>>,
    /// May be called before cuInit.
    always: bool,
}

impl Entry {
    pub(crate) const fn new(name: &'static str, always: bool) -> Entry {
        Entry {
            name,
            calls: AtomicU64::new(0),
            rules: OnceLock::new(),
            always,
        }
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn rules(&self) -> Option<&Rules> {
        self.rules
            .get_or_init(|| {
                let c = config::get();
                let faults: Vec<Fault> = c
                    .faults
                    .iter()
                    .filter(|(n, _)| n == self.name)
                    .map(|(_, f)| *f)
                    .collect();
                let slow = c.slow.iter().find(|(n, _)| n == self.name).map(|(_, d)| *d);
                (!faults.is_empty() || slow.is_some()).then(|| Box::new(Rules { faults, slow }))
            })
            .as_deref()
    }

    /// Counts the call; Some(code) when it must answer that and do nothing.
    pub(crate) fn enter(&self) -> Option<i32> {
        if FORKED.load(Ordering::Relaxed) {
            // NVIDIA's driver answers so in a child of a process that had
            // initialised it. No lock may be taken here: its holder may be a
            // thread that does not exist in this process.
            if !self.always {
                report::violation("forked-child", &format!("{} in a forked child", self.name));
            }
            return Some(code::NOT_INITIALIZED);
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(rules) = self.rules() {
            if let Some(d) = rules.slow {
                std::thread::sleep(d);
            }
            for f in &rules.faults {
                if call == f.call || (f.onwards && call > f.call) {
                    return Some(f.code);
                }
            }
        }
        if !self.always {
            crate::checkpoint::wait_until_unlocked();
        }
        if !self.always && !INITIALIZED.load(Ordering::Acquire) {
            return Some(code::NOT_INITIALIZED);
        }
        None
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this is a child of a process that had initialised the driver.
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// cuInit: makes all other calls available.
pub(crate) fn initialize() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        report::start();
        INITIALIZED.store(true, Ordering::Release);
    });
}

/// Spends the modelled time of a call: busily when it is short, as the
/// driver does, sleeping when it is long.
pub(crate) fn spend(time: Duration) {
    if !config::get().cost || time.is_zero() {
        return;
    }
    if time > Duration::from_micros(300) {
        std::thread::sleep(time);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
