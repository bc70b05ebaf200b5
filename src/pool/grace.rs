//! Grace periods: when freed memory may be handed out again.
//!
//! Read-copy-update for device memory. `epoch` counts upwards. A free stamps
//! its block with the epoch that is open at that moment; closing an epoch
//! records a context-wide fence on the GPU, and when that fence has passed,
//! every block stamped with this epoch or an earlier one may be reissued.
//!
//! # Why a free and a fence cannot miss each other
//!
//! Claim: if a block is stamped `e`, then the fence of epoch `e` (or of the
//! later one that epoch `e` was merged into) covers all work that the program
//! submitted before the free.
//!
//! 1. The program submitted the work before it called free: sequenced before,
//!    or ordered by the program's own synchronisation between its threads.
//! 2. [`Grace::stamp`] executes a SeqCst fence *F* and then loads `epoch`. It
//!    loads in this very call; a stamp is never cached.
//! 3. [`Grace::close`] increments `epoch` from `e` to `e + 1` with a SeqCst
//!    read-modify-write, executes a SeqCst fence *R*, and only then records.
//! 4. The stamp is `e`, so its load did not see the increment. Were *R* before
//!    *F* in the single order of SeqCst fences, the load after *F* would have
//!    to see the increment that precedes *R*. So *F* is before *R*, and what
//!    the submission wrote before *F* is visible to the record after *R*.
//!
//! The same as store buffering with fences on both sides. `tests/loom_grace.rs`
//! explores it with a model driver whose only state is a relaxed atomic (a
//! mutex in the model would hide the bug), and shows that it fails without
//! either fence.
//!
//! Invariants:
//! - `completed` only grows, and only on [`Passed::Yes`] for a recorded fence.
//! - A slot is in the ring, and so visible to pollers, only after its record
//!   returned success; it is recorded again only after it passed.
//! - A record that fails merges its epoch into the next one: the next fence
//!   has a larger number and covers at least as much.

use super::device::{Device, Passed, Recorded, SLOTS};
use super::sync::{Apart, AtomicBool, AtomicU64, Mutex, Ordering, full_fence, lock, try_lock};
use crate::config::Control;
use std::collections::VecDeque;

/// The number of an epoch. Epochs begin at 1; 0 is always complete.
pub type Epoch = u64;

/// What [`Grace::close`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// A fence for this epoch is pending.
    Epoch(Epoch),
    /// Nothing was recorded: a capture is open, another thread is at it, or
    /// all slots are pending.
    NotNow,
    /// The context is lost.
    Lost,
}

/// The grace state of one context. Thread-safe.
#[derive(Debug)]
pub struct Grace {
    epoch: Apart<AtomicU64>,
    completed: Apart<AtomicU64>,
    lost: AtomicBool,
    /// Fences that were recorded and not yet seen to have passed, oldest
    /// first. Recording, polling and recycling all happen under this lock.
    ring: Mutex<Ring>,
    /// Length of the ring, for a look without the lock.
    pending: AtomicU64,
}

#[derive(Debug)]
struct Ring {
    pending: VecDeque<(Epoch, usize)>,
    free: Vec<usize>,
}

impl Default for Grace {
    fn default() -> Self {
        Self {
            epoch: Apart(AtomicU64::new(1)),
            completed: Apart(AtomicU64::new(0)),
            lost: AtomicBool::new(false),
            ring: Mutex::new(Ring {
                pending: VecDeque::with_capacity(SLOTS),
                free: (0..SLOTS).rev().collect(),
            }),
            pending: AtomicU64::new(0),
        }
    }
}

impl Grace {
    /// The epoch that a free made now belongs to.
    #[inline]
    pub fn stamp(&self) -> Epoch {
        // Step 2 of the argument above: the fence, then a load of this call.
        if cfg!(not(loom_without_fences)) {
            full_fence();
        }
        self.epoch.load(Ordering::SeqCst)
    }

    /// The last epoch whose blocks may be reissued.
    #[inline]
    pub fn completed(&self) -> Epoch {
        if Control::Grace.is_off() {
            return Epoch::MAX;
        }
        self.completed.load(Ordering::Acquire)
    }

    /// Whether the context was seen to be lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Marks the context as lost; there is no way back.
    pub fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether no fence was asked for since a free that was stamped `epoch`.
    pub fn is_open(&self, epoch: Epoch) -> bool {
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// Whether a fence is pending (a look without the lock, may be stale).
    pub fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Closes the open epoch: records a fence that covers it. Does not wait,
    /// neither for the GPU nor for another thread that is at it.
    pub fn close<D: Device + ?Sized>(&self, device: &D) -> Closed {
        match try_lock(&self.ring) {
            Some(mut ring) => self.close_locked(&mut ring, device),
            None => Closed::NotNow,
        }
    }

    /// Like [`Grace::close`], but waits for another thread that is at it: for
    /// devices whose record waits for the GPU, where frees have to wait.
    pub fn close_in_turn<D: Device + ?Sized>(&self, device: &D) -> Closed {
        let mut ring = lock(&self.ring);
        let closed = self.close_locked(&mut ring, device);
        self.poll_locked(&mut ring, device);
        closed
    }

    fn close_locked<D: Device + ?Sized>(&self, ring: &mut Ring, device: &D) -> Closed {
        if self.is_lost() {
            return Closed::Lost;
        }
        if ring.free.is_empty() {
            self.poll_locked(ring, device);
        }
        // A full ring keeps the epoch open: a pending slot is not recorded again.
        let Some(&slot) = ring.free.last() else {
            return Closed::NotNow;
        };
        // Step 3 of the argument above.
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst);
        if cfg!(not(loom_without_fences)) {
            full_fence();
        }
        match device.record(slot) {
            Recorded::Yes => {
                ring.free.pop();
                ring.pending.push_back((epoch, slot));
                self.publish_len(ring);
                Closed::Epoch(epoch)
            }
            Recorded::NotNow => Closed::NotNow,
            Recorded::Lost => {
                self.set_lost();
                Closed::Lost
            }
        }
    }

    /// Looks whether the oldest fences have passed. Returns whether
    /// `completed` has grown. Does not wait.
    pub fn poll<D: Device + ?Sized>(&self, device: &D) -> bool {
        if !self.has_pending() {
            return false;
        }
        match try_lock(&self.ring) {
            Some(mut ring) => self.poll_locked(&mut ring, device),
            None => false,
        }
    }

    fn poll_locked<D: Device + ?Sized>(&self, ring: &mut Ring, device: &D) -> bool {
        let mut grown = false;
        while let Some(&(epoch, slot)) = ring.pending.front() {
            match device.passed(slot) {
                Passed::Yes => {
                    ring.pending.pop_front();
                    ring.free.push(slot);
                    // Only this lock's holder stores, in ring order: it grows.
                    self.completed.store(epoch, Ordering::Release);
                    grown = true;
                }
                Passed::NotYet => break,
                Passed::Lost => {
                    self.set_lost();
                    break;
                }
            }
        }
        self.publish_len(ring);
        grown
    }

    fn publish_len(&self, ring: &Ring) {
        self.pending
            .store(ring.pending.len() as u64, Ordering::Relaxed);
    }
}
