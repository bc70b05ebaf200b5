//! What an arena tells others: the figures that they watch, the segments that
//! nothing uses, and those that the program needed.

use super::Arena;
use crate::pool::segment::NONE;
use crate::pool::size_class::Kind;
use crate::pool::stats::Gauges;
use std::sync::atomic::Ordering;

/// A segment that is wholly free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unused {
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// How often it came into use: the same number later means that it did not
    /// meanwhile.
    pub uses: u32,
}

fn sum(segments: &[(Kind, u64)]) -> u64 {
    segments.iter().map(|(_, size)| size).sum()
}

impl Arena {
    /// From now on its figures are kept up to date in `place` too.
    pub fn show_on(&mut self, place: &'static Gauges) {
        self.shown = Some(place);
        self.show();
    }

    pub(super) fn show(&self) {
        let Some(place) = self.shown else { return };
        let reserved = self.reserved;
        for (gauge, value) in [
            (&place.carved, self.carved),
            (&place.waiting, self.waiting_bytes),
            (&place.reserved, reserved),
            (&place.unowned, self.unowned),
            (&place.largest_free, self.largest_free()),
            (&place.carved_blocks, self.carved_blocks() as u64),
            (&place.segments, self.segment_count() as u64),
        ] {
            gauge.store(value, Ordering::Relaxed);
        }
        if reserved > place.peak_reserved.load(Ordering::Relaxed) {
            place.peak_reserved.store(reserved, Ordering::Relaxed);
        }
    }

    /// Shows the highest sum with the program so far.
    pub fn show_peak_live(&self, bytes: u64) {
        if let Some(place) = self.shown {
            place.peak_live.store(bytes, Ordering::Relaxed);
        }
    }

    /// Number of carved blocks.
    pub fn carved_blocks(&self) -> usize {
        self.spans.count()
    }

    /// Number of segments.
    pub fn segment_count(&self) -> usize {
        self.segments.count()
    }

    /// Largest free run in bytes.
    pub fn largest_free(&self) -> u64 {
        self.free.largest()
    }

    /// The segments that are wholly free.
    pub fn unused(&self) -> impl Iterator<Item = Unused> {
        self.empty.iter().map(|&(size, segment)| Unused {
            base: self.segments[segment].base,
            size,
            uses: self.segments[segment].uses,
        })
    }

    /// Takes an empty segment out, to be given back to the driver, if it was
    /// not used since it was seen as `unused`.
    pub fn remove_unused(&mut self, unused: &Unused) -> bool {
        let found = self.empty.iter().copied().find(|&(size, segment)| {
            let known = &self.segments[segment];
            (known.base, size, known.uses) == (unused.base, unused.size, unused.uses)
        });
        found.is_some_and(|entry| self.remove_segment(entry).is_some())
    }

    /// From now on what is in use at the peak is remembered.
    pub fn remember_peak(&mut self) {
        self.peak.get_or_insert_default();
    }

    /// A segment is about to go: only then does what is in use become less.
    pub(super) fn note_peak(&mut self) {
        if let Some(peak) = &self.peak {
            let now = self.in_use();
            if sum(&now) > sum(peak) {
                self.peak = Some(now);
            }
        }
    }

    /// The segments in use at the peak, or now if those are more.
    pub fn needed(&self) -> Vec<(Kind, u64)> {
        let now = self.in_use();
        match &self.peak {
            Some(peak) if sum(peak) > sum(&now) => peak.clone(),
            _ => now,
        }
    }

    /// Kind and size of the segments of which some byte was with the program,
    /// in the order of their addresses.
    fn in_use(&self) -> Vec<(Kind, u64)> {
        let mut used: Vec<_> = self
            .segments
            .iter()
            .filter(|(_, segment)| {
                let mut at = segment.first;
                while at != NONE {
                    if self.blocks[at].used {
                        return true;
                    }
                    at = self.blocks[at].next;
                }
                false
            })
            .map(|(_, segment)| (segment.base, segment.kind, segment.size))
            .collect();
        used.sort_unstable();
        used.into_iter()
            .map(|(_, kind, size)| (kind, size))
            .collect()
    }
}
