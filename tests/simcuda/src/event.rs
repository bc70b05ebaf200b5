//! Events: a mark in a stream's order, or in that of a whole context.

use crate::abi::{Answer, EVENT_DISABLE_TIMING, code, put};
use crate::capture;
use crate::report;
use crate::state::{self, Core, Event, StreamKind};
use crate::stream;
use crate::task::{self, Frontier, now_ns};

pub(crate) fn create(out: *mut u64, flags: u32) -> Answer {
    let mut core = state::lock();
    let ctx = core.current()?;
    // An interprocess event must not keep times.
    if out.is_null() || flags > 7 || flags & 6 == 4 {
        return Err(code::INVALID_VALUE);
    }
    let handle = core.handle();
    core.events.insert(
        handle,
        Event {
            ctx,
            flags,
            recorded: false,
            after: Frontier::new(),
            record_ns: 0,
            capture: None,
        },
    );
    put(out, handle)
}

pub(crate) fn destroy(event: u64) -> Answer {
    let mut core = state::lock();
    let ctx = core.events.get(&event).ok_or(code::INVALID_HANDLE)?.ctx;
    core.usable(ctx)?;
    core.events.remove(&event);
    Ok(())
}

fn set(core: &mut Core, event: u64, after: Frontier) -> Answer {
    let e = core.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
    e.after = after;
    e.recorded = true;
    e.record_ns = now_ns();
    e.capture = None;
    Ok(())
}

pub(crate) fn record(event: u64, stream: u64) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    let ectx = core.events.get(&event).ok_or(code::INVALID_HANDLE)?.ctx;
    core.usable(ectx)?;
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    if s.ctx != ectx {
        return Err(code::INVALID_HANDLE);
    }
    let (kind, captured) = (s.kind, s.capture);
    if let Some(id) = captured {
        let nodes = capture::tips(&core, handle, id)?;
        let e = core.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
        e.capture = Some((id, nodes));
        e.recorded = true;
        return Ok(());
    }
    if kind == StreamKind::Legacy {
        capture::legacy_use(&mut core, handle)?;
    }
    let after = stream::dependencies(&core, handle)?;
    if kind == StreamKind::Legacy
        && let Some(s) = core.streams.get_mut(&handle)
    {
        // A record in the legacy stream is a barrier between the blocking
        // streams: their later work waits for it (measured on an H200).
        s.frontier.clone_from(&after);
    }
    set(&mut core, event, after)
}

/// An event is recorded or asked for: not while its context is being ended. NVIDIA's driver crashed
/// there (seen on an H200, driver 580.159).
fn not_while_ending(core: &Core, ctx: u64, call: &str) {
    if core.context(ctx).is_ok_and(|c| c.ending) {
        report::violation(
            "ending-context",
            &format!("{call} while its context was being ended"),
        );
    }
}

/// cuCtxRecordEvent: everything submitted to the context so far, in every
/// stream, non-blocking and green ones too. Later work is not held back.
#[cfg_attr(feature = "old-driver", allow(dead_code))]
pub(crate) fn record_context(context: u64, event: u64) -> Answer {
    let mut core = state::lock();
    let ctx = match core.resolve(context) {
        Ok(ctx) => ctx,
        Err(error) => {
            if let Some(e) = core.events.get(&event) {
                not_while_ending(&core, e.ctx, "cuCtxRecordEvent");
            }
            return Err(error);
        }
    };
    let ectx = core.events.get(&event).ok_or(code::INVALID_HANDLE)?.ctx;
    not_while_ending(&core, ectx, "cuCtxRecordEvent");
    core.usable(ectx)?;
    if core.context(ctx)?.parent.unwrap_or(ctx) != ectx {
        return Err(code::INVALID_HANDLE);
    }
    capture::context_call(&mut core, ctx)?;
    let after = stream::context_frontier(&core, ctx)?;
    set(&mut core, event, after)
}

/// cuCtxWaitEvent: all later work of the context waits for the event.
#[cfg_attr(feature = "old-driver", allow(dead_code))]
pub(crate) fn wait_context(context: u64, event: u64) -> Answer {
    let mut core = state::lock();
    let ctx = core.resolve(context)?;
    let e = core.events.get(&event).ok_or(code::INVALID_HANDLE)?;
    let (ectx, after) = (e.ctx, e.after.clone());
    core.usable(ectx)?;
    capture::context_call(&mut core, ctx)?;
    let c = core.context_mut(ctx)?;
    task::prune(&mut c.barrier);
    task::merge(&mut c.barrier, &after);
    Ok(())
}

fn observed(core: &mut Core, event: u64) -> Result<(Frontier, u64), i32> {
    let e = core.events.get(&event).ok_or(code::INVALID_HANDLE)?;
    let (ctx, captured) = (e.ctx, e.capture.as_ref().map(|c| c.0));
    not_while_ending(core, ctx, "cuEventQuery or cuEventSynchronize");
    core.usable(ctx)?;
    if let Some(id) = captured
        && core.captures.iter().any(|c| c.id == id)
    {
        return Err(code::CAPTURED_EVENT);
    }
    capture::unsafe_call(core)?;
    let e = core.events.get(&event).ok_or(code::INVALID_HANDLE)?;
    Ok((e.after.clone(), ctx))
}

pub(crate) fn query(event: u64) -> Answer {
    let mut core = state::lock();
    let (after, _) = observed(&mut core, event)?;
    if task::all_done(&after) {
        Ok(())
    } else {
        Err(code::NOT_READY)
    }
}

pub(crate) fn synchronize(event: u64) -> Answer {
    let (after, ctx) = {
        let mut core = state::lock();
        observed(&mut core, event)?
    };
    task::wait_all(&after);
    stream::after_synchronize();
    state::lock().usable(ctx)
}

pub(crate) fn elapsed(out: *mut f32, start: u64, end: u64) -> Answer {
    let core = state::lock();
    let mut at = [0u64; 2];
    for (i, handle) in [start, end].into_iter().enumerate() {
        let e = core.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        core.usable(e.ctx)?;
        if !e.recorded || e.flags & EVENT_DISABLE_TIMING != 0 {
            return Err(code::INVALID_HANDLE);
        }
        if !task::all_done(&e.after) {
            return Err(code::NOT_READY);
        }
        at[i] = e
            .after
            .iter()
            .map(|t| t.end_ns())
            .max()
            .unwrap_or(0)
            .max(e.record_ns);
    }
    put(out, at[1].saturating_sub(at[0]) as f32 / 1e6)
}
