//! The figures of a process at one moment: of this one, or read from the page
//! of another.

use super::observe::{ClassCounts, SEEN, Seen};
use super::page::{self, ProcessCounts};
use super::{State, config, state};
use crate::config::Mode;
use crate::cuda::context::{self, Context, Status};
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
    /// Contexts whose figures have no place in the page.
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
        } in self.contexts.iter().map(|context| context.usage)
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
        if self.mode == Mode::Observe {
            let Seen { live, peak, .. } = self.seen;
            sum.live = live;
            sum.reserved = live;
            sum.peak_live = peak;
            sum.peak_reserved = peak;
        }
        sum
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
