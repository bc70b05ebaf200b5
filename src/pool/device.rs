//! What the pool needs of a GPU: the only way from the allocator to the
//! outside. The driver implements it in `cuda::device`, tests implement it
//! with a model.

use std::time::Duration;

/// Why memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device has no such memory left; giving some back may help.
    OutOfMemory,
    /// The context answers with an error that does not go away.
    Lost,
}

/// What became of an attempt to record a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The fence stands in the slot and covers everything submitted before.
    Yes,
    /// Not now (a stream capture is open, or another thread holds the gate).
    /// Nothing was recorded; the epoch stays open.
    NotNow,
    /// The context answers with an error that does not go away.
    Lost,
}

/// The state of a recorded fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The driver said so: all work covered by the fence is complete.
    Yes,
    /// Work covered by it may still run.
    NotYet,
    /// The context answers with an error that does not go away.
    Lost,
}

/// What [`Device::tell`] is told; sizes in bytes as the program asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An allocation was served from what the pool has.
    Hit(u64),
    /// An allocation was served after memory was taken from the driver.
    Miss(u64),
    /// The calling thread begins to wait for the GPU.
    WaitBegins,
    /// That wait is over.
    WaitEnds,
}

/// How many fences can be pending at once: the slots of [`Device::record`].
pub const SLOTS: usize = 32;

/// One device context, as the pool sees it. All methods may be called from
/// any thread; the pool calls `record` and `passed` from one thread at a time.
pub trait Device {
    /// Takes a segment of `bytes` (a multiple of [`super::Memory::unit`]) from
    /// the driver and returns its address, a multiple of
    /// [`super::Memory::page`]. Must not wait for the GPU.
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal>;

    /// Gives a segment back. Called only when the device was just seen idle,
    /// because the driver waits for all work of the context meanwhile.
    fn release(&self, address: u64, bytes: u64);

    /// Records in `slot` a fence over everything submitted so far to every
    /// context whose work could touch the pool's memory. The slot is free: it
    /// was never recorded, or its last fence was seen to have passed.
    fn record(&self, slot: usize) -> Recorded;

    /// Whether `record` waits for the GPU (a driver without context-wide
    /// events). The pool then records only in frees, which wait natively too,
    /// and never in an allocation.
    fn record_waits(&self) -> bool;

    /// Asks for the fence in `slot`. Never waits.
    fn passed(&self, slot: usize) -> Passed;

    /// Bytes that the pool's growth may still take, after the share that is
    /// left to the driver.
    fn headroom(&self) -> u64;

    /// Time since any fixed moment; monotonic.
    fn now(&self) -> Duration;

    /// Called where a call has left the fast path, with no lock of the pool
    /// held: the moment to do what somebody asked of the pool meanwhile.
    /// `may_wait`: the call may wait for the GPU, as an allocation may.
    fn attend(&self, may_wait: bool) {
        let _ = may_wait;
    }

    /// Told of what the pool does, as it does it: for those who watch. Possibly
    /// with a lock of the pool held.
    fn tell(&self, event: Event) {
        let _ = event;
    }

    /// Lets time pass between two polls; `round` counts them from 0.
    fn pause(&self, round: u32);
}
