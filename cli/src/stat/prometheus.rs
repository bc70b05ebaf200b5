//! Figures in Prometheus's text format.

use std::fmt::Write;

use gpupool::pool::stats::Counts;
use gpupool::process::snapshot::{ContextSnapshot, Snapshot};

use super::Seen;

/// A gauge of a context: name, meaning, value.
type Gauge = (&'static str, &'static str, fn(&ContextSnapshot) -> u64);

const GAUGES: &[Gauge] = &[
    ("live_bytes", "Bytes with the program.", |context| {
        context.usage.live
    }),
    (
        "waiting_bytes",
        "Bytes freed that wait for the GPU or in a cache.",
        |context| context.usage.waiting,
    ),
    (
        "reserved_bytes",
        "Bytes taken from the driver.",
        |context| context.usage.reserved,
    ),
    (
        "peak_live_bytes",
        "Most bytes with the program.",
        |context| context.usage.peak_live,
    ),
    (
        "peak_reserved_bytes",
        "Most bytes taken from the driver.",
        |context| context.usage.peak_reserved,
    ),
    (
        "largest_free_bytes",
        "Largest free run of the pool.",
        |context| context.usage.largest_free,
    ),
    (
        "inflight_limit_bytes",
        "Bytes that may wait for the GPU before allocations do.",
        |context| context.inflight_limit,
    ),
    ("segments", "Segments taken from the driver.", |context| {
        context.usage.segments
    }),
    ("lost", "1 if the context was lost to a fault.", |context| {
        u64::from(context.lost)
    }),
];

/// A figure of a process's pinned memory: name, type, meaning, value.
type Pinned = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Snapshot) -> u64,
);

const PINNED: &[Pinned] = &[
    (
        "pinned_allocs_total",
        "counter",
        "Allocations of pinned memory by the program.",
        Snapshot::host_alloc_calls,
    ),
    (
        "pinned_frees_total",
        "counter",
        "Frees of pinned memory by the program.",
        Snapshot::host_free_calls,
    ),
    (
        "pinned_driver_calls_total",
        "counter",
        "Calls of the driver for pinned memory, by the library or past it.",
        |snapshot| snapshot.driver_host_allocs() + snapshot.driver_host_frees(),
    ),
    (
        "pinned_live_bytes",
        "gauge",
        "Bytes of pinned memory with the program.",
        |snapshot| snapshot.host_usage().live,
    ),
    (
        "pinned_reserved_bytes",
        "gauge",
        "Bytes of pinned memory taken from the driver.",
        |snapshot| snapshot.host_usage().reserved,
    ),
];

/// All of them, each metric once, with a line for each process or context.
pub fn text(seen: &[Seen]) -> String {
    let mut text = String::new();
    metric(
        &mut text,
        "processes",
        "gauge",
        "Processes with the library.",
    );
    let _ = writeln!(text, "gpupool_processes {}", seen.len());
    if seen.is_empty() {
        return text;
    }
    metric(
        &mut text,
        "info",
        "gauge",
        "Version and mode of the library.",
    );
    for each in seen {
        let extra = [
            ("version", each.snapshot.version.clone()),
            ("mode", format!("{:?}", each.snapshot.mode).to_lowercase()),
        ];
        let _ = writeln!(text, "gpupool_info{} 1", labels(each, &extra));
    }
    calls(&mut text, seen);
    for (field, meaning) in Counts::default()
        .fields()
        .iter()
        .map(|(name, _)| *name)
        .zip(Counts::MEANINGS)
    {
        let in_seconds = field.strip_suffix("_ns");
        let name = match in_seconds {
            Some(what) => format!("{what}_seconds_total"),
            None => format!("{field}_total"),
        };
        let meaning = meaning.replace("Nanoseconds", "Seconds");
        metric(&mut text, &name, "counter", &meaning);
        per_context(&mut text, seen, &name, |context| {
            let fields = context.counts.fields();
            let value = fields.iter().find(|(known, _)| *known == field);
            let value = value.map_or(0, |(_, value)| *value);
            match in_seconds {
                Some(_) => format!("{}", value as f64 / 1e9),
                None => value.to_string(),
            }
        });
    }
    for (name, meaning, value) in GAUGES {
        metric(&mut text, name, "gauge", meaning);
        per_context(&mut text, seen, name, |context| value(context).to_string());
    }
    for (name, kind, meaning, value) in PINNED {
        metric(&mut text, name, kind, meaning);
        for each in seen {
            let labels = labels(each, &[]);
            let _ = writeln!(text, "gpupool_{name}{labels} {}", value(&each.snapshot));
        }
    }
    text
}

fn calls(text: &mut String, seen: &[Seen]) {
    metric(text, "calls_total", "counter", "Calls of the program.");
    for each in seen {
        for (call, count) in [
            ("alloc", each.snapshot.alloc_calls()),
            ("free", each.snapshot.free_calls()),
        ] {
            let labels = labels(each, &[("call", call.to_owned())]);
            let _ = writeln!(text, "gpupool_calls_total{labels} {count}");
        }
    }
    let meaning = "Calls of the driver, by the library or past it.";
    metric(text, "driver_calls_total", "counter", meaning);
    for each in seen {
        let process = &each.snapshot.process;
        for (call, count) in [
            ("alloc", each.snapshot.driver_allocs()),
            ("free", each.snapshot.driver_frees()),
            ("fence_record", process.fence_records),
            ("fence_query", process.fence_queries),
        ] {
            let labels = labels(each, &[("call", call.to_owned())]);
            let _ = writeln!(text, "gpupool_driver_calls_total{labels} {count}");
        }
    }
}

fn metric(text: &mut String, name: &str, kind: &str, meaning: &str) {
    let _ = writeln!(text, "# HELP gpupool_{name} {meaning}");
    let _ = writeln!(text, "# TYPE gpupool_{name} {kind}");
}

fn per_context(
    text: &mut String,
    seen: &[Seen],
    name: &str,
    value: impl Fn(&ContextSnapshot) -> String,
) {
    for each in seen {
        for context in &each.snapshot.contexts {
            let extra = [
                ("device", context.device.to_string()),
                ("context", context.id.to_string()),
            ];
            let _ = writeln!(
                text,
                "gpupool_{name}{} {}",
                labels(each, &extra),
                value(context)
            );
        }
    }
}

/// `{pid="1",command="x",…}`.
fn labels(seen: &Seen, extra: &[(&str, String)]) -> String {
    let process = &seen.process;
    let own = [
        ("pid", process.pid.to_string()),
        ("command", process.command.clone()),
    ];
    let all = own
        .iter()
        .chain(&process.labels)
        .chain(extra)
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", all.collect::<Vec<_>>().join(","))
}

/// As the text format wants label values.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
