//! What the GPU can be asked to do, and which bytes that touches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// What a context tells its workers, and they it.
pub(crate) struct Switch {
    fault: AtomicI32,
    stop: AtomicBool,
    pub(crate) device: usize,
    /// Bit d: memory of device d may be accessed.
    pub(crate) peers: AtomicU32,
}

impl Switch {
    pub(crate) fn new(device: usize) -> Arc<Switch> {
        Arc::new(Switch {
            fault: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            device,
            peers: AtomicU32::new(1 << device),
        })
    }

    /// The sticky error, or 0.
    pub(crate) fn fault(&self) -> i32 {
        self.fault.load(Ordering::Acquire)
    }

    /// Sets it; the first one stays.
    pub(crate) fn set_fault(&self, code: i32) {
        let _ = self
            .fault
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The context is going away: running work ends as soon as it looks.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Whether running work should end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.fault() != 0
    }
}

/// Rows of bytes to copy: all strides in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) src_pitch: usize,
    pub(crate) dst_slice: usize,
    pub(crate) src_slice: usize,
}

/// One operation.
#[derive(Clone)]
pub(crate) enum Work {
    /// Write a value to every word.
    Fill {
        at: u64,
        bytes: u64,
        value: u32,
        delay: u64,
    },
    /// Count the words that differ.
    Check {
        at: u64,
        bytes: u64,
        value: u32,
        errors: u64,
        delay: u64,
    },
    Spin {
        delay: u64,
    },
    /// Wait until a word has a value.
    WaitFlag {
        flag: u64,
        value: u32,
    },
    KernelCopy {
        dst: u64,
        src: u64,
        bytes: u64,
        delay: u64,
    },
    /// Touch an address that cannot be.
    Fault,
    Copy(Rows),
    /// Copy from memory that the call took over (pageable sources).
    CopyFrom(Arc<Vec<u8>>, Rows),
    Memset {
        at: u64,
        value: u32,
        element: usize,
        width: usize,
        height: usize,
        pitch: usize,
    },
    /// cuStreamWaitValue: (address, value, 64 bits, condition).
    WaitValue {
        at: u64,
        value: u64,
        wide: bool,
        condition: u32,
    },
    WriteValue {
        at: u64,
        value: u64,
        wide: bool,
    },
    Host {
        function: u64,
        data: u64,
    },
    Callback {
        function: u64,
        stream: u64,
        data: u64,
    },
    /// Nothing: a place in the order of a stream.
    Empty,
    Graph(Arc<Vec<Work>>),
}

/// A range that work touches.
pub(crate) struct Access {
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) what: &'static str,
    /// A kernel or copy, for which somebody has to own the range.
    pub(crate) strict: bool,
}

impl Rows {
    /// Bytes from the first to the last that are touched on one side.
    pub(crate) fn span(&self, pitch: usize, slice: usize) -> u64 {
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return 0;
        }
        ((self.depth - 1) * slice + (self.height - 1) * pitch + self.width) as u64
    }
}

impl Work {
    /// The ranges it touches.
    pub(crate) fn accesses(&self, out: &mut Vec<Access>) {
        let mut add = |at, len, what, strict| {
            if len > 0 {
                out.push(Access {
                    at,
                    len,
                    what,
                    strict,
                });
            }
        };
        match self {
            Work::Fill { at, bytes, .. } => add(*at, *bytes, "fill kernel", true),
            Work::Check {
                at, bytes, errors, ..
            } => {
                add(*at, *bytes, "check kernel", true);
                add(*errors, 8, "check kernel's counter", true);
            }
            Work::KernelCopy {
                dst, src, bytes, ..
            } => {
                add(*src, *bytes, "copy kernel's read", true);
                add(*dst, *bytes, "copy kernel's write", true);
            }
            Work::Copy(r) => {
                add(r.src, r.span(r.src_pitch, r.src_slice), "copy's read", true);
                add(
                    r.dst,
                    r.span(r.dst_pitch, r.dst_slice),
                    "copy's write",
                    true,
                );
            }
            Work::CopyFrom(_, r) => {
                add(
                    r.dst,
                    r.span(r.dst_pitch, r.dst_slice),
                    "copy's write",
                    true,
                );
            }
            // A pool may fill a block before it hands it out.
            Work::Memset {
                at,
                element,
                width,
                height,
                pitch,
                ..
            } if *height > 0 => {
                add(
                    *at,
                    ((height - 1) * pitch + width * element) as u64,
                    "memset",
                    false,
                );
            }
            Work::WaitFlag { flag, .. } => add(*flag, 4, "waiting kernel", true),
            Work::WaitValue { at, wide, .. } | Work::WriteValue { at, wide, .. } => {
                add(
                    *at,
                    if *wide { 8 } else { 4 },
                    "stream memory operation",
                    true,
                );
            }
            Work::Graph(nodes) => nodes.iter().for_each(|n| n.accesses(out)),
            _ => {}
        }
    }

    /// Whether it is a kernel that touches memory.
    pub(crate) fn is_kernel(&self) -> bool {
        matches!(
            self,
            Work::Fill { .. }
                | Work::Check { .. }
                | Work::WaitFlag { .. }
                | Work::KernelCopy { .. }
        )
    }
}
