//! `gpupool stat`: the figures of running processes, once or again and again.

mod prometheus;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpupool::config::Mode;
use gpupool::pool::stats::bytes;
use gpupool::process::page::watch::{self, Watch};
use gpupool::process::report;
use gpupool::process::snapshot::{ContextSnapshot, Snapshot};
use gpupool::process::summary::{thousands, time};
use serde_json::Value;

use crate::process::Process;
use crate::{Failure, failure};

pub const EXAMPLES: &str = "Examples:
  gpupool stat 4711
  gpupool stat 4711 --json | jq .hits
  gpupool stat --all
  gpupool stat --all --prometheus --output /var/lib/node_exporter/gpupool.prom --every 15s

With --output the file is replaced in one step, so that a reader never sees half
of it: made for node_exporter's --collector.textfile.directory. Processes of
other users are seen by root only.";

#[derive(clap::Args)]
pub struct Args {
    /// Processes to look at
    #[arg(value_name = "PID", required_unless_present = "all")]
    pids: Vec<u32>,
    /// Every process that has the library and may be looked into
    #[arg(long, conflicts_with = "pids")]
    all: bool,
    /// As JSON: an object for one PID, else an array of them
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// In Prometheus's text format
    #[arg(long)]
    prometheus: bool,
    /// Write to a file, replaced in one step, instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Again and again, with this time between, such as 15s
    #[arg(long, value_name = "TIME", value_parser = crate::args::time)]
    every: Option<Duration>,
}

/// A process and its figures.
pub struct Seen {
    pub process: Process,
    pub snapshot: Snapshot,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    loop {
        let seen = look(args)?;
        let text = text(args, &seen);
        match &args.output {
            Some(path) => replace(path, &text)?,
            None => crate::print(&text)?,
        }
        match args.every {
            Some(time) => std::thread::sleep(time),
            None => return Ok(()),
        }
    }
}

fn look(args: &Args) -> Result<Vec<Seen>, Failure> {
    if args.all {
        // What ends between the two steps is left out.
        return Ok(watch::all()
            .into_iter()
            .filter_map(|pid| see(pid).ok())
            .collect());
    }
    args.pids
        .iter()
        .map(|pid| see(*pid))
        .collect::<Result<_, _>>()
}

/// The process now.
pub fn see(pid: u32) -> Result<Seen, Failure> {
    let watch = Watch::open(pid).map_err(|why| failure(1, format!("process {pid}: {why}")))?;
    Ok(Seen {
        process: Process::of(pid),
        snapshot: watch.read(),
    })
}

fn text(args: &Args, seen: &[Seen]) -> String {
    if args.prometheus {
        return prometheus::text(seen);
    }
    if args.json {
        let mut objects: Vec<Value> = seen.iter().map(json).collect();
        let value = if args.all || objects.len() != 1 {
            Value::Array(objects)
        } else {
            objects.remove(0)
        };
        return format!("{value:#}\n");
    }
    if seen.is_empty() {
        return String::from("no process that may be looked into has the library and uses CUDA\n");
    }
    seen.iter().map(plain).collect::<Vec<_>>().join("\n")
}

fn json(seen: &Seen) -> Value {
    let mut value = report::json(&seen.snapshot);
    if let Value::Object(object) = &mut value {
        // As it is known here: in a container the process has another one.
        object.insert("pid".into(), seen.process.pid.into());
        object.insert("command".into(), seen.process.command.as_str().into());
        object.insert("helper".into(), seen.snapshot.helper.into());
        object.insert("inert".into(), seen.snapshot.inert.into());
        let labels: serde_json::Map<String, Value> = seen
            .process
            .labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
            .collect();
        object.insert("labels".into(), labels.into());
    }
    value
}

