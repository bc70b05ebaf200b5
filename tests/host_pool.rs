//! How a pool of pinned memory grows and waits, on the model: it is dear, and the whole machine's.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

mod model;

use gpupool::pool::{BlockInfo, Memory, Outcome, Policy, Pool};
use model::Model;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn model() -> Model {
    Model::of(Memory::Host, 1 << 36)
}

fn pool(inflight: Option<u64>) -> Pool {
    Pool::new(Policy {
        mapped: false,
        memory: Memory::Host,
        max: u64::MAX,
        inflight,
        total: 1 << 36,
        wait: Duration::from_millis(100),
        isolate: false,
    })
}

fn block(pool: &Pool, host: &Model, bytes: u64) -> BlockInfo {
    match pool.alloc(host, bytes) {
        Outcome::Block(block) => {
            host.handed_out(block.address, block.size);
            block
        }
        Outcome::Native => panic!("no block of {bytes} bytes: {:?}", pool.usage()),
    }
}

fn segments(host: &Model) -> Vec<u64> {
    host.state
        .lock()
        .unwrap()
        .segments
        .values()
        .copied()
        .collect()
}

/// Small requests share registrations; a large one takes what it needs in steps of 64 KiB, and the same
/// size again takes nothing.
#[test]
fn no_more_is_taken_than_is_asked_for() {
    let (host, pool) = (model(), pool(None));
    let small: Vec<BlockInfo> = (0..256).map(|_| block(&pool, &host, 100)).collect();
    assert_eq!(segments(&host), [2 * MIB]);
    assert!(
        small
            .iter()
            .all(|b| b.size == 4 * KIB && b.address % (4 * KIB) == 0)
    );
    let large = block(&pool, &host, 5 * MIB + 1);
    assert_eq!(segments(&host), [2 * MIB, 5 * MIB + 64 * KIB]);
    assert!(pool.free(&host, large.address));
    for bytes in [5 * MIB + 1, 5 * MIB, 4 * MIB + 500 * KIB] {
        let again = block(&pool, &host, bytes);
        assert_eq!(again.address, large.address, "{bytes}");
        assert!(pool.free(&host, again.address));
    }
    assert_eq!(segments(&host).len(), 2);
}

/// The steps grow with what is held, to 16 MiB.
#[test]
fn registrations_grow_with_the_pool() {
    let (host, pool) = (model(), pool(None));
    for _ in 0..200 {
        block(&pool, &host, MIB);
    }
    let taken = segments(&host);
    assert_eq!(taken[0], 2 * MIB);
    assert!(taken.len() < 30, "{taken:?}");
    assert!(taken.iter().all(|size| *size <= 16 * MIB), "{taken:?}");
    assert!(pool.usage().reserved <= 225 * MIB, "{taken:?}");
}

/// A block that comes back at once is waited for, as taking another costs as much as hundreds of
/// fences. (Of device memory there would be more.)
#[test]
fn one_block_serves_a_loop_without_work() {
    let (host, pool) = (model(), pool(None));
    for _ in 0..1000 {
        let block = block(&pool, &host, 700 * KIB);
        assert!(pool.free(&host, block.address));
    }
    assert_eq!(segments(&host), [2 * MIB]);
    assert!(pool.usage().reserved == 2 * MIB && pool.counts().misses == 1);
}

/// Behind a GPU that works, no more waits than the limit, which begins at 64 MiB: then an allocation
/// waits for the oldest fence.
#[test]
fn a_busy_gpu_bounds_what_waits() {
    if cfg!(feature = "unsafe-no-grace") {
        return;
    }
    let (host, pool) = (model(), pool(None));
    host.state.lock().unwrap().per_pause = 1;
    for _ in 0..500 {
        let staged = block(&pool, &host, 10 * MIB);
        host.submit(staged.address, staged.requested);
        assert!(pool.free(&host, staged.address));
    }
    let state = host.state.lock().unwrap();
    assert_eq!(state.violations, 0);
    assert!(pool.usage().peak_reserved <= 90 * MIB, "{:?}", pool.usage());
}
