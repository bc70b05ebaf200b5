//! The kinds of value that an option can have, and how they are written.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// A value of an option. `show` gives a text that `parse` takes back.
pub(super) trait Value: Sized {
    /// `None` where the text is not accepted. The text is never empty.
    fn parse(raw: &OsStr) -> Option<Self>;
    fn show(&self) -> String;
}

/// An enumeration written as keywords, in any case.
macro_rules! keywords {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$item_doc])* $item),+ }

        impl Value for $name {
            fn parse(raw: &OsStr) -> Option<Self> {
                let raw = text(raw)?;
                $(if raw.eq_ignore_ascii_case($word) { return Some($name::$item); })+
                None
            }
            fn show(&self) -> String {
                match self { $($name::$item => $word),+ }.to_owned()
            }
        }
    };
}

keywords! {
    /// `GPUPOOL_MODE`.
    Mode {
        /// Allocations are served from the pool.
        Pool = "pool",
        /// Native calls are counted and timed; nothing is changed.
        Observe = "observe",
        /// The library does nothing.
        Off = "off",
    }
}

keywords! {
    /// `GPUPOOL_FREE`.
    FreePolicy {
        /// A free returns at once and orders nothing.
        Fenced = "fenced",
        /// A free returns at once; later GPU work of the context waits for
        /// earlier work.
        Ordered = "ordered",
        /// A free returns when all earlier work is done.
        Strict = "strict",
    }
}

keywords! {
    /// `GPUPOOL_FILL`.
    Fill {
        /// A new block holds whatever was there.
        None = "none",
        /// Zeros, as memory fresh from the driver happens to hold.
        Zero = "zero",
        /// A pattern that no program mistakes for its own data.
        Poison = "poison",
    }
}

keywords! {
    /// `GPUPOOL_ASYNC`.
    AsyncCalls {
        /// Stream-ordered calls go to the driver unchanged.
        Pass = "pass",
        /// The same, with the default pool's release threshold raised.
        Tune = "tune",
        /// This pool serves them, in stream order.
        Pool = "pool",
    }
}

keywords! {
    /// `GPUPOOL_IPC`.
    Ipc {
        /// The handle names the block asked for, inside its segment.
        Share = "share",
        /// Allocations of 2 MiB and more have segments of their own.
        Isolate = "isolate",
        /// Pooled memory is not exported.
        Deny = "deny",
    }
}

keywords! {
    /// `GPUPOOL_BACKEND`.
    Backend {
        /// Segments come from `cuMemAlloc`.
        Driver = "driver",
        /// Segments are address ranges backed by chunks.
        Vmm = "vmm",
    }
}

/// An amount of memory: fixed, or relative to a device that is not known yet
/// when options are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// This many bytes.
    Bytes(u64),
    /// A share of the device's memory, from 0 to 100.
    Percent(f64),
}

impl Size {
    /// In bytes, on a device with `device_total` bytes. A fixed size is not
    /// cut to the device's.
    pub fn of(&self, device_total: u64) -> u64 {
        match *self {
            Size::Bytes(bytes) => bytes,
            // A u64 does not survive the way through f64 exactly: all of the
            // device must be all of it.
            Size::Percent(share) if share >= 100.0 => device_total,
            Size::Percent(share) => {
                ((device_total as f64 * (share / 100.0)) as u64).min(device_total)
            }
        }
    }
}

/// `GPUPOOL_INFLIGHT`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Inflight {
    /// The pool decides.
    Auto,
    /// At most this much.
    Limit(Size),
}

/// A file's path in which `%p` stands for the process id and `%%` for `%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplate(OsString);

impl PathTemplate {
    /// The path for the process `pid`. A `%` before anything else stays.
    pub fn expand(&self, pid: u32) -> PathBuf {
        let mut path = Vec::with_capacity(self.0.len() + 8);
        let mut bytes = self.0.as_bytes().iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            match (byte, bytes.peek()) {
                (b'%', Some(b'p')) => {
                    bytes.next();
                    path.extend_from_slice(pid.to_string().as_bytes());
                }
                (b'%', Some(b'%')) => {
                    bytes.next();
                    path.push(b'%');
                }
                _ => path.push(byte),
            }
        }
        PathBuf::from(OsString::from_vec(path))
    }
}

