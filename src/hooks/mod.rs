//! How calls enter: the table of patched entry points, one line a hook, and
//! the few exported symbols. What a hook decides is in `serve`, what it does to
//! memory in `pool`.

pub mod arrival;
pub mod install;
pub mod next;
pub mod objects;
pub mod patch;
pub mod runtime;
pub mod sanitizer;
mod entry;
mod query;
mod serve;
mod table;
