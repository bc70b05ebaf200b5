//! The threads' buffers.

use super::{append, lock};
use crate::trace::{Call, Chunk};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

/// A buffer goes to the file at this size: some two thousand calls.
const FULL: usize = 32 << 10;
/// Or when its oldest call is so many nanoseconds old.
const OLD_NS: u64 = 1_000_000_000;

/// One thread's buffer. Never freed: it serves another thread later.
struct Lane(Mutex<Filling>);

struct Filling {
    chunk: Chunk,
    oldest_ns: u64,
    tid: u32,
}

/// All lanes that were made, and those that no thread has.
struct Lanes {
    all: Vec<&'static Lane>,
    vacant: Vec<&'static Lane>,
}

static LANES: Mutex<Lanes> = Mutex::new(Lanes {
    all: Vec::new(),
    vacant: Vec::new(),
});

/// The thread's lane, in a value whose destructor runs after those of C++ and
/// Rust: they may free memory too. A thread that calls even later gets a lane
/// again, and the destructor runs again.
static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's number, from 1; 0: none yet. Without a destructor.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// Before the first [`push`].
pub fn prepare() -> io::Result<()> {
    let mut key = 0;
    // SAFETY: `key` is valid for a write, the destructor for the life of the
    // process.
    match unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } {
        0 => {
            let _ = KEY.set(key);
            Ok(())
        }
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn mine() -> Option<&'static Lane> {
    let key = *KEY.get()?;
    // SAFETY: the key was created; its values come from below.
    let known = unsafe { libc::pthread_getspecific(key).cast::<Lane>().as_ref() };
    if known.is_some() {
        return known;
    }
    let lane = {
        let mut lanes = lock(&LANES);
        lanes.vacant.pop().unwrap_or_else(|| {
            let new: &'static Lane = Box::leak(Box::new(Lane(Mutex::new(Filling {
                chunk: Chunk::with_capacity(FULL + 128),
                oldest_ns: 0,
                tid: 0,
            }))));
            lanes.all.push(new);
            new
        })
    };
    // SAFETY: takes no arguments. libc's own function is younger than 2.28.
    lock(&lane.0).tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: the key was created. Where there is no room the lane is written
    // at the process's end.
    unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(lane).cast()) };
    Some(lane)
}

/// Adds a call of this thread; `at_once`: and writes it.
pub fn push(mut call: Call, at_once: bool) {
    if NUMBER.get() == 0 {
        NUMBER.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
    }
    call.thread = NUMBER.get() - 1;
    let Some(lane) = mine() else { return };
    let mut filling = lock(&lane.0);
    let Filling {
        chunk,
        oldest_ns,
        tid,
    } = &mut *filling;
    if chunk.is_empty() {
        *oldest_ns = call.at_ns;
    }
    chunk.push(&call, *tid);
    if at_once || chunk.len() >= FULL || call.at_ns.saturating_sub(*oldest_ns) >= OLD_NS {
        write(chunk);
    }
}

fn write(chunk: &mut Chunk) {
    append(chunk.finished());
    chunk.clear();
}

/// The lock, unless somebody keeps it: a thread that was stopped inside must
/// not stop the process from ending.
fn lock_soon(lane: &Lane) -> Option<MutexGuard<'_, Filling>> {
    for _ in 0..10_000 {
        match lane.0.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Writes what all threads have.
pub fn flush_all() {
    let all: Vec<&'static Lane> = lock(&LANES).all.clone();
    for lane in all {
        if let Some(mut filling) = lock_soon(lane) {
            write(&mut filling.chunk);
        }
    }
}

extern "C" fn thread_ends(value: *mut c_void) {
    if !super::is_on() {
        return;
    }
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: values of the key are lanes, which are never freed.
        let Some(lane) = (unsafe { value.cast::<Lane>().as_ref() }) else {
            return;
        };
        super::guarded(|| {
            write(&mut lock(&lane.0).chunk);
            lock(&LANES).vacant.push(lane);
            super::stacks::thread_ends();
        });
    });
}
