//! GPUPOOL_GUARD: finds writes behind the end of a block, and writes to memory
//! after its free.
//!
//! - Every block is longer than asked for; what is behind the request is its
//!   red zone, filled with [`ZONE`]. At its free, and now and then before, the
//!   zone is read back.
//! - Memory of the pool that no block owns is filled with [`UNOWNED`]: what
//!   comes from the driver, and each block at its free, once all earlier work
//!   of the process is done. It is read back before it is handed out again, at
//!   later frees a few pieces at a time, before its segment goes back to the
//!   driver, and before its context ends.
//!
//! A write in front of a block lands in the zone of the block before it, or in
//! memory that nobody owns; the report then names the block behind it too.
//!
//! Nothing is found that writes the pattern itself, nothing in the last blocks
//! of a process that ends without a reset of the device (there are no CUDA
//! calls of ours after `exit`), and nothing in memory that the driver gave the
//! program without the pool. What cannot be checked is left out: while a
//! capture is open, or when the device is too busy.
//!
//! All of it happens under one lock for each context. It is held while work of
//! our own is waited for, a bounded time, and never while the program's is.

mod finding;
mod lane;
mod scan;
mod unowned;
mod watch;

use super::abi::CUdeviceptr;
use super::context::{self, Context};
use crate::logging::callsite::CallSite;
use crate::pool::BlockInfo;
use lane::Filled;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use unowned::Former;
use watch::{Live, Watch};

pub use finding::{FINDINGS, report_pending};

/// The byte of a red zone: as a float a large negative number.
pub const ZONE: u8 = 0xFD;
/// The byte of memory that nobody owns; another than that of
/// `GPUPOOL_FILL=poison`, so that one can tell which was read.
pub const UNOWNED: u8 = 0xDD;
/// Bytes of a red zone, at least. A multiple of the pool's granule, so that
/// every block keeps its alignment.
pub const ZONE_MIN: u64 = 512;

/// What the guard knows of one context's memory. Thread-safe.
#[derive(Debug, Default)]
pub struct Guard {
    watch: Mutex<Watch>,
}

/// A block on its way back to the pool: claimed by this free and no other.
#[derive(Debug)]
pub struct Claimed {
    address: u64,
    live: Live,
}

fn lock(guard: &Guard) -> MutexGuard<'_, Watch> {
    guard.watch.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is asked of the pool for a request of `bytes`.
#[must_use]
pub fn enlarged(bytes: u64) -> u64 {
    bytes.saturating_add(ZONE_MIN)
}

/// Waits until all work submitted so far to every context of the process is
/// done: work of another context can use a block too. For the owner's as long
/// as it takes if there is no `limit`, as in a native free; for the others a
/// bounded time. False if it is not known to be done.
#[must_use]
pub fn earlier_work_is_done(owner: &Context, limit: Option<Duration>) -> bool {
    const OTHERS: Duration = Duration::from_millis(100);
    owner.wait_for_earlier_work(limit)
        && context::all()
            .into_iter()
            .filter(|other| !std::ptr::eq(*other, owner))
            .all(|other| other.wait_for_earlier_work(Some(limit.unwrap_or(OTHERS))))
}

impl Guard {
    /// A segment came from the driver: fills it. False if it must not be used,
    /// because the fill is still to come.
    pub fn segment_taken(&self, context: &Context, address: u64, bytes: u64) -> bool {
        let mut watch = lock(self);
        let end = address + bytes;
        let filled = watch.lane.fill(context, address, end, UNOWNED);
        if filled == Filled::Yes {
            watch.unowned.insert(address, end, None);
        }
        filled != Filled::Later
    }

    /// A segment is about to go back to the driver: looks at it a last time.
    pub fn segment_given(&self, context: &Context, address: u64, bytes: u64) {
        let mut findings = Vec::new();
        {
            let mut watch = lock(self);
            let parts = watch.unowned.take(address, address + bytes);
            let noticed = "noticed when the memory went back to the driver";
            watch.check(context, &parts, noticed, &mut findings);
        }
        finding::queue(findings);
    }