/// `GPUPOOL_STATS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stats {
    /// Nothing is written.
    Off,
    /// Text, to stderr.
    Stderr,
    /// A few lines for people, to stderr.
    Summary,
    /// To a file: JSON where the name ends in `.json`, else text.
    File(PathTemplate),
}

/// Whether `filter` is one that `env_logger` understands and that can match
/// something: a level, or directives `gpupool…=level`, with commas between,
/// and after a `/` a text that messages must contain.
///
/// Stricter than `env_logger`, which takes any other word for a module's name:
/// a misspelt level would then switch the log off without a word.
pub fn is_log_filter(filter: &str) -> bool {
    let (directives, wanted) = filter.split_once('/').unwrap_or((filter, ""));
    let is_level = |word: &str| word.parse::<log::LevelFilter>().is_ok();
    let is_target = |word: &str| {
        word.strip_prefix("gpupool").is_some_and(|rest| {
            (rest.is_empty() || rest.starts_with("::"))
                && rest
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b':' || b == b'_')
        })
    };
    let is_directive = |directive: &str| match directive.split_once('=') {
        Some((target, level)) => is_target(target) && is_level(level.trim()),
        None => is_level(directive) || is_target(directive),
    };
    !filter.is_empty()
        && !wanted.contains('/')
        && directives.split(',').map(str::trim).all(is_directive)
}

/// A time as options take it: `500us`, `100ms`, `30s`, at most 24h, or 0.
pub fn parse_time(text: &str) -> Option<Duration> {
    Duration::parse(OsStr::new(text))
}

/// The value as text without blanks around it; `None` if it is no text.
fn text(raw: &OsStr) -> Option<&str> {
    raw.to_str().map(str::trim_ascii)
}

/// A number as people write it: digits, perhaps a point and more digits. No
/// sign, no exponent, no "inf": f64's own parser takes all of those.
fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    text.parse().ok()
}

/// `number * unit`, exact where the number is whole; `None` past u64.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let value = decimal(number)?;
    if !number.contains('.') {
        return number.parse::<u64>().ok()?.checked_mul(unit);
    }
    let product = value * unit as f64;
    // The first f64 that no longer fits in a u64 is 2^64.
    (product < u64::MAX as f64).then_some(product as u64)
}

/// Splits `text` where its trailing letters begin.
fn number_and_unit(text: &str) -> (&str, &str) {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    (number.trim_ascii_end(), &text[number.len()..])
}

const SIZE_UNITS: &[(&str, u64)] = &[
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
];

const TIME_UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// No option needs more than a day, and a limit keeps arithmetic with instants
/// far from overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// `amount` in the largest unit that divides it.
fn in_units(amount: u64, units: &[(&str, u64)]) -> String {
    units
        .iter()
        .find(|(_, unit)| amount > 0 && amount.is_multiple_of(*unit))
        .map_or_else(
            || amount.to_string(),
            |(name, unit)| format!("{}{name}", amount / unit),
        )
}

impl Value for Size {
    fn parse(raw: &OsStr) -> Option<Self> {
        let raw = text(raw)?;
        if let Some(share) = raw.strip_suffix('%') {
            let share = decimal(share.trim_ascii_end())?;
            return (share <= 100.0).then_some(Size::Percent(share));
        }
        let (number, unit) = number_and_unit(raw);
        let factor = match unit {
            "" => 1,
            _ => {
                SIZE_UNITS
                    .iter()
                    .find(|(name, _)| unit.eq_ignore_ascii_case(name))?
                    .1
            }
        };
        scaled(number, factor).map(Size::Bytes)
    }