fn plain(seen: &Seen) -> String {
    let (process, snapshot) = (&seen.process, &seen.snapshot);
    let counts = snapshot.counts();
    let mode = format!("{:?}", snapshot.mode).to_lowercase();
    let mut text = format!(
        "{} {}: gpupool {}, mode {mode}, for {}{}\n",
        process.pid,
        process.command,
        snapshot.version,
        time(snapshot.age_ns),
        if snapshot.inert {
            "; the process ends or the library has stepped aside"
        } else {
            ""
        }
    );
    for (name, value) in &process.labels {
        text.push_str(&format!("  {name:<10} {value}\n"));
    }
    let allocs = snapshot.alloc_calls();
    let share = counts.hits as f64 * 100.0 / allocs.max(1) as f64;
    text.push_str(&format!(
        "  calls      {} allocations, {} frees{}\n",
        thousands(allocs),
        thousands(snapshot.free_calls()),
        if snapshot.mode == Mode::Observe {
            format!(
                ", inside them {} and {}",
                time(snapshot.seen.alloc_ns),
                time(snapshot.seen.free_ns)
            )
        } else {
            format!("; {share:.1}% served without the driver")
        }
    ));
    text.push_str(&format!(
        "  driver     {} allocations, {} frees, {} fences\n",
        thousands(snapshot.driver_allocs()),
        thousands(snapshot.driver_frees()),
        thousands(snapshot.process.fence_records)
    ));
    if counts.waits > 0 {
        text.push_str(&format!(
            "  waits      {} allocations waited {} in all, {} in vain\n",
            thousands(counts.waits),
            time(counts.wait_ns),
            thousands(counts.wait_timeouts)
        ));
    }
    if snapshot.mode == Mode::Observe {
        text.push_str(&format!(
            "  memory     {} live, {} at most\n",
            bytes(snapshot.seen.live),
            bytes(snapshot.seen.peak)
        ));
    }
    for context in &snapshot.contexts {
        text.push_str(&device(context));
    }
    if snapshot.host_alloc_calls() > 0 {
        text.push_str(&pinned(snapshot));
    }
    if snapshot.not_shown > 0 {
        text.push_str(&format!(
            "  {} further contexts or pools of pinned memory have no place in the page\n",
            snapshot.not_shown
        ));
    }
    text
}

fn device(context: &ContextSnapshot) -> String {
    let usage = &context.usage;
    let status = match (context.lost, context.status) {
        (true, _) => String::from(", lost"),
        (false, gpupool::cuda::context::Status::Serving) => String::new(),
        (false, other) => format!(", {}", format!("{other:?}").to_lowercase()),
    };
    format!(
        "  device {:<3} {} live (peak {}), {} waiting of {} at most, {} reserved (peak {}) in {} segments, largest free run {}{status}\n",
        context.device,
        bytes(usage.live),
        bytes(usage.peak_live),
        bytes(usage.waiting),
        bytes(context.inflight_limit),
        bytes(usage.reserved),
        bytes(usage.peak_reserved),
        usage.segments,
        bytes(usage.largest_free),
    )
}

fn pinned(snapshot: &Snapshot) -> String {
    let usage = snapshot.host_usage();
    format!(
        "  pinned     {} allocations, {} frees, {} driver calls; {} live (peak {}), {} waiting, {} reserved (peak {}) in {} segments\n",
        thousands(snapshot.host_alloc_calls()),
        thousands(snapshot.host_free_calls()),
        thousands(snapshot.driver_host_allocs() + snapshot.driver_host_frees()),
        bytes(usage.live),
        bytes(usage.peak_live),
        bytes(usage.waiting),
        bytes(usage.reserved),
        bytes(usage.peak_reserved),
        usage.segments,
    )
}

/// Replaces the file in one step.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let shown = path.display();
    let Some(name) = path.file_name() else {
        return Err(failure(2, format!("--output {shown}: name a file")));
    };
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(beside);
    let write = || {
        let mut file = fs::File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        failure(
            1,
            format!("--output {shown}: {error}; name a file in a folder that can be written"),
        )
    })
}
