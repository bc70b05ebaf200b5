//! The contexts of the process, each with its pool.
//!
//! Contexts are told apart by their id (`cuCtxGetId`), never by handle alone:
//! a handle comes again after its context is gone. What is known about a
//! handle is forgotten when the hooks see the context end.

use super::abi::{CONTEXT_IS_DESTROYED, CUcontext, CUdevice, INVALID_CONTEXT, SUCCESS};
use super::above::{self, ABOVE};
use super::capture;
use super::driver::real;
use super::entered::{Ending, Entered};
use super::fence::{Events, Fences};
use super::green;
use super::guard::Guard;
use super::host::Hosts;
use super::identity::{id_of, primary_of};
use super::vmm::Mapped;
use crate::pool::segment_map::SegmentMap;
use crate::pool::sync::Apart;
use crate::pool::{Policy, Pool};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};

/// Where a context stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Its pool serves.
    Serving = 0,
    /// It is not ours to serve (made in a way that was not seen): calls pass.
    Aside = 1,
    /// A call is under way that may end it: nothing is served meanwhile.
    Closing = 2,
    /// It has ended.
    Gone = 3,
}

/// A context and its pool. Never freed, so that a pointer to it can stand in
/// lock-free tables; what it holds is dropped when it ends.
pub struct Context {
    /// The driver's id, unique in the process; handle where it has none.
    pub id: u64,
    /// How many contexts were known before it: no two pools share it.
    pub ordinal: u64,
    /// The handle, valid until the context ends.
    pub handle: CUcontext,
    /// Ordinal of its device.
    pub device: CUdevice,
    /// Memory of the device in bytes.
    pub total: u64,
    /// Its pool.
    pub pool: Pool,
    /// GPUPOOL_GUARD's view of its memory.
    pub guard: Option<Guard>,
    /// Its pools of pinned memory.
    pub hosts: Hosts,
    /// Where its segments are mapped rather than allocated.
    pub mapped: Option<Mapped>,
    /// Fences of the pool of device memory.
    pub(super) fences: Fences,
    /// Spare events.
    pub(super) events: Events,
    primary: bool,
    status: AtomicU8,
    /// Calls under way that may end it.
    closing: AtomicU32,
    preallocated: AtomicBool,
}

/// Whose segment an address lies in, for all pools.
pub static SEGMENTS: SegmentMap<Context> = SegmentMap::new();

static REGISTRY: RwLock<Registry> = RwLock::new(Registry {
    contexts: Vec::new(),
    ended: Vec::new(),
});
/// Grows whenever what is known about a handle may have changed.
static GENERATION: Apart<AtomicU64> = Apart(AtomicU64::new(1));
struct Registry {
    /// Contexts that have not ended.
    contexts: Vec<&'static Context>,
    /// Those that have, for the statistics.
    ended: Vec<&'static Context>,
}

fn read() -> RwLockReadGuard<'static, Registry> {
    REGISTRY.read().unwrap_or_else(PoisonError::into_inner)
}

fn changed(change: impl FnOnce(&mut Registry)) {
    change(&mut REGISTRY.write().unwrap_or_else(PoisonError::into_inner));
    GENERATION.fetch_add(1, Ordering::Release);
}

impl Context {
    /// Where it stands.
    #[inline]
    pub fn status(&self) -> Status {
        match self.status.load(Ordering::Acquire) {
            3 => Status::Gone,
            _ if self.closing.load(Ordering::Acquire) != 0 => Status::Closing,
            0 => Status::Serving,
            _ => Status::Aside,
        }
    }

    /// Whether it is its device's primary context.
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// Whether its pool may serve a request now.
    #[inline]
    pub fn serves(&self) -> bool {
        self.status() == Status::Serving && !self.pool.is_lost()
    }

    /// Whether the driver still knows this context by its handle: a context can
    /// end in ways that no hook sees.
    pub fn is_still_there(&self) -> bool {
        // The handle of a primary context stays valid, so that it may be asked.
        // Of one that was reset it gives 201 or 709; after a fault 700.
        match id_of(self.handle) {
            _ if !self.primary => true,
            Ok(id) => id == self.id,
            Err(error) => !matches!(error, INVALID_CONTEXT | CONTEXT_IS_DESTROYED),
        }
    }

    /// Whether the driver answers every call in this context with an error, as
    /// after a kernel fault.
    pub fn answers_errors(&self) -> bool {
        let Some(_entered) = Entered::enter(self.handle) else {
            return true;
        };
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for writes, and the context is current.
        unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) != SUCCESS }
    }

    /// GPUPOOL_PREALLOC, at the first use of the context's pool.
    pub fn preallocate_once(&'static self) {
        if self.preallocated.load(Ordering::Relaxed)
            || self.preallocated.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let Some(above) = ABOVE.get() else { return };
        (above.first_use)(self);
        let wanted = (above.config)().prealloc.of(self.total);
        if wanted > 0 {
            let taken = self.pool.preallocate(&self, wanted);
            if taken < wanted {
                log::warn!(
                    "GPUPOOL_PREALLOC: device {} gave {taken} of {wanted} bytes",
                    self.device
                );
            }
        }
    }
}

