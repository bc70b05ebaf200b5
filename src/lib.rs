//! gpupool: GPU memory allocation free of charge for programs nobody rewrites.
//!
//! Data flows one way. A call enters at a patched entry point of libcuda or at
//! an exported function ([`hooks`]); what the library is to this process says
//! [`process`]; whose context it is, and how the driver is asked for anything,
//! is [`cuda`]; what memory it gets decides [`pool`], which knows no CUDA and
//! returns its answer as a value. [`config`] holds the options, [`logging`] is
//! the one way to say something, and [`trace`] the format of recorded calls.
//! [`nvtx`] marks
//! what the pool does for profilers.
//! Each of these may use those before it in this list: config, logging, trace,
//! nvtx, pool, cuda, process, hooks.
//!
//! Why a block is never reissued too early stands in [`pool::grace`].
//!
//! This crate exports no unmangled symbol, so that tests and the command can
//! be linked with it; `libgpupool.so` is the crate in `preload/`.

pub mod config;
#[macro_use]
pub mod logging;
pub mod cuda;
pub mod hooks;
pub mod nvtx;
pub mod pool;
pub mod process;
pub mod trace;
