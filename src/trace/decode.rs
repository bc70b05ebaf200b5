//! A trace read back.

use super::encode::Last;
use super::varint::{take, take_step};
use super::{Call, End, Header, MAGIC, Memory, Object, Place, Stack, VERSION, chunk, flag};
use std::collections::BTreeMap;
use std::fmt;

/// Why a file is no trace, or where it is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Byte of the file at which it was seen.
    pub position: u64,
    /// What is wrong, as a clause.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.position, self.what)
    }
}

impl std::error::Error for Error {}

/// What stands in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The following calls are of this thread.
    Thread {
        /// Its number in the trace.
        number: u32,
        /// The system's number of it.
        tid: u32,
    },
    /// A call.
    Call(Call),
    /// An object that was mapped.
    Object(Object),
    /// A stack on which calls were made.
    Stack(Stack),
    /// The process ended normally. Calls of late exit handlers may follow.
    End(End),
}

/// Reads a trace from memory, in the order of the file: by thread in pieces.
/// [`Call::effective_ns`] gives the order of the calls. After an error there
/// is nothing more. A clone goes on from where this one is.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    whole: &'a [u8],
    /// Not read yet.
    rest: &'a [u8],
    header: Header,
    chunk: State<'a>,
    truncated: bool,
}

/// The chunk that is being read.
#[derive(Clone, Debug)]
enum State<'a> {
    Between,
    Calls {
        body: &'a [u8],
        thread: u32,
        last: Last,
        /// The file ends inside it.
        cut: bool,
    },
    Objects {
        body: &'a [u8],
        left: u64,
        cut: bool,
    },
    Stacks {
        body: &'a [u8],
        left: u64,
        cut: bool,
    },
}

impl<'a> Reader<'a> {
    /// Begins at the start of a file. An error if that is no trace, or one of
    /// a newer version.
    pub fn new(whole: &'a [u8]) -> Result<Self, Error> {
        let fail = |position: usize, what: String| Error {
            position: position as u64,
            what,
        };
        if whole.len() < 12 || whole[..8] != MAGIC {
            return Err(fail(
                0,
                String::from("this is no gpupool trace: it does not begin with GPUTRACE"),
            ));
        }
        let version = u16::from_le_bytes([whole[8], whole[9]]);
        if version != VERSION {
            return Err(fail(
                8,
                format!("version {version} of the format; this program reads version {VERSION}"),
            ));
        }
        let length = usize::from(u16::from_le_bytes([whole[10], whole[11]]));
        let truncated = || fail(whole.len(), String::from("the header is cut off"));
        let mut body = whole.get(12..12 + length).ok_or_else(truncated)?;
        let mut parse = || {
            let pid = u32::try_from(take(&mut body)?).ok()?;
            let started_unix_ns = take(&mut body)?;
            let library = take_text(&mut body)?;
            Some(Header {
                version,
                pid,
                started_unix_ns,
                library,
            })
        };
        let header = parse().ok_or_else(|| fail(12, String::from("the header is damaged")))?;
        Ok(Self {
            whole,
            rest: &whole[12 + length..],
            header,
            chunk: State::Between,
            truncated: false,
        })
    }

    /// The file's header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the file ends inside a chunk, as after a crash. Known once the
    /// last item has been read; what was whole of the chunk has been given.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Byte of the file that `rest`, a part of it, begins at.
    fn offset_of(&self, rest: &[u8]) -> u64 {
        (rest.as_ptr() as usize - self.whole.as_ptr() as usize) as u64
    }

    fn fail(&mut self, at: &[u8], what: &str) -> Error {
        let position = self.offset_of(at);
        self.rest = &[];
        self.chunk = State::Between;
        Error {
            position,
            what: what.to_owned(),
        }
    }

