//! What a report says, gathered in one pass.

use std::collections::{BTreeMap, HashMap};

use gpupool::trace::{Call, Memory, Place};

use super::feed::{Live, Outline};

/// Points of the charts over time.
pub const BINS: usize = 600;

/// Calls of one kind, size, thread or place. Sums stop at the largest number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Allocations, failed ones included.
    pub allocs: u64,
    /// Frees, failed ones included.
    pub frees: u64,
    /// Bytes that successful allocations asked for.
    pub bytes: u64,
    /// Nanoseconds inside these calls.
    pub ns: u64,
}

impl Tally {
    /// Allocations and frees.
    pub fn calls(&self) -> u64 {
        self.allocs + self.frees
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        self.allocs += other.allocs;
        self.frees += other.frees;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bin {
    /// Lowest and highest live bytes of device memory.
    pub device: (u64, u64),
    /// The same of other memory.
    pub other: (u64, u64),
    /// Allocations that began in it.
    pub allocs: u64,
    /// Frees that began in it.
    pub frees: u64,
}

/// Device memory of a context.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Bytes at the moment.
    pub live: u64,
    /// Most of it.
    pub peak: u64,
}

/// Everything. Sizes in bytes, times in nanoseconds.
pub struct Figures {
    /// All calls.
    pub all: Tally,
    /// By kind of memory.
    pub kinds: BTreeMap<u8, Tally>,
    /// Successful allocations by the power of two at or below their size.
    pub sizes: BTreeMap<u32, Tally>,
    /// By the trace's number of the thread.
    pub threads: BTreeMap<u32, Tally>,
    /// By return address.
    pub sites: HashMap<u64, Tally>,
    /// By context.
    pub contexts: BTreeMap<Option<Place>, Held>,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that the pool served.
    pub pooled: u64,
    /// Highest sum of live device memory, and when.
    pub peak: (u64, u64),
    /// Live at the end: blocks of all kinds.
    pub left: usize,
    /// Live at the end: bytes of device memory.
    pub left_device: u64,
    /// Whether there was live memory of other kinds.
    pub has_other: bool,
    /// The charts over time.
    pub bins: Vec<Bin>,
    /// Nanoseconds of each bin.
    pub bin_ns: u64,
}

/// Goes through the trace; `done` is told how many calls have been seen.
pub fn gather(outline: &Outline<'_>, mut done: impl FnMut(u64)) -> Figures {
    let mut figures = Figures {
        all: Tally::default(),
        kinds: BTreeMap::new(),
        sizes: BTreeMap::new(),
        threads: BTreeMap::new(),
        sites: HashMap::new(),
        contexts: BTreeMap::new(),
        failed: 0,
        pooled: 0,
        peak: (0, 0),
        left: 0,
        left_device: 0,
        has_other: false,
        bins: vec![Bin::default(); BINS],
        bin_ns: outline.last_ns / BINS as u64 + 1,
    };
    let mut live = Live::default();
    let mut filled = 0;
    let mut seen = 0;
    let Ok(()) = outline.each(|call| {
        done(seen);
        seen += 1;
        figures.count(call);
        figures.hold(call, &mut live, &mut filled);
        Ok::<(), std::convert::Infallible>(())
    });
    figures.fill(&live, &mut filled, BINS - 1);
    figures.left = live.count();
    figures.left_device = live.device;
    figures
}

impl Figures {
    fn count(&mut self, call: &Call) {
        let succeeded = call.result == 0;
        let one = Tally {
            allocs: u64::from(!call.is_free),
            frees: u64::from(call.is_free),
            bytes: if succeeded { call.size } else { 0 },
            ns: call.took_ns,
        };
        self.all.add(&one);
        self.kinds.entry(call.memory.code()).or_default().add(&one);
        self.threads.entry(call.thread).or_default().add(&one);
        self.sites.entry(call.site).or_default().add(&one);
        if succeeded && !call.is_free {
            let power = call.size.checked_ilog2().unwrap_or(0);
            self.sizes.entry(power).or_default().add(&one);
        }
        self.failed += u64::from(!succeeded);
        self.pooled += u64::from(call.pooled);
        let bin = self.bin(call.at_ns);
        self.bins[bin].allocs += one.allocs;
        self.bins[bin].frees += one.frees;
    }

    fn hold(&mut self, call: &Call, live: &mut Live, filled: &mut usize) {
        let at_ns = call.effective_ns();
        let bin = self.bin(at_ns);
        self.fill(live, filled, bin);
        if let Some(old) = live.take(call)
            && old.is_device
        {
            let held = self.contexts.entry(old.place).or_default();
            held.live = held.live.saturating_sub(old.bytes);
        }
        let is_new = !call.is_free && call.result == 0 && call.address != 0;
        if is_new && call.memory == Memory::Device {
            let held = self.contexts.entry(call.place).or_default();
            held.live = held.live.saturating_add(call.size);
            held.peak = held.peak.max(held.live);
        }
        if live.device > self.peak.0 {
            self.peak = (live.device, at_ns);
        }
        self.has_other |= live.other > 0;
        let bin = &mut self.bins[*filled];
        let widen = |range: &mut (u64, u64), value: u64| {
            *range = (range.0.min(value), range.1.max(value));
        };
        widen(&mut bin.device, live.device);
        widen(&mut bin.other, live.other);
    }

    /// What is live stays so up to this bin.
    fn fill(&mut self, live: &Live, filled: &mut usize, to: usize) {
        while *filled < to {
            *filled += 1;
            let bin = &mut self.bins[*filled];
            bin.device = (live.device, live.device);
            bin.other = (live.other, live.other);
        }
    }

    fn bin(&self, at_ns: u64) -> usize {
        ((at_ns / self.bin_ns) as usize).min(BINS - 1)
    }
}
