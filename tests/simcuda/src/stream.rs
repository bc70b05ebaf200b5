//! Streams: submission, order, waiting.

use crate::abi::{Answer, STREAM_NON_BLOCKING, code, put};
use crate::capture;
use crate::memory;
use crate::state::{self, Core, Life, REOPENED, StreamKind};
use crate::task::{self, Frontier, Task};
use crate::work::Work;
use crate::worker::{Item, Queue};
use std::sync::{Arc, MutexGuard, Once};

/// The per-thread form of a stream handle: NULL means the thread's own.
pub(crate) fn ptsz(stream: u64) -> u64 {
    if stream == 0 {
        crate::abi::STREAM_PER_THREAD
    } else {
        stream
    }
}

/// What work submitted now to a stream has to wait for.
pub(crate) fn dependencies(core: &Core, stream: u64) -> Result<Frontier, i32> {
    let s = core.streams.get(&stream).ok_or(code::INVALID_HANDLE)?;
    let c = core.context(s.ctx)?;
    let mut after = Frontier::new();
    task::merge(&mut after, &s.frontier);
    task::merge(&mut after, &c.barrier);
    if let Some(green) = s.green {
        task::merge(&mut after, &core.context(green)?.barrier);
    }
    if s.kind == StreamKind::Legacy {
        for other in &c.streams {
            if let Some(o) = core.streams.get(other)
                && o.blocking()
            {
                task::merge(&mut after, &o.frontier);
            }
        }
    } else if s.blocking()
        && let Some(legacy) = core.streams.get(&c.legacy)
    {
        task::merge(&mut after, &legacy.frontier);
    }
    Ok(after)
}

/// All pending work of a context: of every stream, also the destroyed ones.
/// Of a green context, that of its own streams.
pub(crate) fn context_frontier(core: &Core, ctx: u64) -> Result<Frontier, i32> {
    let c = core.context(ctx)?;
    let (all, green) = match c.parent {
        Some(parent) => (core.context(parent)?, Some(ctx)),
        None => (c, None),
    };
    let mut after = Frontier::new();
    if green.is_none() {
        task::merge(&mut after, &all.orphans);
    }
    for s in &all.streams {
        if let Some(s) = core.streams.get(s)
            && (green.is_none() || s.green == green)
        {
            // Streams are many and mostly idle; their frontiers are disjoint
            // but for waits, so no search for duplicates is needed.
            after.extend(s.frontier.iter().filter(|t| !t.is_done()).cloned());
        }
    }
    Ok(after)
}

/// What becomes of submitted work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The call returns at once.
    No,
    /// The call returns when the work is done.
    Yes,
}

/// Submits work to a stream, or adds it to the capture that the stream is in.
/// `stream` is a handle as the program gives it.
pub(crate) fn submit(stream: u64, work: Work, wait: Wait) -> Answer {
    let core = state::lock();
    submit_locked(core, stream, work, wait).map(|_| ())
}

/// The same, with the tables locked already. Gives the task, unless the work
/// was captured.
pub(crate) fn submit_locked(
    mut core: MutexGuard<'static, Core>,
    stream: u64,
    work: Work,
    wait: Wait,
) -> Result<Option<Arc<Task>>, i32> {
    let mut handle = core.stream(stream)?;
    loop {
        let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if s.capture.is_some() {
            if wait == Wait::Yes {
                capture::invalidate_stream(&mut core, handle);
                return Err(code::CAPTURE_UNSUPPORTED);
            }
            capture::add(&mut core, handle, work)?;
            return Ok(None);
        }
        // While a free waits for the GPU, launches of other threads block
        // (measured on an H200: 100 launches took 19 ms during one).
        if core.context(s.ctx)?.closed == 0 {
            break;
        }
        core = REOPENED.wait(core).unwrap_or_else(|e| e.into_inner());
        handle = core.stream(stream)?;
    }
    if core
        .streams
        .get(&handle)
        .is_some_and(|s| s.kind == StreamKind::Legacy)
    {
        capture::legacy_use(&mut core, handle)?;
    }
    let after = dependencies(&core, handle)?;
    let task = Task::new();
    let mut ranges = Vec::new();
    work.accesses(&mut ranges);
    if !ranges.is_empty() {
        let mut m = memory::lock();
        for r in &ranges {
            if let Some(region) = m.find(r.at).map(|a| a.base) {
                m.owners
                    .access(region, r.at, r.len, &task, r.what, r.strict);
            }
        }
    }
    let ctx = core
        .streams
        .get(&handle)
        .map(|s| s.ctx)
        .ok_or(code::INVALID_HANDLE)?;
    let switch = core.context(ctx)?.switch.clone();
    let item = Item {
        task: task.clone(),
        after,
        work,
        switch: switch.clone(),
    };
    let s = core.streams.get_mut(&handle).ok_or(code::INVALID_HANDLE)?;
    s.frontier.clear();
    s.frontier.push(task.clone());
    if wait == Wait::Yes && item.after.is_empty() {
        // Nothing to wait for: the calling thread does it itself.
        drop(core);
        item.execute();
    } else {
        s.queue.get_or_insert_with(Queue::start).push(item);
        drop(core);
        if wait == Wait::Yes {
            task.wait();
        }
    }
    if wait == Wait::Yes && switch.fault() != 0 {
        return Err(switch.fault());
    }
    Ok(Some(task))
}

