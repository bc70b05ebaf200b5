//! What a search prints.

use std::fmt::Write;
use std::time::Duration;

use gpupool::config::PREFIX;
use serde_json::{Map, Value, json};

use super::Args;
use super::search::{
    Answer, Costs, LEAST_BYTES, LEAST_CALLS, LEAST_NS, LEAST_OF_LENGTH, MARGIN, Setting,
};
use crate::replay::source::Input;

type Row = (&'static str, fn(&Costs) -> String);

const ROWS: &[Row] = &[
    ("peak reserved", |costs| {
        format!("{:.1} MiB", costs.reserved as f64 / f64::from(1 << 20))
    }),
    ("driver calls", |costs| costs.calls.to_string()),
    ("time in these and in waits", |costs| {
        format!("{:.1} ms", costs.waited_ns as f64 / 1e6)
    }),
];

/// What a variable is for, in the case of a gain.
fn reason(setting: &Setting) -> &'static str {
    use super::search::Variable::{Inflight, Max, Prealloc};
    match setting.variable {
        Prealloc => "the memory comes from the driver at once, at the device's first use",
        Inflight => "how much of the freed memory may wait for the GPU",
        Max => {
            "the pool holds no more; a run that needs more gets the rest from the driver, call by call"
        }
    }
}

fn delay(delay: Duration) -> String {
    match delay.is_zero() {
        true => String::from("the GPU is done with freed memory at once"),
        false => format!("the GPU is done with freed memory after {delay:?}"),
    }
}

/// The line to copy.
fn command(set: &[Setting]) -> String {
    let set: String = set
        .iter()
        .map(|setting| format!("{PREFIX}{setting} "))
        .collect();
    format!("{set}gpupool run -- CMD")
}

/// The figures before and after, what to set and why.
pub fn text(args: &Args, input: &Input, answer: &Answer) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{}: {} calls on device memory, {} replays, {}{}",
        args.trace.display(),
        input.events.len(),
        answer.replays,
        delay(args.delay),
        if input.unfinished {
            "; the trace has no end"
        } else {
            ""
        }
    );
    if answer.before.failed > 0 {
        let _ = writeln!(
            out,
            "{} allocations fail with {} bytes of memory (--memory): the figures are of those that do not",
            answer.before.failed, args.memory
        );
    }
    let mut columns = vec![(String::from("defaults"), &answer.before)];
    if !answer.set.is_empty() {
        let names: Vec<String> = answer.set.iter().map(Setting::to_string).collect();
        columns.push((names.join(" "), &answer.after));
    }
    let width = ROWS.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let mut line = |name: &str, cell: &dyn Fn(&(String, &Costs)) -> String| {
        let _ = write!(out, "{name:<width$}");
        for column in &columns {
            let _ = write!(
                out,
                "  {:>width$}",
                cell(column),
                width = column.0.len().max(12)
            );
        }
        out.push('\n');
    };
    line("", &|column| column.0.clone());
    for (name, figure) in ROWS {
        line(name, &|column| figure(column.1));
    }
    if answer.set.is_empty() {
        let _ = writeln!(
            out,
            "The defaults do: no value tried lowers one of these by {:.0}% (and {} MiB, {LEAST_CALLS} calls, {} ms or 1/{LEAST_OF_LENGTH} of the trace) without raising another as much.",
            MARGIN * 100.0,
            LEAST_BYTES >> 20,
            LEAST_NS / 1_000_000,
        );
    }
    for setting in &answer.set {
        let _ = writeln!(out, "{PREFIX}{}: {}", setting.name(), reason(setting));
    }
    let _ = writeln!(out, "{}", command(&answer.set));
    out
}

fn costs(costs: &Costs) -> Value {
    json!({
        "peak_reserved_bytes": costs.reserved,
        "driver_calls": costs.calls,
        "waited_ns": costs.waited_ns,
        "failed": costs.failed,
        "bypasses": costs.bypasses,
    })
}

/// The same. Sizes in bytes, times in nanoseconds.
pub fn json(args: &Args, input: &Input, answer: &Answer) -> String {
    let set: Map<String, Value> = answer
        .set
        .iter()
        .map(|setting| {
            let name = format!("{PREFIX}{}", setting.name());
            (name, setting.value().into())
        })
        .collect();
    let whole = json!({
        "trace": args.trace.to_string_lossy(),
        "calls": input.events.len(),
        "unfinished": input.unfinished,
        "delay_ns": args.delay.as_nanos() as u64,
        "memory_bytes": args.memory,
        "replays": answer.replays,
        "set": set,
        "before": costs(&answer.before),
        "after": costs(&answer.after),
        "command": command(&answer.set),
    });
    format!("{whole:#}\n")
}
