//! The memory of one context: its segments, split and coalesced. Single
//! threaded; [`super::Pool`] holds it under its lock. Makes no call to the
//! device.

mod mapped;
mod runs;
mod shown;

pub use shown::Unused;

use super::free_list::{Fit, FreeList, Run};
use super::grace::Epoch;
use super::headers::{Header, Headers, Owners, owner};
use super::memory::Memory;
use super::segment::{Block, NONE, Segment, Slab, State};
use super::size_class::{Kind, Layout};
use super::spans::Spans;
use super::stats::Gauges;
use crate::config::Control;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// What threads may read without the pool's lock.
#[derive(Debug, Default)]
pub struct Shared {
    /// Headers by the index of their block.
    pub headers: Headers,
    /// Address -> index, for carved blocks.
    pub owners: Owners,
}

impl Shared {
    /// The header of the carved block that begins at `address`, and its index.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(u32, &Header)> {
        let index = self.owners.get(address)?;
        Some((index, self.headers.get(index)?))
    }
}

/// A live block, as the outside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// First byte.
    pub address: u64,
    /// Bytes that the program asked for.
    pub requested: u64,
    /// Bytes that the pool spends on it.
    pub size: u64,
    /// Identity of the allocation, from 1, never used again in this pool.
    pub id: u64,
    /// The memory was with the program before.
    pub used: bool,
    /// The program set SYNC_MEMOPS on it.
    pub sync_memops: bool,
}

/// Which empty segments are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Retired ones.
    Retired,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Arena {
    blocks: Slab<Block>,
    segments: Slab<Segment>,
    free: FreeList,
    spans: Spans,
    /// Blocks that wait for grace, roughly in the order of their epochs.
    waiting: VecDeque<(Epoch, u32)>,
    /// Segments that are wholly free, with nothing waiting in them.
    empty: std::collections::BTreeSet<(u64, u32)>,
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes of carved blocks: with the program or in a cache.
    pub carved: u64,
    /// Bytes of blocks that wait for grace.
    pub waiting_bytes: u64,
    /// Bytes of segments without a carved block. With all caches empty this is
    /// what the program may count as free, and moves with its own calls only.
    pub unowned: u64,
    /// How often a segment became empty.
    emptied: u64,
    /// Where others watch these figures, if they do.
    shown: Option<&'static Gauges>,
    /// What was in use at the peak, if that is to be remembered.
    peak: Option<Vec<(Kind, u64)>>,
}

