//! The lines of the table: figures, and how fast they grow.

use std::time::Duration;

use gpupool::config::Mode;
use gpupool::pool::stats::{Counts, bytes};
use gpupool::process::snapshot::Snapshot;

use crate::process::Process;

/// The columns.
pub const COLUMNS: [&str; 12] = [
    "PID", "COMMAND", "MODE", "DEV", "LIVE", "WAITING", "LIMIT", "RESERVED", "ALLOC/s", "HIT%",
    "DRIVER/s", "WAITS/s",
];

/// A process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The process.
    pub pid: u32,
    /// Text of each column.
    pub cells: [String; COLUMNS.len()],
}

/// How many in a second.
fn rate(now: u64, before: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        now.saturating_sub(before) as f64 / seconds
    } else {
        0.0
    }
}

fn shown(rate: f64) -> String {
    match rate {
        0.0 => String::from("0"),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate if rate < 10_000.0 => format!("{rate:.0}"),
        rate if rate < 1e6 => format!("{:.0}k", rate / 1e3),
        rate => format!("{:.1}M", rate / 1e6),
    }
}

/// The rows of a process: one for each context, or one if it has none. `before`
/// is an earlier reading, and the time since then.
pub fn of(process: &Process, now: &Snapshot, before: Option<(&Snapshot, Duration)>) -> Vec<Row> {
    let calls = |snapshot: &Snapshot| snapshot.driver_allocs() + snapshot.driver_frees();
    let driver = before.map(|(old, time)| shown(rate(calls(now), calls(old), time)));
    let driver = driver.unwrap_or_default();
    let mode = if now.inert {
        String::from("ends")
    } else {
        format!("{:?}", now.mode).to_lowercase()
    };
    let row = |cells: [String; 9]| {
        let [
            device,
            live,
            waiting,
            limit,
            reserved,
            allocs,
            hits,
            driver,
            waits,
        ] = cells;
        Row {
            pid: process.pid,
            cells: [
                process.pid.to_string(),
                process.command.clone(),
                mode.clone(),
                device,
                live,
                waiting,
                limit,
                reserved,
                allocs,
                hits,
                driver,
                waits,
            ],
        }
    };
    if now.contexts.is_empty() {
        let allocs =
            before.map(|(old, time)| shown(rate(now.alloc_calls(), old.alloc_calls(), time)));
        let live = if now.mode == Mode::Observe {
            bytes(now.seen.live)
        } else {
            String::new()
        };
        let none = String::new;
        let allocs = allocs.unwrap_or_default();
        return vec![row([
            none(),
            live,
            none(),
            none(),
            none(),
            allocs,
            none(),
            driver,
            none(),
        ])];
    }
    now.contexts
        .iter()
        .enumerate()
        .map(|(number, context)| {
            let old = before.and_then(|(old, time)| {
                let counts = old.contexts.get(number).map(|context| context.counts)?;
                Some((counts, time))
            });
            let served = |counts: &Counts| counts.hits + counts.misses;
            let (allocs, waits) = old.map_or_else(Default::default, |(counts, time)| {
                (
                    shown(rate(served(&context.counts), served(&counts), time)),
                    shown(rate(context.counts.waits, counts.waits, time)),
                )
            });
            let all = served(&context.counts) + context.counts.bypasses;
            let hits = match all {
                0 => String::new(),
                all => format!("{:.1}", context.counts.hits as f64 * 100.0 / all as f64),
            };
            row([
                context.device.to_string(),
                bytes(context.usage.live),
                bytes(context.usage.waiting),
                bytes(context.inflight_limit),
                bytes(context.usage.reserved),
                allocs,
                hits,
                // The driver's calls are counted by process: on its first row.
                if number == 0 {
                    driver.clone()
                } else {
                    String::new()
                },
                waits,
            ])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_short() {
        let half = Duration::from_millis(500);
        assert_eq!(rate(15, 5, half), 20.0);
        assert_eq!(rate(5, 15, half), 0.0);
        assert_eq!(rate(5, 0, Duration::ZERO), 0.0);
        for (value, text) in [
            (0.0, "0"),
            (1.25, "1.2"),
            (123.4, "123"),
            (45_678.0, "46k"),
            (2_500_000.0, "2.5M"),
        ] {
            assert_eq!(shown(value), text);
        }
    }
}
