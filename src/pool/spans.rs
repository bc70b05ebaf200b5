//! Carved blocks by address, for addresses inside a block.

use std::collections::BTreeMap;

/// The carved blocks of a pool by address. Logarithmic in their number.
#[derive(Debug, Default)]
pub struct Spans {
    blocks: BTreeMap<u64, u32>,
}

impl Spans {
    /// Records that `block` begins at `address`.
    pub fn insert(&mut self, address: u64, block: u32) {
        let old = self.blocks.insert(address, block);
        debug_assert_eq!(old, None);
    }

    /// Forgets the block that begins at `address`.
    pub fn remove(&mut self, address: u64) {
        let was = self.blocks.remove(&address);
        debug_assert!(was.is_some());
    }

    /// The last block that begins at or before `address`. Whether it reaches
    /// as far as `address`, its size tells.
    pub fn at_or_before(&self, address: u64) -> Option<u32> {
        self.blocks
            .range(..=address)
            .next_back()
            .map(|(_, block)| *block)
    }

    /// The blocks that begin in `[from, to)`.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = u32> + '_ {
        self.blocks.range(from..to).map(|(_, block)| *block)
    }

    /// Number of carved blocks.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }
}
