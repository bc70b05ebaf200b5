//! Executing work: kernels, copies, memsets, waits and host functions.

use crate::memory::{self, Kind};
use crate::report;
use crate::task::delay;
use crate::work::{Rows, Switch, Work};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Whether a kernel may touch its ranges; reports and says no if not.
fn kernel_may(work: &Work, switch: &Switch) -> bool {
    let mut ranges = Vec::with_capacity(2);
    work.accesses(&mut ranges);
    let m = memory::lock();
    for r in &ranges {
        match m.cover(r.at, r.len) {
            None => {
                report::violation(
                    "invalid-access",
                    &format!(
                        "{} of {} bytes at {:#x}, outside any allocation",
                        r.what, r.len, r.at
                    ),
                );
                return false;
            }
            // The program's error, which natively is an illegal address too.
            Some(_) if m.access(r.at, r.len) >> switch.device & 1 == 0 => {
                report::violation(
                    "no-access",
                    &format!(
                        "{} of {} bytes at {:#x} on device {}, which has no access",
                        r.what, r.len, r.at, switch.device
                    ),
                );
                return false;
            }
            Some(a) => {
                let foreign = matches!(a.kind, Kind::Device | Kind::Async(_));
                if foreign && switch.peers.load(Ordering::Relaxed) & (1 << a.device) == 0 {
                    return false;
                }
            }
        }
    }
    true
}

fn rows(r: &Rows, src: u64) {
    for z in 0..r.depth {
        for y in 0..r.height {
            let from = src + (z * r.src_slice + y * r.src_pitch) as u64;
            let to = r.dst + (z * r.dst_slice + y * r.dst_pitch) as u64;
            // SAFETY: both ranges were checked when the copy was submitted:
            // each lies in one allocation, or is the program's own memory,
            // which it keeps valid until the copy is done. Ranges may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, r.width) };
        }
    }
}

fn fill(at: u64, bytes: u64, value: u32) {
    let words = bytes / 4;
    // SAFETY: the range was found to lie in an allocation just before; the
    // driver's mappings stay readable and writable for the process's life.
    unsafe {
        for i in 0..words {
            (at as *mut u32).add(i as usize).write_unaligned(value);
        }
        for i in words * 4..bytes {
            (at as *mut u8).add(i as usize).write(value as u8);
        }
    }
}

fn check(at: u64, bytes: u64, value: u32) -> u64 {
    let words = bytes / 4;
    let mut wrong = 0;
    // SAFETY: as in `fill`.
    unsafe {
        for i in 0..words {
            wrong += u64::from((at as *const u32).add(i as usize).read_unaligned() != value);
        }
        for i in words * 4..bytes {
            wrong += u64::from((at as *const u8).add(i as usize).read() != value as u8);
        }
    }
    wrong
}

fn memset(at: u64, value: u32, element: usize, width: usize) {
    // SAFETY: the range was checked when the memset was submitted.
    unsafe {
        match element {
            1 => std::ptr::write_bytes(at as *mut u8, value as u8, width),
            2 => (0..width).for_each(|i| (at as *mut u16).add(i).write_unaligned(value as u16)),
            _ => (0..width).for_each(|i| (at as *mut u32).add(i).write_unaligned(value)),
        }
    }
}

/// Polls memory that a program writes.
fn poll(switch: &Switch, ready: impl Fn() -> bool) {
    let mut looks = 0u32;
    while !ready() && !switch.stopped() {
        looks += 1;
        if looks < 200 {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

fn load(at: u64, wide: bool) -> u64 {
    // SAFETY: checked to lie in an allocation; the program may write to it at
    // any time, hence volatile.
    unsafe {
        if wide {
            (at as *const u64).read_volatile()
        } else {
            u64::from((at as *const u32).read_volatile())
        }
    }
}

/// Executes one operation.
pub(crate) fn run(work: &Work, switch: &Switch) {
    if switch.stopped() {
        return;
    }
    if work.is_kernel() && !kernel_may(work, switch) {
        switch.set_fault(crate::abi::code::ILLEGAL_ADDRESS);
        return;
    }
    let stop = || switch.stopped();
    match work {
        Work::Fill {
            at,
            bytes,
            value,
            delay: d,
        } => {
            delay(*d, stop);
            fill(*at, *bytes, *value);
        }
        Work::Check {
            at,
            bytes,
            value,
            errors,
            delay: d,
        } => {
            delay(*d, stop);
            let wrong = check(*at, *bytes, *value);
            if wrong > 0 {
                // SAFETY: checked to lie in an allocation; kernels of several
                // streams may add to one counter.
                let counter =
                    unsafe { std::sync::atomic::AtomicU64::from_ptr(*errors as *mut u64) };
                counter.fetch_add(wrong, Ordering::SeqCst);
            }
        }
        Work::Spin { delay: d } => delay(*d, stop),
        Work::WaitFlag { flag, value } => {
            poll(switch, || load(*flag, false) == u64::from(*value));
        }
        Work::KernelCopy {
            dst,
            src,
            bytes,
            delay: d,
        } => {
            delay(*d, stop);
            // SAFETY: both ranges were checked just before.
            unsafe { std::ptr::copy(*src as *const u8, *dst as *mut u8, *bytes as usize) };
        }
        Work::Fault => switch.set_fault(crate::abi::code::ILLEGAL_ADDRESS),
        Work::Copy(r) => rows(r, r.src),
        Work::CopyFrom(bytes, r) => rows(r, bytes.as_ptr() as u64),
        Work::Memset {
            at,
            value,
            element,
            width,
            height,
            pitch,
        } => {
            for y in 0..*height {
                memset(at + (y * pitch) as u64, *value, *element, *width);
            }
        }
        Work::WaitValue {
            at,
            value,
            wide,
            condition,
        } => poll(switch, || {
            let (have, v) = (load(*at, *wide), *value);
            match condition & 3 {
                0 if *wide => (have as i64).wrapping_sub(v as i64) >= 0,
                0 => (have as i32).wrapping_sub(v as i32) >= 0,
                1 => have == v,
                2 => have & v != 0,
                _ => !(have | v) != 0,
            }
        }),
        Work::WriteValue { at, value, wide } => {
            // SAFETY: checked to lie in an allocation when submitted.
            unsafe {
                if *wide {
                    (*at as *mut u64).write_volatile(*value);
                } else {
                    (*at as *mut u32).write_volatile(*value as u32);
                }
            }
        }
        Work::Host { function, data } => {
            // SAFETY: the program passed a CUhostFn and its argument.
            unsafe {
                let f: extern "C" fn(u64) = std::mem::transmute(*function as *const ());
                f(*data);
            }
        }
        Work::Callback {
            function,
            stream,
            data,
        } => {
            // SAFETY: the program passed a CUstreamCallback and its argument.
            unsafe {
                let f: extern "C" fn(u64, i32, u64) = std::mem::transmute(*function as *const ());
                f(*stream, switch.fault(), *data);
            }
        }
        Work::Empty => {}
        Work::Graph(nodes) => nodes.iter().for_each(|n| run(n, switch)),
    }
}
