//! The figures of a process at one moment: of this one, or read from the page
//! of another.

use super::observe::{ClassCounts, SEEN, SEEN_HOST, Seen};
use super::page::{self, ProcessCounts};
use super::{State, config, state};
use crate::config::Mode;
use crate::cuda::context::{self, Context, Status};
#[cfg(doc)]
use crate::cuda::host;
use crate::cuda::host::HostPool;
use crate::pool::Usage;
use crate::pool::stats::Counts;

/// A context and its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSnapshot {
    /// Ordinal of its device in the process.
    pub device: u64,
    /// The driver's id.
    pub id: u64,
    /// Memory of the device in bytes.
    pub total: u64,
    /// Where it stands.
    pub status: Status,
    /// The driver answers every call in it with an error.
    pub lost: bool,
    /// What the pool holds.
    pub usage: Usage,
    /// Bytes that may wait for grace.
    pub inflight_limit: u64,
    /// What the pool did.
    pub counts: Counts,
}

/// A pool of pinned memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSnapshot {
    /// The driver's id of its context.
    pub context: u64,
    /// [`host::Class::number`].
    pub class: u64,
    /// The NUMA node.
    pub node: u64,
    /// What it holds.
    pub usage: Usage,
    /// What it did.
    pub counts: Counts,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The library's version.
    pub version: String,
    /// GPUPOOL_MODE in force.
    pub mode: Mode,
    /// The process id, as the process itself sees it.
    pub pid: u64,
    /// Nanoseconds since the driver was initialised.
    pub age_ns: u64,
    /// The library does nothing any more: the process ends, or it has stepped
    /// aside.
    pub inert: bool,
    /// A helper thread answers requests at once.
    pub helper: bool,
    /// Beside the pools.
    pub process: ProcessCounts,
    /// What GPUPOOL_MODE=observe saw.
    pub seen: Seen,
    /// The same by size class; see [`super::observe::CLASSES`].
    pub classes: Vec<ClassCounts>,
    /// All contexts that were ever known.
    pub contexts: Vec<ContextSnapshot>,
    /// All pools of pinned memory that there ever were.
    pub hosts: Vec<HostSnapshot>,
    /// What GPUPOOL_MODE=observe saw of pinned memory.
    pub seen_host: Seen,
    /// Contexts, and pools of pinned memory, whose figures have no place in the
    /// page.
    pub not_shown: u64,
}

impl Snapshot {
    /// Of this process. Makes no CUDA call.
    #[must_use]
    pub fn own() -> Self {
        let page = page::own();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: config().mode,
            pid: u64::from(std::process::id()),
            age_ns: page.map_or(0, page::Page::age_ns),
            inert: state() == State::Inert,
            helper: page.is_some_and(page::Page::has_helper),
            process: ProcessCounts::own(),
            seen: SEEN.totals.read(),
            classes: SEEN.classes.iter().map(|class| class.read()).collect(),
            contexts: context::ever().into_iter().map(of_context).collect(),
            hosts: context::ever()
                .into_iter()
                .flat_map(|context| context.hosts.iter())
                .map(of_host)
                .collect(),
            seen_host: SEEN_HOST.read(),
            not_shown: 0,
        }
    }

    /// Sum over the pools.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.contexts
            .iter()
            .for_each(|context| sum.add(&context.counts));
        sum
    }

    /// Sum over the pools; of an observed process, what it had of the driver.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut sum = sum(self.contexts.iter().map(|context| context.usage));
        if self.mode == Mode::Observe {
            let Seen { live, peak, .. } = self.seen;
            sum.live = live;
            sum.reserved = live;
            sum.peak_live = peak;
            sum.peak_reserved = peak;
        }
        sum
    }

    /// The same for pinned memory.
    #[must_use]
    pub fn host_usage(&self) -> Usage {
        let mut sum = sum(self.hosts.iter().map(|host| host.usage));
        if self.mode == Mode::Observe {
            let Seen { live, peak, .. } = self.seen_host;
            sum.live = live;
            sum.reserved = live;
            sum.peak_live = peak;
            sum.peak_reserved = peak;
        }
        sum
    }

    /// Sum over the pools of pinned memory.
    #[must_use]
    pub fn host_counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.hosts.iter().for_each(|host| sum.add(&host.counts));
        sum
    }

    /// Allocation calls of the program for pinned memory.
    #[must_use]
    pub fn host_alloc_calls(&self) -> u64 {
        let counts = self.host_counts();
        counts.hits + counts.misses + self.process.passed_host_allocs + self.seen_host.allocs
    }

    /// Free calls of the program for pinned memory.
    #[must_use]
    pub fn host_free_calls(&self) -> u64 {
        self.host_counts().frees + self.process.foreign_host_frees + self.seen_host.frees
    }

    /// Pinned allocations asked of the driver, by the library or past it.
    #[must_use]
    pub fn driver_host_allocs(&self) -> u64 {
        self.process.driver_host_allocs + self.process.passed_host_allocs + self.seen_host.allocs
    }

    /// Frees of pinned memory asked of the driver, by the library or past it.
    #[must_use]
    pub fn driver_host_frees(&self) -> u64 {
        self.process.driver_host_frees + self.process.foreign_host_frees + self.seen_host.frees
    }

    /// Allocation calls of the program.
    #[must_use]
    pub fn alloc_calls(&self) -> u64 {
        let counts = self.counts();
        counts.hits + counts.misses + self.process.passed_allocs + self.seen.allocs
    }

    /// Free calls of the program.
    #[must_use]
    pub fn free_calls(&self) -> u64 {
        self.counts().frees + self.process.foreign_frees + self.seen.frees
    }

    /// Allocations asked of the driver, by the library or past it.
    #[must_use]
    pub fn driver_allocs(&self) -> u64 {
        self.process.driver_allocs + self.process.passed_allocs + self.seen.allocs
    }

    /// Frees asked of the driver, by the library or past it.
    #[must_use]
    pub fn driver_frees(&self) -> u64 {
        self.process.driver_frees + self.process.foreign_frees + self.seen.frees
    }
}

/// Sum over pools. The peaks are those of each pool, and need not have been at
/// one time.
fn sum(pools: impl Iterator<Item = Usage>) -> Usage {
    let mut sum = Usage::default();
    for Usage {
        live,
        waiting,
        reserved,
        peak_live,
        peak_reserved,
        unowned,
        largest_free,
        carved_blocks,
        segments,
    } in pools
    {
        sum.live += live;
        sum.waiting += waiting;
        sum.reserved += reserved;
        sum.peak_live += peak_live;
        sum.peak_reserved += peak_reserved;
        sum.unowned += unowned;
        sum.largest_free = sum.largest_free.max(largest_free);
        sum.carved_blocks += carved_blocks;
        sum.segments += segments;
    }
    sum
}

fn of_host(host: &'static HostPool) -> HostSnapshot {
    HostSnapshot {
        context: host.context.id,
        class: host.class.number(),
        node: u64::from(host.node),
        usage: host.pool.usage(),
        counts: host.pool.counts(),
    }
}

fn of_context(context: &'static Context) -> ContextSnapshot {
    ContextSnapshot {
        device: context.device as u64,
        id: context.id,
        total: context.total,
        status: context.status(),
        lost: context.pool.is_lost(),
        usage: context.pool.usage(),
        inflight_limit: context.pool.inflight_limit(),
        counts: context.pool.counts(),
    }
}
