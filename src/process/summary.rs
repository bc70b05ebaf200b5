//! GPUPOOL_STATS=summary: what the pool did for a program, in a few lines.

use super::snapshot::Snapshot;
use crate::config::Mode;
use crate::pool::stats::bytes;

/// A count with thousands apart: `1,234,567`.
#[must_use]
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time for people: `850 ns`, `12 ms`, `3.4 s`.
#[must_use]
pub fn time(ns: u64) -> String {
    const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (unit, size) = UNITS
        .iter()
        .rev()
        .find(|(_, size)| ns as f64 >= *size)
        .unwrap_or(&UNITS[0]);
    let value = ns as f64 / size;
    if value < 10.0 && value.fract() >= 0.05 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// The lines; `None` for a process that has allocated nothing.
#[must_use]
pub fn text(snapshot: &Snapshot) -> Option<String> {
    let lines: Vec<String> = device(snapshot)
        .into_iter()
        .chain(waits(snapshot))
        .chain(pinned(snapshot))
        .chain(lost(snapshot))
        .map(|line| format!("gpupool[{}]: {line}\n", snapshot.pid))
        .collect();
    (!lines.is_empty()).then(|| lines.concat())
}

fn device(snapshot: &Snapshot) -> Option<String> {
    let allocs = snapshot.alloc_calls();
    if allocs == 0 {
        return None;
    }
    let usage = snapshot.usage();
    if snapshot.mode == Mode::Observe {
        let seen = &snapshot.seen;
        return Some(format!(
            "{} allocations and {} frees took {} and {}, {} live at most; nothing was changed",
            thousands(seen.allocs),
            thousands(seen.frees),
            time(seen.alloc_ns),
            time(seen.free_ns),
            bytes(usage.peak_live),
        ));
    }
    let share = snapshot.counts().hits as f64 * 100.0 / allocs as f64;
    Some(format!(
        "{} allocations, {share:.1}% served without the driver; {} driver calls instead of {}; peak {} live, {} reserved",
        thousands(allocs),
        thousands(snapshot.driver_allocs() + snapshot.driver_frees()),
        thousands(allocs + snapshot.free_calls()),
        bytes(usage.peak_live),
        bytes(usage.peak_reserved),
    ))
}

fn waits(snapshot: &Snapshot) -> Option<String> {
    let mut counts = snapshot.counts();
    counts.add(&snapshot.host_counts());
    (counts.waits > 0).then(|| {
        format!(
            "{} allocations waited {} for the GPU in all{}",
            thousands(counts.waits),
            time(counts.wait_ns),
            match counts.wait_timeouts {
                0 => String::new(),
                ran_out => format!(", {} of them in vain", thousands(ran_out)),
            }
        )
    })
}

fn lost(snapshot: &Snapshot) -> Option<String> {
    snapshot
        .contexts
        .iter()
        .any(|context| context.lost)
        .then(|| String::from("a context was lost to a fault: from then on the driver answered"))
}

/// The line about pinned memory; `None` where none was asked for.
fn pinned(snapshot: &Snapshot) -> Option<String> {
    let allocs = snapshot.host_alloc_calls();
    if allocs == 0 {
        return None;
    }
    let usage = snapshot.host_usage();
    if snapshot.mode == Mode::Observe {
        let seen = &snapshot.seen_host;
        return Some(format!(
            "pinned memory: {} allocations and {} frees took {} and {}, {} live at most",
            thousands(seen.allocs),
            thousands(seen.frees),
            time(seen.alloc_ns),
            time(seen.free_ns),
            bytes(usage.peak_live),
        ));
    }
    let share = snapshot.host_counts().hits as f64 * 100.0 / allocs as f64;
    Some(format!(
        "pinned memory: {} allocations, {share:.1}% served without the driver; {} driver calls instead of {}; peak {} live, {} reserved",
        thousands(allocs),
        thousands(snapshot.driver_host_allocs() + snapshot.driver_host_frees()),
        thousands(allocs + snapshot.host_free_calls()),
        bytes(usage.peak_live),
        bytes(usage.peak_reserved),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
        for (ns, text) in [
            (0, "0 ns"),
            (850, "850 ns"),
            (1500, "1.5 µs"),
            (12_000_000, "12 ms"),
            (3_400_000_000, "3.4 s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
