//! The only code that calls CUDA: the driver's functions, its contexts, and
//! what the pool needs of them.

pub mod abi;
pub mod above;
pub mod capture;
pub mod context;
pub mod device;
pub mod driver;
pub mod entered;
pub mod fence;
pub mod fill;
pub mod green;
pub mod guard;
pub mod host;
pub mod identity;
pub mod ipc;
pub mod vmm;

pub use context::{Context, SEGMENTS};
