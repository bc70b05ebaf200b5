//! Traces from files, in either form, compressed or not.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use gpupool::trace::{self, MAGIC, Memory, Place, Trace};
use lzma_rust2::XzReader;

/// First bytes of a file that xz has compressed.
const XZ: [u8; 6] = [0xFD, b'7', b'z', b'X', b'Z', 0];

/// A call on device memory, in the order of their effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the trace in nanoseconds.
    pub at_ns: u64,
    /// Identity of the memory.
    pub address: u64,
    /// Bytes; 0 for a free.
    pub size: u64,
    /// Number of the calling thread.
    pub thread: u32,
    /// Index of the context in [`Input::pools`].
    pub pool: u32,
    /// A free.
    pub is_free: bool,
}

/// What is replayed.
#[derive(Debug, Default)]
pub struct Input {
    /// The calls.
    pub events: Vec<Event>,
    /// The contexts that allocated; one without a name where none is told.
    pub pools: Vec<Option<Place>>,
    /// Calls that are not replayed: on other memory than the device's, failed,
    /// or of nothing.
    pub others: u64,
    /// The file's last call may not be the process's.
    pub unfinished: bool,
}

/// Why there is nothing to replay, to be put behind the file's name.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The file as a whole.
    File(String),
    /// A line of a table, from 1.
    Line(u64, String),
    /// A place in a binary trace.
    Trace(trace::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File(what) => write!(f, ": {what}"),
            Error::Line(line, what) => write!(f, ":{line}: {what}"),
            Error::Trace(error) => write!(f, ": {error}"),
        }
    }
}

/// Reads a file of any kind.
pub fn read(path: &Path) -> Result<Input, Error> {
    let bytes = load(path)?;
    if bytes.starts_with(&MAGIC) {
        let trace = Trace::read(&bytes).map_err(Error::Trace)?;
        Ok(from_trace(&trace))
    } else {
        from_table(&bytes)
    }
}

/// A file's bytes, unpacked; at least one.
pub fn load(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = std::fs::read(path).map_err(|error| {
        let cure = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "; `gpupool run --set TRACE=FILE -- CMD` records a trace"
            }
            _ => "",
        };
        Error::File(format!("{error}{cure}"))
    })?;
    if bytes.starts_with(&XZ) {
        let mut plain = Vec::new();
        XzReader::new(&bytes[..], true)
            .read_to_end(&mut plain)
            .map_err(|error| Error::File(format!("xz cannot be unpacked: {error}")))?;
        bytes = plain;
    }
    if bytes.is_empty() {
        return Err(Error::File(String::from("the file is empty")));
    }
    Ok(bytes)
}

fn from_trace(trace: &Trace) -> Input {
    let mut input = Input {
        unfinished: trace.truncated || trace.end.is_none(),
        ..Input::default()
    };
    let mut numbers: BTreeMap<Option<Place>, u32> = BTreeMap::new();
    for call in &trace.calls {
        // A stream-ordered free can be of plain device memory.
        let replayed = call.result == 0
            && call.address != 0
            && (call.memory == Memory::Device || (call.is_free && call.memory == Memory::Async));
        if !replayed {
            input.others += 1;
            continue;
        }
        let next = numbers.len() as u32;
        let pool = if call.is_free {
            0 // where it was allocated counts
        } else {
            *numbers.entry(call.place).or_insert(next)
        };
        if pool as usize == input.pools.len() && !call.is_free {
            input.pools.push(call.place);
        }
        input.events.push(Event {
            at_ns: call.effective_ns(),
            address: call.address,
            size: call.size,
            thread: call.thread,
            pool,
            is_free: call.is_free,
        });
    }
    input
}

/// The calls of a table.
pub fn from_table(bytes: &[u8]) -> Result<Input, Error> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        let what = "neither a trace of GPUPOOL_TRACE nor a table of text";
        return Err(Error::File(String::from(what)));
    };
    let mut input = Input {
        pools: vec![None],
        ..Input::default()
    };
    let mut threads: BTreeMap<u64, u32> = BTreeMap::new();
    let mut last = 0;
    for (index, line) in text.lines().enumerate() {
        let line_number = index as u64 + 1;
        let event = row(line, &mut threads).map_err(|what| Error::Line(line_number, what))?;
        if event.at_ns < last {
            let what = String::from("earlier than the line before it");
            return Err(Error::Line(line_number, what));
        }
        last = event.at_ns;
        input.events.push(event);
    }
    Ok(input)
}

