//! What a run needed of the driver, and taking it all at once in the next one.

use super::device::{Device, Refusal};
use super::size_class::{Kind, PAGE};
use super::{Pool, lock, stats};
use std::sync::atomic::Ordering;

/// Kind and bytes of a segment. What a pool needed it still tells when its
/// context has ended.
pub type Need = (Kind, u64);

impl Pool {
    /// From now on the arena remembers what it held at its peak, for
    /// [`Pool::needed`].
    pub fn remember_peak(&self) {
        self.inner().arena.remember_peak();
    }

    /// The segments in use at the pool's peak, or now if those are more.
    /// Without [`Pool::remember_peak`] those in use now.
    pub fn needed(&self) -> Vec<Need> {
        self.inner().arena.needed()
    }

    /// Takes these segments from the driver ahead of need, as far as it has
    /// them and [`super::Policy::max`] allows. Returns the bytes taken.
    pub fn reserve_all<D: Device>(&self, device: &D, needs: &[Need]) -> u64 {
        let _growing = lock(&self.growth);
        let mut taken = 0;
        for &(kind, bytes) in needs {
            // They come from a file, which anybody may have written.
            if bytes == 0 || !bytes.is_multiple_of(PAGE) {
                continue;
            }
            let reserved = self.inner().arena.reserved;
            let room = self.policy.max.saturating_sub(reserved);
            if bytes > room.min(device.headroom()) {
                continue;
            }
            match device.reserve(bytes) {
                Ok(base) => {
                    stats::bump(&self.counters.segment_allocs);
                    let mut inner = self.inner();
                    inner.arena.add_segment(base, bytes, kind);
                    inner.peak_reserved = inner.peak_reserved.max(inner.arena.reserved);
                    taken += bytes;
                }
                Err(Refusal::OutOfMemory) => {}
                Err(Refusal::Lost) => {
                    self.set_lost();
                    break;
                }
            }
        }
        // What was taken ahead of need is there to be used.
        self.preallocated.fetch_add(taken, Ordering::Relaxed);
        taken
    }
}