/// Frees what stream-ordered frees left behind; the driver does so when the
/// program synchronises.
pub(crate) fn after_synchronize() {
    let mut m = memory::lock();
    m.collect();
    crate::pools::trim_after_synchronize(&mut m);
}

pub(crate) fn create(out: *mut u64, flags: u32, priority: i32) -> Answer {
    let mut core = state::lock();
    let any = core.current_any()?;
    if out.is_null() || flags & !STREAM_NON_BLOCKING != 0 {
        return Err(code::INVALID_VALUE);
    }
    let ctx = core.current()?;
    let green = (any != ctx).then_some(any);
    let s = core.add_stream(ctx, green, StreamKind::User, flags, priority.clamp(-5, 0));
    put(out, s)
}

pub(crate) fn create_green(out: *mut u64, green: u64, flags: u32, priority: i32) -> Answer {
    let mut core = state::lock();
    let id = core.resolve(green)?;
    let parent = core.context(id)?.parent.ok_or(code::INVALID_HANDLE)?;
    // Streams of green contexts have to be non-blocking.
    if out.is_null() || flags != STREAM_NON_BLOCKING {
        return Err(code::INVALID_VALUE);
    }
    let s = core.add_stream(
        parent,
        Some(id),
        StreamKind::User,
        flags,
        priority.clamp(-5, 0),
    );
    put(out, s)
}

/// Removes a stream from the tables; its pending work stays part of what the
/// context has to finish.
pub(crate) fn remove(core: &mut Core, handle: u64) {
    capture::stream_gone(core, handle);
    let Some(s) = core.streams.remove(&handle) else {
        return;
    };
    if let Some(q) = &s.queue {
        q.close();
    }
    if let Some(c) = core.contexts.get_mut(&s.ctx) {
        c.streams.retain(|h| *h != handle);
        c.per_thread.retain(|_, h| *h != handle);
        task::prune(&mut c.orphans);
        task::merge(&mut c.orphans, &s.frontier);
    }
}

pub(crate) fn destroy(handle: u64) -> Answer {
    let mut core = state::lock();
    if handle <= crate::abi::STREAM_PER_THREAD {
        return Err(code::INVALID_HANDLE);
    }
    let kind = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?.kind;
    if kind != StreamKind::User {
        return Err(code::INVALID_HANDLE);
    }
    core.stream(handle)?;
    remove(&mut core, handle);
    Ok(())
}

/// What a query or a wait for the stream looks at; breaks captures as the
/// driver does.
fn observed(core: &mut Core, stream: u64) -> Result<(Frontier, u64), i32> {
    let handle = core.stream(stream)?;
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    let (ctx, legacy) = (s.ctx, s.kind == StreamKind::Legacy);
    if s.capture.is_some() {
        capture::invalidate_stream(core, handle);
        return Err(code::CAPTURE_UNSUPPORTED);
    }
    if legacy {
        capture::legacy_use(core, handle)?;
    }
    capture::unsafe_call(core)?;
    if legacy {
        return Ok((dependencies(core, handle)?, ctx));
    }
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    Ok((s.frontier.clone(), ctx))
}

pub(crate) fn query(stream: u64) -> Answer {
    let mut core = state::lock();
    let (frontier, _) = observed(&mut core, stream)?;
    if task::all_done(&frontier) {
        Ok(())
    } else {
        Err(code::NOT_READY)
    }
}

