//! How calls enter: the table of patched entry points, one line a hook, and
//! the few exported symbols. What a hook decides is in `serve`, what it does to
//! memory in `pool`.

pub mod arrival;
pub mod attach;
mod checkpoint;
pub mod deepbind;
mod entry;
mod guarded;
pub mod install;
pub mod next;
pub mod objects;
mod passing;
pub mod patch;
mod peers;
mod pinned;
mod query;
pub mod runtime;
pub mod sanitizer;
mod serve;
mod table;
mod traced;