impl Arena {
    /// An empty arena of such memory.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        Self {
            free: FreeList::new(memory),
            ..Self::default()
        }
    }

    /// Takes over `[base, base + size)` from the driver.
    pub fn add_segment(&mut self, base: u64, size: u64, kind: Kind) {
        let segment = self.segments.insert(Segment {
            base,
            size,
            kind,
            retired: false,
            carved: 0,
            waiting: 0,
            first: NONE,
            uses: 0,
            emptied: self.emptied,
        });
        let first = self.blocks.insert(Block {
            address: base,
            size,
            segment,
            prev: NONE,
            next: NONE,
            state: State::Free,
            used: false,
        });
        self.segments[segment].first = first;
        self.free.insert(Run::segment(kind, base, size, first));
        self.empty.insert((size, segment));
        self.reserved += size;
        self.unowned += size;
        self.show();
    }

    /// Carves out the best free block for `layout`; `fit` as in
    /// [`FreeList::best`]. Its header is the arena's until the caller passes it
    /// on. `None` if there is none. Returns the block's index and whether its
    /// memory was used before.
    pub fn take(&mut self, shared: &Shared, layout: &Layout, fit: Fit) -> Option<(u32, bool)> {
        let index = self.free.best(layout, fit)?;
        let Block {
            address, segment, ..
        } = self.blocks[index];
        let start = address.next_multiple_of(layout.align);
        let kind = self.segments[segment].kind;
        self.free.remove(self.run(index));
        // Split: what lies before the aligned start, and what is left behind.
        let mut index = index;
        if start > address {
            let rest = self.split(index, start - address);
            self.free.insert(self.run(index));
            index = rest;
        }
        if kind != Kind::Dedicated && self.blocks[index].size > layout.size {
            let rest = self.split(index, layout.size);
            self.free.insert(self.run(rest));
        }
        let Some(header) = shared.headers.get_or_make(index) else {
            // More blocks than indices: the driver shall serve.
            self.free.insert(self.run(index));
            return None;
        };
        let seg = &mut self.segments[segment];
        if seg.carved == 0 {
            seg.uses = seg.uses.wrapping_add(1);
            self.unowned -= seg.size;
            if seg.waiting == 0 {
                self.empty.remove(&(seg.size, segment));
            }
        }
        seg.carved += 1;
        let block = &mut self.blocks[index];
        let used = std::mem::replace(&mut block.used, true);
        block.state = State::Carved;
        let (address, size) = (block.address, block.size);
        header.address.store(address, Ordering::Relaxed);
        header.size.store(size, Ordering::Relaxed);
        header.owner.store(owner::ARENA, Ordering::Release);
        self.carved += size;
        self.spans.insert(address, index);
        shared.owners.insert(address, index);
        self.show();
        Some((index, used))
    }

    /// Splits block `index` after `size` bytes; returns the second part.
    fn split(&mut self, index: u32, size: u64) -> u32 {
        let mut rest = self.blocks[index];
        debug_assert!(size > 0 && size < rest.size);
        rest.address += size;
        rest.size -= size;
        rest.prev = index;
        let next = rest.next;
        let rest = self.blocks.insert(rest);
        if next != NONE {
            self.blocks[next].prev = rest;
        }
        let block = &mut self.blocks[index];
        block.size = size;
        block.next = rest;
        rest
    }

    /// Takes block `index` back, whose header the caller has passed to the
    /// arena: from `epoch` on it waits for grace, unless that is complete.
    pub fn give(&mut self, shared: &Shared, index: u32, epoch: Epoch, completed: Epoch) {
        let block = &mut self.blocks[index];
        debug_assert_eq!(block.state, State::Carved);
        block.state = State::Waiting(epoch);
        let (address, size, segment) = (block.address, block.size, block.segment);
        shared.owners.remove(address);
        self.spans.remove(address);
        self.carved -= size;
        self.waiting_bytes += size;
        let seg = &mut self.segments[segment];
        seg.carved -= 1;
        seg.waiting += 1;
        if seg.carved == 0 {
            self.unowned += seg.size;
        }
        if epoch <= completed {
            self.release_block(index);
        } else {
            self.waiting.push_back((epoch, index));
        }
        self.show();
    }

    /// Frees what waited for an epoch up to `completed`. Returns whether
    /// anything was freed.
    pub fn complete(&mut self, completed: Epoch) -> bool {
        let mut any = false;
        while let Some(&(epoch, index)) = self.waiting.front() {
            if epoch > completed {
                break;
            }
            self.waiting.pop_front();
            self.release_block(index);
            any = true;
        }
        if any {
            self.show();
        }
        any
    }

    /// A block whose grace is complete joins its free neighbours.
    fn release_block(&mut self, index: u32) {
        let Block {
            size,
            segment,
            prev,
            next,
            ..
        } = self.blocks[index];
        self.waiting_bytes -= size;
        let retired = self.segments[segment].retired;
        let mut index = index;
        self.blocks[index].state = State::Free;
        if prev != NONE && self.blocks[prev].state == State::Free {
            index = self.merge(prev, index, retired, prev);
        }
        if next != NONE && self.blocks[next].state == State::Free {
            index = self.merge(index, next, retired, next);
        }
        if !retired {
            self.free.insert(self.run(index));
        }
        let seg = &mut self.segments[segment];
        seg.waiting -= 1;
        if seg.carved == 0 && seg.waiting == 0 {
            self.emptied += 1;
            seg.emptied = self.emptied;
            self.empty.insert((seg.size, segment));
        }
    }

    /// Joins two neighbours; `listed` is the one that is in the free list.
    fn merge(&mut self, left: u32, right: u32, retired: bool, listed: u32) -> u32 {
        if !retired {
            self.free.remove(self.run(listed));
        }
        let Block {
            size, next, used, ..
        } = self.blocks[right];
        let block = &mut self.blocks[left];
        block.size += size;
        block.next = next;
        block.used |= used;
        if next != NONE {
            self.blocks[next].prev = left;
        }
        self.blocks.remove(right);
        left
    }

    /// The header of the live block that contains `address` (by what was asked
    /// for: an address in the rounding behind it belongs to nobody).
    pub fn containing<'a>(&self, shared: &'a Shared, address: u64) -> Option<&'a Header> {
        let header = shared.headers.get(self.spans.at_or_before(address)?)?;
        let end = header.address.load(Ordering::Relaxed) + header.requested.load(Ordering::Relaxed);
        (header.is_live() && address < end).then_some(header)
    }

    /// No new blocks from the segment that holds the carved block containing
    /// `address`; it goes back to the driver when it is empty. Returns the
    /// segment's address and size. See [`Arena::divert_frees`].
    pub fn retire(&mut self, address: u64) -> Option<(u64, u64)> {
        let index = self.spans.at_or_before(address)?;
        let segment = self.blocks[index].segment;
        let Segment {
            base,
            size,
            retired,
            first,
            ..
        } = self.segments[segment];
        if !retired && !Control::Retire.is_off() {
            self.unlist(first);
            self.segments[segment].retired = true;
        }
        Some((base, size))
    }

    /// Takes the free blocks of a segment out of the free list.
    fn unlist(&mut self, first: u32) {
        let mut at = first;
        while at != NONE {
            let Block { state, next, .. } = self.blocks[at];
            if state == State::Free {
                self.free.remove(self.run(at));
            }
            at = next;
        }
    }

    /// From here on frees of the segment's blocks do not reach a cache. Returns
    /// whether a cache still holds one: the caller then has to empty them and
    /// to call again.
    pub fn divert_frees(&self, shared: &Shared, base: u64, size: u64) -> bool {
        let mut cached = false;
        for index in self.spans.between(base, base + size) {
            if let Some(header) = shared.headers.get(index) {
                header.pass(owner::LIVE, owner::LIVE_RETIRED);
                cached |= header.owner.load(Ordering::Acquire) == owner::CACHED;
            }
        }
        cached
    }

    fn is_wanted(&self, segment: u32, which: Which) -> bool {
        let segment = &self.segments[segment];
        match which {
            Which::All => true,
            Which::Retired => segment.retired,
        }
    }

    /// Whether there is such an empty segment.
    pub fn has_empty(&self, which: Which) -> bool {
        self.empty
            .iter()
            .any(|entry| self.is_wanted(entry.1, which))
    }

    /// Takes an empty segment out, to be given back to the driver: the
    /// smallest one of at least `at_least` bytes, else the largest.
    pub fn remove_empty(&mut self, at_least: u64, which: Which) -> Option<(u64, u64)> {
        let wanted = |entry: &&(u64, u32)| self.is_wanted(entry.1, which);
        let fits = self.empty.range((at_least, 0)..).find(wanted);
        let &entry = fits.or_else(|| self.empty.iter().rev().find(wanted))?;
        self.remove_segment(entry)
    }

    /// Takes this one of [`Arena::empty`] out.
    fn remove_segment(&mut self, entry: (u64, u32)) -> Option<(u64, u64)> {
        let (size, segment) = entry;
        self.note_peak();
        self.empty.remove(&entry);
        let seg = self.segments.remove(segment)?;
        self.blocks.remove(seg.first);
        if !seg.retired {
            self.free
                .remove(Run::segment(seg.kind, seg.base, seg.size, seg.first));
        }
        self.reserved -= size;
        self.unowned -= size;
        self.show();
        Some((seg.base, size))
    }

    /// Forgets everything and returns the segments that there were.
    pub fn drain(&mut self, shared: &Shared) -> Vec<(u64, u64)> {
        for segment in self.segments.iter().map(|(_, segment)| segment) {
            for index in self
                .spans
                .between(segment.base, segment.base + segment.size)
            {
                if let Some(header) = shared.headers.get(index) {
                    header.owner.store(owner::ARENA, Ordering::Release);
                    shared.owners.remove(header.address.load(Ordering::Relaxed));
                }
            }
        }
        let segments = self
            .segments
            .iter()
            .map(|(_, s)| (s.base, s.size))
            .collect();
        self.note_peak();
        *self = Self {
            shown: self.shown,
            peak: self.peak.take(),
            ..Self::new(self.free.memory())
        };
        self.show();
        segments
    }

    /// Checks every invariant of the structure; an error names what is wrong.
    /// Linear in the number of blocks.
    pub fn validate(&self, shared: &Shared) -> Result<(), String> {
        let (mut reserved, mut carved, mut waiting, mut unowned, mut free_blocks, mut empty) =
            (0, 0, 0, 0, 0, 0);
        for (s, seg) in self.segments.iter() {
            let (mut at, mut expect, mut prev, mut was_free) = (seg.first, seg.base, NONE, false);
            let (mut seg_carved, mut seg_waiting) = (0, 0);
            while at != NONE {
                let b = &self.blocks[at];
                if b.address != expect || b.prev != prev || b.segment != s || b.size == 0 {
                    return Err(format!(
                        "block {at} {b:x?} in segment {s}: expected at {expect:x} after {prev}"
                    ));
                }
                match b.state {
                    State::Free => {
                        if was_free {
                            return Err(format!("block {at}: two free neighbours"));
                        }
                        free_blocks += usize::from(!seg.retired);
                    }
                    State::Carved => {
                        seg_carved += 1;
                        carved += b.size;
                        let known = shared.find(b.address).is_some_and(|(index, header)| {
                            index == at
                                && header.size.load(Ordering::Relaxed) == b.size
                                && header.owner.load(Ordering::Relaxed) != owner::ARENA
                        });
                        if !known || self.spans.at_or_before(b.address) != Some(at) {
                            return Err(format!("carved block {at} {b:x?} is not owned"));
                        }
                    }
                    State::Waiting(epoch) => {
                        seg_waiting += 1;
                        waiting += b.size;
                        if shared.find(b.address).is_some() {
                            return Err(format!("waiting block {at} {b:x?} has an owner"));
                        }
                        if !self.waiting.contains(&(epoch, at)) {
                            return Err(format!("waiting block {at} is not in the queue"));
                        }
                    }
                }
                was_free = b.state == State::Free;
                (prev, expect, at) = (at, b.address + b.size, b.next);
            }
            if expect != seg.base + seg.size
                || (seg_carved, seg_waiting) != (seg.carved, seg.waiting)
            {
                return Err(format!(
                    "segment {s} {seg:x?}: ends at {expect:x}, {seg_carved} carved, {seg_waiting} waiting"
                ));
            }
            reserved += seg.size;
            unowned += if seg.carved == 0 { seg.size } else { 0 };
            let is_empty = seg.carved == 0 && seg.waiting == 0;
            empty += usize::from(is_empty);
            if is_empty != self.empty.contains(&(seg.size, s)) {
                return Err(format!("segment {s}: wrong in the set of empty ones"));
            }
        }
        let sums = (reserved, carved, waiting, unowned);
        let kept = (self.reserved, self.carved, self.waiting_bytes, self.unowned);
        if sums != kept || free_blocks != self.free.count() || empty != self.empty.len() {
            return Err(format!(
                "sums {sums:?}, kept {kept:?}; free {free_blocks} of {}",
                self.free.count()
            ));
        }
        Ok(())
    }
}
