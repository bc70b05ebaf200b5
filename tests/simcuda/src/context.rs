//! Contexts: primary, created and green ones, and the thread's current one.

use crate::abi::{Answer, code, put};
use crate::capture;
use crate::config;
use crate::memory;
use crate::state::{self, Context, Core, Life, StreamKind, primary_handle};
use crate::stream;
use crate::task;
use crate::work::Switch;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn device_of(device: i32) -> Result<usize, i32> {
    usize::try_from(device)
        .ok()
        .filter(|d| *d < config::get().devices)
        .ok_or(code::INVALID_DEVICE)
}

/// Makes a context; gives its id.
fn make(
    core: &mut Core,
    handle: u64,
    device: usize,
    primary: bool,
    parent: Option<u64>,
    flags: u32,
) -> u64 {
    let id = core.context_id();
    let switch = parent
        .and_then(|p| core.contexts.get(&p))
        .map_or_else(|| Switch::new(device), |p| p.switch.clone());
    core.contexts.insert(
        id,
        Context {
            id,
            handle,
            device,
            primary,
            parent,
            life: Life::Active,
            ending: false,
            flags,
            streams: Vec::new(),
            legacy: 0,
            per_thread: HashMap::new(),
            orphans: Vec::new(),
            barrier: Vec::new(),
            closed: 0,
            peers: HashSet::new(),
            limits: BTreeMap::from([
                (0, 1024),
                (1, 7 << 20),
                (2, 8 << 20),
                (3, 2),
                (4, 2048),
                (5, 64),
                (6, 0),
            ]),
            stacks: None,
            switch,
        },
    );
    core.by_handle.insert(handle, id);
    if parent.is_none() {
        let legacy = core.add_stream(id, None, StreamKind::Legacy, 0, 0);
        if let Some(c) = core.contexts.get_mut(&id) {
            c.legacy = legacy;
        }
    }
    id
}

/// What ending a context takes beside waiting for its work.
const END_COST: Duration = Duration::from_millis(1);

/// Ends a context: its work is cut short, its memory and streams are gone.
fn end(id: u64, life: Life) {
    let mut core = state::lock();
    let Some(c) = core.contexts.get_mut(&id) else {
        return;
    };
    c.life = life;
    c.ending = true;
    let (handle, green, device) = (c.handle, c.parent.is_some(), c.device);
    core.by_handle.remove(&handle);
    if !green {
        if let Some(c) = core.contexts.get(&id) {
            c.switch.stop();
        }
        let pending = stream::context_frontier(&core, id).unwrap_or_default();
        drop(core);
        task::wait_all(&pending);
        crate::entry::spend(END_COST);
        core = state::lock();
        capture::context_gone(&mut core, id);
        let streams = core
            .contexts
            .get(&id)
            .map(|c| c.streams.clone())
            .unwrap_or_default();
        for s in streams {
            stream::remove(&mut core, s);
        }
        memory::lock().release_context(id, device);
        // Green contexts on it go too.
        let greens: Vec<u64> = core
            .contexts
            .values()
            .filter(|c| c.parent == Some(id) && c.life == Life::Active)
            .map(|c| c.id)
            .collect();
        for g in greens {
            if let Some(c) = core.contexts.get_mut(&g) {
                c.life = life;
                let h = c.handle;
                core.by_handle.remove(&h);
            }
        }
    }
    if let Some(c) = core.contexts.get_mut(&id) {
        c.ending = false;
    }
    state::REOPENED.notify_all();
}

pub(crate) fn create(out: *mut u64, flags: u32, device: i32) -> Answer {
    let device = device_of(device)?;
    if out.is_null() {
        return Err(code::INVALID_VALUE);
    }
    let mut core = state::lock();
    if core.primaries[device].spoilt {
        return Err(code::DEVICE_UNAVAILABLE);
    }
    // Handles of contexts come again, as addresses do.
    let handle = match core.free_handles.pop() {
        Some(h) => h,
        None => core.handle(),
    };
    make(&mut core, handle, device, false, None, flags);
    state::push_current(handle)?;
    put(out, handle)
}

pub(crate) fn destroy(handle: u64) -> Answer {
    let id = {
        let core = state::lock();
        let id = *core.by_handle.get(&handle).ok_or(code::INVALID_CONTEXT)?;
        let c = core.context(id)?;
        if c.primary || c.parent.is_some() {
            return Err(code::INVALID_CONTEXT);
        }
        id
    };
    end(id, Life::Destroyed);
    if state::current_handle() == handle {
        state::pop_current();
    }
    state::lock().free_handles.push(handle);
    Ok(())
}

pub(crate) fn push(handle: u64) -> Answer {
    let known = state::lock().by_handle.contains_key(&handle);
    if !known {
        return Err(code::INVALID_CONTEXT);
    }
    state::push_current(handle)
}

