//! What is asked of blocks by address, and the end of a context.

use super::{BlockInfo, Pool, info};
use crate::config::Control;
use std::sync::atomic::Ordering;

impl Pool {
    /// Whether a live block begins at `address`.
    pub fn begins_block(&self, address: u64) -> bool {
        self.shared
            .find(address)
            .is_some_and(|(_, header)| header.is_live())
    }

    /// The live block that contains `address`.
    pub fn containing(&self, address: u64) -> Option<BlockInfo> {
        self.inner()
            .arena
            .containing(&self.shared, address)
            .map(|header| info(header, true))
    }

    /// Notes SYNC_MEMOPS for the live block that contains `address`.
    pub fn set_sync_memops(&self, address: u64, on: bool) {
        if let Some(header) = self.inner().arena.containing(&self.shared, address) {
            header.sync_memops.store(u32::from(on), Ordering::Relaxed);
        }
    }

    /// The segment of the live block that contains `address` takes no new
    /// blocks, and goes back to the driver when its last block is freed.
    /// Returns the segment's address and size.
    pub fn retire(&self, address: u64) -> Option<(u64, u64)> {
        let (base, size) = self.inner().arena.retire(address)?;
        if Control::Retire.is_off() {
            return Some((base, size));
        }
        // A cached block can become live again, and a live one cached, until
        // every one has been seen live and its free diverted.
        while self.inner().arena.divert_frees(&self.shared, base, size) {
            self.flush();
        }
        Some((base, size))
    }

    /// Forgets all blocks and segments without touching the device, and
    /// returns the segments that there were.
    pub fn abandon(&self) -> Vec<(u64, u64)> {
        let segments = self.inner().arena.drain(&self.shared);
        self.front.flush(|_, _| {});
        segments
    }

    /// Whether the context was seen to be lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.grace.is_lost()
    }

    /// Marks the context as lost.
    pub fn set_lost(&self) {
        self.grace.set_lost();
    }

    /// Bytes of segments without a live block: what the program may count as
    /// free. Moves with the program's own calls only.
    pub fn unowned(&self) -> u64 {
        self.flush();
        self.inner().arena.unowned
    }

    /// Checks the structure; an error says what is wrong. For tests.
    pub fn validate(&self) -> Result<(), String> {
        self.inner().arena.validate(&self.shared)
    }
}
