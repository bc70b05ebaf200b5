//! Address -> live block, also for addresses inside a block.

use std::collections::BTreeMap;

/// The live blocks of a pool, by address. Logarithmic in their number.
#[derive(Debug, Default)]
pub struct Owners {
    blocks: BTreeMap<u64, u32>,
}

impl Owners {
    /// Records that `block` begins at `address`.
    pub fn insert(&mut self, address: u64, block: u32) {
        let old = self.blocks.insert(address, block);
        debug_assert_eq!(old, None);
    }

    /// Forgets the block that begins at `address`, and returns it.
    pub fn remove(&mut self, address: u64) -> Option<u32> {
        self.blocks.remove(&address)
    }

    /// The block that begins exactly at `address`.
    pub fn exact(&self, address: u64) -> Option<u32> {
        self.blocks.get(&address).copied()
    }

    /// The last block that begins at or before `address`. Whether it reaches
    /// as far as `address`, its size tells.
    pub fn at_or_before(&self, address: u64) -> Option<u32> {
        self.blocks.range(..=address).next_back().map(|(_, block)| *block)
    }

    /// Number of live blocks.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }
}