pub(crate) fn pop(out: *mut u64) -> Answer {
    let h = state::pop_current().ok_or(code::INVALID_CONTEXT)?;
    crate::abi::put_opt(out, h);
    Ok(())
}

pub(crate) fn set_current(handle: u64) -> Answer {
    if handle != 0 && !state::lock().by_handle.contains_key(&handle) {
        return Err(code::INVALID_CONTEXT);
    }
    state::set_current(handle);
    Ok(())
}

pub(crate) fn get_current(out: *mut u64) -> Answer {
    put(out, state::current_handle())
}

/// The context behind the current handle, whatever its state but gone.
fn current_context(core: &Core) -> Result<&Context, i32> {
    let handle = state::current_handle();
    let id = *core.by_handle.get(&handle).ok_or(code::INVALID_CONTEXT)?;
    core.context(id)
}

pub(crate) fn get_device(out: *mut i32) -> Answer {
    let core = state::lock();
    let device = match current_context(&core) {
        Ok(context) => context.device,
        // Of a primary context that was reset after a kernel fault the device
        // can still be asked for, and nothing else (seen on an H200).
        Err(error) => {
            let handle = state::current_handle();
            core.contexts
                .values()
                .find(|c| c.handle == handle && c.primary && core.primaries[c.device].spoilt)
                .map(|c| c.device)
                .ok_or(error)?
        }
    };
    put(out, device as i32)
}

/// The form for any context; NULL is the current one.
pub(crate) fn device_of_context(out: *mut i32, handle: u64) -> Answer {
    if handle == 0 {
        return get_device(out);
    }
    let core = state::lock();
    let id = core.resolve(handle)?;
    put(out, core.context(id)?.device as i32)
}

pub(crate) fn get_flags(out: *mut u32) -> Answer {
    let core = state::lock();
    put(out, current_context(&core)?.flags)
}

#[cfg_attr(feature = "old-driver", allow(dead_code))]
pub(crate) fn get_id(handle: u64, out: *mut u64) -> Answer {
    let core = state::lock();
    let handle = if handle == 0 {
        state::current_handle()
    } else {
        handle
    };
    let id = *core.by_handle.get(&handle).ok_or(code::INVALID_CONTEXT)?;
    put(out, id)
}

pub(crate) fn get_api_version(handle: u64, out: *mut u32) -> Answer {
    let core = state::lock();
    if handle != 0 && !core.by_handle.contains_key(&handle) {
        return Err(code::INVALID_CONTEXT);
    }
    put(out, 3020)
}

pub(crate) fn get_limit(out: *mut usize, limit: u32) -> Answer {
    let core = state::lock();
    let c = core.context(core.current()?)?;
    put(out, *c.limits.get(&limit).ok_or(code::UNSUPPORTED_LIMIT)?)
}

pub(crate) fn set_limit(limit: u32, value: usize) -> Answer {
    /// CU_LIMIT_STACK_SIZE, its value at the start, and the threads that can
    /// run at once: each has a stack in the device's memory.
    const STACK: (u32, usize, u64) = (0, 1024, 132 * 2048);
    let mut core = state::lock();
    let owner = core.owner()?;
    let id = core.current()?;
    let c = core.context_mut(id)?;
    if !c.limits.contains_key(&limit) {
        return Err(code::UNSUPPORTED_LIMIT);
    }
    if limit == STACK.0 {
        let mut m = memory::lock();
        let more = value.saturating_sub(STACK.1) as u64 * STACK.2;
        let made = match more {
            0 => None,
            _ => Some(m.alloc(owner, more, memory::Kind::Array)?),
        };
        if let Some(old) = std::mem::replace(&mut c.stacks, made) {
            m.release(old, false);
        }
    }
    c.limits.insert(limit, value);
    Ok(())
}

pub(crate) fn priority_range(least: *mut i32, greatest: *mut i32) -> Answer {
    state::lock().current()?;
    crate::abi::put_opt(least, 0);
    crate::abi::put_opt(greatest, -5);
    Ok(())
}

/// Waits for a context, by handle, or (0) the current one.
pub(crate) fn synchronize(handle: u64) -> Answer {
    let (ctx, pending) = {
        let mut core = state::lock();
        let any = if handle == 0 {
            core.current_any()?
        } else {
            core.resolve(handle)?
        };
        let ctx = core.context(any)?.parent.unwrap_or(any);
        capture::context_call(&mut core, ctx)?;
        (ctx, stream::context_frontier(&core, any)?)
    };
    task::wait_all(&pending);
    stream::after_synchronize();
    state::lock().usable(ctx)
}

pub(crate) fn primary_retain(out: *mut u64, device: i32) -> Answer {
    let device = device_of(device)?;
    if out.is_null() {
        return Err(code::INVALID_VALUE);
    }
    let mut core = state::lock();
    if core.primaries[device].spoilt {
        return Err(code::DEVICE_UNAVAILABLE);
    }
    if core.primaries[device].active.is_none() {
        let flags = core.primaries[device].flags;
        let id = make(&mut core, primary_handle(device), device, true, None, flags);
        core.primaries[device].active = Some(id);
    }
    core.primaries[device].retained += 1;
    put(out, primary_handle(device))
}

