//! Who owns which bytes, and which GPU work of each owner is still pending.
//!
//! An owner is an allocation of the driver, or, once the program has told so
//! by `simNoteAlloc`, a block that a pool carved out of one. Work that names a
//! range is added to the owner of that range when it is submitted. When an
//! owner goes and its range is handed out again while such work is pending,
//! that is an early reissue.

use crate::report;
use crate::task::Task;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

struct Owner {
    len: u64,
    noted: bool,
    tasks: Vec<Arc<Task>>,
}

/// The owners of all memory of the process.
#[derive(Default)]
pub(crate) struct Owners {
    live: BTreeMap<u64, Owner>,
    /// Gone owners that may have work pending. They do not overlap.
    retired: BTreeMap<u64, Owner>,
    /// Bases of driver allocations inside which blocks have been noted.
    regions: HashSet<u64>,
    retirements: u64,
}

/// The keys of the entries that overlap [base, base + len).
fn overlapping(map: &BTreeMap<u64, Owner>, base: u64, len: u64) -> Vec<u64> {
    map.range(..base.saturating_add(len))
        .rev()
        .take_while(|(b, o)| *b + o.len > base)
        .map(|(b, _)| *b)
        .collect()
}

impl Owners {
    /// A new owner of [base, base + len).
    pub(crate) fn assign(&mut self, base: u64, len: u64, noted: bool) {
        for key in overlapping(&self.live, base, len) {
            if let Some(old) = self.live.remove(&key)
                && old.noted
            {
                report::violation(
                    "early-reissue",
                    &format!(
                        "{len} bytes at {base:#x} handed out while {} bytes at {key:#x} are owned",
                        old.len
                    ),
                );
            }
        }
        for key in overlapping(&self.retired, base, len) {
            let Some(mut old) = self.retired.remove(&key) else {
                continue;
            };
            old.tasks.retain(|t| !t.is_done());
            if old.tasks.is_empty() {
                continue;
            }
            report::violation(
                "early-reissue",
                &format!(
                    "{len} bytes at {base:#x} handed out while {} pieces of work of the earlier \
                     owner ({} bytes at {key:#x}) are pending",
                    old.tasks.len(),
                    old.len
                ),
            );
            // What the new owner does not cover keeps its history.
            let (end, new_end) = (key + old.len, base + len);
            if new_end < end {
                let rest = Owner {
                    len: end - new_end,
                    noted: old.noted,
                    tasks: old.tasks.clone(),
                };
                self.retired.insert(new_end, rest);
            }
            if key < base {
                old.len = base - key;
                self.retired.insert(key, old);
            }
        }
        self.live.insert(
            base,
            Owner {
                len,
                noted,
                tasks: Vec::new(),
            },
        );
    }

    fn retire(&mut self, base: u64) {
        let Some(mut owner) = self.live.remove(&base) else {
            return;
        };
        owner.tasks.retain(|t| !t.is_done());
        if !owner.tasks.is_empty() {
            self.retired.insert(base, owner);
        }
        self.retirements += 1;
        if self.retirements.is_multiple_of(4096) {
            self.retired
                .retain(|_, o| o.tasks.iter().any(|t| !t.is_done()));
        }
    }

    /// Whether work of any owner, past or present, of some of [base, base + len)
    /// is not done.
    pub(crate) fn has_pending(&self, base: u64, len: u64) -> bool {
        [&self.live, &self.retired].into_iter().any(|owners| {
            overlapping(owners, base, len)
                .iter()
                .any(|key| owners[key].tasks.iter().any(|task| !task.is_done()))
        })
    }

    /// `simNoteAlloc`, inside the driver allocation at `region`.
    pub(crate) fn note_alloc(&mut self, region: u64, base: u64, len: u64) {
        if self.regions.insert(region)
            && let Some(o) = self.live.get(&region)
            && !o.noted
        {
            self.live.remove(&region);
        }
        self.assign(base, len, true);
    }

    /// `simNoteFree`, inside the driver allocation at `region`.
    pub(crate) fn note_free(&mut self, region: u64, base: u64) {
        if self.live.get(&base).is_some_and(|o| o.noted) {
            self.retire(base);
        } else if self.regions.contains(&region) {
            report::violation(
                "double-free",
                &format!("{base:#x} freed, which has no owner"),
            );
        }
    }

    /// The driver allocation [base, base + len) is gone.
    pub(crate) fn release(&mut self, base: u64, len: u64, complain: bool) {
        self.regions.remove(&base);
        for key in overlapping(&self.live, base, len) {
            // An owner of exactly this allocation goes with it. One of a part
            // should have gone before.
            let whole = |o: &Owner| key == base && o.len == len;
            if complain && self.live.get(&key).is_some_and(|o| o.noted && !whole(o)) {
                report::violation(
                    "freed-while-owned",
                    &format!(
                        "the allocation at {base:#x} was freed while {key:#x} inside is owned"
                    ),
                );
            }
            self.retire(key);
        }
    }

    /// Work that touches [at, at + len) was submitted. `region` is the driver
    /// allocation it lies in; `strict` asks that somebody owns the range.
    pub(crate) fn access(
        &mut self,
        region: u64,
        at: u64,
        len: u64,
        task: &Arc<Task>,
        what: &str,
        strict: bool,
    ) {
        let keys = overlapping(&self.live, at, len);
        for key in &keys {
            if let Some(o) = self.live.get_mut(key) {
                if o.tasks.len() >= 16 {
                    o.tasks.retain(|t| !t.is_done());
                }
                o.tasks.push(task.clone());
            }
        }
        if strict && self.regions.contains(&region) {
            let covered = keys.len() == 1
                && self
                    .live
                    .get(&keys[0])
                    .is_some_and(|o| keys[0] <= at && at + len <= keys[0] + o.len);
            if !covered {
                report::violation(
                    "use-after-free",
                    &format!("{what} of {len} bytes at {at:#x}, which no live block covers"),
                );
            }
        }
    }
}
