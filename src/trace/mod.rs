//! The trace of a process's allocation calls: what a file holds, and how it is
//! written as bytes and read back. Pure: no file, no clock, no global. The
//! format is described in `docs/trace.md`.

mod decode;
mod encode;
mod varint;

pub use decode::{Error, Item, Reader, Trace};
pub use encode::{Chunk, end, header, objects, stacks};

/// First bytes of every trace.
pub const MAGIC: [u8; 8] = *b"GPUTRACE";
/// The version that is written. A reader refuses higher ones: what may change
/// without a new one (further kinds of chunks, memory and fields at the end of
/// a record) it skips.
pub const VERSION: u16 = 1;

/// Kinds of chunks.
pub(crate) mod chunk {
    /// Calls of one thread.
    pub const CALLS: u8 = 1;
    /// Mapped objects, for call sites.
    pub const OBJECTS: u8 = 2;
    /// The process ends.
    pub const END: u8 = 3;
    /// Stacks, for calls.
    pub const STACKS: u8 = 4;
}

/// Bits of a record's flags.
pub(crate) mod flag {
    /// The pool has served the call.
    pub const POOLED: u8 = 1;
    /// The call failed: its result follows.
    pub const FAILED: u8 = 2;
    /// Another context than in the record before follows.
    pub const PLACE: u8 = 4;
    /// A stream follows.
    pub const STREAM: u8 = 8;
    /// Another call site than in the record before follows.
    pub const SITE: u8 = 16;
    /// The number of a stack follows.
    pub const STACK: u8 = 32;
}

/// The beginning of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: u16,
    /// The traced process.
    pub pid: u32,
    /// Time 0 of the trace, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Version of the library that wrote it.
    pub library: String,
}

/// The kind of memory that a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Device memory: cuMemAlloc, cuMemAllocPitch, cudaMalloc; and every call of
    /// cuMemFree, which takes managed memory too.
    Device,
    /// cuMemAllocManaged.
    Managed,
    /// Pinned host memory.
    Pinned,
    /// Stream-ordered: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync.
    Async,
    /// A kind that this version does not know, by its number.
    Other(u8),
}

impl Memory {
    /// Its number in a file; below 128.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Memory::Device => 0,
            Memory::Managed => 1,
            Memory::Pinned => 2,
            Memory::Async => 3,
            Memory::Other(code) => code & 0x7F,
        }
    }

    /// The kind with that number.
    #[must_use]
    pub fn of_code(code: u8) -> Self {
        match code {
            0 => Memory::Device,
            1 => Memory::Managed,
            2 => Memory::Pinned,
            3 => Memory::Async,
            other => Memory::Other(other),
        }
    }
}

/// The context of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Ordinal of the device.
    pub device: u32,
    /// The driver's id of the context.
    pub context: u64,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// A free; else an allocation.
    pub is_free: bool,
    /// Kind of memory.
    pub memory: Memory,
    /// Number of the calling thread, from 0 in the order of their first calls.
    pub thread: u32,
    /// Nanoseconds from the trace's start to the call's.
    pub at_ns: u64,
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// The address returned or freed; 0 for a failed allocation.
    pub address: u64,
    /// Bytes asked for; of a free 0.
    pub size: u64,
    /// The driver's status; 0 is success.
    pub result: u32,
    /// Answered by the pool, without the driver's call of this name.
    pub pooled: bool,
    /// The context: of a pooled free the block's, else the thread's current
    /// one. `None` where it is not known.
    pub place: Option<Place>,
    /// The stream's handle, where the call has one.
    pub stream: Option<u64>,
    /// Return address of the program's call; 0 where it is not known.
    pub site: u64,
    /// Number of the stack on which it was made; 0 where none was recorded.
    pub stack: u32,
}

impl Call {
    /// Nanoseconds at which it takes effect for other threads: an allocated
    /// address is theirs when the call returns, a freed one can come again as
    /// soon as the call has begun. Calls sorted by this never have a block
    /// allocated twice.
    #[must_use]
    pub fn effective_ns(&self) -> u64 {
        if self.is_free {
            self.at_ns
        } else {
            self.at_ns.saturating_add(self.took_ns)
        }
    }
}

/// A range of addresses that holds code of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// What is added to an address in the file (as `addr2line` takes it).
    pub base: u64,
    /// The file's path; empty where the code is of no file.
    pub path: String,
}

/// The stack of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Its number, from 1.
    pub number: u32,
    /// Return addresses, the program's call first.
    pub frames: Vec<u64>,
}

/// What the last chunk of a process that ended normally says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Calls that were recorded. Some that follow the end (in late exit
    /// handlers) are not counted.
    pub calls: u64,
    /// Calls that could not be recorded: made in a signal handler while the
    /// same thread was recording another one.
    pub lost: u64,
}

#[cfg(test)]
mod tests;
