//! What a pointer is: cuPointerGetAttribute and relatives.

use crate::abi::{Answer, code, get, put};
use crate::memory::{self, Alloc, Kind};
use crate::pools;
use crate::state;

/// Writes one attribute of an allocation; `at` is the address asked about.
fn write(a: &Alloc, attribute: u32, at: u64, out: *mut u64) -> Answer {
    let on_device = a.on_device();
    match attribute {
        1 if a.ctx_handle == 0 => Err(code::INVALID_VALUE),
        1 => put(out, a.ctx_handle),
        2 => {
            let managed = a.kind == Kind::Managed;
            put(out.cast::<u32>(), if on_device || managed { 2 } else { 1 })
        }
        3 => put(out, at),
        4 if on_device => Err(code::INVALID_VALUE),
        4 => put(out, at),
        5 if !on_device => Err(code::INVALID_VALUE),
        5 => {
            put(out, a.buffer_id << 12 | 1)?;
            // SAFETY: the structure is a 64-bit and then a 32-bit number.
            put(unsafe { out.add(1) }.cast::<u32>(), a.device as u32 + 1)
        }
        6 => put(out.cast::<u32>(), u32::from(a.sync_memops)),
        7 => put(out, a.buffer_id),
        8 => put(out.cast::<u32>(), u32::from(a.kind == Kind::Managed)),
        9 => put(out.cast::<i32>(), a.device as i32),
        10 => put(out.cast::<u32>(), u32::from(a.kind == Kind::Device)),
        11 => put(out, a.base),
        12 => put(out, a.size),
        13 => put(out.cast::<u32>(), 1),
        14 => put(out, 0),
        15 => put(out.cast::<u32>(), u32::from(a.rdma)),
        16 => put(out.cast::<u32>(), 3),
        17 => put(out, pools::handle_of(a.kind).unwrap_or(0)),
        18 => put(out, a.size),
        19 => put(out, a.base),
        20 => put(out, a.buffer_id),
        21 => put(out.cast::<u32>(), 0),
        _ => Err(code::INVALID_VALUE),
    }
}

/// Attributes are told also in a thread without a context (seen on an H200).
fn usable_if_any() -> Answer {
    let core = state::lock();
    if state::current_handle() != 0 {
        core.current()?;
    }
    Ok(())
}

pub(crate) fn attribute(out: *mut u64, attribute: u32, at: u64) -> Answer {
    usable_if_any()?;
    let m = memory::lock();
    write(
        m.find_live(at).ok_or(code::INVALID_VALUE)?,
        attribute,
        at,
        out,
    )
}

/// The form for several attributes succeeds for any pointer; what does not
/// apply to it reads as zero.
pub(crate) fn attributes(
    count: u32,
    attributes: *const u32,
    outs: *const *mut u64,
    at: u64,
) -> Answer {
    usable_if_any()?;
    if count == 0 || attributes.is_null() || outs.is_null() {
        return Err(code::INVALID_VALUE);
    }
    let m = memory::lock();
    let a = m.find_live(at);
    for i in 0..count as usize {
        // SAFETY: the program passes two arrays of `count` entries.
        let (attribute, out) = unsafe { (*attributes.add(i), *outs.add(i)) };
        if !(1..=21).contains(&attribute) {
            return Err(code::INVALID_VALUE);
        }
        if a.is_some_and(|a| write(a, attribute, at, out).is_ok()) {
            continue;
        }
        match attribute {
            2 | 6 | 8 | 10 | 13 | 15 | 16 | 21 => put(out.cast::<u32>(), 0)?,
            // No device: CU_DEVICE_INVALID.
            9 => put(out.cast::<i32>(), -2)?,
            5 => put(out.cast::<[u8; 16]>(), [0; 16])?,
            _ => put(out, 0)?,
        }
    }
    Ok(())
}

pub(crate) fn set_attribute(value: *const u32, attribute: u32, at: u64) -> Answer {
    state::lock().current()?;
    let value = get(value)?;
    if attribute != 6 || value > 1 {
        return Err(code::INVALID_VALUE);
    }
    let mut m = memory::lock();
    let base = m.find_live(at).filter(|a| a.on_device()).map(|a| a.base);
    match base.and_then(|b| m.allocs.get_mut(&b)) {
        Some(a) => {
            a.sync_memops = value == 1;
            Ok(())
        }
        None => Err(code::INVALID_VALUE),
    }
}

/// A dma-buf descriptor of a range: page-aligned, inside one allocation.
pub(crate) fn handle_for_range(out: *mut i32, at: u64, size: u64, kind: u32, flags: u64) -> Answer {
    state::lock().current()?;
    if out.is_null() || kind != 1 || flags > 1 || size == 0 || (at | size) & 4095 != 0 {
        return Err(code::INVALID_VALUE);
    }
    let mut m = memory::lock();
    // A small allocation's pages are shared with others, so they round up
    // beyond it and are refused, as with NVIDIA's driver.
    let a = m
        .cover(at, size)
        .filter(|a| a.live && a.on_device())
        .ok_or(code::INVALID_VALUE)?
        .clone();
    // SAFETY: duplicates a descriptor that the arena owns.
    let fd = unsafe { libc::fcntl(m.devices[a.device].arena.fd, libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(code::NOT_SUPPORTED);
    }
    m.seal(a.base);
    put(out, fd)
}
