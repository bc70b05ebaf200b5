//! A thread of the process that runs the stub: what it is asked for, and how it
//! is let go.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::memory::{self, Memory};
use super::stub::{LOOK, REGION, filled, leave_at, word_at};
use super::threads::{self, Registers, Thread};

/// Which of the stub's words are the thread's rip and rax.
const WORD_RIP: usize = 4;
const WORD_RAX: usize = 7;
const EINTR: i64 = -4;

// Offsets in the region.
const COMMAND: u64 = 0;
const DONE: u64 = 8;
const FUNCTION: u64 = 16;
const ARGUMENTS: u64 = 24;
const RESULT: u64 = 72;
/// The signals that the thread itself blocks.
const MASK: u64 = 96;
/// Room for texts that calls take.
pub const TEXT: u64 = 256;

/// A thread that runs the stub.
pub struct Injected<'a> {
    memory: &'a Memory,
    /// Where the stub lies.
    place: Range<u64>,
    /// What was there before.
    before: Vec<u8>,
    region: u64,
    command: u64,
    pub tid: i32,
    /// The thread's own stack pointer.
    stack: u64,
    /// Where it goes on if a signal ends the call that it was stopped in.
    ended_by_signal: Option<u64>,
}

/// Why a call was not made, or did not come back.
#[derive(Debug)]
pub enum CallFailed {
    /// The stub did not begin: it found no memory.
    NoMemory,
    /// Nothing came back in time.
    Late,
    /// The process is gone, or has begun another program.
    Gone(io::Error),
}

impl<'a> Injected<'a> {
    /// Has the stopped thread run the stub, and lets it go.
    ///
    /// # Errors
    /// The kernel's; the thread then is let go as it was stopped.
    pub fn start(
        memory: &'a Memory,
        pid: i32,
        thread: Thread,
        registers: &Registers,
        room: &Range<u64>,
        region: u64,
        errno_location: u64,
    ) -> io::Result<Self> {
        let bytes = filled(registers, region, errno_location);
        let place = room.start..room.start + bytes.len() as u64;
        let mut before = vec![0; bytes.len()];
        let tid = thread.tid;
        let set = memory
            .read(place.start, &mut before)
            .and_then(|()| memory.write(place.start, &bytes))
            .and_then(|()| {
                let mut there = *registers;
                there.rip = place.start;
                // The kernel must not make a call again on its own.
                there.orig_rax = u64::MAX;
                thread.set_registers(&there)
            });
        if let Err(error) = set {
            let _ = memory.write(place.start, &before);
            thread.release(pid);
            return Err(error);
        }
        thread.release(pid);
        Ok(Self {
            memory,
            place,
            before,
            region,
            command: 0,
            tid,
            stack: registers.rsp,
            ended_by_signal: threads::ended_by_signal(registers),
        })
    }

    /// Where in the process `text`, ended by a zero byte, lies for a call.
    pub fn text(&self, text: &[u8]) -> Result<u64, CallFailed> {
        let mut bytes = text.to_vec();
        bytes.push(0);
        self.memory
            .write(self.region + TEXT, &bytes)
            .map_err(CallFailed::Gone)?;
        Ok(self.region + TEXT)
    }

