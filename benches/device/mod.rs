//! A device for measuring the pool's own work: memory without end, and a GPU
//! that is always done.

use gpupool::pool::Device;
use gpupool::pool::device::{Passed, Recorded, Refusal};
use gpupool::pool::size_class::PAGE;
use gpupool::pool::{Memory, Outcome, Policy, Pool};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module's documentation.
#[derive(Default)]
pub struct Done {
    next: AtomicU64,
    /// Nanoseconds; a look at the clock takes a hundred, as what lies between two
    /// does.
    clock: AtomicU64,
}

impl Device for Done {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        Ok(64 * PAGE + self.next.fetch_add(bytes + PAGE, Ordering::Relaxed))
    }
    fn release(&self, _address: u64, _bytes: u64) {}
    fn record(&self, _slot: usize) -> Recorded {
        Recorded::Yes
    }
    fn record_waits(&self) -> bool {
        false
    }
    fn passed(&self, _slot: usize) -> Passed {
        Passed::Yes
    }
    fn headroom(&self) -> u64 {
        1 << 40
    }
    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.fetch_add(100, Ordering::Relaxed))
    }
    fn pause(&self, _round: u32) {
        self.clock.fetch_add(200, Ordering::Relaxed);
    }
}

/// A pool of a device of 140 GiB, with the library's defaults.
pub fn pool() -> Pool {
    Pool::new(Policy {
        memory: Memory::Device,
        max: u64::MAX,
        inflight: None,
        total: 140 << 30,
        wait: Duration::from_millis(100),
        isolate: false,
        mapped: false,
    })
}

/// Allocates `bytes`.
///
/// # Panics
/// If the pool has none: a device without end always has.
pub fn alloc(pool: &Pool, device: &Done, bytes: u64) -> u64 {
    match pool.alloc(device, bytes) {
        Outcome::Block(block) => block.address,
        Outcome::Native => panic!("the pool gives no {bytes} bytes"),
    }
}

/// Allocates and frees `bytes`.
pub fn pair(pool: &Pool, device: &Done, bytes: u64) {
    let address = alloc(pool, device, bytes);
    assert!(pool.free(device, address), "{address:#x}");
}
