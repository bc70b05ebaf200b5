//! What the layer above gives to the contexts and their pools, and is told by
//! them.

use super::abi::CUdevice;
use super::context::Context;
use super::host::HostPool;
use super::vmm::Mapped;
use crate::config::{Backend, Config, Control, Inflight, Ipc, Size};
use crate::pool::{Memory, Policy};
use std::sync::{Once, OnceLock};
use std::time::Duration;

pub(super) static ABOVE: OnceLock<Above> = OnceLock::new();

/// What the layer above gives, and is told.
pub struct Above {
    /// The options in force.
    pub config: fn() -> &'static Config,
    /// A context became known; nothing has been served from its pool. Called
    /// with the contexts locked.
    pub registered: fn(&'static Context),
    /// The same for a pool of pinned memory.
    pub host_registered: fn(&'static HostPool),
    /// The first use of a context's pool.
    pub first_use: fn(&'static Context),
    /// A context has ended.
    pub ended: fn(&'static Context),
    /// See [`crate::pool::Device::attend`].
    pub attend: fn(bool),
}

/// Once, before any other call here.
pub fn configure(above: Above) {
    let _ = ABOVE.set(above);
}

/// See [`crate::pool::Device::attend`].
pub(super) fn attend(may_wait: bool) {
    if let Some(above) = ABOVE.get() {
        (above.attend)(may_wait);
    }
}

/// GPUPOOL_BACKEND=vmm on a device of `total` bytes, where its driver can.
pub(super) fn mapped(config: &Config, device: CUdevice, total: u64) -> Option<Mapped> {
    if config.backend != Backend::Vmm {
        return None;
    }
    let mapped = Mapped::new(device, total);
    if let Err(why) = &mapped {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            log::warn!("GPUPOOL_BACKEND=vmm acts as driver on device {device}: {why}");
        });
    }
    mapped.ok()
}

/// What the options ask of a pool on a device of `total` bytes.
#[must_use]
pub fn policy(config: &Config, total: u64) -> Policy {
    Policy {
        max: config.max.of(total),
        isolate: config.ipc == Ipc::Isolate,
        ..common(config, Memory::Device, total)
    }
}

/// What they ask of a pool of pinned memory on a host of `total` bytes. All of
/// them share GPUPOOL_HOST_MAX, which taking a segment looks at.
#[must_use]
pub fn host_policy(config: &Config, total: u64) -> Policy {
    let common = common(config, Memory::Host, total);
    Policy {
        max: config.host_max.map_or(u64::MAX, |size| size.of(total)),
        // A percentage is one of a device: of the host it would be far too much.
        inflight: match &config.inflight {
            Inflight::Limit(Size::Percent(percent)) if *percent > 0.0 => None,
            _ => common.inflight,
        },
        ..common
    }
}

fn common(config: &Config, memory: Memory, total: u64) -> Policy {
    Policy {
        memory,
        max: u64::MAX,
        inflight: match &config.inflight {
            Inflight::Auto => None,
            Inflight::Limit(size) => Some(size.of(total)),
        },
        total,
        wait: if Control::WaitLimit.is_off() {
            Duration::MAX
        } else {
            config.wait
        },
        isolate: false,
        mapped: false,
    }
}
