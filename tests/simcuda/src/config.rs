//! The environment that steers the simulated driver. Read once.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | SIMCUDA_DEVICES | 1 | number of devices |
//! | SIMCUDA_MEMORY | 8G | bytes of each (K, M, G) |
//! | SIMCUDA_LIMIT | – | bytes of each that the process may have; what cuMemGetInfo says does not tell of it |
//! | SIMCUDA_LIMIT_SHOWN | 0 | 1: cuMemGetInfo and cuDeviceTotalMem tell of that limit, as MPS has them |
//! | SIMCUDA_HOST | – | bytes of pinned and managed memory that the host gives |
//! | SIMCUDA_VERSION | 13000 | driver version; names newer than it are not found by cuGetProcAddress |
//! | SIMCUDA_MISSING | – | `name,name`: not found by cuGetProcAddress |
//! | SIMCUDA_FAULT | – | `name:code@n` fails the n-th call with the code, `@n+` from then on; comma-separated |
//! | SIMCUDA_SLOW | – | `name:10ms`: the call takes that much longer (ns, us, ms, s); comma-separated |
//! | SIMCUDA_COST | 1 | 0: allocation calls cost no modelled time |
//! | SIMCUDA_ALLOC_COST | 30us/26us | modelled cost of a small cuMemAlloc/cuMemFree |
//! | SIMCUDA_REPORT | – | file for violations and counts (`%p` = process id) |
//! | SIMCUDA_STRICT | 0 | 1: a violation ends the process with status 99 |
//! | SIMCUDA_DEINIT | 0 | 1: from the driver's own exit handler on, every call answers 4 |
//! | SIMCUDA_ALLOW | – | kinds of violation not to report, comma-separated (module `report`) |

use std::sync::OnceLock;
use std::time::Duration;

/// One rule of SIMCUDA_FAULT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) code: i32,
    /// Counted from 1.
    pub(crate) call: u64,
    /// Also every later call.
    pub(crate) onwards: bool,
}

/// The parsed environment.
pub(crate) struct Config {
    pub(crate) devices: usize,
    pub(crate) memory: u64,
    pub(crate) limit: u64,
    /// What calls say that a device has.
    pub(crate) shown: u64,
    pub(crate) host: u64,
    pub(crate) version: i32,
    pub(crate) missing: Vec<String>,
    pub(crate) faults: Vec<(String, Fault)>,
    pub(crate) slow: Vec<(String, Duration)>,
    pub(crate) cost: bool,
    pub(crate) alloc_cost: Duration,
    pub(crate) free_cost: Duration,
    pub(crate) report: Option<String>,
    pub(crate) strict: bool,
    /// Whether devices say that they have virtual memory management.
    pub(crate) vmm: bool,
    pub(crate) deinit: bool,
    pub(crate) allow: Vec<String>,
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

fn list(name: &str) -> Vec<String> {
    var(name)
        .map(|v| {
            v.split(',')
                .map(|s| s.trim().to_string())
                .filter(|s| !s.is_empty())
                .collect()
        })
        .unwrap_or_default()
}

fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.chars().last()? {
        'k' | 'K' => (&text[..text.len() - 1], 10),
        'm' | 'M' => (&text[..text.len() - 1], 20),
        'g' | 'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

fn duration(text: &str) -> Option<Duration> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let n: u64 = text[..split].parse().ok()?;
    Some(match &text[split..] {
        "ns" => Duration::from_nanos(n),
        "us" | "" => Duration::from_micros(n),
        "ms" => Duration::from_millis(n),
        "s" => Duration::from_secs(n),
        _ => return None,
    })
}

fn fault(text: &str) -> Option<(String, Fault)> {
    let (name, rest) = text.split_once(':')?;
    let (code, at) = rest.split_once('@').unwrap_or((rest, "1+"));
    let onwards = at.ends_with('+');
    let call = at.trim_end_matches('+').parse().ok()?;
    Some((
        name.to_string(),
        Fault {
            code: code.parse().ok()?,
            call,
            onwards,
        },
    ))
}

fn slow(text: &str) -> Option<(String, Duration)> {
    let (name, rest) = text.split_once(':')?;
    Some((name.to_string(), duration(rest)?))
}

impl Config {
    fn read() -> Config {
        let costs = var("SIMCUDA_ALLOC_COST").unwrap_or_default();
        let (alloc, free) = costs.split_once('/').unwrap_or((costs.as_str(), ""));
        let memory = var("SIMCUDA_MEMORY")
            .and_then(|v| bytes(&v))
            .unwrap_or(8 << 30);
        let limit = var("SIMCUDA_LIMIT")
            .and_then(|v| bytes(&v))
            .unwrap_or(u64::MAX);
        let shown = var("SIMCUDA_LIMIT_SHOWN").is_some_and(|v| v != "0");
        Config {
            devices: var("SIMCUDA_DEVICES")
                .and_then(|v| v.parse().ok())
                .unwrap_or(1)
                .min(16),
            memory,
            limit,
            shown: if shown { memory.min(limit) } else { memory },
            host: var("SIMCUDA_HOST")
                .and_then(|v| bytes(&v))
                .unwrap_or(u64::MAX),
            version: var("SIMCUDA_VERSION")
                .and_then(|v| v.parse().ok())
                .unwrap_or(13000),
            missing: list("SIMCUDA_MISSING"),
            faults: list("SIMCUDA_FAULT")
                .iter()
                .filter_map(|s| fault(s))
                .collect(),
            slow: list("SIMCUDA_SLOW")
                .iter()
                .filter_map(|s| slow(s))
                .collect(),
            cost: var("SIMCUDA_COST").is_none_or(|v| v != "0"),
            alloc_cost: duration(alloc).unwrap_or(Duration::from_micros(30)),
            free_cost: duration(free).unwrap_or(Duration::from_micros(26)),
            report: var("SIMCUDA_REPORT").map(|p| p.replace("%p", &std::process::id().to_string())),
            vmm: var("SIMCUDA_VMM").is_none_or(|v| v != "0"),
            deinit: var("SIMCUDA_DEINIT").is_some_and(|v| v != "0"),
            strict: var("SIMCUDA_STRICT").is_some_and(|v| v != "0"),
            allow: list("SIMCUDA_ALLOW"),
        }
    }
}

/// The configuration of this process.
pub(crate) fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(Config::read)
}
