//! The replay itself.

use std::collections::{HashMap, VecDeque};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use gpupool::pool::stats::Counts;
use gpupool::pool::{Outcome, Policy, Pool, front};

use super::gpu::{DriverCalls, Gpu, World};
use super::source::{Event, Input};

/// How a trace is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The limits of each context's pool.
    pub policy: Policy,
    /// Bytes taken at a pool's first use.
    pub prealloc: u64,
    /// Time until the GPU is done with freed memory.
    pub delay: Option<Duration>,
}

/// What came of it. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Allocations replayed.
    pub allocs: u64,
    /// Frees replayed.
    pub frees: u64,
    /// Frees of what was not allocated here.
    pub foreign_frees: u64,
    /// Allocations that neither the pool nor the driver had memory for.
    pub failed: u64,
    /// Highest sum of what the program asked for and had not freed.
    pub peak_live: u64,
    /// Highest sum of what was taken from the driver.
    pub peak_reserved: u64,
    /// Highest sum of what was freed less than the delay ago.
    pub peak_waiting: u64,
    /// Highest sum of both, live and freed less than the delay ago.
    pub peak_live_and_waiting: u64,
    /// The pools' own counters.
    pub counts: Counts,
    /// Calls that the driver had.
    pub driver: DriverCalls,
    /// Time that all waits and calls of the driver added.
    pub waited_ns: u64,
}

impl Figures {
    /// Memory taken for each byte that was needed at the peak: that of live
    /// blocks, and of those that the GPU may still use.
    pub fn ratio(&self) -> f64 {
        self.peak_reserved as f64 / (self.peak_live_and_waiting.max(1)) as f64
    }
}

/// What the program has.
struct Live {
    /// Where the pool or the driver put it.
    address: u64,
    bytes: u64,
    /// Bytes of the driver's own allocation, if it is one.
    native: Option<u64>,
    pool: u32,
}

/// Replays `input`. Shows its progress on a terminal if it takes long.
pub fn run(input: &Input, setup: &Setup) -> Figures {
    let mut progress = Progress::new(input.events.len());
    let figures = run_as_part(input, setup, &mut progress);
    progress.end();
    figures
}

/// Replays `input` as one of several replays that share a line of progress.
pub fn run_as_part(input: &Input, setup: &Setup, progress: &mut Progress) -> Figures {
    let world = World::default();
    let delay = setup.delay.unwrap_or_default();
    let pools: Vec<(Pool, Gpu<'_>)> = input
        .pools
        .iter()
        .map(|_| {
            let gpu = Gpu::new(&world, &setup.policy, delay);
            (Pool::new(setup.policy), gpu)
        })
        .collect();
    let mut figures = Figures::default();
    let mut live: HashMap<u64, Live> = HashMap::new();
    let mut live_bytes = 0;
    let mut freed: VecDeque<(u64, u64)> = VecDeque::new();
    let mut waiting = 0;
    // Waits move everything that follows.
    let mut behind_ns = 0;
    let mut begun = vec![false; pools.len()];
    for (index, event) in input.events.iter().enumerate() {
        progress.show(index);
        let at_ns = (event.at_ns + behind_ns).max(world.now_ns.get());
        world.now_ns.set(at_ns);
        world.called_ns.set(at_ns);
        front::act_as(event.thread);
        let delay_ns = delay.as_nanos() as u64;
        while let Some(&(freed_at, bytes)) = freed.front()
            && freed_at + delay_ns <= at_ns
        {
            waiting -= bytes;
            freed.pop_front();
        }
        if event.is_free {
            match live.remove(&event.address) {
                None => figures.foreign_frees += 1,
                Some(block) => {
                    give(&pools, &block);
                    figures.frees += 1;
                    live_bytes -= block.bytes;
                    freed.push_back((at_ns, block.bytes));
                    waiting += block.bytes;
                }
            }
        } else {
            let (pool, gpu) = &pools[event.pool as usize];
            if !std::mem::replace(&mut begun[event.pool as usize], true) {
                pool.preallocate(gpu, setup.prealloc);
            }
            figures.allocs += 1;
            // Freed unseen: by the end of its context, for one.
            if let Some(old) = live.remove(&event.address) {
                live_bytes -= old.bytes;
                give(&pools, &old);
            }
            match take(pool, gpu, event) {
                None => figures.failed += 1,
                Some(block) => {
                    live_bytes += block.bytes;
                    live.insert(event.address, block);
                }
            }
        }
        let waited = world.now_ns.get() - at_ns;
        behind_ns += waited;
        figures.waited_ns += waited;
        figures.peak_live = figures.peak_live.max(live_bytes);
        if delay_ns > 0 {
            figures.peak_waiting = figures.peak_waiting.max(waiting);
        }
        let needed = live_bytes + if delay_ns > 0 { waiting } else { 0 };
        figures.peak_live_and_waiting = figures.peak_live_and_waiting.max(needed);
    }
    progress.before += input.events.len();
    for (pool, _) in &pools {
        figures.counts.add(&pool.counts());
    }
    figures.peak_reserved = world.peak_held.get();
    figures.driver = *world.calls.borrow();
    figures
}

fn take(pool: &Pool, gpu: &Gpu<'_>, event: &Event) -> Option<Live> {
    let (bytes, pool_number) = (event.size, event.pool);
    match pool.alloc(gpu, bytes) {
        Outcome::Block(block) => Some(Live {
            address: block.address,
            bytes,
            native: None,
            pool: pool_number,
        }),
        Outcome::Native => gpu.alloc_natively(bytes).then_some(Live {
            address: 0,
            bytes,
            native: Some(bytes),
            pool: pool_number,
        }),
    }
}

fn give(pools: &[(Pool, Gpu<'_>)], block: &Live) {
    let (pool, gpu) = &pools[block.pool as usize];
    match block.native {
        Some(bytes) => gpu.free_natively(bytes),
        None => {
            let freed = pool.free(gpu, block.address);
            debug_assert!(freed);
        }
    }
}

/// A line on stderr that says how far a long pass over a trace is.
pub struct Progress {
    total: usize,
    /// Calls of the passes before this one.
    before: usize,
    started: Instant,
    shown: bool,
}

impl Progress {
    /// Of so many calls. Begins to count the time.
    pub fn new(total: usize) -> Self {
        Self {
            total,
            before: 0,
            started: Instant::now(),
            shown: false,
        }
    }

    /// So many calls are done. Writes on a terminal only, after a second.
    pub fn show(&mut self, done: usize) {
        let often = 1 << 14;
        if !done.is_multiple_of(often) || self.started.elapsed() < Duration::from_secs(1) {
            return;
        }
        let mut stderr = std::io::stderr();
        if stderr.is_terminal() {
            let percent = (self.before + done) * 100 / self.total;
            let bar = "#".repeat(percent / 4);
            let _ = write!(stderr, "\r[{bar:<25}] {percent:3}% of {} calls", self.total);
            self.shown = true;
        }
    }

    /// Takes the line away.
    pub fn end(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
