//! The tables of contexts, streams, events, captures and graphs, behind one
//! lock, and the calling thread's own state.

use crate::abi::{Answer, STREAM_LEGACY, STREAM_PER_THREAD, code};
use crate::capture::Capture;
use crate::config;
use crate::graph::{Graph, GraphExec};
use crate::task::Frontier;
use crate::work::Switch;
use crate::worker::Queue;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

/// Hashes handles and ids, which are already well spread numbers.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map from handles.
pub(crate) type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

/// What became of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Active,
    /// cuCtxDestroy: its objects answer 709.
    Destroyed,
    /// Reset or released primary context: its objects answer 201.
    Inactive,
}

/// A context, by id.
pub(crate) struct Context {
    pub(crate) id: u64,
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) primary: bool,
    /// A green context's primary one.
    pub(crate) parent: Option<u64>,
    pub(crate) life: Life,
    /// A call that ends it is under way.
    pub(crate) ending: bool,
    pub(crate) flags: u32,
    pub(crate) streams: Vec<u64>,
    pub(crate) legacy: u64,
    /// Default streams by thread.
    pub(crate) per_thread: HashMap<u64, u64>,
    /// Pending work of streams that were destroyed.
    pub(crate) orphans: Frontier,
    /// What all later work waits for (cuCtxWaitEvent).
    pub(crate) barrier: Frontier,
    /// Threads inside a free that waits: launches of others block meanwhile.
    pub(crate) closed: u32,
    pub(crate) peers: HashSet<usize>,
    pub(crate) limits: BTreeMap<u32, usize>,
    /// Where the threads' stacks lie, if they are larger than at the start.
    pub(crate) stacks: Option<u64>,
    /// Shared with its workers: fault, and stop.
    pub(crate) switch: Arc<Switch>,
}

/// What kind of stream it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    Legacy,
    PerThread,
    User,
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) id: u64,
    /// The context's id: the primary one for a green context's streams.
    pub(crate) ctx: u64,
    pub(crate) green: Option<u64>,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Everything that must be done for the stream to be idle.
    pub(crate) frontier: Frontier,
    /// The worker's queue, once there has been work.
    pub(crate) queue: Option<Arc<Queue>>,
    pub(crate) capture: Option<u64>,
}

impl Stream {
    /// Whether it is ordered with the legacy default stream.
    pub(crate) fn blocking(&self) -> bool {
        self.flags & crate::abi::STREAM_NON_BLOCKING == 0
    }
}

/// An event.
pub(crate) struct Event {
    pub(crate) ctx: u64,
    pub(crate) flags: u32,
    pub(crate) recorded: bool,
    pub(crate) after: Frontier,
    pub(crate) record_ns: u64,
    /// (capture, nodes): recorded in a capturing stream.
    pub(crate) capture: Option<(u64, Vec<usize>)>,
}

/// A device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) retained: u32,
    pub(crate) flags: u32,
    /// Id of the active context.
    pub(crate) active: Option<u64>,
    /// Reset after a fault: the device stays unavailable to this process.
    pub(crate) spoilt: bool,
}

/// All tables.
pub(crate) struct Core {
    pub(crate) contexts: IdMap<Context>,
    /// Context handle -> id of the context it stands for now.
    pub(crate) by_handle: IdMap<u64>,
    pub(crate) streams: IdMap<Stream>,
    pub(crate) events: IdMap<Event>,
    pub(crate) captures: Vec<Capture>,
    pub(crate) graphs: IdMap<Graph>,
    pub(crate) execs: IdMap<GraphExec>,
    pub(crate) modules: HashSet<u64>,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) free_handles: Vec<u64>,
    next_handle: u64,
    next_ctx_id: u64,
    next_stream_id: u64,
    next_capture_id: u64,
}

/// Handles of primary contexts: they stay the same over a reset.
pub(crate) fn primary_handle(device: usize) -> u64 {
    0x5600_0000_0000 + (device as u64 + 1) * 0x1000
}

fn core() -> &'static Mutex<Core> {
    static CORE: OnceLock<Mutex<Core>> = OnceLock::new();
    CORE.get_or_init(|| {
        Mutex::new(Core {
            contexts: IdMap::default(),
            by_handle: IdMap::default(),
            streams: IdMap::default(),
            events: IdMap::default(),
            captures: Vec::new(),
            graphs: IdMap::default(),
            execs: IdMap::default(),
            modules: HashSet::new(),
            primaries: (0..config::get().devices)
                .map(|_| Primary::default())
                .collect(),
            free_handles: Vec::new(),
            next_handle: 0x5601_0000_0000,
            next_ctx_id: 1,
            next_stream_id: 1,
            next_capture_id: 1,
        })
    })
}

/// Signalled when a free that held launches back is done.
pub(crate) static REOPENED: Condvar = Condvar::new();

/// Locks the tables.
pub(crate) fn lock() -> MutexGuard<'static, Core> {
    core().lock().unwrap_or_else(|e| e.into_inner())
}

const STACK: usize = 32;

