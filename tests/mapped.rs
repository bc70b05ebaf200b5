//! How a pool of mapped segments grows and gives back, on a model of a GPU.

#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod model;

use gpupool::pool::device::{Passed, Recorded, Refusal};
use gpupool::pool::{BlockInfo, Device, Outcome, Policy, Pool};
use model::Model;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NO_GRACE: bool = cfg!(feature = "unsafe-no-grace");

fn pool() -> Pool {
    Pool::new(policy())
}

fn policy() -> Policy {
    Policy {
        memory: gpupool::pool::Memory::Device,
        max: u64::MAX,
        inflight: Some(64 * MIB),
        total: 1 << 36,
        wait: Duration::from_millis(100),
        isolate: false,
        mapped: true,
    }
}

/// The model, whose driver calls take time.
struct Timed {
    model: Model,
    call: Duration,
}

impl Timed {
    fn new(call: Duration) -> Self {
        Self {
            model: Model::new(1 << 36),
            call,
        }
    }

    /// Lets time pass.
    fn pass(&self, time: Duration) {
        self.model.state.lock().unwrap().now += time;
    }

    /// Work on `block` is submitted, so that the GPU is busy until it is finished.
    fn submit(&self, block: &BlockInfo) {
        self.model.submit(block.address, block.requested);
    }

    fn released_while_busy(&self) -> u64 {
        self.model.state.lock().unwrap().released_while_busy
    }
}

impl Device for Timed {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        self.pass(self.call);
        self.model.reserve(bytes)
    }
    fn release(&self, address: u64, bytes: u64) {
        self.pass(self.call);
        self.model.release(address, bytes);
    }
    fn record(&self, slot: usize) -> Recorded {
        self.model.record(slot)
    }
    fn record_waits(&self) -> bool {
        false
    }
    fn passed(&self, slot: usize) -> Passed {
        self.model.passed(slot)
    }
    fn headroom(&self) -> u64 {
        self.model.headroom()
    }
    fn now(&self) -> Duration {
        self.model.now()
    }
    fn pause(&self, round: u32) {
        self.model.pause(round);
    }
}

fn block(pool: &Pool, device: &Timed, bytes: u64) -> BlockInfo {
    match pool.alloc(device, bytes) {
        Outcome::Block(block) => {
            device.model.handed_out(block.address, block.size);
            block
        }
        Outcome::Native => panic!("no block of {bytes} bytes: {:?}", pool.usage()),
    }
}

fn free(pool: &Pool, device: &Timed, block: &BlockInfo) {
    assert!(pool.free(device, block.address));
}

/// A GPU that always works, on memory that stays with the program: what nothing
/// lives in goes where it is needed all the same.
#[test]
fn memory_goes_where_it_is_needed_while_the_gpu_works() {
    let (pool, device) = (pool(), Timed::new(Duration::ZERO));
    let kept = block(&pool, &device, 400 * MIB);
    for round in 0..40 {
        // Of other sizes each time; together with `kept` never more than 512 MiB.
        let sizes = [20 + round, 60 - round, 30];
        let blocks = sizes.map(|mib| block(&pool, &device, mib * MIB));
        blocks.iter().for_each(|block| free(&pool, &device, block));
        // Their grace completes, and then work on `kept` is under way.
        device.model.finish(1);
        assert!(pool.complete_earlier(&device, Duration::from_millis(1)) || NO_GRACE);
        device.submit(&kept);
    }
    let usage = pool.usage();
    pool.validate().unwrap();
    assert!(usage.peak_live <= 512 * MIB, "{usage:?}");
    // 105% of what the program had at most, in pages.
    assert!(usage.peak_reserved <= 540 * MIB, "{usage:?}");
    assert!(NO_GRACE || device.released_while_busy() > 20);
    assert_eq!(device.model.state.lock().unwrap().released_in_use, 0);
}

/// The negative control of that: without grace periods a segment is given back
/// while the GPU works on it.
#[test]
fn what_the_gpu_works_on_is_not_given_back() {
    let (pool, device) = (pool(), Timed::new(Duration::ZERO));
    let kept = block(&pool, &device, 100 * MIB);
    for mib in [30, 50, 40, 60] {
        let freed = block(&pool, &device, mib * MIB);
        device.submit(&freed);
        free(&pool, &device, &freed);
    }
    let in_use = device.model.state.lock().unwrap().released_in_use;
    assert_eq!(in_use > 0, NO_GRACE, "{in_use}");
    free(&pool, &device, &kept);
}

/// Segments are broken up while little is in use, and not near the peak: there
/// each of the blocks would keep a large segment.
#[test]
fn segments_are_kept_whole_near_the_peak() {
    let (pool, device) = (pool(), Timed::new(Duration::ZERO));
    let large: Vec<_> = (0..10).map(|_| block(&pool, &device, 100 * MIB)).collect();
    let all = pool.counts().segment_allocs;
    assert_eq!(all, 10);
    large.iter().for_each(|block| free(&pool, &device, block));
    assert!(pool.complete_earlier(&device, Duration::from_millis(1)));
    // 5 of 10 segments are broken up for blocks that fit twice into each.
    let mut small: Vec<_> = (0..10).map(|_| block(&pool, &device, 45 * MIB)).collect();
    assert_eq!(pool.counts().segment_allocs, all);
    // From 60% of the peak on, others give way.
    small.extend((0..8).map(|_| block(&pool, &device, 45 * MIB)));
    let grown = pool.counts().segment_allocs - all;
    assert!((4..=8).contains(&grown), "{grown}");
    let usage = pool.usage();
    assert!(usage.reserved <= 1050 * MIB, "{usage:?}");
    pool.validate().unwrap();
}

