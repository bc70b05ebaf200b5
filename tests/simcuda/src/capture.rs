//! Stream capture, and the calls that break one.
//!
//! The rules are those measured on an H200 (driver 580.159): context-wide
//! calls break every capture of the context; calls that may synchronise are
//! forbidden by the mode of the capture and of the calling thread; a broken
//! capture stays open until it is ended.

use crate::abi::{Answer, code, put, put_opt};
use crate::graph::{Graph, Node};
use crate::state::{self, Core, StreamKind, capture_mode, exchange_capture_mode, thread};
use crate::work::Work;
use std::collections::HashMap;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// One capture, from its begin to its end.
pub(crate) struct Capture {
    pub(crate) id: u64,
    ctx: u64,
    mode: u32,
    thread: u64,
    origin: u64,
    /// The streams in it, with the nodes that the next one depends on.
    streams: HashMap<u64, Vec<usize>>,
    graph: u64,
    /// The graph existed before: a failed capture leaves it in place.
    foreign_graph: bool,
    broken: bool,
    /// What cuStreamGetCaptureInfo points to.
    shown: Vec<u64>,
}

fn find(core: &Core, id: u64) -> Option<usize> {
    core.captures.iter().position(|c| c.id == id)
}

/// Breaks the capture that a stream is in.
pub(crate) fn invalidate_stream(core: &mut Core, stream: u64) {
    if let Some(id) = core.streams.get(&stream).and_then(|s| s.capture)
        && let Some(i) = find(core, id)
    {
        core.captures[i].broken = true;
    }
}