    /// The context may be about to end: looks at all of its memory.
    pub fn check_all(&self, context: &Context) {
        let noticed = "noticed before the context's end";
        let mut findings = Vec::new();
        {
            let mut watch = lock(self);
            let parts = watch.unowned.all();
            watch.check(context, &parts, noticed, &mut findings);
            let blocks: Vec<u64> = watch.live.keys().copied().collect();
            for address in blocks {
                let Some(mut live) = watch.live.get(&address).copied() else {
                    continue;
                };
                watch.check_zone(context, address, &mut live, noticed, &mut findings);
                watch.live.insert(address, live);
            }
        }
        finding::queue(findings);
    }

    /// The context has ended, and its memory with it.
    pub fn forget(&self) {
        let mut watch = lock(self);
        watch.live.clear();
        watch.unowned.clear();
        watch.lane.forget();
    }

    /// The pool hands out `block`, which nobody else knows yet: whoever wrote
    /// to it did so while nobody owned it.
    pub fn leaving_the_pool(&self, context: &Context, block: &BlockInfo) {
        let mut findings = Vec::new();
        {
            let mut watch = lock(self);
            let parts = watch
                .unowned
                .take(block.address, block.address + block.size);
            let noticed = "noticed before the memory was handed out again";
            watch.check(context, &parts, noticed, &mut findings);
        }
        finding::queue(findings);
    }

    /// `block` becomes the program's, which asked for `requested` bytes: fills
    /// its red zone and remembers it.
    pub fn allocated(
        &self,
        context: &Context,
        block: &BlockInfo,
        requested: u64,
        allocated: CallSite,
    ) {
        let end = block.address + block.size;
        let mut watch = lock(self);
        let filled = watch
            .lane
            .fill(context, block.address + requested, end, ZONE);
        let live = Live {
            requested,
            end,
            armed: filled == Filled::Yes,
            exported: false,
            allocated,
        };
        watch.live.insert(block.address, live);
    }

    /// `block`, which contains `address`, as the program asked for it; `None`
    /// if the address is behind that, in the red zone.
    #[must_use]
    pub fn as_asked(&self, block: BlockInfo, address: CUdeviceptr) -> Option<BlockInfo> {
        let requested = lock(self).live.get(&block.address)?.requested;
        (address < block.address + requested).then_some(BlockInfo { requested, ..block })
    }

    /// Another process may see the block at `address` from now on.
    pub fn exported(&self, address: CUdeviceptr) {
        if let Some(live) = lock(self).live.get_mut(&address) {
            live.exported = true;
        }
    }

    /// The block that begins at `address` is being freed: of two frees at once
    /// only one gets it.
    #[must_use]
    pub fn claim(&self, address: CUdeviceptr) -> Option<Claimed> {
        let live = lock(self).live.remove(&address)?;
        Some(Claimed { address, live })
    }

    /// Looks at the red zone of a claimed block, and fills the block. All work
    /// that was submitted before its free is done, and the pool does not have
    /// it back yet. If the fill is not done in time it may go on: the grace
    /// period of the block covers it like any other work.
    pub fn freed(&self, context: &Context, claimed: Claimed, freed: CallSite) {
        let Claimed { address, mut live } = claimed;
        let mut findings = Vec::new();
        {
            let mut watch = lock(self);
            watch.check_zone(
                context,
                address,
                &mut live,
                "noticed at its free",
                &mut findings,
            );
            // An importer may still read it; and it is not handed out again.
            if !live.exported && watch.lane.fill(context, address, live.end, UNOWNED) == Filled::Yes
            {
                let former = Former {
                    address,
                    requested: live.requested,
                    allocated: live.allocated,
                    freed,
                    ..Former::default()
                };
                watch
                    .unowned
                    .insert(address, live.end, Some(Arc::new(former)));
            }
            watch.check_front(context, address, &mut findings);
            watch.look_around(context, &mut findings);
        }
        finding::queue(findings);
    }
}