/// Makes the primary context inactive.
fn deactivate(device: usize) {
    let id = {
        let mut core = state::lock();
        let p = &mut core.primaries[device];
        p.retained = 0;
        let Some(id) = p.active.take() else { return };
        // After a kernel fault the device stays unavailable to this process
        // (measured: cudaDeviceReset answers 0, the next cudaMalloc 46).
        let fault = core.context(id).is_ok_and(|c| c.switch.fault() != 0);
        core.primaries[device].spoilt |= fault;
        id
    };
    end(id, Life::Inactive);
}

pub(crate) fn primary_release(device: i32) -> Answer {
    let device = device_of(device)?;
    let last = {
        let mut core = state::lock();
        let p = &mut core.primaries[device];
        if p.retained == 0 {
            return Err(code::INVALID_CONTEXT);
        }
        p.retained -= 1;
        p.retained == 0
    };
    if last {
        deactivate(device);
    }
    Ok(())
}

pub(crate) fn primary_reset(device: i32) -> Answer {
    deactivate(device_of(device)?);
    Ok(())
}

pub(crate) fn primary_set_flags(device: i32, flags: u32) -> Answer {
    let device = device_of(device)?;
    if flags > 0xff {
        return Err(code::INVALID_VALUE);
    }
    let mut core = state::lock();
    core.primaries[device].flags = flags;
    if let Some(id) = core.primaries[device].active
        && let Ok(c) = core.context_mut(id)
    {
        c.flags = flags;
    }
    Ok(())
}

pub(crate) fn primary_state(device: i32, flags: *mut u32, active: *mut i32) -> Answer {
    let device = device_of(device)?;
    let core = state::lock();
    let p = &core.primaries[device];
    put(flags, p.flags)?;
    put(active, i32::from(p.active.is_some()))
}

pub(crate) fn enable_peer(peer: u64, flags: u32) -> Answer {
    let mut core = state::lock();
    let me = core.current()?;
    let other = core.resolve(peer)?;
    let (mine, theirs) = (core.context(me)?.device, core.context(other)?.device);
    if flags != 0 {
        return Err(code::INVALID_VALUE);
    }
    if mine == theirs {
        return Err(code::PEER_ACCESS_UNSUPPORTED);
    }
    let c = core.context_mut(me)?;
    if !c.peers.insert(theirs) {
        return Err(code::PEER_ACCESS_ALREADY_ENABLED);
    }
    c.switch.peers.fetch_or(1 << theirs, Ordering::Relaxed);
    Ok(())
}

/// Every context has one user here, so that this ends it.
pub(crate) fn detach(handle: u64) -> Answer {
    if handle != state::current_handle() {
        return Err(code::INVALID_CONTEXT);
    }
    destroy(handle)
}

pub(crate) fn disable_peer(peer: u64) -> Answer {
    let mut core = state::lock();
    let me = core.current()?;
    let other = core.resolve(peer)?;
    let theirs = core.context(other)?.device;
    let c = core.context_mut(me)?;
    if !c.peers.remove(&theirs) {
        return Err(code::PEER_ACCESS_NOT_ENABLED);
    }
    c.switch.peers.fetch_and(!(1 << theirs), Ordering::Relaxed);
    Ok(())
}

/// A green context needs no more than that the device is there: all of its
/// multiprocessors are simulated anyway.
pub(crate) fn green_create(out: *mut u64, desc: u64, device: i32, flags: u32) -> Answer {
    // CU_GREEN_CTX_DEFAULT_STREAM has to be given.
    if out.is_null() || desc == 0 || flags != 1 {
        return Err(code::INVALID_VALUE);
    }
    let mut primary = 0;
    primary_retain(&mut primary, device)?;
    let device = device_of(device)?;
    let mut core = state::lock();
    let parent = core.resolve(primary)?;
    let handle = match core.free_handles.pop() {
        Some(h) => h,
        None => core.handle(),
    };
    make(&mut core, handle, device, false, Some(parent), 0);
    put(out, handle)
}

pub(crate) fn green_destroy(handle: u64) -> Answer {
    let (id, device) = {
        let core = state::lock();
        let id = *core.by_handle.get(&handle).ok_or(code::INVALID_CONTEXT)?;
        let c = core.context(id)?;
        if c.parent.is_none() {
            return Err(code::INVALID_CONTEXT);
        }
        (id, c.device)
    };
    end(id, Life::Destroyed);
    state::lock().free_handles.push(handle);
    primary_release(device as i32)
}

/// The two kinds of handle are the same here.
pub(crate) fn from_green(out: *mut u64, green: u64) -> Answer {
    state::lock().resolve(green)?;
    put(out, green)
}
