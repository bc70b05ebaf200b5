//! GPUPOOL_NVTX: marks of what the pool does, for Nsight Systems and whatever
//! else takes NVTX. A profiler that records the driver's or the runtime's calls
//! does not see what the pool answers without them.
//!
//! All marks are in the domain `gpupool`. Their payload is a size in bytes, or 0.
//!
//! | mark | what |
//! |---|---|
//! | `alloc BYTES hit` | an allocation was served without the driver |
//! | `alloc BYTES miss` | an allocation took memory from the driver |
//! | `free` | memory came back to the pool |
//! | `wait for the GPU`, a range | an allocation waits for grace |
//! | `grow BYTES`, a range | the driver is asked for a segment |
//! | `give back BYTES`, a range | a segment goes back to the driver |
//!
//! Every function may be called from any thread, allocates nothing and takes no
//! lock of ours; the profiler's own may.

mod injection;

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use injection::Marks;

/// There is a profiler that takes marks.
static ON: AtomicBool = AtomicBool::new(false);

/// What a mark is about; decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Served by the pool.
    Hit,
    /// Served with the driver's help.
    Miss,
    /// Came back.
    Free,
    /// Waits for the GPU.
    Wait,
    /// Takes memory from the driver.
    Grow,
    /// Gives memory back to it.
    GiveBack,
}

impl Kind {
    /// As ARGB.
    fn colour(self) -> u32 {
        match self {
            Kind::Hit => 0xFF2E_9E5B,
            Kind::Miss => 0xFFD9_8E04,
            Kind::Free => 0xFF6B_7785,
            Kind::Wait => 0xFFC2_3B22,
            Kind::Grow => 0xFF17_69AA,
            Kind::GiveBack => 0xFF7A_4FA3,
        }
    }
}

/// Finds the profiler that this process was started under, if marks are wanted.
/// Called where the driver has just been initialised: profilers are loaded with
/// it, so that the loader has little to do. A second call does nothing.
pub fn start(wanted: bool) {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !wanted || STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    match injection::load() {
        Ok(()) => ON.store(true, Ordering::Release),
        Err(why) => log::warn!("GPUPOOL_NVTX: no marks: {why}"),
    }
}

/// Whether marks go anywhere.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

fn marks() -> Option<&'static Marks> {
    ON.load(Ordering::Acquire).then(injection::marks).flatten()
}

/// Text in a fixed place, ended by a zero. What does not fit is left out.
struct Text {
    bytes: [u8; 64],
    length: usize,
}

impl Text {
    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut made = Self {
            bytes: [0; 64],
            length: 0,
        };
        // An error is text that did not fit.
        let _ = made.write_fmt(text);
        made
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        if taken < text.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

/// Marks this moment.
#[cold]
pub fn mark(kind: Kind, text: fmt::Arguments<'_>, bytes: u64) {
    if let Some(marks) = marks() {
        marks.mark(&Text::of(text).bytes, kind.colour(), bytes);
    }
}

/// A stretch of the calling thread's time. Ranges of a thread end in the
/// opposite order of their beginnings.
#[derive(Debug)]
#[must_use]
pub struct Range(bool);

impl Range {
    /// Begins where this is called and ends where the value is dropped; nothing
    /// without a profiler.
    #[inline]
    pub fn new(kind: Kind, text: fmt::Arguments<'_>, bytes: u64) -> Self {
        let is_on = is_on();
        if is_on {
            begin(kind, text, bytes);
        }
        Self(is_on)
    }
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            end();
        }
    }
}

/// Begins a range of the calling thread that no value stands for: [`end`] ends
/// it. Once there is a profiler, there is one until the process ends.
#[cold]
pub fn begin(kind: Kind, text: fmt::Arguments<'_>, bytes: u64) {
    if let Some(marks) = marks() {
        marks.push(&Text::of(text).bytes, kind.colour(), bytes);
    }
}

/// Ends the range of the calling thread that began last.
#[cold]
pub fn end() {
    if let Some(marks) = marks() {
        marks.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_with_a_zero_however_long_it_is() {
        let text = Text::of(format_args!("alloc {} hit", 4096));
        assert_eq!(&text.bytes[..15], b"alloc 4096 hit\0");
        let long = Text::of(format_args!("{:>100}", 1));
        assert_eq!((long.length, long.bytes[63]), (63, 0));
    }

    #[test]
    fn without_a_profiler_nothing_happens() {
        assert!(!is_on());
        mark(Kind::Hit, format_args!("alloc 1 hit"), 1);
        let range = Range::new(Kind::Grow, format_args!("grow 1"), 1);
        assert!(!range.0);
    }
}