    /// Goes on to the next chunk; `None` at the end of the file.
    fn next_chunk(&mut self) -> Option<Result<Option<Item>, Error>> {
        if self.rest.is_empty() {
            return None;
        }
        let at = self.rest;
        let Some((head, body)) = at.split_at_checked(5) else {
            self.truncated = true;
            self.rest = &[];
            return None;
        };
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let cut = length > body.len();
        self.truncated |= cut;
        let (mut body, rest) = body.split_at(length.min(body.len()));
        self.rest = rest;
        let what = match head[0] {
            chunk::CALLS => {
                let mut parse = || {
                    let thread = u32::try_from(take(&mut body)?).ok()?;
                    let tid = u32::try_from(take(&mut body)?).ok()?;
                    Some((thread, tid, take(&mut body)?))
                };
                match parse() {
                    Some((thread, tid, at_ns)) => {
                        let last = Last {
                            at_ns,
                            ..Last::default()
                        };
                        self.chunk = State::Calls {
                            body,
                            thread,
                            last,
                            cut,
                        };
                        let number = thread;
                        return Some(Ok(Some(Item::Thread { number, tid })));
                    }
                    None => "a chunk of calls has a damaged beginning",
                }
            }
            chunk::OBJECTS => match take(&mut body) {
                Some(left) => {
                    self.chunk = State::Objects { body, left, cut };
                    return Some(Ok(None));
                }
                None => "a chunk of objects has a damaged beginning",
            },
            chunk::STACKS => match take(&mut body) {
                Some(left) => {
                    self.chunk = State::Stacks { body, left, cut };
                    return Some(Ok(None));
                }
                None => "a chunk of stacks has a damaged beginning",
            },
            chunk::END => {
                let mut parse = || {
                    let calls = take(&mut body)?;
                    let lost = take(&mut body)?;
                    Some(Item::End(End { calls, lost }))
                };
                match parse() {
                    Some(end) => return Some(Ok(Some(end))),
                    None => "the chunk of the end is damaged",
                }
            }
            0 => "a chunk of kind 0, which there is not",
            // Of a later library.
            _ => return Some(Ok(None)),
        };
        if cut {
            return None;
        }
        Some(Err(self.fail(at, what)))
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match &mut self.chunk {
                State::Calls {
                    body,
                    thread,
                    last,
                    cut,
                } => {
                    let at: &[u8] = body;
                    let Some((&length, rest)) = at.split_first() else {
                        self.chunk = State::Between;
                        continue;
                    };
                    let Some((record, rest)) = rest.split_at_checked(usize::from(length)) else {
                        if *cut {
                            self.chunk = State::Between;
                            continue;
                        }
                        return Some(Err(self.fail(at, "a record goes past its chunk's end")));
                    };
                    *body = rest;
                    let Some(call) = call(record, *thread, last) else {
                        return Some(Err(self.fail(at, "the record of a call is damaged")));
                    };
                    return Some(Ok(Item::Call(call)));
                }
                State::Objects { body, left, cut } => {
                    if *left == 0 {
                        self.chunk = State::Between;
                        continue;
                    }
                    let at: &[u8] = body;
                    match object(body) {
                        Some(object) => {
                            *left -= 1;
                            return Some(Ok(Item::Object(object)));
                        }
                        None if *cut => self.chunk = State::Between,
                        None => return Some(Err(self.fail(at, "an object's record is damaged"))),
                    }
                }
                State::Stacks { body, left, cut } => {
                    if *left == 0 {
                        self.chunk = State::Between;
                        continue;
                    }
                    let at: &[u8] = body;
                    match stack(body) {
                        Some(stack) => {
                            *left -= 1;
                            return Some(Ok(Item::Stack(stack)));
                        }
                        None if *cut => self.chunk = State::Between,
                        None => return Some(Err(self.fail(at, "a stack's record is damaged"))),
                    }
                }
                State::Between => match self.next_chunk()? {
                    Ok(None) => {}
                    Ok(Some(item)) => return Some(Ok(item)),
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

/// One record; what a later version may have added behind it is skipped.
fn call(mut record: &[u8], thread: u32, last: &mut Last) -> Option<Call> {
    let (&[code, flags], rest) = record.split_first_chunk::<2>()?;
    record = rest;
    let is_free = code & 1 != 0;
    let at_ns = take_step(&mut record, last.at_ns)?;
    let took_ns = take(&mut record)?;
    let address = take_step(&mut record, last.address)?;
    let size = if is_free { 0 } else { take(&mut record)? };
    let result = match flags & flag::FAILED {
        0 => 0,
        _ => u32::try_from(take(&mut record)?).ok()?,
    };
    if flags & flag::PLACE != 0 {
        let device = take(&mut record)?;
        let context = take(&mut record)?;
        last.place = match device {
            0 => None,
            _ => Some(Place {
                device: u32::try_from(device - 1).ok()?,
                context,
            }),
        };
    }
    let stream = match flags & flag::STREAM {
        0 => None,
        _ => Some(take(&mut record)?),
    };
    if flags & flag::SITE != 0 {
        last.site = take_step(&mut record, last.site)?;
    }
    let stack = match flags & flag::STACK {
        0 => 0,
        _ => u32::try_from(take(&mut record)?).ok()?,
    };
    last.at_ns = at_ns;
    last.address = address;
    Some(Call {
        is_free,
        memory: Memory::of_code(code >> 1),
        thread,
        at_ns,
        took_ns,
        address,
        size,
        result,
        pooled: flags & flag::POOLED != 0,
        place: last.place,
        stream,
        site: last.site,
        stack,
    })
}

fn stack(body: &mut &[u8]) -> Option<Stack> {
    let number = u32::try_from(take(body)?).ok()?;
    let depth = take(body)?;
    let (mut frames, mut last) = (Vec::new(), 0);
    // A damaged depth ends where the bytes do.
    for _ in 0..depth {
        last = take_step(body, last)?;
        frames.push(last);
    }
    Some(Stack { number, frames })
}

fn object(body: &mut &[u8]) -> Option<Object> {
    let start = take(body)?;
    let end = start.wrapping_add(take(body)?);
    let base = take_step(body, start)?;
    let path = take_text(body)?;
    Some(Object {
        start,
        end,
        base,
        path,
    })
}

/// A length and so many bytes of text. What is no UTF-8 becomes U+FFFD.
fn take_text(body: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(take(body)?).ok()?;
    let (text, rest) = body.split_at_checked(length)?;
    *body = rest;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// A whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its header.
    pub header: Header,
    /// All calls in the order in which they took effect.
    pub calls: Vec<Call>,
    /// The system's numbers of the threads, by [`Call::thread`].
    pub threads: BTreeMap<u32, u32>,
    /// The objects, for [`Call::site`].
    pub objects: Vec<Object>,
    /// The return addresses of the stacks, by [`Call::stack`].
    pub stacks: BTreeMap<u32, Vec<u64>>,
    /// `None` if the process did not end normally.
    pub end: Option<End>,
    /// The file ends inside a chunk.
    pub truncated: bool,
}

impl Trace {
    /// Reads a file's bytes. One that is cut off gives what is whole.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes)?;
        let mut trace = Self {
            header: reader.header.clone(),
            ..Self::default()
        };
        for item in reader.by_ref() {
            match item? {
                Item::Thread { number, tid } => {
                    trace.threads.insert(number, tid);
                }
                Item::Call(call) => trace.calls.push(call),
                Item::Object(object) => trace.objects.push(object),
                Item::Stack(stack) => {
                    trace.stacks.insert(stack.number, stack.frames);
                }
                Item::End(end) => trace.end = Some(end),
            }
        }
        trace.truncated = reader.truncated;
        trace.calls.sort_by_key(Call::effective_ns);
        Ok(trace)
    }

    /// The object that holds `site`, and the offset in its file.
    #[must_use]
    pub fn place_of(&self, site: u64) -> Option<(&Object, u64)> {
        let object = self
            .objects
            .iter()
            .find(|object| (object.start..object.end).contains(&site))?;
        Some((object, site - object.base))
    }
}
