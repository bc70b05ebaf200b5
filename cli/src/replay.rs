//! `gpupool replay`: a recorded trace through the pool's own logic, without a
//! GPU. The same trace and options always give the same figures.

pub mod engine;
mod gpu;
pub mod source;
mod table;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use gpupool::config::{Backend, Config, Inflight, Ipc, OPTIONS, PREFIX};
use gpupool::pool::{Memory, Policy};

use crate::{Failure, failure};

pub const EXAMPLES: &str = "TRACE is a file of GPUPOOL_TRACE, or a table of lines
`a|f,thread,microseconds,address,bytes` (address in hexadecimal); either may be
compressed by xz.

Examples:
  gpupool run --set TRACE=./app.trace -- ./app
  gpupool replay app.trace
  gpupool replay app.trace --delay 0.2ms --set INFLIGHT=64M
  gpupool replay app.trace --variant INFLIGHT=64M --variant INFLIGHT=1G,WAIT=1ms";

/// The options that decide what the pool does with a trace.
const USED: [&str; 6] = [
    "GPUPOOL_MAX",
    "GPUPOOL_PREALLOC",
    "GPUPOOL_INFLIGHT",
    "GPUPOOL_WAIT",
    "GPUPOOL_IPC",
    "GPUPOOL_BACKEND",
];

#[derive(clap::Args)]
pub struct Args {
    /// The trace
    trace: PathBuf,
    /// Set an option of the library; may be given several times
    #[arg(long = "set", value_name = "VAR=VALUE")]
    set: Vec<String>,
    /// Replay once more with these options as well; may be given several times
    #[arg(long = "variant", value_name = "VAR=VALUE[,VAR=VALUE…]")]
    variants: Vec<String>,
    /// Time of the trace until the GPU is done with freed memory; without it at
    /// once
    #[arg(long, value_name = "TIME", value_parser = time)]
    delay: Option<Duration>,
    /// Memory of each device
    #[arg(long, value_name = "SIZE", default_value = "80G", value_parser = size)]
    memory: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A value as GPUPOOL_WAIT takes it.
pub fn time(text: &str) -> Result<Duration, String> {
    value("GPUPOOL_WAIT", text).map(|config| config.wait)
}

/// A value as GPUPOOL_PREALLOC takes it, but for a percentage.
pub fn size(text: &str) -> Result<u64, String> {
    match value("GPUPOOL_PREALLOC", text)?.prealloc.of(0) {
        0 => Err(String::from("takes a size in bytes or with K, M, G or T")),
        bytes => Ok(bytes),
    }
}

/// The options' defaults with this one set.
fn value(name: &str, text: &str) -> Result<Config, String> {
    let (config, warnings) = Config::parse(std::iter::once((name.into(), text.into())));
    let accepts = OPTIONS
        .iter()
        .find(|option| option.name == name)
        .map_or("", |option| option.accepts);
    if text.is_empty() || !warnings.is_empty() {
        return Err(format!("takes {accepts}"));
    }
    Ok(config)
}

/// What the command prints.
pub fn run(args: &Args) -> Result<String, Failure> {
    let mut configs = vec![(String::from("-"), settings(&args.set)?)];
    for variant in &args.variants {
        let own = variant.split(',').map(str::to_owned);
        let all: Vec<String> = args.set.iter().cloned().chain(own).collect();
        configs.push((variant.clone(), settings(&all)?));
    }
    let input = source::read(&args.trace)
        .map_err(|error| failure(2, format!("{}{error}", args.trace.display())))?;
    let mut results = Vec::new();
    for (name, config) in configs {
        let setup = engine::Setup {
            policy: policy(&config, args.memory),
            prealloc: config.prealloc.of(args.memory),
            delay: args.delay,
        };
        results.push((name, engine::run(&input, &setup)));
    }
    Ok(if args.json {
        table::json(args, &input, &results)
    } else {
        table::text(args, &input, &results)
    })
}

/// The options that `VAR=VALUE`s ask for.
pub fn settings(set: &[String]) -> Result<Config, Failure> {
    let mut pairs: Vec<(OsString, OsString)> = Vec::new();
    for setting in set {
        let Some((name, value)) = setting.split_once('=').filter(|pair| !pair.0.is_empty()) else {
            return Err(failure(
                2,
                format!("{setting:?}: write it as VAR=VALUE, for example INFLIGHT=64M"),
            ));
        };
        let name = match name.starts_with(PREFIX) {
            true => name.to_owned(),
            false => format!("{PREFIX}{name}"),
        };
        let known = OPTIONS.iter().any(|option| option.name == name);
        if known && !USED.contains(&name.as_str()) {
            return Err(failure(
                2,
                format!(
                    "{name} makes no difference to a replay; what does: {}",
                    USED.join(", ")
                ),
            ));
        }
        pairs.retain(|(other, _)| other != OsStr::new(&name));
        pairs.push((name.into(), value.into()));
    }
    let (config, warnings) = Config::parse(pairs.into_iter());
    match warnings.first() {
        Some(warning) => Err(failure(2, warning.to_string())),
        None => Ok(config),
    }
}

/// The limits of a pool on a device with `total` bytes, as the library sets
/// them.
pub fn policy(config: &Config, total: u64) -> Policy {
    Policy {
        memory: Memory::Device,
        max: config.max.of(total),
        inflight: match &config.inflight {
            Inflight::Auto => None,
            Inflight::Limit(size) => Some(size.of(total)),
        },
        total,
        wait: config.wait,
        isolate: config.ipc == Ipc::Isolate,
        mapped: config.backend == Backend::Vmm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let config = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
            settings(&set).map_err(|failure| failure.message)
        };
        let parsed = config(&["INFLIGHT=1M", "GPUPOOL_WAIT=2ms", "INFLIGHT=3M"]).unwrap();
        assert_eq!(
            policy(&parsed, 1 << 30),
            Policy {
                memory: Memory::Device,
                max: 1 << 30,
                inflight: Some(3 << 20),
                total: 1 << 30,
                wait: Duration::from_millis(2),
                isolate: false,
                mapped: false,
            }
        );
        for (setting, part) in [
            ("INFLIGHT", "VAR=VALUE"),
            ("=1", "VAR=VALUE"),
            ("INFLIGHT=lots", "lots"),
            ("INFLIHGT=1M", "did you mean GPUPOOL_INFLIGHT"),
            ("FILL=zero", "GPUPOOL_WAIT"),
        ] {
            let message = config(&[setting]).unwrap_err();
            assert!(message.contains(part), "{setting}: {message}");
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(time("0.2ms"), Ok(Duration::from_micros(200)));
        assert!(time("5").unwrap_err().contains("100ms"));
        assert_eq!(size("2G"), Ok(2 << 30));
        assert!(size("50%").is_err() && size("lots").is_err());
    }
}
