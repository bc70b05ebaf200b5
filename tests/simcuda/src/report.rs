//! Violations, and the counts at the end.
//!
//! A violation goes to stderr at once, as `simcuda: VIOLATION kind: text`,
//! and as one JSON line to SIMCUDA_REPORT. When the process exits normally,
//! one more line is appended there: `{"summary":true,"pid":…,"violations":n,
//! "calls":{name:n,…},"peak_device_bytes":[…],"device_bytes":[…],
//! "peak_host_bytes":n,"host_bytes":n,"checkpointed_bytes":n}`.
//!
//! Kinds: `early-reissue`, `use-after-free`, `invalid-access`, `double-free`,
//! `freed-while-owned`, `forked-child`, `ending-context`.

use crate::{checkpoint, config, exports, memory};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Writes all of it to a descriptor with one call; errors are ignored, as
/// there is nobody to tell.
fn write_fd(fd: i32, text: &str) {
    // SAFETY: the pointer and length are those of a live string.
    unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
}

fn append(line: &str) {
    let Some(path) = &config::get().report else {
        return;
    };
    let Ok(path) = std::ffi::CString::new(path.as_str()) else {
        return;
    };
    // SAFETY: a valid C string; the descriptor is closed again.
    unsafe {
        let fd = libc::open(
            path.as_ptr(),
            libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC,
            0o644,
        );
        if fd >= 0 {
            write_fd(fd, line);
            libc::close(fd);
        }
    }
}

fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Records a violation. With SIMCUDA_STRICT=1 it does not return.
pub(crate) fn violation(kind: &str, text: &str) {
    if config::get().allow.iter().any(|k| k == kind) {
        return;
    }
    VIOLATIONS.fetch_add(1, Ordering::Relaxed);
    write_fd(2, &format!("simcuda: VIOLATION {kind}: {text}\n"));
    append(&format!(
        "{{\"violation\":{},\"pid\":{},\"text\":{}}}\n",
        json_string(kind),
        std::process::id(),
        json_string(text)
    ));
    if config::get().strict {
        // SAFETY: ends the process at once, which is what was asked for.
        unsafe { libc::_exit(99) };
    }
}

/// How many violations there have been.
pub(crate) fn violations() -> u64 {
    VIOLATIONS.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    if OWNER.load(Ordering::Relaxed) != std::process::id() as i32 {
        return;
    }
    if config::get().deinit {
        exports::STATE.store(exports::DEINITIALIZED, Ordering::Relaxed);
    }
    if config::get().report.is_none() {
        return;
    }
    let mut line = format!(
        "{{\"summary\":true,\"pid\":{},\"violations\":{},\"calls\":{{",
        std::process::id(),
        violations()
    );
    let mut first = true;
    for row in exports::rows() {
        let calls = row.entry.calls();
        if calls > 0 {
            let comma = if first { "" } else { "," };
            first = false;
            let _ = write!(line, "{comma}\"{}\":{calls}", row.name);
        }
    }
    let (now, peak) = memory::device_bytes();
    let (host, host_peak) = memory::host_bytes();
    let _ = writeln!(
        line,
        "}},\"peak_device_bytes\":{peak:?},\"device_bytes\":{now:?},\"peak_host_bytes\":{host_peak},\"host_bytes\":{host},\"checkpointed_bytes\":{}}}",
        checkpoint::copied()
    );
    append(&line);
}

/// Arranges for what happens at exit. Called by the first cuInit.
pub(crate) fn start() {
    if config::get().report.is_some() || config::get().deinit {
        OWNER.store(std::process::id() as i32, Ordering::Relaxed);
        // SAFETY: `at_exit` has the required type and never unloads, because
        // the library is linked with -z nodelete.
        unsafe { libc::atexit(at_exit) };
    }
}
