//! How the guard touches device memory: a stream of its own, so that it waits
//! for no work of the program, and a buffer to read back into.

use super::scan::{Scan, Wrong};
use crate::cuda::abi::{CUdeviceptr, CUstream, NOT_READY, STREAM_NON_BLOCKING, SUCCESS};
use crate::cuda::capture;
use crate::cuda::context::Context;
use crate::cuda::driver::real;
use crate::cuda::entered::Entered;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Bytes of the buffer.
pub(super) const BUFFER: u64 = 1 << 20;

/// Longest wait for work of our own. It depends on none of the program's, but
/// kernels that fill the device can keep it from starting.
const LIMIT: Duration = Duration::from_secs(10);

/// What became of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// The memory holds the pattern.
    Yes,
    /// It will at some time.
    Later,
    /// It was refused; nothing will happen.
    No,
}

/// The stream is the context's, and goes with it. Used under the guard's lock.
#[derive(Debug, Default)]
pub(super) struct Lane {
    stream: CUstream,
    /// Address of the buffer, 0 before its first use.
    buffer: usize,
    /// A wait ran out: work may still be under way.
    busy: bool,
    /// The driver refused something that is needed. Said once.
    broken: bool,
}

/// Address of a new buffer, 0 if there is none to be had. Mapped here and
/// pinned afterwards, rather than allocated by the driver: so it stays when
/// another thread ends the context in the middle of a check. Where pinning is
/// refused, copies are slower.
fn pinned_buffer() -> usize {
    // SAFETY: a new anonymous mapping, never unmapped; the driver pins it.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(std::ptr::null_mut(), BUFFER as usize, rights, how, -1, 0);
        if start == libc::MAP_FAILED {
            return 0;
        }
        let result = real::cuMemHostRegister_v2(start, BUFFER as usize, 0);
        if result != SUCCESS {
            log::debug!("GPUPOOL_GUARD: its buffer is not pinned: error {result}");
        }
        start as usize
    }
}

impl Lane {
    /// Forgets the stream, whose context is gone: nothing can be done any more.
    pub fn forget(&mut self) {
        self.broken = true;
    }

    /// Whether the stream is there and idle. The context must be current.
    fn ready(&mut self) -> bool {
        if self.broken {
            return false;
        }
        if self.stream == 0 {
            // SAFETY: the argument is valid for a write.
            let result = unsafe { real::cuStreamCreate(&raw mut self.stream, STREAM_NON_BLOCKING) };
            if result != SUCCESS {
                self.refused("a stream", result);
            }
            return result == SUCCESS;
        }
        if self.busy {
            // SAFETY: the stream is ours.
            self.busy = unsafe { real::cuStreamQuery(self.stream) } != SUCCESS;
        }
        !self.busy
    }

    fn refused(&mut self, what: &str, result: i32) {
        self.broken = true;
        log::warn!("GPUPOOL_GUARD: the driver refused {what} (error {result}): nothing is checked");
    }

    /// Waits until the stream is idle, at most [`LIMIT`].
    fn finish(&mut self) -> bool {
        let start = Instant::now();
        for round in 0.. {
            // SAFETY: the stream is ours.
            match unsafe { real::cuStreamQuery(self.stream) } {
                SUCCESS => return true,
                NOT_READY if start.elapsed() < LIMIT => crate::pool::pause(round),
                NOT_READY => {
                    log::warn!("GPUPOOL_GUARD: the device is too busy; a check is left out");
                    break;
                }
                _ => break,
            }
        }
        self.busy = true;
        false
    }

    /// Writes `value` to `[start, end)`, which nobody else uses.
    pub fn fill(&mut self, context: &Context, start: u64, end: u64, value: u8) -> Filled {
        if start >= end {
            return Filled::Yes;
        }
        let Some(_entered) = Entered::enter(context.handle) else {
            return Filled::No;
        };
        if !self.ready() {
            return Filled::No;
        }
        let bytes = (end - start) as usize;
        // SAFETY: the range is the pool's own, by the caller's promise.
        if unsafe { real::cuMemsetD8Async(start, value, bytes, self.stream) } != SUCCESS {
            return Filled::No;
        }
        if self.finish() {
            Filled::Yes
        } else {
            Filled::Later
        }
    }

    /// Whether reading is possible now. Not while a capture is open: whatever
    /// the driver makes of it, a check must not break one.
    fn can_read(&mut self) -> bool {
        if capture::any_open() || !self.ready() {
            return false;
        }
        if self.buffer == 0 {
            self.buffer = pinned_buffer();
        }
        self.buffer != 0
    }

    /// The bytes of `ranges`, one behind the other, together at most
    /// [`BUFFER`]. `None` if they cannot be read now.
    pub fn read(&mut self, context: &Context, ranges: &[(u64, u64)]) -> Option<&[u8]> {
        let total: u64 = ranges.iter().map(|(start, end)| end - start).sum();
        let _entered = Entered::enter(context.handle)?;
        if total > BUFFER || !self.can_read() {
            return None;
        }
        let mut place = self.buffer;
        for (start, end) in ranges {
            let (from, bytes): (CUdeviceptr, usize) = (*start, (end - start) as usize);
            let to = place as *mut c_void;
            // SAFETY: the ranges are the pool's, and fit the buffer together.
            if unsafe { real::cuMemcpyDtoHAsync_v2(to, from, bytes, self.stream) } != SUCCESS {
                // What was submitted before still writes to the buffer.
                self.finish();
                return None;
            }
            place += bytes;
        }
        if !self.finish() {
            return None;
        }
        // SAFETY: the buffer has that many bytes, is never unmapped, and the
        // stream that writes to it is idle.
        Some(unsafe { std::slice::from_raw_parts(self.buffer as *const u8, total as usize) })
    }

    /// Compares `[start, end)` with a pattern. `None` if all of it holds the
    /// pattern, or could not be read.
    pub fn compare(
        &mut self,
        context: &Context,
        start: u64,
        end: u64,
        pattern: u8,
    ) -> Option<Wrong> {
        let mut scan = Scan::new(pattern);
        let mut at = start;
        while at < end {
            let to = end.min(at + BUFFER);
            let Some(bytes) = self.read(context, &[(at, to)]) else {
                break;
            };
            scan.feed(at, bytes);
            at = to;
        }
        scan.result()
    }
}
