//! Small allocations: up to 1 MiB, carved out of 2 MiB blocks on steps of
//! 512 bytes, as the driver does (measured on an H200, driver 580.159).

use super::arena::PAGE;
use std::collections::BTreeMap;

/// Requests up to this share 2 MiB blocks.
pub(crate) const LARGEST: u64 = 1 << 20;
/// The step and alignment of small allocations.
pub(crate) const STEP: u64 = 512;

/// One 2 MiB block that is being carved.
pub(crate) struct Block {
    pub(crate) base: u64,
    free: BTreeMap<u64, u64>,
    used: u64,
    /// Beyond this the memory was never handed out, so it is still zero.
    fresh: u64,
    /// Exported: stays mapped and takes no new allocations.
    pub(crate) sealed: bool,
}

impl Block {
    /// A block that is wholly free.
    pub(crate) fn new(base: u64) -> Block {
        Block {
            base,
            free: BTreeMap::from([(base, PAGE)]),
            used: 0,
            fresh: base,
            sealed: false,
        }
    }

    /// Takes the first piece that fits; also says up to where it may hold old
    /// data.
    pub(crate) fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        if self.sealed {
            return None;
        }
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= len)?;
        self.free.remove(&at);
        if have > len {
            self.free.insert(at + len, have - len);
        }
        self.used += len;
        let dirty_until = self.fresh.clamp(at, at + len);
        self.fresh = self.fresh.max(at + len);
        Some((at, dirty_until))
    }

    /// Gives a piece back; true when nothing is left in use.
    pub(crate) fn give(&mut self, at: u64, len: u64) -> bool {
        let (mut at, mut size) = (at, len);
        if let Some((&before, &n)) = self.free.range(..at).next_back()
            && before + n == at
        {
            self.free.remove(&before);
            at = before;
            size += n;
        }
        if let Some(&n) = self.free.get(&(at + size)) {
            self.free.remove(&(at + size));
            size += n;
        }
        self.free.insert(at, size);
        self.used -= len;
        self.used == 0
    }
}