/// The calling thread's context, if it has one that is known.
#[inline]
pub fn current() -> Option<&'static Context> {
    thread_local! {
        /// What the last look-up in this thread found: generation, handle and
        /// id it was made with.
        static LAST: Cell<(u64, CUcontext, u64, Option<&'static Context>)> = const { Cell::new((0, 0, 0, None)) };
    }
    let mut handle: CUcontext = 0;
    // SAFETY: `handle` is valid for a write.
    if unsafe { real::cuCtxGetCurrent(&raw mut handle) } != SUCCESS || handle == 0 {
        return None;
    }
    // After a kernel fault the driver answers nothing but errors, and nothing
    // can be learnt about a context: the calls are its own.
    let id = id_of(handle).ok()?;
    let generation = GENERATION.load(Ordering::Acquire);
    let last = LAST.with(Cell::get);
    if (last.0, last.1, last.2) == (generation, handle, id) {
        return last.3;
    }
    forget_if_replaced(handle, id);
    let found = find(handle).or_else(|| discover(handle, false));
    // The generation from before the look-up: a change meanwhile shows next time.
    LAST.with(|cell| cell.set((generation, handle, id, found)));
    found
}

/// Whether the calling thread has a current context.
#[inline]
pub fn any_is_current() -> bool {
    let mut handle: CUcontext = 0;
    // SAFETY: `handle` is valid for a write.
    unsafe { real::cuCtxGetCurrent(&raw mut handle) == SUCCESS && handle != 0 }
}

/// Forgets contexts that have ended unseen.
pub fn forget_ended() {
    let ended: Vec<_> = read()
        .contexts
        .iter()
        .filter(|context| !context.is_still_there())
        .copied()
        .collect();
    for context in ended {
        forget(context);
    }
}

fn forget(context: &'static Context) {
    log::debug!("context {:#x} has ended unseen", context.id);
    closing(Some(context), || (), |()| true);
}

/// The context that was known by `handle` has ended unseen if another one has
/// its handle now.
fn forget_if_replaced(handle: CUcontext, id: u64) {
    let known = read()
        .contexts
        .iter()
        .find(|context| context.handle == handle)
        .copied();
    if let Some(context) = known.filter(|context| context.id != id) {
        forget(context);
    }
}

fn find(handle: CUcontext) -> Option<&'static Context> {
    let registry = read();
    let by_handle = registry
        .contexts
        .iter()
        .find(|context| context.handle == handle)
        .copied();
    by_handle.or_else(|| {
        // A green context counts as its device's primary one.
        let device = green::device_of_context(handle)?;
        registry
            .contexts
            .iter()
            .find(|context| context.primary && context.device == device)
            .copied()
    })
}

/// Registers the context behind `handle`, which is current. `created`: a call
/// that makes ordinary contexts has just returned it.
fn discover(handle: CUcontext, created: bool) -> Option<&'static Context> {
    let mut device: CUdevice = 0;
    // SAFETY: `device` is valid for a write.
    if unsafe { real::cuCtxGetDevice(&raw mut device) } != SUCCESS {
        return None;
    }
    if created {
        return register(handle, device, false, Status::Serving);
    }
    if primary_of(device) == Some(handle) {
        return register(handle, device, true, Status::Serving);
    }
    if green::device_of_context(handle).is_some() {
        // Made from a green context before anybody used the primary one.
        discover_primaries();
        return find(handle);
    }
    // Neither primary nor seen being made: how fences cover it is not known.
    let id = id_of(handle).unwrap_or(0);
    log::warn!(
        "a context of unknown kind on device {device} is used (id {id}): its calls are left to the driver"
    );
    register(handle, device, false, Status::Aside)
}

