//! GPUPOOL_MODE=observe: the program's own calls, counted and timed by size;
//! nothing is changed.

use super::{mailbox, shielded};
use crate::cuda::abi::{CUdeviceptr, CUresult, SUCCESS};
use crate::pool::stats::{Shown, add, carry};
use dashmap::DashMap;
use once_cell::sync::Lazy;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Sizes of the blocks that are live now, by address.
static LIVE: Lazy<DashMap<CUdeviceptr, u64>> = Lazy::new(DashMap::new);

/// What was seen in this process.
pub static SEEN: Shown<Observed> = Shown::new(Observed::new());
/// The same of pinned memory, which is counted apart.
pub static SEEN_HOST: Shown<Totals> = Shown::new(Totals::new());

/// Size classes: class `n` holds what is larger than 2^(n-1) bytes and at most
/// 2^n; the last one all that is larger, class 0 frees of blocks that were not
/// seen being allocated.
pub const CLASSES: usize = 44;

macro_rules! figures {
    ($(#[$doc:meta])* $name:ident, $reading:ident: $($(#[$field_doc:meta])* $field:ident,)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: AtomicU64,)* }

        /// A reading of it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $reading { $($(#[$field_doc])* pub $field: u64,)* }

        impl $name {
            const NAMES: &[&str] = &[$(stringify!($field),)*];

            const fn new() -> Self {
                Self { $($field: AtomicU64::new(0),)* }
            }

            /// Copies everything.
            pub fn carry(&self, to: &Self) {
                $(carry(&self.$field, &to.$field);)*
            }

            /// Reads every one; they may move meanwhile.
            #[must_use]
            pub fn read(&self) -> $reading {
                $reading { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }
    };
}

figures! {
    /// Calls of one size class. Times in nanoseconds.
    Class, ClassCounts:
    /// Allocation calls.
    allocs,
    /// Time inside them.
    alloc_ns,
    /// Shortest of them.
    alloc_least_ns,
    /// Free calls.
    frees,
    /// Time inside them.
    free_ns,
    /// Shortest of them.
    free_least_ns,
}

figures! {
    /// All calls. Times in nanoseconds, sizes in bytes.
    Totals, Seen:
    /// Allocation calls.
    allocs,
    /// Time inside them.
    alloc_ns,
    /// Those that failed.
    failed,
    /// Free calls.
    frees,
    /// Time inside them.
    free_ns,
    /// Time during which at least one free was under way.
    free_wall_ns,
    /// Bytes allocated now.
    live,
    /// Highest `live`.
    peak,
    /// Threads that made such calls.
    threads,
    /// From the first call to the last.
    span_ns,
}

/// What was seen.
#[derive(Debug)]
#[repr(C)]
pub struct Observed {
    /// Of all sizes.
    pub totals: Totals,
    /// By size.
    pub classes: [Class; CLASSES],
}

impl Observed {
    const fn new() -> Self {
        Self {
            totals: Totals::new(),
            classes: [const { Class::new() }; CLASSES],
        }
    }

    /// Names of all fields, for [`super::page::LAYOUT`].
    pub const NAMES: &[&str] = &{
        const FIRST: usize = Totals::NAMES.len();
        let mut names = [""; FIRST + Class::NAMES.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = if at < FIRST {
                Totals::NAMES[at]
            } else {
                Class::NAMES[at - FIRST]
            };
            at += 1;
        }
        names
    };

    /// Copies everything.
    pub fn carry(&self, to: &Self) {
        self.totals.carry(&to.totals);
        for (from, to) in self.classes.iter().zip(&to.classes) {
            from.carry(to);
        }
    }
}

/// The class of `bytes`.
fn class(bytes: u64) -> usize {
    match bytes {
        0 => 0,
        _ => ((64 - (bytes - 1).leading_zeros()) as usize).clamp(1, CLASSES - 1),
    }
}

/// The thread is counted, and the time of its call taken into the span.
fn note_call(start: Instant, ended: Instant) {
    static FIRST: Mutex<Option<Instant>> = Mutex::new(None);
    thread_local! {
        static COUNTED: Cell<bool> = const { Cell::new(false) };
    }
    let totals = &SEEN.totals;
    if !COUNTED.replace(true) {
        totals.threads.fetch_add(1, Ordering::Relaxed);
    }
    let first = *FIRST
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert(start);
    let span = ended.saturating_duration_since(first).as_nanos() as u64;
    totals.span_ns.fetch_max(span, Ordering::Relaxed);
}

fn note_time(count: &AtomicU64, time: &AtomicU64, least: &AtomicU64, ns: u64) {
    count.fetch_add(1, Ordering::Relaxed);
    time.fetch_add(ns, Ordering::Relaxed);
    let ns = ns.max(1);
    let _ = least.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| {
        (known == 0 || ns < known).then_some(ns)
    });
}

/// Makes a native allocation call of `bytes` that writes to `out`.
///
/// # Safety
/// `out` is what the program passed, and the call writes an address to it if
/// it succeeds.
pub unsafe fn alloc(
    out: *const CUdeviceptr,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let start = Instant::now();
    let result = call();
    let ended = Instant::now();
    let ns = (ended - start).as_nanos() as u64;
    let (totals, class) = (&SEEN.totals, &SEEN.classes[class(bytes)]);
    totals.allocs.fetch_add(1, Ordering::Relaxed);
    totals.alloc_ns.fetch_add(ns, Ordering::Relaxed);
    note_time(&class.allocs, &class.alloc_ns, &class.alloc_least_ns, ns);
    note_call(start, ended);
    if result != SUCCESS {
        totals.failed.fetch_add(1, Ordering::Relaxed);
    } else if !out.is_null() && bytes > 0 {
        // SAFETY: the successful call has just written it.
        LIVE.insert(unsafe { out.read_unaligned() }, bytes);
        let live = totals.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        totals.peak.fetch_max(live, Ordering::Relaxed);
    }
    shielded(|| mailbox::attend(true));
    result
}

/// Frees that are under way, and since when at least one is.
static FREEING: Mutex<(u32, Option<Instant>)> = Mutex::new((0, None));

/// Makes a native free call of `address`.
pub fn free(address: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
    // Forgotten before the call, after which the address may come again.
    let known = LIVE.remove(&address);
    let start = Instant::now();
    {
        let mut freeing = FREEING.lock().unwrap_or_else(PoisonError::into_inner);
        freeing.0 += 1;
        freeing.1.get_or_insert(start);
    }
    let result = call();
    let ended = Instant::now();
    let totals = &SEEN.totals;
    {
        let mut freeing = FREEING.lock().unwrap_or_else(PoisonError::into_inner);
        freeing.0 -= 1;
        if freeing.0 == 0
            && let Some(since) = freeing.1.take()
        {
            let wall = ended.saturating_duration_since(since).as_nanos() as u64;
            add(&totals.free_wall_ns, wall);
        }
    }
    let ns = (ended - start).as_nanos() as u64;
    let bytes = known.map_or(0, |(_, bytes)| bytes);
    let class = &SEEN.classes[class(bytes)];
    totals.frees.fetch_add(1, Ordering::Relaxed);
    totals.free_ns.fetch_add(ns, Ordering::Relaxed);
    note_time(&class.frees, &class.free_ns, &class.free_least_ns, ns);
    note_call(start, ended);
    if known.is_some() {
        if result == SUCCESS {
            totals.live.fetch_sub(bytes, Ordering::Relaxed);
        } else {
            LIVE.insert(address, bytes);
        }
    }
    shielded(|| mailbox::attend(true));
    result
}

/// Makes a native call for `bytes` of pinned memory that writes to `out`.
///
/// # Safety
/// As [`alloc`].
pub unsafe fn alloc_host(
    out: *const *mut c_void,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let start = Instant::now();
    let result = call();
    let totals = &SEEN_HOST;
    totals.allocs.fetch_add(1, Ordering::Relaxed);
    let ns = start.elapsed().as_nanos() as u64;
    totals.alloc_ns.fetch_add(ns, Ordering::Relaxed);
    if result != SUCCESS {
        totals.failed.fetch_add(1, Ordering::Relaxed);
    } else if !out.is_null() && bytes > 0 {
        // SAFETY: the successful call has just written it.
        let address = unsafe { out.read_unaligned() } as u64;
        LIVE.insert(address, bytes);
        let live = totals.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        totals.peak.fetch_max(live, Ordering::Relaxed);
    }
    shielded(|| mailbox::attend(true));
    result
}

/// Makes a native free call of pinned memory at `address`.
pub fn free_host(address: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    let known = LIVE.remove(&address);
    let start = Instant::now();
    let result = call();
    let totals = &SEEN_HOST;
    totals.frees.fetch_add(1, Ordering::Relaxed);
    let ns = start.elapsed().as_nanos() as u64;
    totals.free_ns.fetch_add(ns, Ordering::Relaxed);
    if let Some((_, bytes)) = known {
        if result == SUCCESS {
            totals.live.fetch_sub(bytes, Ordering::Relaxed);
        } else {
            LIVE.insert(address, bytes);
        }
    }
    shielded(|| mailbox::attend(true));
    result
}

/// What was seen so far.
#[must_use]
pub fn seen() -> Seen {
    SEEN.totals.read()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_up_to_a_power_of_two() {
        for (bytes, expected) in [
            (0, 0),
            (1, 1),
            (2, 1),
            (3, 2),
            (1 << 20, 20),
            ((1 << 20) + 1, 21),
            (u64::MAX, CLASSES - 1),
        ] {
            assert_eq!(class(bytes), expected, "{bytes}");
        }
        assert!(Observed::NAMES.contains(&"free_wall_ns"));
        assert!(Observed::NAMES.contains(&"free_least_ns"));
    }

    #[test]
    fn the_shortest_call_is_kept() {
        let class = Class::new();
        for ns in [5, 3, 9] {
            note_time(&class.frees, &class.free_ns, &class.free_least_ns, ns);
        }
        let read = class.read();
        assert_eq!((read.frees, read.free_ns, read.free_least_ns), (3, 17, 3));
    }
}
