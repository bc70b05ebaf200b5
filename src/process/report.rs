//! GPUPOOL_STATS: the counters, at exit. Makes no CUDA call.

use super::{FOREIGN_FREES, PASSED_ALLOCS, config, observe};
use crate::config::{Mode, Stats};
use crate::cuda::context;
use crate::cuda::device::CALLS;
use crate::cuda::guard::FINDINGS;
use crate::pool::stats::Counts;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::atomic::Ordering;

/// The counters as one JSON object. Sizes in bytes, times in nanoseconds.
#[must_use]
pub fn json() -> Value {
    let seen = observe::seen();
    let observing = config().mode == Mode::Observe;
    let mut counts = Counts::default();
    let (mut live, mut waiting, mut reserved, mut peak_live, mut peak_reserved) = (0, 0, 0, 0, 0);
    let mut devices = Vec::new();
    for context in context::ever() {
        let usage = context.pool.usage();
        let own = context.pool.counts();
        counts.add(&own);
        live += usage.live;
        waiting += usage.waiting;
        reserved += usage.reserved;
        peak_live += usage.peak_live;
        peak_reserved += usage.peak_reserved;
        devices.push(json!({
            "device": context.device,
            "context": context.id,
            "status": format!("{:?}", context.status()),
            "lost": context.pool.is_lost(),
            "live_bytes": usage.live,
            "waiting_bytes": usage.waiting,
            "reserved_bytes": usage.reserved,
            "peak_live_bytes": usage.peak_live,
            "peak_reserved_bytes": usage.peak_reserved,
            "largest_free_bytes": usage.largest_free,
            "carved_blocks": usage.carved_blocks,
            "segments": usage.segments,
            "inflight_limit_bytes": context.pool.inflight_limit(),
        }));
    }
    if observing {
        (live, reserved, peak_live, peak_reserved) = (seen.live, seen.live, seen.peak, seen.peak);
    }
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let passed = read(&PASSED_ALLOCS);
    let foreign = read(&FOREIGN_FREES);
    let mut object = Map::new();
    object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    object.insert(
        "mode".into(),
        format!("{:?}", config().mode).to_lowercase().into(),
    );
    object.insert("pid".into(), std::process::id().into());
    object.insert(
        "calls".into(),
        json!({
            "alloc": counts.hits + counts.misses + counts.bypasses + passed + seen.allocs,
            "free": counts.frees + foreign + seen.frees,
            "alloc_ns": seen.alloc_ns,
            "free_ns": seen.free_ns,
        }),
    );
    object.insert(
        "driver".into(),
        json!({
            "alloc_calls": read(&CALLS.allocs) + counts.bypasses + passed + seen.allocs,
            "free_calls": read(&CALLS.frees) + foreign + seen.frees,
            "fence_records": read(&CALLS.fence_records),
            "fence_queries": read(&CALLS.fence_queries),
        }),
    );
    object.insert("guard_findings".into(), read(&FINDINGS).into());
    for (name, value) in counts.fields() {
        object.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("live_bytes", live),
        ("waiting_bytes", waiting),
        ("reserved_bytes", reserved),
        ("peak_live_bytes", peak_live),
        ("peak_reserved_bytes", peak_reserved),
    ] {
        object.insert(name.into(), value.into());
    }
    object.insert("devices".into(), devices.into());
    Value::Object(object)
}

/// The same for people: a line a figure.
#[must_use]
pub fn text() -> String {
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
    lines("", &json(), &mut out);
    out
}

/// Writes them where `stats` says. Failures are logged, never raised.
pub fn write(stats: &Stats) {
    let result = match stats {
        Stats::Off => Ok(()),
        Stats::Stderr => std::io::stderr().write_all(text().as_bytes()),
        Stats::File(template) => {
            let path = template.expand(std::process::id());
            let as_json = path
                .extension()
                .is_some_and(|extension| extension == "json");
            let body = if as_json {
                format!("{:#}\n", json())
            } else {
                text()
            };
            std::fs::write(&path, body)
                .inspect_err(|_| log::warn!("GPUPOOL_STATS: cannot write {}", path.display()))
        }
    };
    if let Err(error) = result {
        log::debug!("statistics: {error}");
    }
}
