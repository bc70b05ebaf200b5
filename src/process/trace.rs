//! GPUPOOL_TRACE: every allocation and free call that reaches the library, in
//! a file of the format in [`crate::trace`].
//!
//! Each thread has a buffer, which goes to the file in one piece when it is
//! full, when its oldest call is a second old, when the thread ends, and at the
//! process's end. A process that is killed, or ends by `_exit` or `exec`, loses
//! what is in the buffers. A forked child records nothing.
//!
//! Nothing here waits for another thread but for the moment of its write, and
//! nothing makes a CUDA call. A call made in a signal handler, while the same
//! thread was recording another one, is only counted.

mod lane;
mod sites;
mod stacks;

use crate::config::PathTemplate;
use crate::trace::{Call, End, Header, VERSION, end, header};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Calls are recorded.
static ON: AtomicBool = AtomicBool::new(false);
/// The end has been written: what comes now goes to the file at once.
static LATE: AtomicBool = AtomicBool::new(false);
static FILE: Mutex<Option<File>> = Mutex::new(None);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static START: OnceLock<Instant> = OnceLock::new();
static CALLS: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Without destructors: they work also while the thread and the process end.
    /// This thread is inside `guarded`.
    static BUSY: Cell<bool> = const { Cell::new(false) };
    /// Where the program called a function of the runtime that is on its way
    /// to the driver; 0 outside of one.
    static OUTER_SITE: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" {
    /// stdlib.h's `at_quick_exit`, as libc.so exports it; glibc 2.10.
    fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), dso: *mut c_void) -> c_int;
}

/// Whether calls are recorded.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Nanoseconds since the trace began.
pub fn now_ns() -> u64 {
    START
        .get()
        .map_or(0, |start| start.elapsed().as_nanos() as u64)
}

/// The driver has arrived: opens the file, if one is wanted. A file that cannot
/// be written gives one warning, and there is no trace. `stacks`: the stack of
/// each call is recorded too.
pub fn start(wanted: Option<&PathTemplate>, stacks: bool) {
    let Some(template) = wanted.filter(|_| START.get().is_none()) else {
        return;
    };
    let path = template.expand(std::process::id());
    if let Err(error) = open(&path) {
        log::warn!(
            "GPUPOOL_TRACE: no trace is written: {}: {error}",
            path.display()
        );
        return;
    }
    // SAFETY: the handler is valid for the life of the process.
    unsafe { __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut()) };
    stacks::WANTED.store(stacks, Ordering::Relaxed);
    ON.store(true, Ordering::Release);
}

fn open(path: &Path) -> io::Result<()> {
    // Not truncated before it is known to be ours.
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .append(true)
        .open(path)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            return Err(io::Error::new(
                error.kind(),
                "another process writes its trace there; use %p in the name for one file each",
            ));
        }
        // Some file systems have no locks.
    }
    file.set_len(0)?;
    lane::prepare()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let _ = START.set(Instant::now());
    file.write_all(&header(&Header {
        version: VERSION,
        pid: std::process::id(),
        started_unix_ns: now.map_or(0, |time| time.as_nanos() as u64),
        library: env!("CARGO_PKG_VERSION").to_owned(),
    }))?;
    DESCRIPTOR.store(file.as_raw_fd(), Ordering::Relaxed);
    *lock(&FILE) = Some(file);
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` unless this thread is inside another one: a signal handler may
/// have interrupted it. Whether it ran.
fn guarded(body: impl FnOnce()) -> bool {
    if BUSY.replace(true) {
        return false;
    }
    body();
    BUSY.set(false);
    true
}

/// Appends whole chunks. The first failure ends the trace.
fn append(bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let mut file = lock(&FILE);
    let Some(open) = file.as_mut() else { return };
    if let Err(error) = open.write_all(bytes) {
        *file = None;
        ON.store(false, Ordering::Relaxed);
        log::warn!("GPUPOOL_TRACE: the trace ends here: {error}");
    }
}

/// Records a call of this thread; its number and the call site's origin are
/// filled in here.
pub fn record(mut call: Call) {
    if !is_on() {
        return;
    }
    let outer = OUTER_SITE.get();
    if outer != 0 {
        call.site = outer as u64;
    }
    let done = guarded(|| {
        sites::tell(call.site);
        call.stack = stacks::here(call.site);
        lane::push(call, LATE.load(Ordering::Relaxed));
        CALLS.fetch_add(1, Ordering::Relaxed);
    });
    if !done {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `call`, which goes to the caller's own runtime: what that asks of the
/// driver is recorded with the program's call site.
#[inline]
pub fn with_site<R>(site: usize, call: impl FnOnce() -> R) -> R {
    if !is_on() {
        return call();
    }
    let before = OUTER_SITE.replace(site);
    let result = call();
    OUTER_SITE.set(before);
    result
}

/// The process ends: everything goes to the file.
pub fn finish() {
    if !is_on() || LATE.swap(true, Ordering::Relaxed) {
        return;
    }
    guarded(|| {
        lane::flush_all();
        append(&end(&End {
            calls: CALLS.load(Ordering::Relaxed),
            lost: LOST.load(Ordering::Relaxed),
        }));
    });
}

extern "C" fn at_quick_exit(_: *mut c_void) {
    let _ = std::panic::catch_unwind(finish);
}

/// In a forked child: the file is the parent's.
pub fn forked() {
    if ON.swap(false, Ordering::Relaxed) {
        // SAFETY: ours, and used by nobody in the child; the parent's lock of
        // the file must not live as long as the child.
        unsafe { libc::close(DESCRIPTOR.load(Ordering::Relaxed)) };
    }
}
