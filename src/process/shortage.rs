//! What is said when an allocation fails for lack of memory: the figures, what
//! they mean, and what to try.

use super::config;
use crate::cuda::context::Context;
use crate::pool::Usage;
use crate::pool::stats::bytes;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Reports of a process; a program that goes on failing has been told.
const MOST: usize = 10;

/// What is known when an allocation has failed.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    /// Bytes asked for.
    asked: u64,
    /// What the pool holds.
    usage: Usage,
    /// Bytes that the driver has free; `None` if it did not say.
    driver_free: Option<u64>,
    /// Memory of the device.
    total: u64,
    /// GPUPOOL_MAX in bytes.
    max: u64,
}

/// `asked` bytes were not to be had in `context`, by the pool or the driver.
/// Tells it once for each event: not again before another allocation was
/// served.
pub fn tell(context: &'static Context, asked: u64) {
    static TOLD: Mutex<(usize, Option<HashMap<u64, u64>>)> = Mutex::new((0, None));
    if asked > context.total {
        // No memory is short: the program asks whether the call can fail.
        log::info!(
            "{asked} bytes asked for on device {}, which has {}",
            context.device,
            context.total
        );
        return;
    }
    let counts = context.pool.counts();
    let served = counts.hits + counts.misses + 1;
    let shortage = Shortage {
        asked,
        usage: context.pool.usage(),
        driver_free: context.driver_memory().map(|(free, _)| free),
        total: context.total,
        max: config().max.of(context.total),
    };
    let level = shortage.level();
    if !log::log_enabled!(level) {
        return;
    }
    let number = {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        let known = told.1.get_or_insert_default();
        if known.insert(context.ordinal, served) == Some(served) || told.0 >= MOST {
            return;
        }
        told.0 += 1;
        told.0
    };
    let last = if number == MOST {
        " (further reports are left out)"
    } else {
        ""
    };
    log::log!(
        level,
        "out of memory on device {}: {}{last}",
        context.device,
        shortage.text()
    );
}

impl Shortage {
    /// Free inside the pool.
    fn pool_free(&self) -> u64 {
        let Usage {
            live,
            waiting,
            reserved,
            ..
        } = self.usage;
        reserved.saturating_sub(live + waiting)
    }

    /// A warning where the pool has a part in it: natively there might have been
    /// enough. A full device is the program's affair, which natively nothing is
    /// said about; many programs try until they are refused.
    fn level(&self) -> log::Level {
        let there = self.driver_free.unwrap_or(0) + self.pool_free() + self.usage.waiting;
        if self.asked <= there {
            log::Level::Warn
        } else {
            log::Level::Info
        }
    }

    fn text(&self) -> String {
        let usage = &self.usage;
        let driver = match self.driver_free {
            Some(free) => format!(
                "the driver has {} free of {}",
                bytes(free),
                bytes(self.total)
            ),
            None => format!("the device has {}", bytes(self.total)),
        };
        let (cause, cure) = self.cause();
        format!(
            "{} ({} bytes) asked for; {} with the program, {} waiting for the GPU, {} reserved, largest free run {}; {driver}. {cause}; try {cure}",
            bytes(self.asked),
            self.asked,
            bytes(usage.live),
            bytes(usage.waiting),
            bytes(usage.reserved),
            bytes(usage.largest_free),
        )
    }

    /// Why there is none, and what to try.
    fn cause(&self) -> (String, String) {
        let free = self.driver_free.unwrap_or(0) + self.pool_free();
        let others = self
            .total
            .saturating_sub(self.driver_free.unwrap_or(0) + self.usage.reserved);
        if self.driver_free.is_some_and(|free| self.asked <= free) {
            return (
                String::from(
                    "The driver has that much free and refuses: its memory is in pieces, or a limit is set for this process, as MPS does",
                ),
                String::from("smaller requests, or that limit"),
            );
        }
        if self.asked <= free {
            return (
                format!(
                    "There is enough in sum ({}), but not in one piece",
                    bytes(free)
                ),
                String::from(
                    "allocating what is large first, GPUPOOL_PREALLOC so that it comes in large segments, or smaller requests",
                ),
            );
        }
        if self.asked <= free + self.usage.waiting {
            return (
                format!(
                    "It would do with what waits for the GPU, which was busy for longer than GPUPOOL_WAIT ({})",
                    super::summary::time(config().wait.as_nanos() as u64)
                ),
                String::from("a larger GPUPOOL_WAIT"),
            );
        }
        let missing = bytes(self.asked - free);
        if self.driver_free.is_some() && others >= self.asked - free && others > self.total / 10 {
            return (
                format!(
                    "{missing} are missing; {} are held by other processes, by other allocators of this one, and by the driver",
                    bytes(others)
                ),
                String::from(
                    "`nvidia-smi` for who holds them, and `gpupool trim PID` for processes with the library",
                ),
            );
        }
        let cap = if self.max < self.total {
            ", or a larger GPUPOOL_MAX if that is what limits it"
        } else {
            ""
        };
        (
            format!("{missing} are missing: the program needs more than there is"),
            format!("smaller batches or fewer blocks at a time{cap}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn shortage(asked: u64, live: u64, waiting: u64, reserved: u64, driver_free: u64) -> Shortage {
        Shortage {
            asked,
            usage: Usage {
                live,
                waiting,
                reserved,
                largest_free: 1 << 20,
                ..Usage::default()
            },
            driver_free: Some(driver_free),
            total: 8 * GIB,
            max: 8 * GIB,
        }
    }

    #[test]
    fn each_cause_is_told_apart() {
        for (shortage, cause, cure) in [
            (
                shortage(GIB, 4 * GIB, 0, 5 * GIB, 3 * GIB),
                "has that much free and refuses",
                "that limit",
            ),
            (
                shortage(2 * GIB, 4 * GIB, 0, 7 * GIB, GIB / 2),
                "enough in sum (3.5 GiB), but not in one piece",
                "GPUPOOL_PREALLOC",
            ),
            (
                shortage(2 * GIB, 5 * GIB, 2 * GIB, 7 * GIB, GIB / 2),
                "waits for the GPU",
                "a larger GPUPOOL_WAIT",
            ),
            (
                shortage(2 * GIB, GIB, 0, GIB, GIB),
                "6 GiB are held by other processes",
                "nvidia-smi",
            ),
            (
                shortage(2 * GIB, 7 * GIB, 0, 7 * GIB, GIB / 2),
                "1.5 GiB are missing: the program needs more",
                "smaller batches",
            ),
        ] {
            let text = shortage.text();
            assert!(text.contains(cause), "{cause}: {text}");
            assert!(text.contains(cure), "{cure}: {text}");
            assert!(
                text.contains(&format!("({} bytes) asked for", shortage.asked)),
                "{text}"
            );
        }
    }

    #[test]
    fn without_the_drivers_answer_others_are_not_accused() {
        let mut silent = shortage(2 * GIB, GIB, 0, GIB, 0);
        silent.driver_free = None;
        let text = silent.text();
        assert!(!text.contains("other processes"), "{text}");
        assert!(!text.contains("the driver has"), "{text}");
    }
}
