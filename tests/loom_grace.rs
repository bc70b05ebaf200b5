//! Every interleaving of a free and a fence, by loom's exploration of the C11
//! memory model. Runs only when built with `--cfg loom` (see `scripts/loom`).
//!
//! The model driver is one relaxed atomic: a submission stores to it, a record
//! loads from it what it covers. A mutex in the model would order the two by
//! itself and hide the fault that this looks for.
#![cfg(loom)]

use gpupool::pool::device::{Device, Passed, Recorded, Refusal};
use gpupool::pool::grace::Grace;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use std::time::Duration;

struct Gpu {
    /// Work of the program was submitted.
    submitted: AtomicBool,
    /// The last fence that was recorded covers it.
    covered: AtomicBool,
}

impl Device for Gpu {
    fn reserve(&self, _: u64) -> Result<u64, Refusal> {
        Err(Refusal::OutOfMemory)
    }
    fn release(&self, _: u64, _: u64) {}
    fn record(&self, _: usize) -> Recorded {
        self.covered.store(self.submitted.load(Relaxed), Relaxed);
        Recorded::Yes
    }
    fn record_waits(&self) -> bool {
        false
    }
    fn passed(&self, _: usize) -> Passed {
        Passed::Yes
    }
    fn headroom(&self) -> u64 {
        0
    }
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn pause(&self, _: u32) {}
}

/// One thread submits work on a block and frees it; another records a fence
/// and sees it pass. If the block's epoch is then complete, the fence must
/// have covered the work.
#[test]
fn a_free_and_a_fence_do_not_miss_each_other() {
    loom::model(|| {
        let gpu = Arc::new(Gpu {
            submitted: AtomicBool::new(false),
            covered: AtomicBool::new(false),
        });
        let grace = Arc::new(Grace::default());
        let program = {
            let (gpu, grace) = (gpu.clone(), grace.clone());
            thread::spawn(move || {
                gpu.submitted.store(true, Relaxed);
                grace.stamp()
            })
        };
        grace.close(&*gpu);
        grace.poll(&*gpu);
        let covered = gpu.covered.load(Relaxed);
        let completed = grace.completed();
        let stamp = program.join().unwrap();
        assert!(
            stamp > completed || covered,
            "epoch {stamp} is complete, but the fence did not cover its work"
        );
    });
}

/// Two threads close and poll at once: `completed` never passes an epoch whose
/// fence was not recorded, and never falls.
#[test]
fn fences_of_two_threads() {
    loom::model(|| {
        let gpu = Arc::new(Gpu {
            submitted: AtomicBool::new(false),
            covered: AtomicBool::new(false),
        });
        let grace = Arc::new(Grace::default());
        let other = {
            let (gpu, grace) = (gpu.clone(), grace.clone());
            thread::spawn(move || {
                grace.close(&*gpu);
                grace.poll(&*gpu);
            })
        };
        grace.close(&*gpu);
        grace.poll(&*gpu);
        let first = grace.completed();
        other.join().unwrap();
        grace.poll(&*gpu);
        assert!(grace.completed() >= first && grace.completed() < grace.stamp());
    });
}