/// A line of a table.
fn row(line: &str, threads: &mut BTreeMap<u64, u32>) -> Result<Event, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [call, thread, time, address, size] = fields[..] else {
        return Err(format!(
            "{} fields: a line has five, `a|f,thread,microseconds,address,bytes`",
            fields.len()
        ));
    };
    let number = |name: &str, text: &str, radix: u32| {
        let digits = match radix {
            16 => text.strip_prefix("0x").unwrap_or(text),
            _ => text,
        };
        u64::from_str_radix(digits, radix)
            .map_err(|_| format!("{name} {text:?}: it is a number of base {radix}, below 2^64"))
    };
    let is_free = match call {
        "a" => false,
        "f" => true,
        _ => return Err(format!("call {call:?}: it is `a` or `f`")),
    };
    let tid = number("thread", thread, 10)?;
    let next = threads.len() as u32;
    let size = number("bytes", size, 10)?;
    if size == 0 && !is_free {
        return Err(String::from("an allocation of 0 bytes"));
    }
    let microseconds = number("microseconds", time, 10)?;
    Ok(Event {
        at_ns: microseconds
            .checked_mul(1000)
            .ok_or_else(|| format!("microseconds {time:?}: more than five hundred years"))?,
        address: number("address", address, 16)?,
        size: if is_free { 0 } else { size },
        thread: *threads.entry(tid).or_insert(next),
        pool: 0,
        is_free,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpupool::trace::{Call, Chunk, Header, header};

    #[test]
    fn a_table_is_read() {
        let input = from_table(b"a,77,0,7fe0,512\nf,78,3,0x7fe0,0\n").unwrap();
        let base = Event {
            at_ns: 0,
            address: 0x7fe0,
            size: 512,
            thread: 0,
            pool: 0,
            is_free: false,
        };
        let free = Event {
            at_ns: 3000,
            size: 0,
            thread: 1,
            is_free: true,
            ..base
        };
        assert_eq!(input.events, [base, free]);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (table, line, part) in [
            ("a,1,0,10,5\nx,1,0,10,5\n", 2, "`a` or `f`"),
            ("a,1,0,10\n", 1, "4 fields"),
            ("a,1,0,zz,5\n", 1, "address \"zz\""),
            ("a,1,0,10,0\n", 1, "0 bytes"),
            ("a,1,5,10,5\nf,1,4,10,0\n", 2, "earlier"),
            ("a,1,99999999999999999,10,5\n", 1, "years"),
            ("a,1,0,10,5\n\n", 2, "1 fields"),
        ] {
            let error = from_table(table.as_bytes()).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Line(at, _) if at == line), "{text}");
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_trace_is_read_by_context() {
        let place = |device| Some(Place { device, context: 9 });
        let call = Call {
            is_free: false,
            memory: Memory::Device,
            thread: 0,
            at_ns: 10,
            took_ns: 5,
            address: 4096,
            size: 100,
            result: 0,
            pooled: true,
            place: place(1),
            stream: None,
            site: 0,
            stack: 0,
        };
        let mut bytes = header(&Header::default());
        let mut chunk = Chunk::default();
        for call in [
            call,
            Call {
                result: 2,
                address: 0,
                ..call
            },
            Call {
                memory: Memory::Async,
                ..call
            },
            Call {
                place: place(0),
                at_ns: 30,
                address: 8192,
                ..call
            },
            Call {
                is_free: true,
                memory: Memory::Async,
                at_ns: 40,
                ..call
            },
        ] {
            chunk.push(&call, 7);
        }
        bytes.extend_from_slice(chunk.finished());
        let input = from_trace(&Trace::read(&bytes).unwrap());
        assert!(input.unfinished);
        assert_eq!(input.others, 2);
        assert_eq!(input.pools, [place(1), place(0)]);
        let seen: Vec<_> = input
            .events
            .iter()
            .map(|event| (event.at_ns, event.pool, event.is_free))
            .collect();
        assert_eq!(seen, [(15, 0, false), (35, 1, false), (40, 0, true)]);
    }
}
