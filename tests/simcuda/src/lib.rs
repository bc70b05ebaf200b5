//! A simulated CUDA driver: `libcuda.so.1` for machines without a GPU.
//!
//! It answers as NVIDIA's driver does (measured on an H200, driver 580.159,
//! CUDA 13.0), runs kernels, copies and host functions on real threads, and
//! checks what its programs do with memory. What it finds is in the report
//! (module `report`); how it is steered is in `config`.
//!
//! Modules, the lower ones first:
//!
//! | module | what |
//! |---|---|
//! | `abi` | result codes, structure layouts, enumerations |
//! | `config` | the `SIMCUDA_*` environment |
//! | `report` | violations, call counts, the file at exit |
//! | `entry` | what every exported call does first: count, fail on demand, delay |
//! | `task` | one piece of GPU work, done or pending; waiting for it |
//! | `memory` | arenas, the allocations, who owns which bytes |
//! | `work`, `execute`, `worker` | what the GPU can be asked to do; doing it; the threads that do it |
//! | `state` | contexts, streams, events, captures: the tables behind one lock |
//! | `stream`, `event`, `context`, `capture`, `graph`, `copy`, `kernels`, `alloc`, `pools`, `vmm`, `ipc`, `pointer`, `device`, `checkpoint` | the calls, by subject |
//! | `exports` | one table of all exported names; `getproc` looks names up in it |
//!
//! Locks, in the order in which they may be taken: `state` → a stream's queue;
//! `state` → `memory`. Nothing waits for GPU work while it holds one.

mod abi;
mod alloc;
mod capture;
mod checkpoint;
mod config;
mod context;
mod copy;
mod device;
mod entry;
mod event;
mod execute;
mod exports;
mod getproc;
mod graph;
mod ipc;
mod kernels;
mod memory;
mod pointer;
mod pools;
mod report;
mod state;
mod stream;
mod task;
mod vmm;
mod work;
mod worker;
