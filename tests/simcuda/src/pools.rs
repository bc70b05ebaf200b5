//! Memory pools: cuMemAllocAsync and the cuMemPool calls.
//!
//! A block freed in a stream's order may be handed out again in that stream
//! at once, and elsewhere when the free has been reached. At a
//! synchronisation the pool keeps no more than its release threshold.

use crate::abi::{Answer, PoolProps, code, get, put};
use crate::capture;
use crate::config;
use crate::memory::{self, Kind, Memory, Owner, arena::round_up, small};
use crate::state::{self, IdMap};
use crate::stream;
use crate::task::{self, Frontier};
use crate::work::Work;

struct Cached {
    base: u64,
    len: u64,
    after: Frontier,
    stream: u64,
}

struct Pool {
    device: usize,
    threshold: u64,
    reuse: [i32; 3],
    cached: Vec<Cached>,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    max: u64,
}

/// All pools of the process.
#[derive(Default)]
pub(crate) struct Pools {
    list: IdMap<Pool>,
    current: IdMap<u64>,
    next: u64,
}

const DEFAULTS: u64 = 0x5604_0000_0000;
const CREATED: u64 = 0x5605_0000_0000;

pub(crate) fn length(size: u64) -> Result<u64, i32> {
    let step = if size <= small::LARGEST {
        small::STEP
    } else {
        memory::arena::PAGE
    };
    round_up(size, step).ok_or(code::OUT_OF_MEMORY)
}

fn new_pool(device: usize, max: u64) -> Pool {
    Pool {
        device,
        threshold: 0,
        reuse: [1; 3],
        cached: Vec::new(),
        used: 0,
        used_high: 0,
        reserved: 0,
        reserved_high: 0,
        max,
    }
}

fn default_pool(m: &mut Memory, device: usize) -> u64 {
    let handle = DEFAULTS + device as u64 * 0x40;
    m.pools
        .list
        .entry(handle)
        .or_insert_with(|| new_pool(device, 0));
    handle
}

fn valid(device: i32) -> Result<usize, i32> {
    usize::try_from(device)
        .ok()
        .filter(|d| *d < config::get().devices)
        .ok_or(code::INVALID_DEVICE)
}

/// Drops idle blocks until no more than `keep` bytes are reserved.
fn trim(m: &mut Memory, pool: u64, keep: u64) {
    loop {
        let Some(p) = m.pools.list.get_mut(&pool) else {
            return;
        };
        if p.reserved <= keep {
            return;
        }
        let Some(i) = p.cached.iter().position(|c| task::all_done(&c.after)) else {
            return;
        };
        let c = p.cached.swap_remove(i);
        p.reserved -= c.len;
        m.release(c.base, true);
    }
}

/// A context is gone: what it had from pools comes back, and idle blocks go.
pub(crate) fn context_gone(m: &mut Memory, ctx: u64, device: usize) {
    let held: Vec<(u64, u64)> = m
        .allocs
        .values()
        .filter(|a| a.live && a.ctx == ctx)
        .filter_map(|a| Some((a.base, handle_of(a.kind)?)))
        .collect();
    for (base, pool) in held {
        give_back(m, pool, base, Frontier::new(), 0);
    }
    let list = m.pools.list.iter();
    let pools: Vec<u64> = list
        .filter(|(_, p)| p.device == device)
        .map(|(h, _)| *h)
        .collect();
    for pool in pools {
        trim(m, pool, 0);
    }
}

/// What a synchronisation does to every pool.
pub(crate) fn trim_after_synchronize(m: &mut Memory) {
    if m.pools
        .list
        .values()
        .all(|p| p.reserved <= p.threshold || p.cached.is_empty())
    {
        return;
    }
    let all: Vec<(u64, u64)> = m
        .pools
        .list
        .iter()
        .map(|(h, p)| (*h, p.threshold))
        .collect();
    for (pool, keep) in all {
        trim(m, pool, keep);
    }
}

