//! Virtual memory management: cuMemAddressReserve, cuMemCreate, cuMemMap and
//! the rest. Unmapping and releasing do not wait for running kernels, as with
//! NVIDIA's driver (measured on an H200).

use crate::abi::{AccessDesc, AllocationProp, Answer, Location, code, get, put};
use crate::capture;
use crate::config;
use crate::entry::spend;
use crate::memory::{self, Kind, Memory, Owner, arena};
use crate::report;
use crate::state::{self, IdMap};
use std::collections::BTreeMap;
use std::time::Duration;

struct Handle {
    device: usize,
    at: u64,
    len: u64,
    mappings: u32,
    released: bool,
    rdma: bool,
}

/// Reservations and physical handles of the process.
#[derive(Default)]
pub(crate) struct Vmm {
    reservations: BTreeMap<u64, u64>,
    handles: IdMap<Handle>,
    next: u64,
}

const PAGE: u64 = arena::PAGE;

fn whole(value: u64) -> bool {
    value != 0 && value.is_multiple_of(PAGE)
}

/// The reservation that covers a range.
fn reserved(m: &Memory, at: u64, len: u64) -> bool {
    m.vmm
        .reservations
        .range(..=at)
        .next_back()
        .is_some_and(|(b, n)| at.checked_add(len).is_some_and(|end| end <= b + n))
}

fn give_if_unused(m: &mut Memory, handle: u64) {
    if let Some(h) = m.vmm.handles.get(&handle)
        && h.released
        && h.mappings == 0
        && let Some(h) = m.vmm.handles.remove(&handle)
    {
        m.give_pages(h.device, h.at, h.len);
    }
}

/// The mappings that make up exactly [at, at + len).
fn mappings(m: &Memory, at: u64, len: u64) -> Result<Vec<(u64, u64)>, i32> {
    let end = at.checked_add(len).ok_or(code::INVALID_VALUE)?;
    let mut next = at;
    let mut all = Vec::new();
    while next < end {
        let a = m.allocs.get(&next).ok_or(code::INVALID_VALUE)?;
        let Kind::Vmm(handle) = a.kind else {
            return Err(code::INVALID_VALUE);
        };
        all.push((next, handle));
        next += a.size;
    }
    if next == end {
        Ok(all)
    } else {
        Err(code::INVALID_VALUE)
    }
}

pub(crate) fn reserve(out: *mut u64, size: u64, align: u64, hint: u64, flags: u64) -> Answer {
    if out.is_null() || !whole(size) || flags != 0 || (align != 0 && !align.is_power_of_two()) {
        return Err(code::INVALID_VALUE);
    }
    let base = arena::reserve(size, align, hint).ok_or(code::OUT_OF_MEMORY)?;
    memory::lock().vmm.reservations.insert(base, size);
    put(out, base)
}

pub(crate) fn unreserve(at: u64, size: u64) -> Answer {
    let mut m = memory::lock();
    let mapped = m.allocs.range(at..at.saturating_add(size)).next().is_some();
    if m.vmm.reservations.get(&at) != Some(&size) || mapped {
        return Err(code::INVALID_VALUE);
    }
    m.vmm.reservations.remove(&at);
    arena::unreserve(at, size);
    Ok(())
}

pub(crate) fn create(out: *mut u64, size: u64, prop: *const AllocationProp, flags: u64) -> Answer {
    let prop = get(prop)?;
    if out.is_null() || !whole(size) || flags != 0 || prop.kind != 1 || prop.location.kind != 1 {
        return Err(code::INVALID_VALUE);
    }
    let device = prop.location.id as usize;
    if device >= config::get().devices {
        return Err(code::INVALID_DEVICE);
    }
    spend(Duration::from_micros(7));
    let mut m = memory::lock();
    m.collect();
    let (at, len) = m.take_pages(device, size)?;
    m.vmm.next += 1;
    let handle = 0x1000 + m.vmm.next;
    m.vmm.handles.insert(
        handle,
        Handle {
            device,
            at,
            len,
            mappings: 0,
            released: false,
            // gpuDirectRDMACapable, behind compressionType.
            rdma: prop.flags[1] != 0,
        },
    );
    put(out, handle)
}

