//! How the pool grows and gives back, on a model of a GPU.

#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod model;

use gpupool::pool::device::{Passed, Recorded, Refusal};
use gpupool::pool::{BlockInfo, Device, Memory, Outcome, Policy, Pool};
use model::Model;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NO_GRACE: bool = cfg!(feature = "unsafe-no-grace");

fn pool() -> Pool {
    Pool::new(Policy {
        memory: Memory::Device,
        max: u64::MAX,
        inflight: Some(64 * MIB),
        total: 1 << 36,
        wait: Duration::from_millis(1),
        isolate: false,
        mapped: false,
    })
}

fn device() -> Model {
    let device = Model::new(1 << 36);
    device.state.lock().unwrap().per_pause = 1;
    device
}

/// The model, whose driver calls take time, as a driver's do.
struct Timed(Model);

impl Timed {
    fn spend(&self, micros: u64) {
        self.0.state.lock().unwrap().now += Duration::from_micros(micros);
    }
}

impl Device for Timed {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        self.spend(30);
        self.0.reserve(bytes)
    }
    fn release(&self, address: u64, bytes: u64) {
        self.spend(40);
        self.0.release(address, bytes);
    }
    fn record(&self, slot: usize) -> Recorded {
        self.0.record(slot)
    }
    fn record_waits(&self) -> bool {
        false
    }
    fn passed(&self, slot: usize) -> Passed {
        self.0.passed(slot)
    }
    fn headroom(&self) -> u64 {
        self.0.headroom()
    }
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn pause(&self, round: u32) {
        self.0.pause(round);
    }
}

fn block<D: Device>(pool: &Pool, device: &D, bytes: u64) -> BlockInfo {
    match pool.alloc(device, bytes) {
        Outcome::Block(block) => block,
        Outcome::Native => panic!("no block of {bytes} bytes: {:?}", pool.usage()),
    }
}

fn free<D: Device>(pool: &Pool, device: &D, block: &BlockInfo) {
    assert!(pool.free(device, block.address));
}

fn driver_calls(pool: &Pool) -> u64 {
    let counts = pool.counts();
    counts.segment_allocs + counts.segment_frees
}

/// A program that does the same again and again comes to a state without
/// driver calls, and does not hold much more than it needs.
#[test]
fn a_steady_state_makes_no_driver_calls() {
    if NO_GRACE {
        return;
    }
    let (device, pool) = (Timed(device()), pool());
    let mut last_change = 0;
    let rounds = 1500;
    for round in 0..rounds {
        let before = driver_calls(&pool);
        // The same sizes in the same order, as a training step of 2 ms has them.
        let (mut seed, mut live) = (7u64, Vec::new());
        for _ in 0..300 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = match (seed >> 40) % 10 {
                0..4 => (seed >> 33) % (64 << 10) + 1,
                4..7 => (seed >> 33) % (3 * MIB) + MIB,
                _ => (seed >> 33) % (60 * MIB) + 5 * MIB,
            };
            let new = block(&pool, &device, bytes);
            device.0.handed_out(new.address, new.size);
            device.0.submit(new.address, new.requested);
            live.push(new);
            if live.len() > 20 {
                let old = live.swap_remove((seed >> 20) as usize % live.len());
                free(&pool, &device, &old);
            }
        }
        live.iter().for_each(|old| free(&pool, &device, old));
        device.0.finish(1000);
        device.spend(2000);
        if driver_calls(&pool) != before {
            last_change = round;
        }
    }
    let usage = pool.usage();
    assert!(last_change < rounds - 500, "{last_change}: {usage:?}");
    assert!(
        usage.peak_reserved < usage.peak_live * 5 / 2 + 64 * MIB,
        "{usage:?}"
    );
    pool.validate().unwrap();
}

/// A small block does not break up large memory: when the large blocks are
/// freed they can go back whole.
#[test]
fn small_blocks_stay_out_of_large_segments() {
    let (device, pool) = (device(), pool());
    let large: Vec<_> = (0..4).map(|_| block(&pool, &device, 48 * MIB)).collect();
    large.iter().for_each(|old| free(&pool, &device, old));
    let small: Vec<_> = [1, 4096, MIB, 2 * MIB, 3 * MIB]
        .map(|bytes| block(&pool, &device, bytes))
        .into();
    let inside = |new: &BlockInfo| {
        large
            .iter()
            .any(|old| (old.address..old.address + 48 * MIB).contains(&new.address))
    };
    assert!(!small.iter().any(inside), "{small:x?} in {large:x?}");
    if !NO_GRACE {
        assert_eq!(pool.trim(&device), 4 * 48 * MIB);
        small.iter().for_each(|old| free(&pool, &device, old));
    }
}

/// A request that nothing fits: what is empty goes back for it, but only if
/// the GPU is idle; if not the pool grows.
#[test]
fn empty_segments_go_back_for_new_ones_only_while_the_gpu_is_idle() {
    if NO_GRACE {
        return;
    }
    for busy in [false, true] {
        let (device, pool) = (Model::new(1 << 36), pool());
        let kept = block(&pool, &device, 512);
        let first: Vec<_> = (0..8).map(|_| block(&pool, &device, 40 * MIB)).collect();
        first.iter().for_each(|old| free(&pool, &device, old));
        if busy {
            device.submit(kept.address, kept.requested);
        }
        let second = block(&pool, &device, 300 * MIB);
        let (usage, released) = (pool.usage(), pool.counts().segment_frees);
        if busy {
            assert_eq!(released, 0, "{usage:?}");
            assert!(usage.reserved > 600 * MIB, "{usage:?}");
        } else {
            assert!(released > 0 && usage.reserved <= 400 * MIB, "{usage:?}");
        }
        assert_eq!(device.state.lock().unwrap().released_while_busy, 0);
        assert!(second.size == 300 * MIB);
        pool.validate().unwrap();
    }
}

/// What was taken ahead of need serves any request, and stays.
#[test]
fn memory_taken_ahead_is_used_and_kept() {
    let (device, pool) = (device(), pool());
    assert_eq!(pool.preallocate(&device, 2048 * MIB), 2048 * MIB);
    let before = driver_calls(&pool);
    for bytes in [2 * MIB, 5 * MIB, 100 * MIB, 700 * MIB] {
        let new = block(&pool, &device, bytes);
        free(&pool, &device, &new);
        device.finish(10);
    }
    assert_eq!(driver_calls(&pool), before, "{:?}", pool.usage());
    assert_eq!(pool.usage().reserved, 2048 * MIB);
}
