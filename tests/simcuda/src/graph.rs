//! Graphs: what a capture recorded, ready to be launched again.
//!
//! A launch is one piece of work in its stream, whose nodes run in the order
//! in which they were captured; that order agrees with their dependencies.

use crate::abi::{Answer, code, get, put};
use crate::memory;
use crate::pools;
use crate::state;
use crate::stream::{self, Wait};
use crate::task::{self, Frontier};
use crate::work::Work;
use std::sync::Arc;

/// One node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// A graph.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Memory that captured allocations gave, as (address, buffer id): it
    /// lives as long as the graph, unless the program frees it before.
    pub(crate) memory: Vec<(u64, u64)>,
}

impl Graph {
    /// Frees the memory of its allocation nodes.
    pub(crate) fn release_memory(&self) {
        let mut m = memory::lock();
        for (base, id) in &self.memory {
            let pool = match m.allocs.get(base) {
                Some(a) if a.live && a.buffer_id == *id => pools::handle_of(a.kind),
                _ => None,
            };
            if let Some(pool) = pool {
                pools::give_back(&mut m, pool, *base, Vec::new(), 0);
            }
        }
    }
}

/// An executable graph.
pub(crate) struct GraphExec {
    work: Arc<Vec<Work>>,
    /// Its last launch: the next one runs after it, in whatever stream.
    last: Frontier,
}

pub(crate) fn create(out: *mut u64, flags: u32) -> Answer {
    let mut core = state::lock();
    if out.is_null() || flags != 0 {
        return Err(code::INVALID_VALUE);
    }
    let handle = core.handle();
    core.graphs.insert(handle, Graph::default());
    put(out, handle)
}

pub(crate) fn destroy(graph: u64) -> Answer {
    let g = state::lock()
        .graphs
        .remove(&graph)
        .ok_or(code::INVALID_VALUE)?;
    g.release_memory();
    Ok(())
}

pub(crate) fn get_nodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Answer {
    let core = state::lock();
    let g = core.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
    if nodes.is_null() {
        return put(count, g.nodes.len());
    }
    let room = get(count)?;
    for i in 0..room {
        let handle = g.nodes.get(i).map_or(0, |n| n.handle);
        // SAFETY: the program says that it has room for so many handles.
        unsafe { nodes.add(i).write(handle) };
    }
    put(count, room.min(g.nodes.len()))
}

pub(crate) fn node_type(node: u64, out: *mut u32) -> Answer {
    let core = state::lock();
    let found = core
        .graphs
        .values()
        .flat_map(|g| &g.nodes)
        .find(|n| n.handle == node);
    put(
        out,
        match found.ok_or(code::INVALID_VALUE)?.work {
            Work::Copy(_) | Work::CopyFrom(..) => 1,
            Work::Memset { .. } => 2,
            Work::Host { .. } | Work::Callback { .. } => 3,
            Work::Graph(_) => 4,
            Work::Empty => 5,
            _ => 0,
        },
    )
}

/// Takes the nodes out, for a capture that makes them again. The simulated
/// driver does not compare the two.
pub(crate) fn empty(graph: u64) -> Answer {
    let mut core = state::lock();
    let g = core.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?;
    g.nodes.clear();
    Ok(())
}

/// cuGraphInstantiateWithParams: `params` is flags, a stream to upload in, the
/// node that was at fault, and the result in words.
pub(crate) fn instantiate_with(out: *mut u64, graph: u64, params: *mut [u64; 4]) -> Answer {
    let mut asked = get(params)?;
    let result = instantiate(out, graph);
    // CUDA_GRAPH_INSTANTIATE_SUCCESS is 0, …_ERROR 1.
    (asked[2], asked[3]) = (0, u64::from(result.is_err()));
    put(params, asked)?;
    result
}

pub(crate) fn instantiate(out: *mut u64, graph: u64) -> Answer {
    let mut core = state::lock();
    let g = core.graphs.get(&graph).ok_or(code::INVALID_VALUE)?;
    if out.is_null() {
        return Err(code::INVALID_VALUE);
    }
    let work = Arc::new(g.nodes.iter().map(|n| n.work.clone()).collect());
    let handle = core.handle();
    core.execs.insert(
        handle,
        GraphExec {
            work,
            last: Frontier::new(),
        },
    );
    put(out, handle)
}

pub(crate) fn launch(exec: u64, stream: u64) -> Answer {
    let mut core = state::lock();
    let e = core.execs.get(&exec).ok_or(code::INVALID_VALUE)?;
    let (work, last) = (e.work.clone(), e.last.clone());
    let handle = core.stream(stream)?;
    if let Some(s) = core
        .streams
        .get_mut(&handle)
        .filter(|s| s.capture.is_none())
    {
        task::merge(&mut s.frontier, &last);
    }
    let launched = stream::submit_locked(core, stream, Work::Graph(work), Wait::No)?;
    if let Some(task) = launched
        && let Some(e) = state::lock().execs.get_mut(&exec)
    {
        task::prune(&mut e.last);
        e.last.push(task);
    }
    Ok(())
}

/// Nothing is left to be done ahead of a launch; only the handles are checked.
pub(crate) fn upload(exec: u64, stream: u64) -> Answer {
    let mut core = state::lock();
    core.stream(stream)?;
    core.execs
        .contains_key(&exec)
        .then_some(())
        .ok_or(code::INVALID_VALUE)
}

pub(crate) fn exec_destroy(exec: u64) -> Answer {
    state::lock()
        .execs
        .remove(&exec)
        .map(|_| ())
        .ok_or(code::INVALID_VALUE)
}
