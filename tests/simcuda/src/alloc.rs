//! cuMemAlloc, cuMemFree and their relatives for device, pinned and managed
//! memory.

use crate::abi::{Answer, code, put, put_opt};
use crate::capture;
use crate::config;
use crate::entry::spend;
use crate::memory::{self, Kind, arena::round_up};
use crate::state;
use crate::stream;
use crate::task;
use std::sync::Mutex;
use std::time::Duration;

/// The driver serialises allocation calls of all threads (measured: a pair
/// takes 75 µs in one thread and 1,050 µs in each of 16).
static SERIAL: Mutex<()> = Mutex::new(());

fn spend_serially(time: Duration) {
    if config::get().cost {
        let _one = SERIAL.lock().unwrap_or_else(|e| e.into_inner());
        spend(time);
    }
}

/// The medians measured on an H200 for 2 MiB, 16 MiB, 100 MiB, 1 GiB and
/// 8 GiB, over the cost of a small call, in µs: (MiB, alloc, free).
const COSTS: &[(u64, u64, u64)] = &[
    (2, 0, 0),
    (16, 1, 7),
    (100, 21, 34),
    (1024, 65, 285),
    (8192, 465, 3244),
];

fn extra(size: u64, free: bool) -> Duration {
    let pick = |c: &(u64, u64, u64)| if free { c.2 } else { c.1 };
    let mib = size >> 20;
    let mut last = &COSTS[0];
    for c in COSTS {
        if mib <= c.0 {
            let span = (c.0 - last.0).max(1);
            let part = mib.saturating_sub(last.0);
            return Duration::from_micros(pick(last) + (pick(c) - pick(last)) * part / span);
        }
        last = c;
    }
    Duration::from_micros(pick(last) * mib / last.0)
}

/// Pinned memory: 456 µs for 4 KiB and 34 ms for 100 MiB, to free it 195 µs
/// and 8.6 ms.
fn host_cost(size: u64, free: bool) -> Duration {
    let (base, per_mib) = if free { (195, 84) } else { (456, 335) };
    Duration::from_micros(base + per_mib * (size >> 10) / 1024)
}

pub(crate) fn alloc(out: *mut u64, size: u64) -> Answer {
    let owner = {
        let mut core = state::lock();
        let owner = core.owner()?;
        if out.is_null() || size == 0 {
            return Err(code::INVALID_VALUE);
        }
        capture::unsafe_call(&mut core)?;
        owner
    };
    spend_serially(config::get().alloc_cost + extra(size.min(1 << 40), false));
    let base = memory::lock().alloc(owner, size, Kind::Device);
    // What does not fit leaves 0 in the output (measured on an H200).
    put(out, *base.as_ref().unwrap_or(&0))?;
    base.map(|_| ())
}

/// Where a texture-aligned row begins: the driver rounds widths up to a
/// multiple of 512 bytes.
const PITCH: u64 = 512;