/// A block that fits waits for grace: that is waited for, not mapped beside it.
#[test]
fn a_block_that_fits_is_waited_for() {
    if NO_GRACE {
        return;
    }
    let (pool, device) = (pool(), Timed::new(Duration::from_micros(50)));
    device.model.state.lock().unwrap().per_pause = 1;
    let first = block(&pool, &device, 100 * MIB);
    let other = block(&pool, &device, 80 * MIB);
    free(&pool, &device, &other);
    assert!(pool.complete_earlier(&device, Duration::from_millis(1)));
    let before = pool.counts().segment_allocs;
    device.submit(&first);
    free(&pool, &device, &first);
    let again = block(&pool, &device, 96 * MIB);
    assert_eq!(again.address, first.address);
    assert_eq!(pool.counts().segment_allocs, before);
}

/// The GPU makes no progress until this thread has its memory: the wait ends soon,
/// and is not repeated before a fence has passed.
#[test]
fn waiting_for_a_block_is_bounded_and_not_repeated() {
    if NO_GRACE {
        return;
    }
    let (pool, device) = (pool(), Timed::new(Duration::ZERO));
    let first = block(&pool, &device, 20 * MIB);
    device.submit(&first);
    free(&pool, &device, &first);
    let waited = |count| {
        let start = device.now();
        let blocks: Vec<_> = (0..count)
            .map(|_| block(&pool, &device, 20 * MIB))
            .collect();
        let time = device.now() - start;
        (blocks, time)
    };
    let (mut blocks, time) = waited(1);
    assert!(time > Duration::from_micros(400), "{time:?}");
    assert!(time < Duration::from_millis(1), "{time:?}");
    let (more, time) = waited(10);
    // Not even the time of one such wait for all of them.
    assert!(time < Duration::from_micros(400), "{time:?}");
    blocks.extend(more);
    pool.validate().unwrap();
}

/// Mapping takes no more of the time than it may, and a half more; then segments
/// are broken up, and the pool serves on.
#[test]
fn mapping_keeps_to_its_time() {
    let (pool, device) = (pool(), Timed::new(Duration::from_micros(100)));
    let kept = block(&pool, &device, 400 * MIB);
    let start = device.now();
    for round in 0..5000u64 {
        let size = (round * 7 % 40 + 8) * MIB;
        let other = block(&pool, &device, size);
        free(&pool, &device, &other);
        device.pass(Duration::from_micros(300));
    }
    let elapsed = device.now() - start;
    let counts = pool.counts();
    let calls = u32::try_from(counts.segment_allocs + counts.segment_frees).unwrap();
    let spent = device.call * calls;
    // 5 ms at once, 0.74% of the time, and half of that more.
    let most = (Duration::from_millis(5) + elapsed / 135) * 3 / 2 + Duration::from_millis(1);
    assert!(spent <= most, "{spent:?} of {elapsed:?}");
    assert!(spent > most / 2, "{spent:?}: nothing was put to the test");
    free(&pool, &device, &kept);
    pool.validate().unwrap();
}

/// Beyond GPUPOOL_MAX nothing is taken, and what is empty makes room below it.
#[test]
fn the_limit_holds() {
    let pool = Pool::new(Policy {
        max: 100 * MIB,
        ..policy()
    });
    let device = Timed::new(Duration::ZERO);
    device.model.state.lock().unwrap().per_pause = 1;
    for size in [60, 90, 30, 100, 10] {
        let one = block(&pool, &device, size * MIB);
        free(&pool, &device, &one);
        assert!(pool.complete_earlier(&device, Duration::from_millis(1)));
    }
    let one = block(&pool, &device, 70 * MIB);
    assert_eq!(pool.alloc(&device, 60 * MIB), Outcome::Native);
    assert!(pool.usage().peak_reserved <= 100 * MIB);
    free(&pool, &device, &one);
}

/// What was taken ahead of need is used before anything is mapped for it.
#[test]
fn preallocated_memory_is_used() {
    let (pool, device) = (pool(), Timed::new(Duration::ZERO));
    assert_eq!(pool.preallocate(&device, 256 * MIB), 256 * MIB);
    let taken = pool.counts().segment_allocs;
    let blocks: Vec<_> = [10, 60, 3, 100]
        .map(|mib| block(&pool, &device, mib * MIB))
        .into();
    assert_eq!(pool.counts().segment_allocs, taken);
    blocks.iter().for_each(|block| free(&pool, &device, block));
}

/// Exported memory does not come again, and goes back once it is empty.
#[test]
fn retired_segments_go_back() {
    let (pool, device) = (pool(), Timed::new(Duration::ZERO));
    let exported = block(&pool, &device, 40 * MIB);
    let (base, size) = pool.retire(exported.address).unwrap();
    assert_eq!((base, size), (exported.address, 40 * MIB));
    free(&pool, &device, &exported);
    assert!(pool.complete_earlier(&device, Duration::from_millis(1)));
    let blocks: Vec<_> = (0..3).map(|_| block(&pool, &device, 40 * MIB)).collect();
    assert!(blocks.iter().all(|block| block.address != base));
    assert!(
        !device
            .model
            .state
            .lock()
            .unwrap()
            .segments
            .contains_key(&base)
    );
    blocks.iter().for_each(|block| free(&pool, &device, block));
}