pub(crate) fn synchronize(stream: u64) -> Answer {
    let (frontier, ctx) = {
        let mut core = state::lock();
        observed(&mut core, stream)?
    };
    task::wait_all(&frontier);
    after_synchronize();
    state::lock().usable(ctx)
}

/// Reads one property of a stream.
pub(crate) fn with<T>(
    stream: u64,
    out: *mut T,
    read: impl FnOnce(&Core, &state::Stream) -> T,
) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    // Asked of a stream that is being captured, its id, flags or priority break
    // the capture in every mode (measured on an H200).
    if core
        .streams
        .get(&handle)
        .is_some_and(|s| s.capture.is_some())
    {
        capture::invalidate_stream(&mut core, handle);
        return Err(code::CAPTURE_UNSUPPORTED);
    }
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    put(out, read(&core, s))
}

/// Does a capture no harm, unlike what [`with`] serves.
pub(crate) fn get_ctx(stream: u64, out: *mut u64) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    let id = s.green.unwrap_or(s.ctx);
    put(out, core.contexts.get(&id).map_or(0, |c| c.handle))
}

pub(crate) fn wait_event(stream: u64, event: u64) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    let e = core.events.get(&event).ok_or(code::INVALID_HANDLE)?;
    let (ectx, captured, after, recorded) = (e.ctx, e.capture.clone(), e.after.clone(), e.recorded);
    core.usable(ectx)?;
    if let Some((id, nodes)) = captured
        && core.captures.iter().any(|c| c.id == id)
    {
        return capture::join(&mut core, handle, id, &nodes);
    }
    if core
        .streams
        .get(&handle)
        .is_some_and(|s| s.capture.is_some())
    {
        if !recorded {
            return Ok(());
        }
        capture::invalidate_stream(&mut core, handle);
        return Err(code::CAPTURE_ISOLATION);
    }
    let s = core.streams.get_mut(&handle).ok_or(code::INVALID_HANDLE)?;
    task::prune(&mut s.frontier);
    task::merge(&mut s.frontier, &after);
    Ok(())
}

/// cuStreamWaitValue and cuStreamWriteValue need memory that the GPU sees.
pub(crate) fn memory_operation(stream: u64, at: u64, wide: bool, work: Work) -> Answer {
    let size = if wide { 8 } else { 4 };
    if !at.is_multiple_of(size) || memory::lock().cover(at, size).is_none_or(|a| !a.live) {
        return Err(code::INVALID_VALUE);
    }
    submit(stream, work, Wait::No)
}

pub(crate) fn launch_host(stream: u64, function: u64, data: u64) -> Answer {
    if function == 0 {
        return Err(code::INVALID_VALUE);
    }
    submit(stream, Work::Host { function, data }, Wait::No)
}

pub(crate) fn add_callback(stream: u64, function: u64, data: u64, flags: u32) -> Answer {
    if function == 0 || flags != 0 {
        return Err(code::INVALID_VALUE);
    }
    {
        let mut core = state::lock();
        let handle = core.stream(stream)?;
        if core
            .streams
            .get(&handle)
            .is_some_and(|s| s.capture.is_some())
        {
            capture::invalidate_stream(&mut core, handle);
            return Err(code::CAPTURE_UNSUPPORTED);
        }
    }
    submit(
        stream,
        Work::Callback {
            function,
            stream,
            data,
        },
        Wait::No,
    )
}

extern "C" fn thread_ends(thread: *mut libc::c_void) {
    let thread = thread as u64;
    if crate::entry::forked() {
        // The lock's holder may be a thread that this process does not have.
        return;
    }
    let mut core = state::lock();
    let gone: Vec<u64> = core
        .contexts
        .values()
        .filter(|c| c.life == Life::Active)
        .filter_map(|c| c.per_thread.get(&thread).copied())
        .collect();
    for s in gone {
        remove(&mut core, s);
    }
}

/// Has the calling thread's default streams removed when it ends.
pub(crate) fn arm_thread_exit() {
    static ONCE: Once = Once::new();
    static KEY: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(u32::MAX);
    ONCE.call_once(|| {
        let mut key = 0;
        // SAFETY: a valid output, and a destructor of the required type.
        if unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0 {
            KEY.store(key, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let key = KEY.load(std::sync::atomic::Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: a key that was created above. The value is a number, not a
        // pointer that anybody follows.
        unsafe { libc::pthread_setspecific(key, state::thread() as *const _) };
    }
}
