//! A model of a GPU for tests of the pool: memory with a limit, work in
//! submission order, fences, a clock that only moves in pauses. It checks:
//! handing out memory that unfinished work refers to is a violation.

use gpupool::pool::Memory;
use gpupool::pool::device::{Device, Passed, Recorded, Refusal, SLOTS};
use gpupool::pool::size_class::PAGE;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

/// The state behind the lock.
#[derive(Default)]
pub struct State {
    next: u64,
    /// Segments by address.
    pub segments: BTreeMap<u64, u64>,
    /// Bytes in segments.
    pub held: u64,
    /// Submitted and unfinished work: its number and the range it touches.
    queue: VecDeque<(u64, u64, u64)>,
    submitted: u64,
    /// Fence slots: number of the last work covered.
    slots: [Option<u64>; SLOTS],
    /// The clock.
    pub now: Duration,
    /// Work that a pause completes.
    pub per_pause: u64,
    /// Records are refused, as while a capture is open.
    pub capturing: bool,
    /// Answers are errors from now on.
    pub lost: bool,
    /// Memory handed out while work referred to it.
    pub violations: u64,
    /// Segments given back while any work was unfinished.
    pub released_while_busy: u64,
    /// Segments given back while unfinished work referred to them.
    pub released_in_use: u64,
    /// Longest time an allocation let pass.
    pub pauses: u64,
}

/// See the module.
pub struct Model {
    /// What its segments are.
    pub memory: Memory,
    /// Bytes of the device.
    pub limit: u64,
    /// The rest.
    pub state: Mutex<State>,
}

impl Model {
    /// A device of `limit` bytes.
    #[allow(dead_code, reason = "the tests of pinned memory make others")]
    pub fn new(limit: u64) -> Self {
        Self::of(Memory::Device, limit)
    }

    /// `limit` bytes of such memory. That of the host begins at any page.
    pub fn of(memory: Memory, limit: u64) -> Self {
        Self {
            memory,
            limit,
            state: Mutex::new(State {
                next: 16 * PAGE + memory.page() % PAGE,
                ..State::default()
            }),
        }
    }

    /// Submits work that touches `[address, address + bytes)`.
    pub fn submit(&self, address: u64, bytes: u64) {
        let mut s = self.state.lock().unwrap();
        s.submitted += 1;
        let number = s.submitted;
        s.queue.push_back((number, address, bytes));
    }

    /// Finishes the oldest `count` pieces of work.
    pub fn finish(&self, count: u64) {
        let mut s = self.state.lock().unwrap();
        for _ in 0..count {
            s.queue.pop_front();
        }
    }

    /// The pool has handed out this range: checks it.
    pub fn handed_out(&self, address: u64, bytes: u64) {
        let mut s = self.state.lock().unwrap();
        let busy = s
            .queue
            .iter()
            .any(|(_, a, b)| *a < address + bytes && address < *a + *b);
        s.violations += u64::from(busy);
        let inside = s
            .segments
            .range(..=address)
            .next_back()
            .is_some_and(|(base, size)| address + bytes <= base + size);
        assert!(
            inside,
            "block {address:#x} of {bytes} bytes lies in no segment"
        );
    }
}

impl Device for Model {
    fn reserve(&self, bytes: u64) -> Result<u64, Refusal> {
        let mut s = self.state.lock().unwrap();
        assert_eq!(bytes % self.memory.unit(), 0);
        if s.lost {
            return Err(Refusal::Lost);
        }
        if s.held + bytes > self.limit {
            return Err(Refusal::OutOfMemory);
        }
        let base = s.next;
        s.next += bytes + self.memory.page();
        s.held += bytes;
        s.segments.insert(base, bytes);
        Ok(base)
    }

    fn release(&self, address: u64, bytes: u64) {
        let mut s = self.state.lock().unwrap();
        assert_eq!(
            s.segments.remove(&address),
            Some(bytes),
            "released what is no segment"
        );
        s.held -= bytes;
        s.released_while_busy += u64::from(!s.queue.is_empty());
        let in_use = s
            .queue
            .iter()
            .any(|(_, at, size)| *at < address + bytes && address < *at + *size);
        s.released_in_use += u64::from(in_use);
    }

    fn record(&self, slot: usize) -> Recorded {
        let mut s = self.state.lock().unwrap();
        if s.lost {
            return Recorded::Lost;
        }
        if s.capturing {
            return Recorded::NotNow;
        }
        assert_eq!(s.slots[slot], None, "a pending slot is recorded again");
        s.slots[slot] = Some(s.submitted);
        Recorded::Yes
    }

    fn record_waits(&self) -> bool {
        false
    }

    fn passed(&self, slot: usize) -> Passed {
        let mut s = self.state.lock().unwrap();
        if s.lost {
            return Passed::Lost;
        }
        let Some(covered) = s.slots[slot] else {
            panic!("slot {slot} is polled, but not recorded")
        };
        if s.queue.front().is_some_and(|work| work.0 <= covered) {
            return Passed::NotYet;
        }
        s.slots[slot] = None;
        Passed::Yes
    }

    fn headroom(&self) -> u64 {
        self.limit - self.state.lock().unwrap().held
    }

    fn now(&self) -> Duration {
        self.state.lock().unwrap().now
    }

    fn pause(&self, _round: u32) {
        let per_pause = {
            let mut s = self.state.lock().unwrap();
            s.now += Duration::from_micros(5);
            s.pauses += 1;
            s.per_pause
        };
        self.finish(per_pause);
    }
}