    /// Waits until the stub has begun.
    pub fn await_start(&self, limit: Duration) -> Result<(), CallFailed> {
        let until = Instant::now() + limit;
        loop {
            if self.memory.read_u64(self.region).is_ok() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(CallFailed::NoMemory);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Has the thread make a call, and waits for what it returns.
    pub fn call(
        &mut self,
        function: u64,
        arguments: &[u64],
        limit: Duration,
    ) -> Result<u64, CallFailed> {
        let put = |at: u64, value: u64| {
            self.memory
                .write(self.region + at, &value.to_le_bytes())
                .map_err(CallFailed::Gone)
        };
        put(FUNCTION, function)?;
        for (index, argument) in arguments.iter().enumerate() {
            put(ARGUMENTS + 8 * index as u64, *argument)?;
        }
        self.command += 1;
        put(COMMAND, self.command)?;
        let until = Instant::now() + limit;
        loop {
            let done = self.memory.read_u64(self.region + DONE);
            if done.map_err(CallFailed::Gone)? == self.command {
                return self
                    .memory
                    .read_u64(self.region + RESULT)
                    .map_err(CallFailed::Gone);
            }
            if Instant::now() >= until {
                return Err(CallFailed::Late);
            }
            std::thread::sleep(LOOK / 2);
        }
    }

    /// Has the stub end, and takes its code away once the thread has left it.
    /// False if it has not left in time; its code then stays where it does no
    /// harm.
    pub fn finish(mut self, pid: i32, limit: Duration) -> bool {
        self.mind_signals(pid);
        let _ = self
            .memory
            .write(self.region + FUNCTION, &0_u64.to_le_bytes());
        self.command += 1;
        let _ = self
            .memory
            .write(self.region + COMMAND, &self.command.to_le_bytes());
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if self.memory.read_u64(self.region).is_err() && self.has_left(pid, until) {
                return true;
            }
            std::thread::sleep(LOOK);
        }
        false
    }

    /// The thread was stopped in a call that a handled signal ends, and such a
    /// signal has come meanwhile: the call then must not be made again.
    fn mind_signals(&self, pid: i32) {
        let Some(ended) = self.ended_by_signal else {
            return;
        };
        let Ok(blocked) = self.memory.read_u64(self.region + MASK) else {
            return;
        };
        if threads::handled_signals(pid, self.tid) & !blocked != 0 {
            let word = |index: usize| self.place.start + word_at(index);
            let _ = self.memory.write(word(WORD_RAX), &EINTR.to_le_bytes());
            let _ = self.memory.write(word(WORD_RIP), &ended.to_le_bytes());
        }
    }

    /// Stops the thread for a moment to see that it is out of the stub, and
    /// then puts back what was there before.
    pub fn has_left(&self, pid: i32, until: Instant) -> bool {
        let restore = || self.memory.write(self.place.start, &self.before).is_ok();
        let Ok(mut thread) = Thread::seize(self.tid) else {
            return threads::state(pid, self.tid).is_none() && restore();
        };
        thread.interrupt();
        let stopped = thread.wait_stopped(until);
        let left = stopped && thread.registers().is_ok_and(|r| self.is_outside(pid, &r));
        if left {
            restore();
        }
        thread.release(pid);
        left
    }

    /// Whether a thread with these registers is not in the stub and does not
    /// come back to it: a signal handler that runs since signals were let in
    /// again returns into it.
    fn is_outside(&self, pid: i32, registers: &Registers) -> bool {
        const FAR: u64 = 1 << 20;
        let Ok(maps) = memory::mappings(pid) else {
            return false;
        };
        let own = memory::find(&maps, self.stack).map(|mapping| mapping.range.start);
        if self.place.contains(&registers.rip)
            || own != memory::find(&maps, registers.rsp).map(|mapping| mapping.range.start)
        {
            return false;
        }
        let between = self.stack.saturating_sub(registers.rsp);
        let words = self
            .memory
            .read_up_to(registers.rsp, between.min(FAR) as usize);
        between <= FAR
            && !words.chunks_exact(8).any(|word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                self.place.contains(&u64::from_le_bytes(bytes))
            })
    }

    /// Ends a call that waits for a lock in `locks` and for nothing else, as if
    /// it had never been made. False if that is not what it waits for.
    pub fn give_up(&self, pid: i32, locks: &Range<u64>, until: Instant) -> bool {
        const WAIT: u64 = libc::FUTEX_WAIT as u64;
        let Ok(mut thread) = Thread::seize(self.tid) else {
            return false;
        };
        thread.interrupt();
        let mut given_up = false;
        if thread.wait_stopped(until)
            && let Ok(mut registers) = thread.registers()
        {
            let waits = registers.orig_rax == libc::SYS_futex as u64
                && registers.rsi & 0x7f == WAIT
                && locks.contains(&registers.rdi);
            if waits {
                registers.rip = self.place.start + leave_at();
                registers.rbx = self.region;
                registers.rsp = self.region + REGION;
                registers.orig_rax = u64::MAX;
                given_up = thread.set_registers(&registers).is_ok();
            }
        }
        thread.release(pid);
        given_up
    }
}
