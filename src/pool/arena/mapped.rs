//! What growth by mapping asks of an arena.

use super::super::free_list::Fit;
use super::super::size_class::Layout;
use super::Arena;

impl Arena {
    /// Bytes of segments in use once the best block for `layout`, of any size,
    /// were carved: breaking up an empty segment keeps all of it. `None` if there
    /// is no such block.
    pub fn in_use_with(&self, layout: &Layout) -> Option<u64> {
        let run = self.run(self.free.best(layout, Fit::Any)?);
        let added = if run.whole { run.size } else { 0 };
        Some(self.reserved - self.empty_bytes() + added)
    }

    /// Whether a block waits for grace that would fit `layout` tightly.
    pub fn awaits(&self, layout: &Layout) -> bool {
        let fits = layout.size..=layout.size + layout.size / 8;
        self.waiting
            .iter()
            .any(|(_, block)| fits.contains(&self.blocks[*block].size))
    }

    /// Takes an empty segment out that is best given up where `wanted` bytes
    /// have to go: long unused, and with few bytes beyond those. Retired ones
    /// first.
    pub fn remove_stale(&mut self, wanted: u64) -> Option<(u64, u64)> {
        let worth = |&(size, segment): &(u64, u32)| {
            let segment = &self.segments[segment];
            let age = u128::from(self.emptied - segment.emptied + 1);
            (segment.retired, u128::from(size.min(wanted * 2)) * age)
        };
        let entry = self.empty.iter().copied().max_by_key(worth)?;
        self.remove_segment(entry)
    }
}
