//! The calls of a trace in the order of their effects, without holding them:
//! the file is decoded twice, the second time with a reader for each thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use gpupool::trace::{Call, End, Item, MAGIC, Memory, Object, Reader};

use crate::replay::source::{self, Error, Event, Input};

/// What a file holds.
pub enum Content {
    /// A binary trace.
    Trace(Vec<u8>),
    /// A table of text.
    Table(Input),
}

impl Content {
    /// Of a file's bytes, unpacked.
    pub fn of(bytes: Vec<u8>) -> Result<Self, Error> {
        if bytes.starts_with(&MAGIC) {
            Ok(Self::Trace(bytes))
        } else {
            source::from_table(&bytes).map(Self::Table)
        }
    }
}

/// What a first pass over a trace tells.
#[derive(Default)]
pub struct Outline<'a> {
    /// The process; `None` for a table.
    pub pid: Option<u32>,
    /// Version of the library that wrote it; empty for a table.
    pub library: String,
    /// The system's numbers of the threads, by the trace's; 0 where not known.
    pub threads: BTreeMap<u32, u32>,
    /// Time 0 of the trace in nanoseconds since 1970; 0 for a table.
    pub started_unix_ns: u64,
    /// The objects of the call sites.
    pub objects: Vec<Object>,
    /// The recorded stacks, by number: return addresses, the innermost first.
    pub stacks: HashMap<u32, Vec<u64>>,
    /// What the process said at its end.
    pub end: Option<End>,
    /// The file ends inside a chunk.
    pub truncated: bool,
    /// Number of calls.
    pub calls: u64,
    /// Nanoseconds of the trace at which the last call had ended.
    pub last_ns: u64,
    /// Each thread's chunks.
    pieces: Vec<VecDeque<Reader<'a>>>,
    table: &'a [Event],
}

impl<'a> Outline<'a> {
    /// Reads the whole trace once. An error where it is damaged.
    pub fn of(content: &'a Content) -> Result<Self, Error> {
        match content {
            Content::Trace(bytes) => Self::of_trace(bytes).map_err(Error::Trace),
            Content::Table(input) => Ok(Self::of_table(&input.events)),
        }
    }

    fn of_trace(bytes: &'a [u8]) -> Result<Self, gpupool::trace::Error> {
        let mut reader = Reader::new(bytes)?;
        let mut outline = Self {
            pid: Some(reader.header().pid),
            library: reader.header().library.clone(),
            started_unix_ns: reader.header().started_unix_ns,
            ..Self::default()
        };
        let mut pieces: BTreeMap<u32, VecDeque<Reader<'a>>> = BTreeMap::new();
        while let Some(item) = reader.next() {
            match item? {
                Item::Thread { number, tid } => {
                    outline.threads.insert(number, tid);
                    pieces.entry(number).or_default().push_back(reader.clone());
                }
                Item::Call(call) => {
                    outline.calls += 1;
                    let ended = call.at_ns.saturating_add(call.took_ns);
                    outline.last_ns = outline.last_ns.max(ended);
                }
                Item::Object(object) => outline.objects.push(object),
                Item::Stack(stack) => {
                    outline.stacks.insert(stack.number, stack.frames);
                }
                Item::End(end) => outline.end = Some(end),
            }
        }
        outline.truncated = reader.is_truncated();
        outline.pieces = pieces.into_values().collect();
        Ok(outline)
    }

    fn of_table(events: &'a [Event]) -> Self {
        Self {
            threads: events.iter().map(|event| (event.thread, 0)).collect(),
            calls: events.len() as u64,
            last_ns: events.last().map_or(0, |event| event.at_ns),
            table: events,
            ..Self::default()
        }
    }

    /// Gives `take` every call, in the order in which they took effect, until
    /// it fails.
    pub fn each<E>(&self, mut take: impl FnMut(&Call) -> Result<(), E>) -> Result<(), E> {
        for event in self.table {
            take(&of_event(event))?;
        }
        let mut pieces = self.pieces.clone();
        let mut next: Vec<Option<Call>> = pieces.iter_mut().map(next_of).collect();
        let mut order: BinaryHeap<Reverse<(u64, usize)>> = next
            .iter()
            .enumerate()
            .filter_map(|(at, call)| Some(Reverse((call.as_ref()?.effective_ns(), at))))
            .collect();
        while let Some(Reverse((_, at))) = order.pop() {
            let following = next_of(&mut pieces[at]);
            if let Some(following) = &following {
                order.push(Reverse((following.effective_ns(), at)));
            }
            if let Some(call) = std::mem::replace(&mut next[at], following) {
                take(&call)?;
            }
        }
        Ok(())
    }

    /// A call site as its object and the offset in it, or as the bare address.
    pub fn site(&self, site: u64) -> String {
        let object = self
            .objects
            .iter()
            .find(|object| (object.start..object.end).contains(&site));
        match object {
            _ if site == 0 => String::from("not known"),
            Some(object) if !object.path.is_empty() => {
                format!("{}+{:#x}", object.path, site.wrapping_sub(object.base))
            }
            _ => format!("{site:#x}, code of no file"),
        }
    }
}

/// The next call of a thread. The first pass has found that all can be read.
fn next_of(pieces: &mut VecDeque<Reader<'_>>) -> Option<Call> {
    loop {
        match pieces.front_mut()?.next() {
            Some(Ok(Item::Call(call))) => return Some(call),
            // What follows this chunk.
            _ => drop(pieces.pop_front()),
        }
    }
}

fn of_event(event: &Event) -> Call {
    Call {
        is_free: event.is_free,
        memory: Memory::Device,
        thread: event.thread,
        at_ns: event.at_ns,
        took_ns: 0,
        address: event.address,
        size: event.size,
        result: 0,
        pooled: false,
        place: None,
        stream: None,
        site: 0,
        stack: 0,
    }
}

/// What the program holds, by the calls so far.
#[derive(Default)]
pub struct Live {
    blocks: HashMap<u64, Block>,
    /// Bytes of device memory.
    pub device: u64,
    /// Bytes of managed and stream-ordered memory.
    pub other: u64,
}

/// What is live at an address.
#[derive(Clone, Copy)]
pub struct Block {
    /// Bytes asked for.
    pub bytes: u64,
    /// Device memory, else another kind.
    pub is_device: bool,
    /// Device and context.
    pub place: Option<gpupool::trace::Place>,
}

impl Live {
    /// Takes a call in. What it freed: an allocation frees what was at its
    /// address, for that went unseen, with its context for one.
    pub fn take(&mut self, call: &Call) -> Option<Block> {
        if call.result != 0 || call.address == 0 {
            return None;
        }
        let old = if call.is_free {
            self.blocks.remove(&call.address)
        } else {
            let block = Block {
                bytes: call.size,
                is_device: call.memory == Memory::Device,
                place: call.place,
            };
            let sum = self.sum(block.is_device);
            *sum = sum.saturating_add(block.bytes);
            self.blocks.insert(call.address, block)
        };
        if let Some(old) = old {
            let sum = self.sum(old.is_device);
            *sum = sum.saturating_sub(old.bytes);
        }
        old
    }

    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    fn sum(&mut self, is_device: bool) -> &mut u64 {
        if is_device {
            &mut self.device
        } else {
            &mut self.other
        }
    }
}
