//! The pool's logic on a model of a GPU.

#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod model;

use gpupool::pool::size_class::SMALL_MAX;
use gpupool::pool::{BlockInfo, Device, Memory, Outcome, Policy, Pool};
use model::Model;
use proptest::prelude::*;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NO_GRACE: bool = cfg!(feature = "unsafe-no-grace");

fn policy(max: u64) -> Policy {
    Policy {
        memory: Memory::Device,
        max,
        inflight: Some(64 * MIB),
        total: 1 << 34,
        wait: Duration::from_millis(1),
        isolate: false,
        mapped: false,
    }
}

fn block(pool: &Pool, device: &Model, bytes: u64) -> BlockInfo {
    match pool.alloc(device, bytes) {
        Outcome::Block(block) => {
            device.handed_out(block.address, block.size);
            block
        }
        Outcome::Native => panic!("no block of {bytes} bytes: {:?}", pool.usage()),
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(u64),
    Use(usize),
    Free(usize),
    FreeGarbage(u64),
    Finish(u64),
    Capture(bool),
    Trim,
    Retire(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![
        3 => 1..4096u64,
        3 => 4096..SMALL_MAX + 2,
        4 => SMALL_MAX..48 * MIB,
        1 => Just(2 * MIB),
    ];
    prop_oneof![
        8 => size.prop_map(Op::Alloc),
        6 => any::<prop::sample::Index>().prop_map(|i| Op::Use(i.index(1 << 16))),
        7 => any::<prop::sample::Index>().prop_map(|i| Op::Free(i.index(1 << 16))),
        1 => any::<u64>().prop_map(Op::FreeGarbage),
        4 => (0..8u64).prop_map(Op::Finish),
        1 => any::<bool>().prop_map(Op::Capture),
        1 => Just(Op::Trim),
        1 => any::<prop::sample::Index>().prop_map(|i| Op::Retire(i.index(1 << 16))),
    ]
}

/// Runs `ops`; returns the violations that the model saw.
fn run(memory: Memory, ops: &[Op], per_pause: u64, mapped: bool) -> u64 {
    let device = Model::of(memory, 1 << 30);
    device.state.lock().unwrap().per_pause = per_pause;
    let pool = Pool::new(Policy {
        memory,
        mapped,
        ..policy(u64::MAX)
    });
    let mut live: Vec<BlockInfo> = Vec::new();
    for op in ops {
        match *op {
            Op::Alloc(bytes) => {
                if let Outcome::Block(new) = pool.alloc(&device, bytes) {
                    device.handed_out(new.address, new.size);
                    let align = if bytes > SMALL_MAX {
                        memory.page()
                    } else {
                        memory.granule()
                    };
                    assert_eq!(
                        new.address % align,
                        0,
                        "{bytes} bytes at {:#x}",
                        new.address
                    );
                    assert!(new.requested == bytes && new.size >= bytes);
                    for other in &live {
                        let apart = new.address >= other.address + other.size
                            || other.address >= new.address + new.size;
                        assert!(apart, "{new:x?} overlaps {other:x?}");
                    }
                    assert!(live.iter().all(|other| other.id != new.id));
                    live.push(new);
                }
            }
            Op::Use(which) if !live.is_empty() => {
                let used = live[which % live.len()];
                device.submit(used.address, used.requested);
            }
            Op::Free(which) if !live.is_empty() => {
                let old = live.swap_remove(which % live.len());
                assert_eq!(
                    pool.containing(old.address + old.requested - 1)
                        .map(|b| b.id),
                    Some(old.id)
                );
                assert!(pool.free(&device, old.address));
                assert!(!pool.free(&device, old.address), "freed twice");
            }
            Op::FreeGarbage(address) => {
                if !live.iter().any(|b| b.address == address) {
                    assert!(!pool.free(&device, address));
                }
            }
            Op::Finish(count) => device.finish(count),
            Op::Capture(on) => device.state.lock().unwrap().capturing = on,
            Op::Trim => {
                pool.trim(&device);
            }
            Op::Retire(which) if !live.is_empty() => {
                pool.retire(live[which % live.len()].address);
            }
            Op::Use(_) | Op::Free(_) | Op::Retire(_) => {}
        }
        pool.validate().unwrap();
        let held = device.state.lock().unwrap().held;
        assert_eq!(pool.usage().reserved, held);
        let live_bytes: u64 = live.iter().map(|b| b.size).sum();
        assert_eq!(pool.usage().live, live_bytes);
    }
    // All coalesced: everything can be given back.
    device.state.lock().unwrap().capturing = false;
    for old in live {
        assert!(pool.free(&device, old.address));
    }
    device.finish(u64::from(u32::MAX).min(1 << 20));
    pool.validate().unwrap();
    if !NO_GRACE {
        pool.trim(&device);
        assert_eq!(pool.usage().reserved, 0, "{:?}", pool.usage());
        let state = device.state.lock().unwrap();
        assert!(
            mapped || state.released_while_busy == 0,
            "gave memory back while the GPU was busy"
        );
        assert_eq!(state.released_in_use, 0, "gave back what the GPU works on");
    }
    device.state.lock().unwrap().violations
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any sequence of calls: no overlap, native alignment, exact accounting,
    /// nothing handed out while work refers to it, all of it coalesces.
    #[test]
    fn random_calls(ops in prop::collection::vec(op(), 1..200), per_pause in 0..3u64, mapped: bool) {
        for memory in [Memory::Device, Memory::Host] {
            let mapped = mapped && memory == Memory::Device;
            let violations = run(memory, &ops, per_pause, mapped);
            if !NO_GRACE {
                prop_assert_eq!(violations, 0);
            }
        }
    }
}

/// Cases 1 and 5: memory that work still refers to is not handed out. Without
/// the grace mechanism this very sequence violates.
#[test]
fn pending_work_keeps_its_memory() {
    let device = Model::new(1 << 30);
    let pool = Pool::new(policy(u64::MAX));
    for round in 0..200u64 {
        let a = block(&pool, &device, (round % 5 + 1) * MIB);
        device.submit(a.address, a.requested);
        assert!(pool.free(&device, a.address));
        let b = block(&pool, &device, (round % 5 + 1) * MIB);
        device.submit(b.address, b.requested);
        assert!(pool.free(&device, b.address));
        device.finish(round % 3);
    }
    let violations = device.state.lock().unwrap().violations;
    assert_eq!(violations > 0, NO_GRACE, "{violations} violations");
}

/// What waits for grace is bounded by the in-flight limit as long as the GPU
/// makes progress, however far the CPU runs ahead.
#[test]
fn the_inflight_limit_bounds_memory() {
    let device = Model::new(1 << 34);
    device.state.lock().unwrap().per_pause = 1;
    let pool = Pool::new(Policy {
        wait: Duration::from_secs(10),
        ..policy(u64::MAX)
    });
    for _ in 0..2000 {
        let a = block(&pool, &device, 4 * MIB);
        device.submit(a.address, a.requested);
        assert!(pool.free(&device, a.address));
    }
    let usage = pool.usage();
    assert!(
        NO_GRACE || usage.peak_reserved <= 64 * MIB + 2 * 32 * MIB,
        "{usage:?}"
    );
}

/// Case 25: the GPU makes no progress until this thread has its memory. The
/// allocation waits no longer than it may, and not again until a fence passes.
#[test]
fn a_wait_is_bounded_and_not_repeated() {
    if NO_GRACE {
        return;
    }
    let device = Model::new(1 << 34);
    let pool = Pool::new(policy(u64::MAX));
    let fill = |count| {
        for _ in 0..count {
            let a = block(&pool, &device, 4 * MIB);
            device.submit(a.address, a.requested);
            assert!(pool.free(&device, a.address));
        }
    };
    fill(100);
    let counters = pool.counts();
    assert_eq!(counters.wait_timeouts, 1, "{counters:?}");
    assert!(
        counters.wait_ns >= 1_000_000 && counters.wait_ns < 2_000_000,
        "{counters:?}"
    );
    // Once something passes, waiting is worth trying again.
    device.finish(1000);
    let a = block(&pool, &device, 4 * MIB);
    assert!(pool.free(&device, a.address));
    fill(300);
    assert_eq!(pool.counts().wait_timeouts, 2);
}

/// While a capture is open no fence is recorded: hits come from what is
/// complete, else new memory is taken; afterwards everything comes back.
#[test]
fn captures_postpone_fences() {
    if NO_GRACE {
        return;
    }
    let device = Model::new(1 << 34);
    let pool = Pool::new(policy(u64::MAX));
    let a = block(&pool, &device, 4 * MIB);
    device.state.lock().unwrap().capturing = true;
    assert!(pool.free(&device, a.address));
    let mut blocks: Vec<_> = (0..100).map(|_| block(&pool, &device, 4 * MIB)).collect();
    assert!(blocks.iter().all(|b| b.address != a.address));
    blocks
        .drain(..)
        .for_each(|b| assert!(pool.free(&device, b.address)));
    assert_eq!(pool.usage().waiting, 101 * 4 * MIB);
    device.state.lock().unwrap().capturing = false;
    let reserved = pool.usage().reserved;
    (0..100).for_each(|_| blocks.push(block(&pool, &device, 4 * MIB)));
    assert_eq!(
        pool.usage().reserved,
        reserved,
        "memory freed during a capture did not come back"
    );
}

/// Memory is short: grace is waited for, empty segments of other kinds are
/// given back, and only then is the answer "native".
#[test]
fn short_memory() {
    if NO_GRACE {
        return;
    }
    let device = Model::new(128 * MIB);
    device.state.lock().unwrap().per_pause = 1;
    let pool = Pool::new(policy(u64::MAX));
    let a = block(&pool, &device, 60 * MIB);
    let b = block(&pool, &device, 60 * MIB);
    assert_eq!(pool.alloc(&device, 60 * MIB), Outcome::Native);
    device.submit(a.address, a.requested);
    assert!(pool.free(&device, a.address));
    assert!(pool.free(&device, b.address));
    let c = block(&pool, &device, 100 * MIB);
    assert!(pool.free(&device, c.address));
    // Small requests may break up large segments before they fail.
    let small: Vec<_> = (0..100).map(|_| block(&pool, &device, MIB)).collect();
    assert!(small.len() == 100);
    pool.validate().unwrap();
}

/// GPUPOOL_MAX: beyond it the driver is asked, outside the pool.
#[test]
fn the_cap_holds() {
    if NO_GRACE {
        return;
    }
    let device = Model::new(1 << 34);
    let pool = Pool::new(policy(100 * MIB));
    let a = block(&pool, &device, 60 * MIB);
    assert_eq!(pool.alloc(&device, 60 * MIB), Outcome::Native);
    assert!(pool.usage().peak_reserved <= 100 * MIB);
    assert!(pool.free(&device, a.address));
    block(&pool, &device, 90 * MIB);
    assert!(pool.usage().peak_reserved <= 100 * MIB);
}

/// A lost context: nothing is served any more.
#[test]
fn a_lost_context_answers_natively() {
    let device = Model::new(1 << 34);
    let pool = Pool::new(policy(u64::MAX));
    let a = block(&pool, &device, MIB);
    assert!(pool.free(&device, a.address));
    device.state.lock().unwrap().lost = true;
    assert_eq!(pool.alloc(&device, 64 * MIB), Outcome::Native);
    assert!(pool.is_lost());
    assert_eq!(pool.alloc(&device, 1), Outcome::Native);
}

/// Requests of 4 GiB and more have a segment of their own and are not split.
#[test]
fn dedicated_segments() {
    let device = Model::new(1 << 40);
    let pool = Pool::new(policy(u64::MAX));
    let a = block(&pool, &device, 5 << 30);
    assert_eq!((pool.usage().segments, a.size), (1, 5 << 30));
    assert!(pool.free(&device, a.address));
    let b = block(&pool, &device, 64 * MIB);
    assert!(!(a.address..a.address + a.size).contains(&b.address));
    if !NO_GRACE {
        let c = block(&pool, &device, (5 << 30) - MIB);
        assert_eq!(c.address, a.address);
    }
    pool.validate().unwrap();
}

/// What the program may count as free changes only with its own calls.
#[test]
fn free_memory_moves_only_with_the_programs_calls() {
    let device = Model::new(1 << 34);
    let pool = Pool::new(policy(u64::MAX));
    let a = block(&pool, &device, 20 * MIB);
    device.submit(a.address, a.requested);
    let before = pool.unowned();
    assert!(pool.free(&device, a.address));
    let after = pool.unowned();
    assert_eq!(after - before, pool.usage().reserved);
    device.finish(1);
    pool.complete_earlier(&device, Duration::from_millis(1));
    assert_eq!(pool.unowned(), after);
}

/// The same calls give the same addresses.
#[test]
fn placement_is_deterministic() {
    let addresses = || {
        let device = Model::new(1 << 34);
        let pool = Pool::new(policy(u64::MAX));
        let mut live = std::collections::VecDeque::new();
        let mut all = Vec::new();
        let mut seed = 7u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let b = block(&pool, &device, (seed >> 33) % (4 * MIB) + 1);
            all.push(b.address);
            live.push_back(b);
            if live.len() > 50 {
                let old = live.pop_front().unwrap();
                assert!(pool.free(&device, old.address));
            }
        }
        all
    };
    assert!(addresses() == addresses());
}

/// Many threads, blocks freed by others than those who allocated them, a GPU
/// that lags behind: nothing is handed out early. Without grace it is.
#[test]
fn threads_and_a_lagging_gpu() {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    let device = Model::new(1 << 34);
    device.state.lock().unwrap().per_pause = 2;
    let pool = Pool::new(policy(u64::MAX));
    let rounds = AtomicU64::new(0);
    let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| channel::<BlockInfo>()).unzip();
    senders.rotate_left(1);
    std::thread::scope(|scope| {
        for (number, (to, from)) in senders.drain(..).zip(receivers).enumerate() {
            let (device, pool, rounds) = (&device, &pool, &rounds);
            scope.spawn(move || {
                let mut seed = number as u64 + 1;
                for round in 0..4000u64 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let bytes = match (seed >> 60) % 4 {
                        0 => (seed >> 33) % (8 * MIB) + 1,
                        1 => MIB,
                        _ => ((seed >> 33) % 8 + 1) * 4096,
                    };
                    let b = block(pool, device, bytes);
                    device.submit(b.address, b.requested);
                    if round % 3 == 0 {
                        let _ = to.send(b);
                    } else {
                        assert!(pool.free(device, b.address), "{b:x?}");
                    }
                    if let Ok(other) = from.try_recv() {
                        assert!(
                            pool.containing(other.address + other.requested / 2)
                                .is_some_and(|o| o.id == other.id)
                        );
                        assert!(pool.free(device, other.address));
                    }
                    match round % 257 {
                        0 => drop(pool.trim(device)),
                        1 => drop(pool.unowned()),
                        2 => drop(pool.retire(b.address)),
                        _ => {}
                    }
                    if round % 2 == 0 {
                        device.finish(2);
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                drop(to);
                for other in from {
                    assert!(pool.free(device, other.address));
                }
            });
        }
    });
    device.finish(1 << 20);
    pool.usage();
    assert_eq!(rounds.load(Ordering::Relaxed), 16_000);
    let counts = pool.counts();
    assert_eq!(counts.hits + counts.misses, 16_000);
    assert!(counts.reissues > 10_000 || !NO_GRACE, "{counts:?}");
    pool.complete_earlier(&device, Duration::from_millis(1));
    pool.validate().unwrap();
    assert_eq!(pool.usage().live, 0);
    let violations = device.state.lock().unwrap().violations;
    assert_eq!(violations > 0, NO_GRACE, "{violations} violations");
}

/// Memory is short while a capture is open: nothing can complete, so nothing is
/// waited for, and the answer comes at once.
#[test]
fn short_memory_in_a_capture_is_not_waited_for() {
    if NO_GRACE {
        return;
    }
    let device = Model::new(128 * MIB);
    let pool = Pool::new(Policy {
        wait: Duration::from_secs(3600),
        ..policy(u64::MAX)
    });
    let a = block(&pool, &device, 100 * MIB);
    device.submit(a.address, a.requested);
    device.state.lock().unwrap().capturing = true;
    assert!(pool.free(&device, a.address));
    assert_eq!(pool.alloc(&device, 100 * MIB), Outcome::Native);
    assert!(device.now() < Duration::from_secs(1), "{:?}", device.now());
    device.state.lock().unwrap().capturing = false;
    device.finish(1);
    block(&pool, &device, 100 * MIB);
}

/// With no time to wait, what is empty still goes back before a request fails.
#[test]
fn short_memory_without_time_to_wait() {
    if NO_GRACE {
        return;
    }
    let device = Model::new(128 * MIB);
    let pool = Pool::new(Policy {
        wait: Duration::ZERO,
        ..policy(u64::MAX)
    });
    let a = block(&pool, &device, 60 * MIB);
    let b = block(&pool, &device, 60 * MIB);
    assert!(pool.free(&device, a.address));
    assert!(pool.free(&device, b.address));
    block(&pool, &device, 100 * MIB);
    pool.validate().unwrap();
}