thread_local! {
    // No destructors: these are used until the very end of a thread, after
    // thread-locals with destructors are gone.
    static CURRENT: Cell<[u64; STACK]> = const { Cell::new([0; STACK]) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// A number of the calling thread that is never used again.
pub(crate) fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let t = THREAD.get();
    if t != 0 {
        return t;
    }
    let t = NEXT.fetch_add(1, Ordering::Relaxed);
    THREAD.set(t);
    t
}

/// The handle of the thread's current context; 0 for none.
pub(crate) fn current_handle() -> u64 {
    let d = DEPTH.get();
    if d == 0 { 0 } else { CURRENT.get()[d - 1] }
}

/// Replaces the top of the thread's context stack.
pub(crate) fn set_current(handle: u64) {
    let mut s = CURRENT.get();
    let d = DEPTH.get();
    if d == 0 {
        if handle != 0 {
            s[0] = handle;
            DEPTH.set(1);
        }
    } else if handle == 0 {
        DEPTH.set(d - 1);
    } else {
        s[d - 1] = handle;
    }
    CURRENT.set(s);
}

/// Pushes onto the thread's context stack.
pub(crate) fn push_current(handle: u64) -> Answer {
    let mut s = CURRENT.get();
    let d = DEPTH.get();
    if d == STACK {
        return Err(code::INVALID_VALUE);
    }
    s[d] = handle;
    CURRENT.set(s);
    DEPTH.set(d + 1);
    Ok(())
}

/// Pops the thread's context stack.
pub(crate) fn pop_current() -> Option<u64> {
    let h = current_handle();
    if DEPTH.get() == 0 {
        return None;
    }
    DEPTH.set(DEPTH.get() - 1);
    Some(h)
}

/// The thread's capture interaction mode.
pub(crate) fn capture_mode() -> u32 {
    CAPTURE_MODE.get()
}

/// Sets it, and gives the earlier one.
pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.replace(mode)
}

impl Core {
    /// A handle that looks like an address. Handles of contexts come again;
    /// all others are new.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 0x40;
        self.next_handle
    }

    /// An id that no context has had.
    pub(crate) fn context_id(&mut self) -> u64 {
        self.next_ctx_id += 1;
        self.next_ctx_id
    }

    /// An id that no capture has had.
    pub(crate) fn capture_id(&mut self) -> u64 {
        self.next_capture_id += 1;
        self.next_capture_id
    }

    /// The id of the context behind a handle, if it is active and unfaulted.
    pub(crate) fn resolve(&self, handle: u64) -> Result<u64, i32> {
        let id = *self.by_handle.get(&handle).ok_or(code::INVALID_CONTEXT)?;
        self.usable(id)?;
        Ok(id)
    }

    /// Whether a context can be used; else the answer that its calls get.
    pub(crate) fn usable(&self, id: u64) -> Answer {
        let c = self.contexts.get(&id).ok_or(code::CONTEXT_IS_DESTROYED)?;
        match c.life {
            Life::Active => {}
            Life::Destroyed => return Err(code::CONTEXT_IS_DESTROYED),
            Life::Inactive => return Err(code::INVALID_CONTEXT),
        }
        match c.switch.fault() {
            0 => Ok(()),
            fault => Err(fault),
        }
    }

    /// The id of the thread's current context, if it can be used. A green
    /// context's own id.
    pub(crate) fn current_any(&self) -> Result<u64, i32> {
        let handle = current_handle();
        if handle == 0 {
            return Err(code::INVALID_CONTEXT);
        }
        let id = self.resolve(handle)?;
        if let Some(parent) = self.contexts.get(&id).and_then(|c| c.parent) {
            self.usable(parent)?;
        }
        Ok(id)
    }

    /// The same, but the primary context for a green one.
    pub(crate) fn current(&self) -> Result<u64, i32> {
        let id = self.current_any()?;
        Ok(self.contexts.get(&id).and_then(|c| c.parent).unwrap_or(id))
    }

    /// A context that is in the table.
    pub(crate) fn context(&self, id: u64) -> Result<&Context, i32> {
        self.contexts.get(&id).ok_or(code::CONTEXT_IS_DESTROYED)
    }

    /// The same, to change.
    pub(crate) fn context_mut(&mut self, id: u64) -> Result<&mut Context, i32> {
        self.contexts.get_mut(&id).ok_or(code::CONTEXT_IS_DESTROYED)
    }

    /// The current context as an owner of memory.
    pub(crate) fn owner(&self) -> Result<crate::memory::Owner, i32> {
        let c = self.context(self.current()?)?;
        Ok(crate::memory::Owner {
            ctx: c.id,
            ctx_handle: c.handle,
            device: c.device,
        })
    }

    /// Makes a stream.
    pub(crate) fn add_stream(
        &mut self,
        ctx: u64,
        green: Option<u64>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> u64 {
        let handle = self.handle();
        self.next_stream_id += 1;
        let id = self.next_stream_id;
        self.streams.insert(
            handle,
            Stream {
                id,
                ctx,
                green,
                kind,
                flags,
                priority,
                frontier: Frontier::new(),
                queue: None,
                capture: None,
            },
        );
        if let Some(c) = self.contexts.get_mut(&ctx) {
            c.streams.push(handle);
        }
        handle
    }

    /// The stream that a handle means in this thread: the handle of an entry
    /// in `streams`, whose context can be used.
    pub(crate) fn stream(&mut self, handle: u64) -> Result<u64, i32> {
        if handle > STREAM_PER_THREAD {
            let s = self.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
            self.usable(s.ctx)?;
            return Ok(handle);
        }
        let ctx = self.current()?;
        if handle <= STREAM_LEGACY {
            return Ok(self.context(ctx)?.legacy);
        }
        let thread = thread();
        if let Some(&s) = self.context(ctx)?.per_thread.get(&thread) {
            return Ok(s);
        }
        crate::stream::arm_thread_exit();
        let s = self.add_stream(ctx, None, StreamKind::PerThread, 0, 0);
        self.context_mut(ctx)?.per_thread.insert(thread, s);
        Ok(s)
    }
}
