//! What was found, in words: one line for a finding, then a line for each
//! frame of the call sites that belong to it.

use super::scan::Wrong;
use super::unowned::{Former, Last};
use crate::logging::callsite::CallSite;
use crate::pool::stats::Shown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Findings of this process, for the statistics.
pub static FINDINGS: Shown<AtomicU64> = Shown::new(AtomicU64::new(0));

/// A block, as far as a finding tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub address: u64,
    pub requested: u64,
    /// It is no block any more.
    pub freed: bool,
}

impl Neighbour {
    /// That the bytes from `first` on may have been meant for it.
    fn underrun(&self, first: u64) -> String {
        let freed = if self.freed { ", since freed," } else { "" };
        format!(
            "; or an underrun of {}{freed} by {}",
            block(self.address, self.requested),
            bytes(self.address - first)
        )
    }
}

/// What kind of write it was.
#[derive(Debug)]
pub(super) enum Kind {
    /// Into the red zone, which ends at `end`, behind a block.
    Overrun {
        address: u64,
        requested: u64,
        end: u64,
        allocated: CallSite,
        /// The block that begins where the zone ends.
        next: Option<Neighbour>,
    },
    /// Into memory that no block owned.
    Unowned {
        last: Last,
        /// The block that begins behind the last wrong byte, nearest.
        next: Option<Neighbour>,
    },
}

/// One finding.
#[derive(Debug)]
pub(super) struct Finding {
    pub wrong: Wrong,
    pub kind: Kind,
    /// When it was noticed.
    pub noticed: &'static str,
}

fn bytes(count: u64) -> String {
    match count {
        1 => String::from("1 byte"),
        count => format!("{count} bytes"),
    }
}

fn block(address: u64, requested: u64) -> String {
    format!("the {requested}-byte block at {address:#x}")
}

/// Which bytes are wrong, as offsets from `origin`, and what stands there.
fn extent(wrong: &Wrong, origin: u64) -> String {
    let found: Vec<String> = wrong
        .found
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "first wrong byte at {:#x} (offset {}), last at {:#x} (offset {}); it now reads {}, was {:02x} throughout",
        wrong.first,
        wrong.first - origin,
        wrong.last,
        wrong.last - origin,
        found.join(" "),
        wrong.pattern,
    )
}

fn from(name: &str, site: &CallSite, out: &mut Vec<String>) {
    let lines = site.lines();
    out.extend(lines.iter().map(|line| format!("guard:     {name} {line}")));
}

impl Finding {
    /// The lines of the report. Symbols are looked up here.
    pub fn lines(&self) -> Vec<String> {
        let wrong = &self.wrong;
        let mut out = Vec::new();
        match &self.kind {
            Kind::Overrun {
                address,
                requested,
                end,
                allocated,
                next,
            } => {
                let past = wrong.first - (address + requested);
                let mut line = format!(
                    "guard: overrun: {} written {} past the end of {}: {}; {}",
                    bytes(wrong.count),
                    bytes(past),
                    block(*address, *requested),
                    extent(wrong, *address),
                    self.noticed,
                );
                if wrong.last + 1 == *end {
                    line.push_str("; it may go on behind that");
                }
                if let Some(next) = next {
                    line += &next.underrun(wrong.first);
                }
                out.push(line);
                from("allocated by", allocated, &mut out);
            }
            Kind::Unowned {
                last: Some(former),
                next,
            } => {
                let Former {
                    address, requested, ..
                } = **former;
                out.push(format!(
                    "guard: use after free: {} written after the free of {}: {}; {}{}",
                    bytes(wrong.count),
                    block(address, requested),
                    extent(wrong, address),
                    self.noticed,
                    underrun(wrong, next.as_ref()),
                ));
                from("allocated by", &former.allocated, &mut out);
                from("freed by", &former.freed, &mut out);
            }
            Kind::Unowned { last: None, next } => out.push(format!(
                "guard: stray write: {} written where no block has been yet: {}; {}{}",
                bytes(wrong.count),
                extent(wrong, wrong.first),
                self.noticed,
                underrun(wrong, next.as_ref()),
            )),
        }
        out
    }
}

