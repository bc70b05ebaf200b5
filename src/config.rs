//! Options: environment variables named `GPUPOOL_*`.
//!
//! Two stages, without side effects until the caller acts on the result: raw
//! `(name, value)` pairs go in, a validated [`Config`] and a list of
//! [`Warning`]s come out. One table, [`OPTIONS`], drives the parser, the
//! `gpupool env` command and the tests that keep the README complete.
//!
//! Nothing here logs, or reads anything but the environment,
//! so that it can run in the constructor of a preloaded library, before the
//! logger exists. A value that is not understood never stops the program: the
//! default stays in force and one warning says so.

mod changeable;
mod control;
mod options;
mod value;
mod warning;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

pub use changeable::Changeable;
pub use control::Control;
pub use options::{LIVE, OPTIONS, Opt, Since};
pub use value::{
    AsyncCalls, Backend, Fill, FreePolicy, Inflight, Ipc, Mode, PathTemplate, Size, Stats,
    is_log_filter, parse_time,
};
pub use warning::{Warning, WarningKind};

/// Every variable of this library begins with this.
pub const PREFIX: &str = "GPUPOOL_";

/// Variables that the `gpupool` command and the scripts read, and the library
/// does not: they may stand in the environment without a warning.
const NOT_FOR_THE_LIBRARY: &[&str] = &["GPUPOOL_LIB", "GPUPOOL_NOGRACE_LIB", "GPUPOOL_PREBUILT"];

/// What the environment asks for, validated. Plain data: it can be shared
/// between threads freely once it is built.
///
/// Fields whose option is marked [`Since::NotYet`] hold what was asked for,
/// although this release does not act on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `GPUPOOL_MODE`: pool, only count, or do nothing.
    pub mode: Mode,
    /// `GPUPOOL_MAX`: most bytes that the pool may hold of one device.
    pub max: Size,
    /// `GPUPOOL_PREALLOC`: bytes taken from the driver at a device's first use.
    pub prealloc: Size,
    /// `GPUPOOL_INFLIGHT`: most bytes that may wait for grace before an
    /// allocation waits for the oldest rather than take new memory.
    pub inflight: Inflight,
    /// `GPUPOOL_WAIT`: longest that one allocation waits for grace.
    pub wait: Duration,
    /// `GPUPOOL_FREE`: what a free orders or waits for.
    pub free: FreePolicy,
    /// `GPUPOOL_IDLE_RELEASE`: segments unused for this long go back to the
    /// driver; `None` is off.
    pub idle_release: Option<Duration>,
    /// `GPUPOOL_HELPER`: a thread that answers requests from outside at once.
    pub helper: bool,
    /// `GPUPOOL_ASYNC`: who serves stream-ordered calls.
    pub async_calls: AsyncCalls,
    /// `GPUPOOL_HOST`: whether pinned host memory is pooled.
    pub host: bool,
    /// `GPUPOOL_HOST_MAX`: most bytes of pinned host memory that the pool may
    /// hold; `None` is no limit.
    pub host_max: Option<Size>,
    /// `GPUPOOL_IPC`: how pooled memory is exported to other processes.
    pub ipc: Ipc,
    /// `GPUPOOL_BACKEND`: where segments come from.
    pub backend: Backend,
    /// `GPUPOOL_FILL`: what a new block is filled with.
    pub fill: Fill,
    /// `GPUPOOL_GUARD`: find overruns and use after free.
    pub guard: bool,
    /// `GPUPOOL_PROFILE`: file with what the last run needed.
    pub profile: Option<PathTemplate>,
    /// `GPUPOOL_TRACE`: file that takes a record of every call.
    pub trace: Option<PathTemplate>,
    /// `GPUPOOL_TRACE_STACKS`: whether it has the stack of each call.
    pub trace_stacks: bool,
    /// `GPUPOOL_STATS`: where the counters go at exit.
    pub stats: Stats,
    /// `GPUPOOL_LOG`: a filter in the syntax of `env_logger`, already checked
    /// with [`is_log_filter`].
    pub log: String,
    /// `GPUPOOL_NVTX`: mark pool events for Nsight Systems.
    pub nvtx: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Pool,
            max: Size::Percent(100.0),
            prealloc: Size::Bytes(0),
            inflight: Inflight::Auto,
            wait: Duration::from_millis(100),
            free: FreePolicy::Fenced,
            idle_release: None,
            helper: false,
            async_calls: AsyncCalls::Tune,
            host: true,
            host_max: None,
            ipc: Ipc::Share,
            backend: Backend::Driver,
            fill: Fill::None,
            guard: false,
            profile: None,
            trace: None,
            trace_stacks: false,
            stats: Stats::Off,
            log: String::from("warn"),
            nvtx: false,
        }
    }
}

impl Config {
    /// The options of this process's environment. Never fails: see
    /// [`Config::parse`].
    pub fn from_env() -> (Config, Vec<Warning>) {
        Config::parse(std::env::vars_os())
    }

    /// The options among `vars`; names that do not begin with [`PREFIX`] are
    /// skipped. Values need not be UTF-8. An empty value is the same as no
    /// variable. Of a name that occurs twice the first counts, as in getenv(3).
    ///
    /// There is no error: each name or value that is not understood, and each
    /// option that this release does not act on, adds one [`Warning`].
    pub fn parse<I: Iterator<Item = (OsString, OsString)>>(vars: I) -> (Config, Vec<Warning>) {
        let mut config = Config::default();
        let mut warnings = Vec::new();
        let mut seen: Vec<OsString> = Vec::new();
        for (name, value) in vars {
            if !name.as_bytes().starts_with(PREFIX.as_bytes()) || seen.contains(&name) {
                continue;
            }
            if let Some(warning) = config.apply(&name, &value) {
                warnings.push(warning);
            }
            seen.push(name);
        }
        (config, warnings)
    }

    /// Changes one option that is among [`LIVE`]; the error says what is
    /// accepted.
    pub fn change(&mut self, name: &str, value: &str) -> Result<(), String> {
        let option = LIVE
            .contains(&name)
            .then(|| Opt::find(OsStr::new(name)))
            .flatten()
            .ok_or_else(|| {
                format!(
                    "{name} cannot change in a running process; what can: {}",
                    LIVE.join(", ")
                )
            })?;
        if !value.is_empty() && option.set(self, OsStr::new(value)) {
            return Ok(());
        }
        Err(format!("{name} takes {}, not {value:?}", option.accepts))
    }

    fn apply(&mut self, name: &OsStr, value: &OsStr) -> Option<Warning> {
        let Some(option) = Opt::find(name) else {
            return (!is_silent(name)).then(|| Warning::unknown_name(name, value));
        };
        if value.is_empty() {
            return None;
        }
        if !option.set(self, value) {
            return Some(Warning::bad_value(option, value));
        }
        let now = option.show(self);
        match option.since {
            Since::NotYet { acts_as } if now != option.default && now != acts_as => {
                Some(Warning::not_yet(option, value, acts_as))
            }
            _ => None,
        }
    }
}

/// Names that are no option and yet no mistake.
fn is_silent(name: &OsStr) -> bool {
    let for_tests =
        cfg!(feature = "unsafe-no-grace") && name.as_bytes().starts_with(b"GPUPOOL_TEST_");
    for_tests
        || NOT_FOR_THE_LIBRARY
            .iter()
            .any(|known| name == OsStr::new(known))
}

#[cfg(test)]
mod tests;