    fn show(&self) -> String {
        match *self {
            Size::Bytes(bytes) => in_units(bytes, SIZE_UNITS),
            Size::Percent(share) => format!("{share}%"),
        }
    }
}

impl Value for Option<Size> {
    fn parse(raw: &OsStr) -> Option<Self> {
        if text(raw)?.eq_ignore_ascii_case("none") {
            return Some(None);
        }
        Size::parse(raw).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref()
            .map_or_else(|| String::from("none"), Value::show)
    }
}

impl Value for Inflight {
    fn parse(raw: &OsStr) -> Option<Self> {
        if text(raw)?.eq_ignore_ascii_case("auto") {
            return Some(Inflight::Auto);
        }
        Size::parse(raw).map(Inflight::Limit)
    }

    fn show(&self) -> String {
        match self {
            Inflight::Auto => String::from("auto"),
            Inflight::Limit(size) => size.show(),
        }
    }
}

impl Value for Duration {
    fn parse(raw: &OsStr) -> Option<Self> {
        let raw = text(raw)?;
        let (number, unit) = number_and_unit(raw);
        let time = if unit.is_empty() {
            // Only nothing needs no unit: 100 of what?
            (decimal(number)? == 0.0).then_some(Duration::ZERO)?
        } else {
            let factor = TIME_UNITS
                .iter()
                .find(|(name, _)| unit.eq_ignore_ascii_case(name))?
                .1;
            Duration::from_nanos(scaled(number, factor)?)
        };
        (time <= LONGEST).then_some(time)
    }

    fn show(&self) -> String {
        // LONGEST keeps it far below 2^64 ns.
        in_units(self.as_nanos() as u64, TIME_UNITS)
    }
}

impl Value for Option<Duration> {
    fn parse(raw: &OsStr) -> Option<Self> {
        if text(raw)?.eq_ignore_ascii_case("off") {
            return Some(None);
        }
        Duration::parse(raw).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref()
            .map_or_else(|| String::from("off"), Value::show)
    }
}

impl Value for bool {
    fn parse(raw: &OsStr) -> Option<Self> {
        match text(raw)? {
            word if word.eq_ignore_ascii_case("on") || word == "1" => Some(true),
            word if word.eq_ignore_ascii_case("off") || word == "0" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        String::from(if *self { "on" } else { "off" })
    }
}

impl Value for PathTemplate {
    /// A bare word is refused: `GPUPOOL_STATS=stdout` or `=1` is a mistake, not
    /// a file of that name, which can be written `./stdout`.
    fn parse(raw: &OsStr) -> Option<Self> {
        let bytes = raw.as_bytes();
        let is_path = bytes.contains(&b'/') || bytes.contains(&b'.');
        let is_folder = bytes.last() == Some(&b'/');
        (is_path && !is_folder).then(|| PathTemplate(raw.to_owned()))
    }

    fn show(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Value for Option<PathTemplate> {
    fn parse(raw: &OsStr) -> Option<Self> {
        PathTemplate::parse(raw).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(String::new, Value::show)
    }
}

impl Value for Stats {
    fn parse(raw: &OsStr) -> Option<Self> {
        match text(raw) {
            Some(word) if word.eq_ignore_ascii_case("off") => Some(Stats::Off),
            Some(word) if word.eq_ignore_ascii_case("stderr") => Some(Stats::Stderr),
            Some(word) if word.eq_ignore_ascii_case("summary") => Some(Stats::Summary),
            _ => PathTemplate::parse(raw).map(Stats::File),
        }
    }

    fn show(&self) -> String {
        match self {
            Stats::Off => String::from("off"),
            Stats::Stderr => String::from("stderr"),
            Stats::Summary => String::from("summary"),
            Stats::File(path) => path.show(),
        }
    }
}

/// A log filter: the only option that is plain text.
impl Value for String {
    fn parse(raw: &OsStr) -> Option<Self> {
        text(raw)
            .filter(|filter| is_log_filter(filter))
            .map(str::to_owned)
    }

    fn show(&self) -> String {
        self.clone()
    }
}