/// Shortly before a block: it can be meant for that.
fn underrun(wrong: &Wrong, next: Option<&Neighbour>) -> String {
    const NEAR: u64 = 4096;
    match next {
        Some(next) if next.address - wrong.last <= NEAR => next.underrun(wrong.first),
        _ => String::new(),
    }
}

static PENDING: Mutex<Vec<Finding>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts them, and keeps them for [`report_pending`]: a report looks up
/// symbols, for which the dynamic linker's lock is taken. Another thread can
/// hold that while it allocates, in a constructor of what it opens; so no lock
/// of ours, nor of the pool's, may be held meanwhile.
pub(super) fn queue(findings: Vec<Finding>) {
    if !findings.is_empty() {
        FINDINGS.fetch_add(findings.len() as u64, Ordering::Relaxed);
        lock(&PENDING).extend(findings);
    }
}

/// Logs what was found since the last call, by whatever thread. Must be called
/// without a lock.
pub fn report_pending() {
    /// Lines of findings of several threads do not mix.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let findings = std::mem::take(&mut *lock(&PENDING));
    let lines: Vec<String> = findings.iter().flat_map(Finding::lines).collect();
    if !lines.is_empty() {
        let _lines = lock(&ONE_AT_A_TIME);
        for line in lines {
            log::error!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn wrong(first: u64, last: u64) -> Wrong {
        Wrong {
            first,
            last,
            count: last - first + 1,
            found: vec![0xab, 0x01],
            pattern: 0xfd,
        }
    }

    #[test]
    fn an_overrun_names_block_extent_and_neighbour() {
        let finding = Finding {
            wrong: wrong(0x11f4, 0x11f4),
            kind: Kind::Overrun {
                address: 0x1000,
                requested: 500,
                end: 0x1400,
                allocated: CallSite::here(),
                next: Some(Neighbour {
                    address: 0x1400,
                    requested: 8,
                    freed: false,
                }),
            },
            noticed: "noticed at its free",
        };
        let lines = finding.lines();
        assert_eq!(
            lines[0],
            "guard: overrun: 1 byte written 0 bytes past the end of the 500-byte block at 0x1000: first \
             wrong byte at 0x11f4 (offset 500), last at 0x11f4 (offset 500); it now reads ab 01, was fd \
             throughout; noticed at its free; or an underrun of the 8-byte block at 0x1400 by 524 bytes"
        );
        assert!(
            lines[1..]
                .iter()
                .all(|line| line.starts_with("guard:     allocated by #"))
        );
    }

    #[test]
    fn a_write_to_the_end_of_the_zone_may_go_on() {
        let finding = Finding {
            wrong: wrong(0x11f4, 0x13ff),
            kind: Kind::Overrun {
                address: 0x1000,
                requested: 500,
                end: 0x1400,
                allocated: CallSite::default(),
                next: None,
            },
            noticed: "x",
        };
        assert!(finding.lines()[0].ends_with("x; it may go on behind that"));
    }

    #[test]
    fn a_use_after_free_names_both_sites() {
        let former = Former {
            address: 0x1000,
            requested: 100,
            ..Former::default()
        };
        let finding = Finding {
            wrong: wrong(0x1008, 0x1010),
            kind: Kind::Unowned {
                last: Some(Arc::new(former)),
                next: None,
            },
            noticed: "noticed later",
        };
        let lines = finding.lines();
        assert!(
            lines[0].starts_with(
                "guard: use after free: 9 bytes written after the free of the 100-byte block at \
                 0x1000: first wrong byte at 0x1008 (offset 8), last at 0x1010 (offset 16)"
            ),
            "{lines:?}"
        );
    }

    #[test]
    fn what_lies_far_before_a_block_is_no_underrun_of_it() {
        let next = |address| Neighbour {
            address,
            requested: 1,
            freed: false,
        };
        let w = wrong(0x1000, 0x1003);
        assert_eq!(underrun(&w, None), "");
        assert_eq!(underrun(&w, Some(&next(0x10000))), "");
        assert_eq!(
            underrun(&w, Some(&next(0x1200))),
            "; or an underrun of the 1-byte block at 0x1200 by 512 bytes"
        );
    }
}
