//! GPUPOOL_STATS: the figures, as JSON and as text. Makes no CUDA call.

use super::snapshot::{ContextSnapshot, Snapshot};
use super::summary;
use crate::config::{Mode, Stats};
use serde_json::{Map, Value, json};
use std::io::Write;

/// The figures as one JSON object. Sizes in bytes, times in nanoseconds.
#[must_use]
pub fn json(snapshot: &Snapshot) -> Value {
    let seen = &snapshot.seen;
    let counts = snapshot.counts();
    let usage = snapshot.usage();
    let process = &snapshot.process;
    let mut object = Map::new();
    object.insert("version".into(), snapshot.version.as_str().into());
    object.insert(
        "mode".into(),
        format!("{:?}", snapshot.mode).to_lowercase().into(),
    );
    object.insert("pid".into(), snapshot.pid.into());
    object.insert("age_ns".into(), snapshot.age_ns.into());
    object.insert(
        "calls".into(),
        json!({
            "alloc": snapshot.alloc_calls(),
            "free": snapshot.free_calls(),
            "alloc_ns": seen.alloc_ns,
            "free_ns": seen.free_ns,
        }),
    );
    object.insert(
        "driver".into(),
        json!({
            "alloc_calls": snapshot.driver_allocs(),
            "free_calls": snapshot.driver_frees(),
            "fence_records": process.fence_records,
            "fence_queries": process.fence_queries,
        }),
    );
    object.insert("guard_findings".into(), process.guard_findings.into());
    for (name, value) in counts.fields() {
        object.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("live_bytes", usage.live),
        ("waiting_bytes", usage.waiting),
        ("reserved_bytes", usage.reserved),
        ("peak_live_bytes", usage.peak_live),
        ("peak_reserved_bytes", usage.peak_reserved),
    ] {
        object.insert(name.into(), value.into());
    }
    object.insert("pinned".into(), pinned(snapshot));
    let devices: Vec<Value> = snapshot.contexts.iter().map(device).collect();
    object.insert("devices".into(), devices.into());
    if snapshot.mode == Mode::Observe {
        object.insert("observed".into(), observed(snapshot));
    }
    Value::Object(object)
}

fn device(context: &ContextSnapshot) -> Value {
    let usage = &context.usage;
    json!({
        "device": context.device,
        "context": context.id,
        "status": format!("{:?}", context.status),
        "lost": context.lost,
        "total_bytes": context.total,
        "live_bytes": usage.live,
        "waiting_bytes": usage.waiting,
        "reserved_bytes": usage.reserved,
        "peak_live_bytes": usage.peak_live,
        "peak_reserved_bytes": usage.peak_reserved,
        "unowned_bytes": usage.unowned,
        "largest_free_bytes": usage.largest_free,
        "carved_blocks": usage.carved_blocks,
        "segments": usage.segments,
        "inflight_limit_bytes": context.inflight_limit,
        "hits": context.counts.hits,
        "misses": context.counts.misses,
        "waits": context.counts.waits,
    })
}

/// Pinned host memory: figures of its own, in none of the others.
fn pinned(snapshot: &Snapshot) -> Value {
    let usage = snapshot.host_usage();
    let (counts, seen) = (snapshot.host_counts(), &snapshot.seen_host);
    let pools: Vec<Value> = snapshot
        .hosts
        .iter()
        .map(|host| {
            json!({
                "context": host.context,
                // Of cuMemHostAlloc; null for cuMemAllocHost.
                "flags": (host.class < 8).then_some(host.class),
                "node": host.node,
                "live_bytes": host.usage.live,
                "reserved_bytes": host.usage.reserved,
                "segments": host.usage.segments,
            })
        })
        .collect();
    let mut object = Map::new();
    object.insert(
        "calls".into(),
        json!({
            "alloc": snapshot.host_alloc_calls(),
            "free": snapshot.host_free_calls(),
            "alloc_ns": seen.alloc_ns,
            "free_ns": seen.free_ns,
        }),
    );
    object.insert(
        "driver".into(),
        json!({
            "alloc_calls": snapshot.driver_host_allocs(),
            "free_calls": snapshot.driver_host_frees(),
        }),
    );
    for (name, value) in counts.fields() {
        object.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("live_bytes", usage.live),
        ("waiting_bytes", usage.waiting),
        ("reserved_bytes", usage.reserved),
        ("peak_live_bytes", usage.peak_live),
        ("peak_reserved_bytes", usage.peak_reserved),
    ] {
        object.insert(name.into(), value.into());
    }
    object.insert("pools".into(), pools.into());
    Value::Object(object)
}

fn observed(snapshot: &Snapshot) -> Value {
    let seen = &snapshot.seen;
    let classes: Vec<Value> = snapshot
        .classes
        .iter()
        .enumerate()
        .filter(|(_, class)| class.allocs + class.frees > 0)
        .map(|(power, class)| {
            json!({
                // 0: the size of what was freed is not known.
                "up_to_bytes": if power == 0 { 0 } else { 1_u64 << power },
                "allocs": class.allocs,
                "alloc_ns": class.alloc_ns,
                "alloc_least_ns": class.alloc_least_ns,
                "frees": class.frees,
                "free_ns": class.free_ns,
                "free_least_ns": class.free_least_ns,
            })
        })
        .collect();
    json!({
        "failed_allocs": seen.failed,
        "free_wall_ns": seen.free_wall_ns,
        "span_ns": seen.span_ns,
        "threads": seen.threads,
        "classes": classes,
    })
}

/// The same for people: a line a figure.
#[must_use]
pub fn text(snapshot: &Snapshot) -> String {
    fn lines(prefix: &str, value: &Value, out: &mut String) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let name = if prefix.is_empty() {
                        name.clone()
                    } else {
                        format!("{prefix}.{name}")
                    };
                    lines(&name, value, out);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    lines(&format!("{prefix}[{index}]"), value, out);
                }
            }
            Value::String(text) => out.push_str(&format!("gpupool stats: {prefix} = {text}\n")),
            other => out.push_str(&format!("gpupool stats: {prefix} = {other}\n")),
        }
    }
    let mut out = String::new();
    lines("", &json(snapshot), &mut out);
    out
}

/// Writes them where `stats` says. Failures are logged, never raised.
pub fn write(stats: &Stats) {
    let to_stderr = |text: &str| std::io::stderr().write_all(text.as_bytes());
    let result = match stats {
        Stats::Off => Ok(()),
        Stats::Stderr => to_stderr(&text(&Snapshot::own())),
        Stats::Summary => summary::text(&Snapshot::own()).map_or(Ok(()), |text| to_stderr(&text)),
        Stats::File(template) => {
            let path = template.expand(std::process::id());
            let as_json = path
                .extension()
                .is_some_and(|extension| extension == "json");
            let snapshot = Snapshot::own();
            let body = if as_json {
                format!("{:#}\n", json(&snapshot))
            } else {
                text(&snapshot)
            };
            std::fs::write(&path, body)
                .inspect_err(|_| log::warn!("GPUPOOL_STATS: cannot write {}", path.display()))
        }
    };
    if let Err(error) = result {
        log::debug!("statistics: {error}");
    }
}
