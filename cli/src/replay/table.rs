//! What a replay prints.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Args;
use super::engine::Figures;
use super::source::Input;

type Results = [(String, Figures)];

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn milliseconds(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

type Row = (&'static str, fn(&Figures) -> String);

/// Every figure, by the name that it has in the table.
const ROWS: &[Row] = &[
    ("allocations", |f| f.allocs.to_string()),
    ("frees", |f| f.frees.to_string()),
    ("foreign frees", |f| f.foreign_frees.to_string()),
    ("failed", |f| f.failed.to_string()),
    ("peak live", |f| mib(f.peak_live)),
    ("peak waiting", |f| mib(f.peak_waiting)),
    ("peak live + waiting", |f| mib(f.peak_live_and_waiting)),
    ("peak reserved", |f| mib(f.peak_reserved)),
    ("reserved / (live + waiting)", |f| {
        format!("{:.3}", f.ratio())
    }),
    ("hits", |f| f.counts.hits.to_string()),
    ("misses", |f| f.counts.misses.to_string()),
    ("left to the driver", |f| f.counts.bypasses.to_string()),
    ("waits", |f| f.counts.waits.to_string()),
    ("waits that ran out", |f| f.counts.wait_timeouts.to_string()),
    ("time waited and in the driver", |f| {
        milliseconds(f.waited_ns)
    }),
    ("driver allocations", |f| f.driver.allocs.to_string()),
    ("driver frees", |f| f.driver.frees.to_string()),
    ("time in these", |f| milliseconds(f.driver.ns)),
    ("fences recorded", |f| f.driver.records.to_string()),
    ("fences asked for", |f| f.driver.queries.to_string()),
];

/// One column for each variant.
pub fn text(args: &Args, input: &Input, results: &Results) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{}: {} calls on device memory in {} contexts, {} others{}",
        args.trace.display(),
        input.events.len(),
        input.pools.len(),
        input.others,
        if input.unfinished {
            "; the trace has no end"
        } else {
            ""
        }
    );
    let mut columns: Vec<Vec<String>> = Vec::new();
    let names = ROWS.iter().map(|row| row.0.to_owned());
    columns.push(std::iter::once(String::new()).chain(names).collect());
    for (name, figures) in results {
        let cells = ROWS.iter().map(|row| row.1(figures));
        let head = if results.len() > 1 { name.as_str() } else { "" };
        columns.push(std::iter::once(head.to_owned()).chain(cells).collect());
    }
    let widths: Vec<usize> = columns
        .iter()
        .map(|column| column.iter().map(|c| c.chars().count()).max().unwrap_or(0))
        .collect();
    for line in 0..columns[0].len() {
        if line == 0 && results.len() == 1 {
            continue;
        }
        let _ = write!(out, "{:<width$}", columns[0][line], width = widths[0]);
        for (column, width) in columns.iter().zip(&widths).skip(1) {
            let _ = write!(out, "  {:>width$}", column[line]);
        }
        out.push('\n');
    }
    out
}

/// One object for each variant. Sizes in bytes, times in nanoseconds.
pub fn json(args: &Args, input: &Input, results: &Results) -> String {
    let variants: Vec<Value> = results
        .iter()
        .map(|(name, figures)| {
            let mut object = json!({
                "variant": name,
                "allocations": figures.allocs,
                "frees": figures.frees,
                "foreign_frees": figures.foreign_frees,
                "failed": figures.failed,
                "peak_live_bytes": figures.peak_live,
                "peak_waiting_bytes": figures.peak_waiting,
                "peak_live_and_waiting_bytes": figures.peak_live_and_waiting,
                "peak_reserved_bytes": figures.peak_reserved,
                "ratio": figures.ratio(),
                "waited_ns": figures.waited_ns,
                "driver": {
                    "alloc_calls": figures.driver.allocs,
                    "refused_calls": figures.driver.refused,
                    "free_calls": figures.driver.frees,
                    "ns": figures.driver.ns,
                    "fence_records": figures.driver.records,
                    "fence_queries": figures.driver.queries,
                },
            });
            if let Value::Object(fields) = &mut object {
                for (name, value) in figures.counts.fields() {
                    fields.entry(name).or_insert_with(|| value.into());
                }
            }
            object
        })
        .collect();
    let whole = json!({
        "trace": args.trace.to_string_lossy(),
        "calls": input.events.len(),
        "other_calls": input.others,
        "contexts": input.pools.len(),
        "unfinished": input.unfinished,
        "delay_ns": args.delay.map_or(0, |delay| delay.as_nanos() as u64),
        "memory_bytes": args.memory,
        "variants": variants,
    });
    format!("{whole:#}\n")
}
