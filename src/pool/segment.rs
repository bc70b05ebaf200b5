//! Segments and the blocks they are split into.
//!
//! A segment is one reservation from the driver. Its blocks are a doubly
//! linked list in address order that covers it without gap or overlap; two
//! free neighbours never stand side by side, they are one.

use super::grace::Epoch;
use super::size_class::Kind;

/// "No block" in a link.
pub const NONE: u32 = u32::MAX;

/// What a block is to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In the free list (or in a retired segment, where it waits to go back).
    Free,
    /// Carved out: with the program, or in a cache (its header says which).
    Carved,
    /// Freed by the program in this epoch; its grace is not complete.
    Waiting(Epoch),
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// First byte.
    pub address: u64,
    /// Bytes, a multiple of the granule.
    pub size: u64,
    /// Index of the segment.
    pub segment: u32,
    /// Neighbour at the lower address.
    pub prev: u32,
    /// Neighbour at the higher address.
    pub next: u32,
    /// State.
    pub state: State,
    /// Some byte of it was with the program before.
    pub used: bool,
}

/// One reservation from the driver.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// First byte, 2 MiB-aligned.
    pub base: u64,
    /// Bytes, a multiple of 2 MiB.
    pub size: u64,
    /// What it serves.
    pub kind: Kind,
    /// Takes no new blocks, and goes back to the driver when it is empty.
    pub retired: bool,
    /// Blocks that are carved out.
    pub carved: u32,
    /// Blocks that wait for grace.
    pub waiting: u32,
    /// The block at `base`.
    pub first: u32,
    /// How often a block was carved out while no other was.
    pub uses: u32,
    /// When it last became empty, counted in such events.
    pub emptied: u64,
}

/// A vector whose places are used again.
#[derive(Debug)]
pub struct Slab<T> {
    items: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            vacant: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Stores `item` and returns its index.
    pub fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.items[index as usize] = Some(item);
            return index;
        }
        self.items.push(Some(item));
        (self.items.len() - 1) as u32
    }

    /// Takes the item at `index` out, if there is one.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let item = self.items.get_mut(index as usize)?.take();
        if item.is_some() {
            self.vacant.push(index);
        }
        item
    }

    /// Number of items.
    pub fn count(&self) -> usize {
        self.items.len() - self.vacant.len()
    }

    /// The items with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items
            .iter()
            .enumerate()
            .filter_map(|(i, item)| Some((i as u32, item.as_ref()?)))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    /// Panics where nothing is stored: an index that outlived its item is a
    /// fault of the pool, which the hooks turn into pass-through.
    fn index(&self, index: u32) -> &T {
        match &self.items[index as usize] {
            Some(item) => item,
            None => panic!("no item {index} in the slab"),
        }
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.items[index as usize] {
            Some(item) => item,
            None => panic!("no item {index} in the slab"),
        }
    }
}
