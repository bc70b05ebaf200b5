//! Free blocks, as the free list and those who ask for one see them.

use super::super::free_list::{Fit, Run};
use super::super::segment::{Block, Segment};
use super::super::size_class::Layout;
use super::Arena;

impl Arena {
    /// Block `index` as it stands in the free list.
    pub(super) fn run(&self, index: u32) -> Run {
        let Block {
            address,
            size,
            segment,
            ..
        } = self.blocks[index];
        let Segment {
            kind, size: all, ..
        } = self.segments[segment];
        Run {
            kind,
            address,
            size,
            whole: size == all,
            block: index,
        }
    }

    /// Bytes of empty segments.
    pub fn empty_bytes(&self) -> u64 {
        self.empty.iter().map(|entry| entry.0).sum()
    }

    /// Whether a free block would serve `layout`; `fit` as in
    /// [`super::super::free_list::FreeList::best`].
    pub fn fits(&self, layout: &Layout, fit: Fit) -> bool {
        self.free.best(layout, fit).is_some()
    }
}