pub(crate) fn alloc_pitch(
    out: *mut u64,
    pitch_out: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Answer {
    state::lock().owner()?;
    if out.is_null()
        || pitch_out.is_null()
        || width == 0
        || height == 0
        || !matches!(element, 4 | 8 | 16)
    {
        return Err(code::INVALID_VALUE);
    }
    let pitch = round_up(width as u64, PITCH).ok_or(code::INVALID_VALUE)?;
    let size = pitch
        .checked_mul(height as u64)
        .ok_or(code::OUT_OF_MEMORY)?;
    let mut base = 0;
    alloc(&mut base, size)?;
    put(pitch_out, pitch as usize)?;
    put(out, base)
}

/// The common part of all frees that wait: takes the allocation away from the
/// program, waits for all work of its context while other threads' launches
/// are held back, and gives the memory back.
fn free_when_idle(base: u64, accept: impl Fn(Kind) -> bool, cost: fn(u64) -> Duration) -> Answer {
    let (ctx, pending, size, id) = {
        let mut core = state::lock();
        // A fault of the current context is what every call answers.
        if state::current_handle() != 0 {
            core.current()?;
        }
        // Before the pointer is looked at: a free of garbage in a capture gives
        // 900 too (measured on an H200).
        capture::unsafe_call(&mut core)?;
        let (ctx, size, id) = {
            let m = memory::lock();
            match m
                .find_live(base)
                .filter(|a| a.base == base && accept(a.kind))
            {
                Some(a) => (a.ctx, a.size, a.buffer_id),
                None => {
                    m.complain_if_freed(base);
                    return Err(code::INVALID_VALUE);
                }
            }
        };
        core.usable(ctx)?;
        if let Some(a) = memory::lock().allocs.get_mut(&base) {
            a.live = false;
        }
        let pending = stream::context_frontier(&core, ctx)?;
        if !pending.is_empty() {
            core.context_mut(ctx)?.closed += 1;
        }
        (ctx, pending, size, id)
    };
    if !pending.is_empty() {
        task::wait_all(&pending);
        let mut core = state::lock();
        if let Ok(c) = core.context_mut(ctx) {
            c.closed -= 1;
        }
        state::REOPENED.notify_all();
    }
    spend_serially(cost(size));
    {
        let mut m = memory::lock();
        // The context may have been reset meanwhile, and its memory with it.
        match m
            .allocs
            .get(&base)
            .filter(|a| a.buffer_id == id)
            .map(|a| a.kind)
        {
            Some(Kind::Async(pool)) => crate::pools::give_back(&mut m, pool, base, Vec::new(), 0),
            Some(_) => m.release(base, true),
            None => {}
        }
        m.collect();
        crate::pools::trim_after_synchronize(&mut m);
    }
    state::lock().usable(ctx)
}

pub(crate) fn free(ptr: u64) -> Answer {
    if ptr == 0 {
        let core = state::lock();
        return if state::current_handle() == 0 {
            Ok(())
        } else {
            core.current().map(|_| ())
        };
    }
    free_when_idle(
        ptr,
        |k| matches!(k, Kind::Device | Kind::Async(_) | Kind::Managed),
        |size| config::get().free_cost + extra(size, true),
    )
}

/// The old 32-bit forms exist, but no memory lies where they could name it.
pub(crate) fn alloc_old() -> Answer {
    Err(code::OUT_OF_MEMORY)
}

/// The old 32-bit forms: no such pointer exists.
pub(crate) fn pointer_old() -> Answer {
    Err(code::INVALID_VALUE)
}

pub(crate) fn get_info(free: *mut usize, total: *mut usize) -> Answer {
    let owner = state::lock().owner()?;
    if free.is_null() || total.is_null() {
        return Err(code::INVALID_VALUE);
    }
    let mut m = memory::lock();
    m.collect();
    let all = config::get().shown;
    put(
        free,
        all.saturating_sub(m.devices[owner.device].used) as usize,
    )?;
    put(total, all as usize)
}

pub(crate) fn address_range(base: *mut u64, size: *mut usize, ptr: u64) -> Answer {
    state::lock().current()?;
    let m = memory::lock();
    let a = m.find_live(ptr).ok_or(code::NOT_FOUND)?;
    put_opt(base, a.base);
    put_opt(size, a.size as usize);
    Ok(())
}

pub(crate) fn alloc_managed(out: *mut u64, size: u64, flags: u32) -> Answer {
    let owner = {
        let mut core = state::lock();
        let owner = core.owner()?;
        if out.is_null() || size == 0 || !matches!(flags, 1 | 2) {
            return Err(code::INVALID_VALUE);
        }
        capture::unsafe_call(&mut core)?;
        owner
    };
    spend_serially(config::get().alloc_cost);
    let base = memory::lock().alloc_host(owner, size, Kind::Managed)?;
    put(out, base)
}

pub(crate) fn host_alloc(out: *mut u64, size: u64, flags: u32) -> Answer {
    let owner = {
        let mut core = state::lock();
        let owner = core.owner()?;
        if out.is_null() || size == 0 || flags > 7 {
            return Err(code::INVALID_VALUE);
        }
        capture::unsafe_call(&mut core)?;
        owner
    };
    spend_serially(host_cost(size.min(1 << 34), false));
    let base = memory::lock().alloc_host(owner, size, Kind::Host(flags))?;
    put(out, base)
}

pub(crate) fn host_free(ptr: u64) -> Answer {
    free_when_idle(
        ptr,
        |k| matches!(k, Kind::Host(_)),
        |size| host_cost(size, true),
    )
}

pub(crate) fn host_device_pointer(out: *mut u64, host: u64, flags: u32) -> Answer {
    state::lock().current()?;
    let m = memory::lock();
    match m.find_live(host).map(|a| a.kind) {
        Some(Kind::Host(_) | Kind::Registered(_) | Kind::Managed) if flags == 0 => put(out, host),
        _ => Err(code::INVALID_VALUE),
    }
}

pub(crate) fn host_flags(out: *mut u32, host: u64) -> Answer {
    match memory::lock().find_live(host).map(|a| a.kind) {
        Some(Kind::Host(flags) | Kind::Registered(flags)) => put(out, flags),
        _ => Err(code::INVALID_VALUE),
    }
}

pub(crate) fn host_register(ptr: u64, size: u64, flags: u32) -> Answer {
    let owner = {
        let mut core = state::lock();
        let owner = core.owner()?;
        if ptr == 0 || size == 0 || flags > 15 {
            return Err(code::INVALID_VALUE);
        }
        capture::unsafe_call(&mut core)?;
        owner
    };
    let mut m = memory::lock();
    let end = ptr.checked_add(size).ok_or(code::INVALID_VALUE)?;
    let before = m.allocs.range(..end).next_back();
    if before.is_some_and(|(b, a)| b + a.size > ptr) {
        return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    m.insert(owner, ptr, size, Kind::Registered(flags), (ptr, size));
    Ok(())
}

pub(crate) fn host_unregister(ptr: u64) -> Answer {
    match memory::lock().allocs.get(&ptr).map(|a| (a.kind, a.live)) {
        Some((Kind::Registered(_), true)) => {}
        _ => return Err(code::HOST_MEMORY_NOT_REGISTERED),
    }
    free_when_idle(
        ptr,
        |k| matches!(k, Kind::Registered(_)),
        |_| Duration::ZERO,
    )
}
