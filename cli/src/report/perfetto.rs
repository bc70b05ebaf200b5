//! The trace as Chrome's trace events, which Perfetto reads too.

use std::collections::HashMap;
use std::io::{self, Write};

use gpupool::trace::{Call, Memory};
use serde_json::{Value, json};

use super::feed::{Live, Outline};

/// Writes one JSON object: a slice for each call, a counter event wherever
/// the live device memory changes, and the names of the process and its
/// threads. Times in microseconds of the trace.
pub fn write(
    outline: &Outline<'_>,
    out: &mut impl Write,
    mut done: impl FnMut(u64),
) -> io::Result<()> {
    let pid = outline.pid.unwrap_or(1);
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let name = json!({"name": format!("process {pid}")});
    let process = json!({"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": name});
    write!(out, "{process}")?;
    for &number in outline.threads.keys() {
        let tid = tid(outline, number);
        let name = json!({"name": format!("thread {number}")});
        let event = json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": name});
        write!(out, ",\n{event}")?;
    }
    let mut sites: HashMap<u64, String> = HashMap::new();
    let mut live = Live::default();
    let mut seen = 0;
    outline.each(|call| {
        done(seen);
        seen += 1;
        let site = sites
            .entry(call.site)
            // As JSON, with its quotation marks.
            .or_insert_with(|| Value::from(outline.site(call.site)).to_string());
        slice(call, pid, tid(outline, call.thread), site, out)?;
        let before = live.device;
        live.take(call);
        if live.device != before {
            write!(
                out,
                ",\n{{\"ph\":\"C\",\"name\":\"live bytes\",\"pid\":{pid},\"ts\":{},\"args\":{{\"device\":{}}}}}",
                Micros(call.effective_ns()),
                live.device
            )?;
        }
        Ok::<(), io::Error>(())
    })?;
    out.write_all(b"\n]}\n")
}

/// The system's number of a thread. A table has none: there the trace's, from
/// 1, as viewers take 0 for the idle task.
fn tid(outline: &Outline<'_>, number: u32) -> u32 {
    match outline.threads.get(&number) {
        Some(&tid) if tid != 0 => tid,
        _ => number.saturating_add(1),
    }
}

fn slice(call: &Call, pid: u32, tid: u32, site: &str, out: &mut impl Write) -> io::Result<()> {
    let verb = if call.is_free { "free" } else { "allocate" };
    let kind = match call.memory {
        Memory::Device => "",
        Memory::Managed => " managed",
        Memory::Pinned => " pinned",
        Memory::Async => " in stream order",
        Memory::Other(_) => " other",
    };
    write!(
        out,
        ",\n{{\"ph\":\"X\",\"name\":\"{verb}{kind}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{},\"dur\":{},\"args\":{{\"address\":\"{:#x}\"",
        Micros(call.at_ns),
        Micros(call.took_ns),
        call.address
    )?;
    if !call.is_free {
        write!(out, ",\"bytes\":{}", call.size)?;
    }
    if call.pooled {
        out.write_all(b",\"pool\":true")?;
    }
    if call.result != 0 {
        write!(out, ",\"status\":{}", call.result)?;
    }
    if call.site != 0 {
        write!(out, ",\"site\":{site}")?;
    }
    out.write_all(b"}}")
}

/// Nanoseconds as microseconds, exactly.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