/// A block comes back to its pool; it may be used again after `after`, or at
/// once in the same stream.
pub(crate) fn give_back(m: &mut Memory, pool: u64, base: u64, after: Frontier, stream: u64) {
    let Some(a) = m.allocs.get_mut(&base) else {
        return;
    };
    a.live = false;
    let len = length(a.size).unwrap_or(a.size);
    match m.pools.list.get_mut(&pool) {
        Some(p) => {
            p.used -= len.min(p.used);
            p.cached.push(Cached {
                base,
                len,
                after,
                stream,
            });
        }
        None => m.release(base, true),
    }
}

/// Takes a block from a pool, or new memory for it.
fn take(m: &mut Memory, owner: Owner, pool: u64, size: u64, stream: u64) -> Result<u64, i32> {
    let len = length(size)?;
    let p = m.pools.list.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
    if p.max != 0 && p.used + len > p.max {
        return Err(code::OUT_OF_MEMORY);
    }
    let owner = Owner {
        device: p.device,
        ..owner
    };
    let fits = |c: &Cached| c.len == len && (c.stream == stream || task::all_done(&c.after));
    if let Some(i) = p.cached.iter().position(fits) {
        let c = p.cached.swap_remove(i);
        let id = m.buffer_id();
        if let Some(a) = m.allocs.get_mut(&c.base) {
            a.size = size;
            a.buffer_id = id;
            a.ctx = owner.ctx;
            a.ctx_handle = owner.ctx_handle;
            a.live = true;
            a.sync_memops = false;
        }
        count(m, pool, len, 0);
        return Ok(c.base);
    }
    let base = match m.alloc(owner, size, Kind::Async(pool)) {
        Err(code::OUT_OF_MEMORY) => {
            trim(m, pool, 0);
            m.alloc(owner, size, Kind::Async(pool))?
        }
        other => other?,
    };
    count(m, pool, len, len);
    Ok(base)
}

fn count(m: &mut Memory, pool: u64, used: u64, reserved: u64) {
    if let Some(p) = m.pools.list.get_mut(&pool) {
        p.used += used;
        p.reserved += reserved;
        p.used_high = p.used_high.max(p.used);
        p.reserved_high = p.reserved_high.max(p.reserved);
    }
}

pub(crate) fn alloc_async(out: *mut u64, size: u64, pool: Option<u64>, stream: u64) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    if out.is_null() || size == 0 {
        return Err(code::INVALID_VALUE);
    }
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    let (capturing, ctx) = (s.capture, s.ctx);
    let c = core.context(ctx)?;
    let owner = Owner {
        ctx,
        ctx_handle: c.handle,
        device: c.device,
    };
    let mut m = memory::lock();
    let pool = match pool {
        Some(p) => p,
        None => match m.pools.current.get(&(owner.device as u64)) {
            Some(p) => *p,
            None => default_pool(&mut m, owner.device),
        },
    };
    let base = take(&mut m, owner, pool, size, handle)?;
    drop(m);
    if let Some(id) = capturing {
        // An allocation node: the address is fixed now, and the memory is the
        // graph's until that is destroyed.
        capture::add(&mut core, handle, Work::Empty)?;
        let graph = capture::graph_of(&core, id)?;
        let id = memory::lock().allocs.get(&base).map_or(0, |a| a.buffer_id);
        if let Some(g) = core.graphs.get_mut(&graph) {
            g.memory.push((base, id));
        }
    }
    put(out, base)
}