fn register(
    handle: CUcontext,
    device: CUdevice,
    primary: bool,
    status: Status,
) -> Option<&'static Context> {
    let above = ABOVE.get()?;
    let config = (above.config)();
    let mut total = 0usize;
    // SAFETY: `total` is valid for a write.
    unsafe { real::cuDeviceTotalMem_v2(&raw mut total, device) };
    let total = total as u64;
    let mapped = above::mapped(config, device, total);
    let policy = Policy {
        mapped: mapped.is_some(),
        ..above::policy(config, total)
    };
    let id = id_of(handle).ok()?;
    let mut result = None;
    changed(|registry| {
        // Another thread may have been faster.
        if let Some(known) = registry
            .contexts
            .iter()
            .find(|context| context.handle == handle)
        {
            result = Some(*known);
            return;
        }
        let context: &'static Context = Box::leak(Box::new(Context {
            id,
            ordinal: (registry.contexts.len() + registry.ended.len()) as u64,
            handle,
            device,
            total,
            pool: Pool::new(policy),
            guard: config.guard.then(Guard::default),
            hosts: Hosts::default(),
            mapped,
            fences: Fences::default(),
            events: Events::default(),
            primary,
            status: AtomicU8::new(status as u8),
            closing: AtomicU32::new(0),
            preallocated: AtomicBool::new(false),
        }));
        (above.registered)(context);
        registry.contexts.push(context);
        result = Some(context);
    });
    log::debug!("context {id:#x} on device {device}: {status:?}, primary {primary}, {policy:?}");
    result
}

/// A call that makes an ordinary context returned `handle`.
pub fn created(handle: CUcontext) {
    let mut current: CUcontext = 0;
    // SAFETY: `current` is valid for a write.
    if unsafe { real::cuCtxGetCurrent(&raw mut current) } == SUCCESS && current == handle {
        discover(handle, true);
    }
}

/// What is known about some handle has changed: what threads have looked up is
/// looked up again.
pub(super) fn look_up_again() {
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Registers the primary contexts that are active and not yet known: a kernel
/// of theirs can read this process's memory, so fences have to cover them.
pub fn discover_primaries() {
    static COUNT: OnceLock<CUdevice> = OnceLock::new();
    let count = *COUNT.get_or_init(|| {
        let mut count = 0;
        // SAFETY: `count` is valid for a write.
        match unsafe { real::cuDeviceGetCount(&raw mut count) } {
            SUCCESS => count,
            _ => 0,
        }
    });
    if read()
        .contexts
        .iter()
        .filter(|context| context.primary)
        .count()
        == count as usize
    {
        return;
    }
    for device in 0..count {
        if read()
            .contexts
            .iter()
            .any(|context| context.primary && context.device == device)
        {
            continue;
        }
        if let Some(handle) = primary_of(device) {
            register(handle, device, true, Status::Serving);
        }
    }
}

/// All contexts that have not ended.
pub fn all() -> Vec<&'static Context> {
    read().contexts.clone()
}

/// Calls `look` with all contexts that have not ended, which it must neither
/// add nor end.
pub fn with_all<R>(look: impl FnOnce(&[&'static Context]) -> R) -> R {
    look(&read().contexts)
}

/// All contexts that were ever known, for the statistics.
pub fn ever() -> Vec<&'static Context> {
    let registry = read();
    registry
        .contexts
        .iter()
        .chain(&registry.ended)
        .copied()
        .collect()
}

/// The device's primary context, if it is known.
pub fn primary(device: CUdevice) -> Option<&'static Context> {
    read()
        .contexts
        .iter()
        .find(|context| context.primary && context.device == device)
        .copied()
}

/// The known context behind `handle`.
pub fn by_handle(handle: CUcontext) -> Option<&'static Context> {
    read()
        .contexts
        .iter()
        .find(|context| context.handle == handle)
        .copied()
}

/// The context behind `handle`, looked at if it is not known yet.
pub fn behind(handle: CUcontext) -> Option<&'static Context> {
    find(handle).or_else(|| {
        let _entered = Entered::enter(handle)?;
        current()
    })
}

/// Runs a call that may end `context`; `ended` looks at the result. While it
/// runs, nothing is served from the pool and no fence can complete; if the
/// context has ended, its pool is dropped without touching the driver, and
/// every pointer from before is foreign.
pub fn closing<R>(
    context: Option<&'static Context>,
    call: impl FnOnce() -> R,
    ended: impl FnOnce(&R) -> bool,
) -> R {
    let Some(context) = context else {
        return call();
    };
    if let Some(guard) = &context.guard {
        guard.check_all(context);
        super::guard::report_pending();
    }
    context.closing.fetch_add(1, Ordering::AcqRel);
    let ending = Ending::begin();
    let result = call();
    if ended(&result)
        && context.status.swap(Status::Gone as u8, Ordering::AcqRel) != Status::Gone as u8
    {
        for (base, size) in context.pool.abandon() {
            SEGMENTS.remove(base, size, context);
        }
        context.hosts.abandon();
        context.events.forget();
        if let Some(mapped) = &context.mapped {
            mapped.end();
        }
        if let Some(guard) = &context.guard {
            guard.forget();
        }
        capture::context_gone(context.handle);
        changed(|registry| {
            registry
                .contexts
                .retain(|known| !std::ptr::eq(*known, context));
            registry.ended.push(context);
        });
        if let Some(above) = ABOVE.get() {
            (above.ended)(context);
        }
    }
    drop(ending);
    context.closing.fetch_sub(1, Ordering::AcqRel);
    result
}
