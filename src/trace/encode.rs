//! Calls and objects as bytes.

use super::varint::{put, put_step};
use super::{Call, End, Header, MAGIC, Object, Place, Stack, chunk, flag};

/// Bytes before the body of a chunk: its kind, and the body's length.
const CHUNK_HEADER: usize = 5;

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The bytes that a trace begins with. `header.version` is not looked at.
#[must_use]
pub fn header(header: &Header) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, u64::from(header.pid));
    put(&mut body, header.started_unix_ns);
    put_text(&mut body, &header.library);
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&super::VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u16).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

fn begin(out: &mut Vec<u8>, kind: u8) {
    out.push(kind);
    out.extend_from_slice(&[0; 4]);
}

/// Fills in the length of the chunk that `out` is.
fn close(out: &mut [u8]) {
    let length = (out.len() - CHUNK_HEADER) as u32;
    out[1..CHUNK_HEADER].copy_from_slice(&length.to_le_bytes());
}

/// A chunk with these objects.
#[must_use]
pub fn objects(objects: &[Object]) -> Vec<u8> {
    let mut out = Vec::new();
    begin(&mut out, chunk::OBJECTS);
    put(&mut out, objects.len() as u64);
    for object in objects {
        put(&mut out, object.start);
        put(&mut out, object.end.wrapping_sub(object.start));
        put_step(&mut out, object.start, object.base);
        put_text(&mut out, &object.path);
    }
    close(&mut out);
    out
}

/// A chunk with these stacks.
#[must_use]
pub fn stacks(stacks: &[Stack]) -> Vec<u8> {
    let mut out = Vec::new();
    begin(&mut out, chunk::STACKS);
    put(&mut out, stacks.len() as u64);
    for stack in stacks {
        put(&mut out, u64::from(stack.number));
        put(&mut out, stack.frames.len() as u64);
        let mut last = 0;
        for frame in &stack.frames {
            put_step(&mut out, last, *frame);
            last = *frame;
        }
    }
    close(&mut out);
    out
}

/// The chunk of a normal end.
#[must_use]
pub fn end(end: &End) -> Vec<u8> {
    let mut out = Vec::new();
    begin(&mut out, chunk::END);
    put(&mut out, end.calls);
    put(&mut out, end.lost);
    close(&mut out);
    out
}

/// A chunk of one thread's calls, on its way. It stands for itself: the first
/// record refers to none before.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    calls: u64,
    last: Last,
}

/// What a record says only where it is another than in the record before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    pub(super) at_ns: u64,
    pub(super) address: u64,
    pub(super) place: Option<Place>,
    pub(super) site: u64,
}

impl Chunk {
    /// An empty chunk with room for `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no call in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// Appends a call of the thread `call.thread`, the same for all calls of a
    /// chunk; `tid` is the system's number of it.
    pub fn push(&mut self, call: &Call, tid: u32) {
        let out = &mut self.bytes;
        if self.calls == 0 {
            begin(out, chunk::CALLS);
            put(out, u64::from(call.thread));
            put(out, u64::from(tid));
            put(out, call.at_ns);
            self.last = Last {
                at_ns: call.at_ns,
                ..Last::default()
            };
        }
        self.calls += 1;
        let last = &mut self.last;
        let when = |condition: bool, bit: u8| if condition { bit } else { 0 };
        let flags = when(call.pooled, flag::POOLED)
            | when(call.result != 0, flag::FAILED)
            | when(call.place != last.place, flag::PLACE)
            | when(call.stream.is_some(), flag::STREAM)
            | when(call.site != last.site, flag::SITE)
            | when(call.stack != 0, flag::STACK);
        let length_at = out.len();
        out.push(0);
        out.push(call.memory.code() << 1 | u8::from(call.is_free));
        out.push(flags);
        put_step(out, last.at_ns, call.at_ns);
        put(out, call.took_ns);
        put_step(out, last.address, call.address);
        if !call.is_free {
            put(out, call.size);
        }
        if flags & flag::FAILED != 0 {
            put(out, u64::from(call.result));
        }
        if flags & flag::PLACE != 0 {
            // 0 is "not known".
            put(
                out,
                call.place.map_or(0, |place| u64::from(place.device) + 1),
            );
            put(out, call.place.map_or(0, |place| place.context));
        }
        if let Some(stream) = call.stream {
            put(out, stream);
        }
        if flags & flag::SITE != 0 {
            put_step(out, last.site, call.site);
        }
        if call.stack != 0 {
            put(out, u64::from(call.stack));
        }
        // Eleven numbers at most, so that one byte is enough.
        out[length_at] = (out.len() - length_at - 1) as u8;
        *last = Last {
            at_ns: call.at_ns,
            address: call.address,
            place: call.place,
            site: call.site,
        };
    }

    /// The chunk's bytes, complete; empty if there is no call in it.
    pub fn finished(&mut self) -> &[u8] {
        if !self.bytes.is_empty() {
            close(&mut self.bytes);
        }
        &self.bytes
    }

    /// Empties it for the next calls.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.calls = 0;
    }
}