pub(crate) fn free_async(ptr: u64, stream: u64) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    if ptr == 0 {
        return Ok(());
    }
    let ordered = memory::lock()
        .find_live(ptr)
        .is_some_and(|a| a.base == ptr && matches!(a.kind, Kind::Async(_)));
    let capturing = core
        .streams
        .get(&handle)
        .is_some_and(|s| s.capture.is_some());
    match (capturing, ordered) {
        (true, true) => return capture::add(&mut core, handle, Work::Empty),
        // Other memory cannot be freed in a capture, and the attempt does it no
        // harm; beside one it counts as cuMemFree does (measured on an H200).
        (true, false) => return Err(code::INVALID_VALUE),
        (false, true) => {}
        (false, false) => capture::unsafe_call(&mut core)?,
    }
    let after = stream::dependencies(&core, handle)?;
    let mut m = memory::lock();
    let Some(kind) = m.find_live(ptr).filter(|a| a.base == ptr).map(|a| a.kind) else {
        m.complain_if_freed(ptr);
        return Err(code::INVALID_VALUE);
    };
    match kind {
        Kind::Async(pool) => give_back(&mut m, pool, ptr, after, handle),
        Kind::Device => m.defer(ptr, after),
        _ => return Err(code::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn get_default(out: *mut u64, device: i32) -> Answer {
    let device = valid(device)?;
    let handle = default_pool(&mut memory::lock(), device);
    put(out, handle)
}

pub(crate) fn get_current(out: *mut u64, device: i32) -> Answer {
    let device = valid(device)?;
    let mut m = memory::lock();
    let handle = match m.pools.current.get(&(device as u64)) {
        Some(p) => *p,
        None => default_pool(&mut m, device),
    };
    put(out, handle)
}

pub(crate) fn set_current(device: i32, pool: u64) -> Answer {
    let device = valid(device)?;
    let mut m = memory::lock();
    if m.pools.list.get(&pool).is_none_or(|p| p.device != device) {
        return Err(code::INVALID_VALUE);
    }
    m.pools.current.insert(device as u64, pool);
    Ok(())
}

pub(crate) fn create(out: *mut u64, props: *const PoolProps) -> Answer {
    let props = get(props)?;
    if out.is_null() || props.alloc_type != 1 || props.location.kind != 1 {
        return Err(code::INVALID_VALUE);
    }
    let device = valid(props.location.id)?;
    let mut m = memory::lock();
    m.pools.next += 1;
    let handle = CREATED + m.pools.next * 0x40;
    m.pools
        .list
        .insert(handle, new_pool(device, props.max_size as u64));
    put(out, handle)
}

pub(crate) fn destroy(pool: u64) -> Answer {
    let mut m = memory::lock();
    let created = m.pools.list.contains_key(&pool) && pool >= CREATED;
    if !created {
        return Err(code::INVALID_VALUE);
    }
    trim(&mut m, pool, 0);
    if let Some(p) = m.pools.list.remove(&pool) {
        // Blocks whose free has not been reached yet go when it is.
        for c in p.cached {
            m.defer(c.base, c.after);
        }
    }
    m.pools.current.retain(|_, p| *p != pool);
    Ok(())
}

pub(crate) fn trim_to(pool: u64, keep: usize) -> Answer {
    let mut m = memory::lock();
    if !m.pools.list.contains_key(&pool) {
        return Err(code::INVALID_VALUE);
    }
    trim(&mut m, pool, keep as u64);
    Ok(())
}

pub(crate) fn set_attribute(pool: u64, attribute: u32, value: *const u64) -> Answer {
    let mut m = memory::lock();
    let p = m.pools.list.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
    match attribute {
        1..=3 => p.reuse[attribute as usize - 1] = get(value.cast::<i32>())?,
        4 => p.threshold = get(value)?,
        // The high-water marks can only be reset.
        6 if get(value)? == 0 => p.reserved_high = p.reserved,
        8 if get(value)? == 0 => p.used_high = p.used,
        _ => return Err(code::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn get_attribute(pool: u64, attribute: u32, value: *mut u64) -> Answer {
    let m = memory::lock();
    let p = m.pools.list.get(&pool).ok_or(code::INVALID_VALUE)?;
    match attribute {
        1..=3 => put(value.cast::<i32>(), p.reuse[attribute as usize - 1]),
        4 => put(value, p.threshold),
        5 => put(value, p.reserved),
        6 => put(value, p.reserved_high),
        7 => put(value, p.used),
        8 => put(value, p.used_high),
        _ => Err(code::INVALID_VALUE),
    }
}

/// Every device can reach every other here; only the pool is checked.
pub(crate) fn set_access(pool: u64) -> Answer {
    let known = memory::lock().pools.list.contains_key(&pool);
    known.then_some(()).ok_or(code::INVALID_VALUE)
}

/// The handle of the pool that stream-ordered memory came from.
pub(crate) fn handle_of(kind: Kind) -> Option<u64> {
    match kind {
        Kind::Async(pool) => Some(pool),
        _ => None,
    }
}
