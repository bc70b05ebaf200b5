//! The option table: one row a variable, the only list of them.

use std::ffi::OsStr;

use super::Config;
use super::value::Value;

/// Whether this release acts on an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// It works, from this version on.
    Version(&'static str),
    /// It is parsed and checked, and has no effect yet.
    NotYet {
        /// The value that describes what this release does instead.
        acts_as: &'static str,
    },
}

/// One environment variable.
pub struct Opt {
    /// The variable's full name.
    pub name: &'static str,
    /// The default as one would write it; empty where there is none.
    pub default: &'static str,
    /// Which values are accepted, in words.
    pub accepts: &'static str,
    /// What it does, in a sentence.
    pub meaning: &'static str,
    /// Whether this release acts on it.
    pub since: Since,
    set: fn(&mut Config, &OsStr) -> bool,
    show: fn(&Config) -> String,
}

impl Opt {
    /// The row of the variable `name`.
    pub fn find(name: &OsStr) -> Option<&'static Opt> {
        OPTIONS
            .iter()
            .find(|option| name == OsStr::new(option.name))
    }

    /// Whether this release acts on it.
    pub fn implemented(&self) -> bool {
        matches!(self.since, Since::Version(_))
    }

    /// The value in force in `config`, as one would write it.
    pub fn show(&self, config: &Config) -> String {
        (self.show)(config)
    }

    /// Parses `raw` into `config`; false, and `config` unchanged, where it is
    /// not accepted.
    pub(super) fn set(&self, config: &mut Config, raw: &OsStr) -> bool {
        (self.set)(config, raw)
    }
}

/// One row. The field of [`Config`] decides how the value is parsed and shown.
macro_rules! option {
    ($name:literal => $field:ident, default $default:literal, since $since:expr,
     accepts $accepts:literal, $meaning:literal) => {
        Opt {
            name: concat!("GPUPOOL_", $name),
            default: $default,
            accepts: $accepts,
            meaning: $meaning,
            since: $since,
            set: |config, raw| match Value::parse(raw) {
                Some(value) => {
                    config.$field = value;
                    true
                }
                None => false,
            },
            show: |config| Value::show(&config.$field),
        }
    };
}

const V0_1: Since = Since::Version("0.1.0");

const fn not_yet(acts_as: &'static str) -> Since {
    Since::NotYet { acts_as }
}

/// What can change in a running process.
pub const LIVE: &[&str] = &[
    "GPUPOOL_MODE",
    "GPUPOOL_MAX",
    "GPUPOOL_HOST_MAX",
    "GPUPOOL_INFLIGHT",
    "GPUPOOL_WAIT",
    "GPUPOOL_FREE",
    "GPUPOOL_FILL",
    "GPUPOOL_LOG",
];

/// Every option, in the order in which `gpupool env` lists them.
pub static OPTIONS: &[Opt] = &[
    option!("MODE" => mode, default "pool", since V0_1,
        accepts "pool, observe or off",
        "`pool`: allocations are served from the pool; `observe`: the native calls are counted and timed, nothing is changed; `off`: the library does nothing"),
    option!("MAX" => max, default "100%", since V0_1,
        accepts "a size in bytes or with K, M, G or T, or a percentage of the device from 0% to 100%",
        "most that the pool may hold of a device; beyond it allocations still succeed if the driver can, outside the pool"),
    option!("PREALLOC" => prealloc, default "0", since V0_1,
        accepts "a size in bytes or with K, M, G or T, or a percentage of the device from 0% to 100%",
        "taken from the driver at a device's first use"),
    option!("INFLIGHT" => inflight, default "auto", since V0_1,
        accepts "auto, a size in bytes or with K, M, G or T, or a percentage of the device from 0% to 100%",
        "most that may wait for grace before an allocation waits for the oldest rather than take new memory"),
    option!("WAIT" => wait, default "100ms", since V0_1,
        accepts "a time such as 500us, 100ms, 30s or 1m, at most 24h, or 0",
        "longest that an allocation waits for grace"),
    option!("FREE" => free, default "fenced", since V0_1,
        accepts "fenced, ordered or strict",
        "`fenced`: a free returns at once; `ordered`: it returns at once, and all later GPU work of the context waits for all earlier work; `strict`: it returns when all earlier work is done"),
    option!("IDLE_RELEASE" => idle_release, default "off", since V0_1,
        accepts "off or a time such as 500ms, 30s or 1m, at most 24h",
        "give back segments unused for this long, when the GPU is idle; starts a thread"),
    option!("HELPER" => helper, default "off", since V0_1,
        accepts "on or off",
        "a thread that answers `gpupool trim` and `set` at once, also while the program makes no call"),
    option!("ASYNC" => async_calls, default "tune", since not_yet("pass"),
        accepts "pass, tune or pool",
        "stream-ordered calls: `pass`: to the driver; `tune`: to the driver, with the default pool's release threshold raised to what GPUPOOL_MAX leaves; `pool`: served by this pool, in stream order"),
    option!("HOST" => host, default "on", since V0_1,
        accepts "on or off",
        "pool pinned host memory"),
    option!("HOST_MAX" => host_max, default "none", since V0_1,
        accepts "none, a size in bytes or with K, M, G or T, or a percentage of the machine's memory from 0% to 100%",
        "most pinned host memory that the pool may hold; beyond it allocations still succeed if the driver can, outside the pool"),
    option!("IPC" => ipc, default "share", since V0_1,
        accepts "share, isolate or deny",
        "handles of pooled memory for other processes: `share`: of the block asked for; `isolate`: each allocation of 2 MiB and more has a segment of its own, so that an importer can see no other block; `deny`: refused"),
    option!("BACKEND" => backend, default "driver", since V0_1,
        accepts "driver or vmm",
        "segments from `driver` (cuMemAlloc) or `vmm` (address ranges with memory mapped under them, which goes where it is needed while the GPU works: least waste; legacy IPC then fails natively)"),
    option!("FILL" => fill, default "none", since V0_1,
        accepts "none, zero or poison",
        "fill new blocks with zeros or with a pattern that shows where a program reads memory that it has not written"),
    option!("GUARD" => guard, default "off", since V0_1,
        accepts "on or off",
        "find overruns and use after free, for debugging: writes behind a block's end, or to it after its free, are reported on stderr with the places that allocated and freed it; a free then waits for earlier work"),
    option!("PROFILE" => profile, default "", since V0_1,
        accepts "a file's path, with a / or a . in it (%p is the process id)",
        "a file: read at a device's first use to reserve what the last run needed and an eighth more, written at exit"),
    option!("TRACE" => trace, default "", since V0_1,
        accepts "a file's path, with a / or a . in it (%p is the process id)",
        "a file (`%p` = process id) that takes a record of every allocation and free, for `gpupool replay`"),
    option!("TRACE_STACKS" => trace_stacks, default "off", since V0_1,
        accepts "on or off",
        "record the stack of each call in the trace too, for `gpupool report --flamegraph`"),
    option!("STATS" => stats, default "off", since V0_1,
        accepts "off, summary, stderr or a file's path, with a / or a . in it (%p is the process id)",
        "counters at exit: all of them to `stderr`, a `summary` of a few lines there, or to a file (`%p` = process id), as JSON if it ends in .json"),
    option!("LOG" => log, default "warn", since V0_1,
        accepts "off, error, warn, info, debug or trace, or directives such as gpupool::pool=debug with commas between",
        "what is logged to stderr: an env_logger filter"),
    option!("NVTX" => nvtx, default "off", since V0_1,
        accepts "on or off",
        "mark what the pool does for Nsight Systems: hits, misses, frees, waits, growth, giving back"),
];