pub(crate) fn release(handle: u64) -> Answer {
    capture::unsafe_call(&mut state::lock())?;
    spend(Duration::from_micros(9));
    let mut m = memory::lock();
    let h = m.vmm.handles.get_mut(&handle).ok_or(code::INVALID_VALUE)?;
    if std::mem::replace(&mut h.released, true) {
        return Err(code::INVALID_VALUE);
    }
    give_if_unused(&mut m, handle);
    Ok(())
}

pub(crate) fn map(at: u64, size: u64, offset: u64, handle: u64, flags: u64) -> Answer {
    if !whole(at) || !whole(size) || !offset.is_multiple_of(PAGE) || flags != 0 {
        return Err(code::INVALID_VALUE);
    }
    spend(Duration::from_nanos(600));
    let mut m = memory::lock();
    let h = m
        .vmm
        .handles
        .get(&handle)
        .filter(|h| !h.released)
        .ok_or(code::INVALID_VALUE)?;
    let (device, page, rdma) = (h.device, h.at + offset, h.rdma);
    if offset.checked_add(size).is_none_or(|end| end > h.len) || !reserved(&m, at, size) {
        return Err(code::INVALID_VALUE);
    }
    if m.allocs
        .range(..at + size)
        .next_back()
        .is_some_and(|(b, a)| b + a.size > at)
    {
        return Err(code::ALREADY_MAPPED);
    }
    let a = &m.devices[device].arena;
    if !arena::map_over(at, size, a.fd, page - a.base) {
        return Err(code::OUT_OF_MEMORY);
    }
    // Such memory belongs to the device, not to a context.
    let owner = Owner {
        ctx: 0,
        ctx_handle: 0,
        device,
    };
    m.insert(owner, at, size, Kind::Vmm(handle), (at, size));
    if let Some(a) = m.allocs.get_mut(&at) {
        a.rdma = rdma;
    }
    if let Some(h) = m.vmm.handles.get_mut(&handle) {
        h.mappings += 1;
    }
    Ok(())
}

pub(crate) fn unmap(at: u64, size: u64) -> Answer {
    capture::unsafe_call(&mut state::lock())?;
    let mut m = memory::lock();
    let all = mappings(&m, at, size)?;
    if m.owners.has_pending(at, size) {
        report::violation(
            "unmapped-in-use",
            &format!("{size} bytes at {at:#x} unmapped while work on them is pending"),
        );
    }
    for (base, handle) in &all {
        spend(Duration::from_micros(13));
        m.release(*base, true);
        if let Some(h) = m.vmm.handles.get_mut(handle) {
            h.mappings -= 1;
        }
        give_if_unused(&mut m, *handle);
    }
    arena::unmap_over(at, size);
    Ok(())
}

pub(crate) fn set_access(at: u64, size: u64, desc: *const AccessDesc, count: usize) -> Answer {
    if count == 0 || desc.is_null() {
        return Err(code::INVALID_VALUE);
    }
    let mut set = Vec::new();
    for i in 0..count {
        // SAFETY: the program passes `count` descriptions.
        let desc = unsafe { desc.add(i).read_unaligned() };
        let device = desc.location.id as usize;
        let known = desc.location.kind == 1 && device < config::get().devices;
        if !known || !matches!(desc.flags, 0 | 1 | 3) {
            return Err(code::INVALID_VALUE);
        }
        set.push((1 << device, desc.flags == 3));
    }
    let mut m = memory::lock();
    for (base, _) in mappings(&m, at, size)? {
        spend(Duration::from_micros(19));
        if let Some(a) = m.allocs.get_mut(&base) {
            for (device, allowed) in &set {
                a.access = if *allowed {
                    a.access | device
                } else {
                    a.access & !device
                };
            }
        }
    }
    Ok(())
}

/// Answers for memory of any kind that is not freed (seen on an H200).
pub(crate) fn get_access(flags: *mut u64, location: *const Location, at: u64) -> Answer {
    const READ_WRITE: u64 = 3;
    let location = get(location)?;
    if location.kind != 1 {
        return Err(code::INVALID_VALUE);
    }
    let m = memory::lock();
    let found = m.find_live(at).ok_or(code::INVALID_VALUE)?;
    let accessible = found.access >> (location.id & 63) & 1 != 0;
    put(flags, if accessible { READ_WRITE } else { 0 })
}

pub(crate) fn granularity(out: *mut usize, prop: *const AllocationProp) -> Answer {
    let prop = get(prop)?;
    if prop.kind != 1 {
        return Err(code::INVALID_VALUE);
    }
    put(out, PAGE as usize)
}