/// A call that may synchronise in a way that a capture cannot have, such as
/// cudaMalloc or cudaEventQuery.
pub(crate) fn unsafe_call(core: &mut Core) -> Answer {
    if core.captures.is_empty() {
        return Ok(());
    }
    let (mode, me) = (capture_mode(), thread());
    let mut forbidden = false;
    for c in &mut core.captures {
        let own = c.thread == me && c.mode != RELAXED;
        let hit = match mode {
            GLOBAL => c.mode == GLOBAL || own,
            RELAXED => false,
            _ => own,
        };
        if hit {
            c.broken = true;
            forbidden = true;
        }
    }
    if forbidden {
        Err(code::CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// A call that concerns all work of a context: in no mode is it allowed.
pub(crate) fn context_call(core: &mut Core, ctx: u64) -> Answer {
    let root = core
        .contexts
        .get(&ctx)
        .and_then(|c| c.parent)
        .unwrap_or(ctx);
    let mut forbidden = false;
    for c in core.captures.iter_mut().filter(|c| c.ctx == root) {
        c.broken = true;
        forbidden = true;
    }
    if forbidden {
        Err(code::CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// The legacy stream is used: it would wait for every blocking stream, also
/// one that is being captured.
pub(crate) fn legacy_use(core: &mut Core, legacy: u64) -> Answer {
    if core.captures.is_empty() {
        return Ok(());
    }
    let Some(ctx) = core.streams.get(&legacy).map(|s| s.ctx) else {
        return Ok(());
    };
    let Core {
        captures, streams, ..
    } = core;
    let mut forbidden = false;
    for c in captures.iter_mut().filter(|c| c.ctx == ctx) {
        if c.streams
            .keys()
            .any(|s| streams.get(s).is_some_and(|s| s.blocking()))
        {
            c.broken = true;
            forbidden = true;
        }
    }
    if forbidden {
        Err(code::CAPTURE_IMPLICIT)
    } else {
        Ok(())
    }
}

/// Adds a node to the capture that a stream is in.
pub(crate) fn add(core: &mut Core, stream: u64, work: Work) -> Answer {
    let id = core
        .streams
        .get(&stream)
        .and_then(|s| s.capture)
        .ok_or(code::INVALID_HANDLE)?;
    let i = find(core, id).ok_or(code::INVALID_HANDLE)?;
    if core.captures[i].broken {
        return Err(code::CAPTURE_INVALIDATED);
    }
    let handle = core.handle();
    let graph = core.captures[i].graph;
    let after = core.captures[i]
        .streams
        .get(&stream)
        .cloned()
        .unwrap_or_default();
    let g = core.graphs.get_mut(&graph).ok_or(code::INVALID_HANDLE)?;
    g.nodes.push(Node {
        handle,
        work,
        after,
    });
    let node = g.nodes.len() - 1;
    core.captures[i].streams.insert(stream, vec![node]);
    Ok(())
}

/// The nodes that an event recorded now in a capturing stream stands for.
pub(crate) fn tips(core: &Core, stream: u64, id: u64) -> Result<Vec<usize>, i32> {
    let i = find(core, id).ok_or(code::INVALID_HANDLE)?;
    if core.captures[i].broken {
        return Err(code::CAPTURE_INVALIDATED);
    }
    Ok(core.captures[i]
        .streams
        .get(&stream)
        .cloned()
        .unwrap_or_default())
}

/// A stream waits for an event recorded in a capture: it becomes part of it.
pub(crate) fn join(core: &mut Core, stream: u64, id: u64, nodes: &[usize]) -> Answer {
    let i = find(core, id).ok_or(code::INVALID_HANDLE)?;
    if core.captures[i].broken {
        return Err(code::CAPTURE_INVALIDATED);
    }
    let s = core.streams.get_mut(&stream).ok_or(code::INVALID_HANDLE)?;
    match s.capture {
        Some(other) if other != id => {
            core.captures[i].broken = true;
            invalidate_stream(core, stream);
            return Err(code::CAPTURE_MERGE);
        }
        _ if s.kind == StreamKind::Legacy || s.ctx != core.captures[i].ctx => {
            core.captures[i].broken = true;
            return Err(code::CAPTURE_ISOLATION);
        }
        _ => s.capture = Some(id),
    }
    let tips = core.captures[i].streams.entry(stream).or_default();
    for n in nodes {
        if !tips.contains(n) {
            tips.push(*n);
        }
    }
    Ok(())
}

/// Begins a capture, into a new graph or (Some) into one that exists.
pub(crate) fn begin(stream: u64, mode: u32, into: Option<(u64, Vec<u64>)>) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    if mode > RELAXED {
        return Err(code::INVALID_VALUE);
    }
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    let ctx = s.ctx;
    if s.kind == StreamKind::Legacy {
        return Err(code::CAPTURE_UNSUPPORTED);
    }
    if s.capture.is_some() {
        return Err(code::ILLEGAL_STATE);
    }
    let foreign_graph = into.is_some();
    let (graph, first) = match into {
        Some((graph, after)) => {
            let g = core.graphs.get(&graph).ok_or(code::INVALID_HANDLE)?;
            let first: Option<Vec<usize>> = after
                .iter()
                .map(|h| g.nodes.iter().position(|n| n.handle == *h))
                .collect();
            (graph, first.ok_or(code::INVALID_VALUE)?)
        }
        None => {
            let graph = core.handle();
            core.graphs.insert(graph, Graph::default());
            (graph, Vec::new())
        }
    };
    let id = core.capture_id();
    core.captures.push(Capture {
        id,
        ctx,
        mode,
        thread: thread(),
        origin: handle,
        streams: HashMap::from([(handle, first)]),
        graph,
        foreign_graph,
        broken: false,
        shown: Vec::new(),
    });
    if let Some(s) = core.streams.get_mut(&handle) {
        s.capture = Some(id);
    }
    Ok(())
}

/// Takes a capture out of the tables; gives its graph's handle, unless that is
/// to be dropped.
fn close(core: &mut Core, i: usize, keep: bool) -> u64 {
    let c = core.captures.swap_remove(i);
    for s in c.streams.keys() {
        if let Some(s) = core.streams.get_mut(s) {
            s.capture = None;
        }
    }
    if keep {
        return c.graph;
    }
    if !c.foreign_graph
        && let Some(g) = core.graphs.remove(&c.graph)
    {
        g.release_memory();
    }
    0
}

/// A stream is destroyed: the capture that began in it ends with it.
pub(crate) fn stream_gone(core: &mut Core, stream: u64) {
    let Some(id) = core.streams.get(&stream).and_then(|s| s.capture) else {
        return;
    };
    let Some(i) = find(core, id) else { return };
    if core.captures[i].origin == stream {
        close(core, i, false);
    } else {
        core.captures[i].broken = true;
        core.captures[i].streams.remove(&stream);
    }
}

/// A context is gone, and its captures with it.
pub(crate) fn context_gone(core: &mut Core, ctx: u64) {
    while let Some(i) = core.captures.iter().position(|c| c.ctx == ctx) {
        close(core, i, false);
    }
}

/// Whether some node of the graph is not before the origin's last ones.
fn unjoined(core: &Core, c: &Capture) -> bool {
    let Some(g) = core.graphs.get(&c.graph) else {
        return false;
    };
    let mut reached = vec![false; g.nodes.len()];
    let mut todo = c.streams.get(&c.origin).cloned().unwrap_or_default();
    while let Some(n) = todo.pop() {
        if !std::mem::replace(&mut reached[n], true) {
            todo.extend(&g.nodes[n].after);
        }
    }
    c.streams.values().flatten().any(|n| !reached[*n])
}

pub(crate) fn end(stream: u64, out: *mut u64) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    let id = core
        .streams
        .get(&handle)
        .and_then(|s| s.capture)
        .ok_or(code::ILLEGAL_STATE)?;
    let i = find(&core, id).ok_or(code::ILLEGAL_STATE)?;
    let c = &core.captures[i];
    if c.mode != RELAXED && c.thread != thread() {
        core.captures[i].broken = true;
        return Err(code::CAPTURE_WRONG_THREAD);
    }
    if c.origin != handle {
        core.captures[i].broken = true;
        return Err(code::CAPTURE_UNMATCHED);
    }
    put_opt(out, 0);
    if c.broken {
        close(&mut core, i, false);
        return Err(code::CAPTURE_INVALIDATED);
    }
    if unjoined(&core, c) {
        close(&mut core, i, false);
        return Err(code::CAPTURE_UNJOINED);
    }
    let graph = close(&mut core, i, true);
    put(out, graph)
}

/// The status of a stream: 0 none, 1 active, 2 invalidated; and its capture.
fn status(core: &mut Core, stream: u64) -> Result<(u32, Option<usize>), i32> {
    let handle = core.stream(stream)?;
    let s = core.streams.get(&handle).ok_or(code::INVALID_HANDLE)?;
    if s.kind == StreamKind::Legacy {
        let ctx = s.ctx;
        let Core {
            captures, streams, ..
        } = core;
        let implicit = captures.iter().any(|c| {
            c.ctx == ctx
                && c.streams
                    .keys()
                    .any(|s| streams.get(s).is_some_and(|s| s.blocking()))
        });
        return if implicit {
            Err(code::CAPTURE_IMPLICIT)
        } else {
            Ok((0, None))
        };
    }
    match s.capture.and_then(|id| find(core, id)) {
        None => Ok((0, None)),
        Some(i) => Ok((if core.captures[i].broken { 2 } else { 1 }, Some(i))),
    }
}

pub(crate) fn is_capturing(stream: u64, out: *mut u32) -> Answer {
    let mut core = state::lock();
    let (s, _) = status(&mut core, stream)?;
    put(out, s)
}

/// Where cuStreamGetCaptureInfo writes, in its newest form.
pub(crate) struct Info {
    pub(crate) status: *mut u32,
    pub(crate) id: *mut u64,
    pub(crate) graph: *mut u64,
    pub(crate) nodes: *mut *const u64,
    pub(crate) edges: *mut *const u64,
    pub(crate) count: *mut usize,
}

pub(crate) fn info(stream: u64, out: &Info) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    let (s, capture) = status(&mut core, stream)?;
    put(out.status, s)?;
    let Some(i) = capture.filter(|_| s == 1) else {
        return Ok(());
    };
    let graph = core.captures[i].graph;
    let tips = core.captures[i]
        .streams
        .get(&handle)
        .cloned()
        .unwrap_or_default();
    let shown: Vec<u64> = match core.graphs.get(&graph) {
        Some(g) => tips.iter().map(|n| g.nodes[*n].handle).collect(),
        None => Vec::new(),
    };
    let c = &mut core.captures[i];
    c.shown = shown;
    put_opt(out.id, c.id);
    put_opt(out.graph, graph);
    put_opt(out.nodes, c.shown.as_ptr());
    put_opt(out.edges, std::ptr::null());
    put_opt(out.count, c.shown.len());
    Ok(())
}

/// cuStreamUpdateCaptureDependencies: adds to (0) or sets (1) what the next
/// node depends on.
pub(crate) fn update(stream: u64, nodes: *const u64, count: usize, flags: u32) -> Answer {
    let mut core = state::lock();
    let handle = core.stream(stream)?;
    let (s, capture) = status(&mut core, stream)?;
    let i = match (s, capture) {
        (1, Some(i)) => i,
        (2, _) => return Err(code::CAPTURE_INVALIDATED),
        _ => return Err(code::ILLEGAL_STATE),
    };
    if flags > 1 || (count > 0 && nodes.is_null()) {
        return Err(code::INVALID_VALUE);
    }
    let g = core
        .graphs
        .get(&core.captures[i].graph)
        .ok_or(code::INVALID_HANDLE)?;
    let mut wanted = Vec::new();
    for k in 0..count {
        // SAFETY: the program passes an array of `count` handles.
        let h = unsafe { *nodes.add(k) };
        wanted.push(
            g.nodes
                .iter()
                .position(|n| n.handle == h)
                .ok_or(code::INVALID_VALUE)?,
        );
    }
    let tips = core.captures[i].streams.entry(handle).or_default();
    if flags == 1 {
        tips.clear();
    }
    for n in wanted {
        if !tips.contains(&n) {
            tips.push(n);
        }
    }
    Ok(())
}

pub(crate) fn exchange_mode(mode: *mut u32) -> Answer {
    let wanted = crate::abi::get(mode)?;
    if wanted > RELAXED {
        return Err(code::INVALID_VALUE);
    }
    put(mode, exchange_capture_mode(wanted))
}

/// The graph that a capture fills.
pub(crate) fn graph_of(core: &Core, id: u64) -> Result<u64, i32> {
    let i = find(core, id).ok_or(code::INVALID_HANDLE)?;
    Ok(core.captures[i].graph)
}
