//! Stopping threads, by PTRACE_SEIZE: should this command die, the kernel lets
//! go of them and they run on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use libc::{c_int, c_long, c_void, pid_t};

/// The general registers.
pub type Registers = libc::user_regs_struct;

/// `PTRACE_EVENT_STOP`: stopped by PTRACE_INTERRUPT, not for a signal.
const EVENT_STOP: c_int = 128;

/// Results of system calls that the kernel makes again by itself (errno-base,
/// include/linux/errno.h), as the registers show them while it has not yet.
const RESTARTS: [i64; 3] = [-512, -513, -514];
/// The same by `restart_syscall`.
const RESTARTS_BLOCK: i64 = -516;
const EINTR: i64 = -4;

/// Calls that end with EINTR after any stop (signal(7)); nothing has happened
/// to them, so they can be made again.
const STOPPED_BY_TRACE: [c_long; 6] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
];

fn ptrace(request: c_int, tid: pid_t, address: usize, data: usize) -> io::Result<c_long> {
    // SAFETY: the requests made here take integers, or a pointer to a local
    // that outlives the call (`registers`, `set_registers`).
    let result = unsafe { libc::ptrace(request as _, tid, address as *mut c_void, data) };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn general_set(registers: &Registers) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::from_ref(registers).cast_mut().cast(),
        iov_len: size_of::<Registers>(),
    }
}

/// A thread that this command holds, stopped or not. Let go when dropped.
#[derive(Debug)]
pub struct Thread {
    pub tid: pid_t,
    stopped: bool,
    gone: bool,
    /// Stopped by the interrupt and not by a signal.
    by_interrupt: bool,
    /// A signal that it was about to get.
    signal: c_int,
}

impl Thread {
    /// Begins to trace it; it runs on.
    pub fn seize(tid: pid_t) -> io::Result<Self> {
        ptrace(libc::PTRACE_SEIZE as c_int, tid, 0, 0)?;
        Ok(Self {
            tid,
            stopped: false,
            gone: false,
            by_interrupt: false,
            signal: 0,
        })
    }

    /// Asks it to stop.
    pub fn interrupt(&mut self) {
        // A thread that has just ended is found out by `look`.
        let _ = ptrace(libc::PTRACE_INTERRUPT as c_int, self.tid, 0, 0);
    }

    /// Whether it has stopped or ended by now.
    fn look(&mut self) -> bool {
        if self.stopped || self.gone {
            return true;
        }
        let mut status = 0;
        // SAFETY: `status` is valid for a write.
        match unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) } {
            0 => false,
            pid if pid == self.tid && libc::WIFSTOPPED(status) => {
                self.stopped = true;
                let event = status >> 16;
                self.by_interrupt = event == EVENT_STOP;
                self.signal = if event == 0 {
                    libc::WSTOPSIG(status)
                } else {
                    0
                };
                true
            }
            _ => {
                self.gone = true;
                true
            }
        }
    }

    /// Waits until it has stopped. False if it does not in time, or has ended.
    pub fn wait_stopped(&mut self, until: Instant) -> bool {
        loop {
            if self.look() {
                return !self.gone;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(30));
        }
    }

    /// Its registers, while stopped.
    pub fn registers(&self) -> io::Result<Registers> {
        // SAFETY: all-zero is a valid value of this plain data.
        let registers: Registers = unsafe { std::mem::zeroed() };
        let mut set = general_set(&registers);
        ptrace(
            libc::PTRACE_GETREGSET as c_int,
            self.tid,
            libc::NT_PRSTATUS as usize,
            &raw mut set as usize,
        )?;
        // Written by the kernel through the pointer in `set`.
        Ok(std::hint::black_box(registers))
    }

    /// Changes them all at once.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let mut set = general_set(registers);
        ptrace(
            libc::PTRACE_SETREGSET as c_int,
            self.tid,
            libc::NT_PRSTATUS as usize,
            &raw mut set as usize,
        )
        .map(|_| ())
    }

    /// Where its restartable sequence in progress is described, 0 if it has
    /// none (or the kernel cannot tell).
    pub fn restartable_sequence(&self) -> Option<u64> {
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            pointer: u64,
            size: u32,
            signature: u32,
            flags: u32,
            padding: u32,
        }
        const GET_RSEQ_CONFIGURATION: c_int = 0x420f;
        let mut configuration = Configuration::default();
        ptrace(
            GET_RSEQ_CONFIGURATION,
            self.tid,
            size_of::<Configuration>(),
            &raw mut configuration as usize,
        )
        .ok()?;
        // struct rseq (linux/rseq.h): rseq_cs is its third field.
        (configuration.pointer != 0).then_some(configuration.pointer + 8)
    }

    /// Whether it was stopped by the interrupt alone, with no signal on its way
    /// that a handler or the default action would take.
    pub fn is_undisturbed(&self, pid: pid_t) -> bool {
        self.by_interrupt && !signal_is_pending(pid, self.tid)
    }

    /// Lets it go as it was stopped.
    pub fn release(mut self, pid: pid_t) {
        self.resume(pid);
    }

    fn resume(&mut self, pid: pid_t) {
        if self.gone {
            return;
        }
        if !self.stopped {
            // Detaching needs a stopped thread; one that never stopped is
            // released when this command ends.
            self.interrupt();
            self.wait_stopped(Instant::now() + Duration::from_millis(100));
            if !self.stopped {
                return;
            }
        }
        if let Ok(registers) = self.registers()
            && let Some(again) = made_again(&registers)
            && self.is_undisturbed(pid)
        {
            let _ = self.set_registers(&again);
        }
        let _ = ptrace(
            libc::PTRACE_DETACH as c_int,
            self.tid,
            0,
            self.signal as usize,
        );
        self.gone = true;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.resume(0);
    }
}

/// Registers with which a call that only the trace has ended is made again.
fn made_again(registers: &Registers) -> Option<Registers> {
    let call = registers.orig_rax as i64;
    if registers.rax as i64 != EINTR || !STOPPED_BY_TRACE.contains(&call) {
        return None;
    }
    let mut again = *registers;
    again.rax = registers.orig_rax;
    again.orig_rax = u64::MAX;
    again.rip -= 2;
    Some(again)
}

/// What has to be in the registers for a stopped thread to go on as if it had
/// never been stopped, without the kernel's help.
pub fn resumption(registers: &Registers) -> Registers {
    let mut again = *registers;
    let result = registers.rax as i64;
    if (registers.orig_rax as i64) < 0 {
        return again;
    }
    if RESTARTS.contains(&result) {
        again.rax = registers.orig_rax;
        again.rip -= 2;
    } else if result == RESTARTS_BLOCK {
        again.rax = libc::SYS_restart_syscall as u64;
        again.rip -= 2;
    } else if let Some(made) = made_again(registers) {
        again = made;
    }
    again
}

/// Calls that end with EINTR after a handled signal, whatever the handler's
/// flags (signal(7)).
const ENDED_BY_SIGNAL: [c_long; 14] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_io_getevents,
];

/// For a thread that is stopped in one of these calls: where it goes on after.
pub fn ended_by_signal(registers: &Registers) -> Option<u64> {
    call_of(registers)
        .filter(|call| ENDED_BY_SIGNAL.contains(call))
        .map(|_| registers.rip)
}

/// The system call in which the thread is stopped, if it is in one.
pub fn call_of(registers: &Registers) -> Option<c_long> {
    let call = registers.orig_rax as i64;
    (call >= 0).then_some(call)
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Signals on their way to the thread: all, those that it blocks, and those
/// that have a handler.
fn signals(pid: pid_t, tid: pid_t) -> Option<(u64, u64, u64)> {
    let path = if pid == 0 {
        format!("/proc/{tid}/status")
    } else {
        format!("/proc/{pid}/task/{tid}/status")
    };
    let status = fs::read_to_string(path).ok()?;
    let get = |name| field(&status, name).unwrap_or(0);
    Some((get("SigPnd") | get("ShdPnd"), get("SigBlk"), get("SigCgt")))
}

/// Whether a signal that is not blocked is on its way to the thread.
fn signal_is_pending(pid: pid_t, tid: pid_t) -> bool {
    signals(pid, tid).is_none_or(|(pending, blocked, _)| pending & !blocked != 0)
}

/// Signals with a handler that are on their way, blocked or not.
pub fn handled_signals(pid: pid_t, tid: pid_t) -> u64 {
    signals(pid, tid).map_or(0, |(pending, _, handled)| pending & handled)
}

/// Ids of the process's threads, those that have ended left out.
pub fn list(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if !matches!(state(pid, tid), None | Some(b'Z' | b'X')) {
            found.push(tid);
        }
    }
    Ok(found)
}

/// Whether a thread cannot be seized because it has ended since it was listed,
/// or is just ending, which the kernel answers as a missing right.
pub fn has_ended(pid: pid_t, tid: pid_t, error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH) || matches!(state(pid, tid), None | Some(b'Z' | b'X'))
}

/// The letter of a thread's state, as ps has it.
pub fn state(pid: pid_t, tid: pid_t) -> Option<u8> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    text.get(end + 2).copied()
}

/// All threads of a process, stopped. Let go when dropped.
pub struct Stopped {
    pid: pid_t,
    threads: BTreeMap<pid_t, Thread>,
    since: Instant,
}

/// Why not all threads could be stopped.
#[derive(Debug)]
pub enum NotStopped {
    /// These were still running when the time was up.
    Late(Vec<pid_t>),
    /// The kernel refuses.
    Error(io::Error),
}

impl Stopped {
    /// Stops all threads of the process, within `limit` of the first of them
    /// being stopped; else lets all go again.
    pub fn all(pid: pid_t, limit: Duration) -> Result<Self, NotStopped> {
        let mut stopped = Self {
            pid,
            threads: BTreeMap::new(),
            since: Instant::now(),
        };
        // Those that are there now are seized before any of them is stopped.
        stopped.seize_new()?;
        stopped.since = Instant::now();
        let until = stopped.since + limit;
        loop {
            for thread in stopped.threads.values_mut().filter(|t| !t.stopped) {
                thread.interrupt();
            }
            let mut late = Vec::new();
            for thread in stopped.threads.values_mut() {
                if !thread.wait_stopped(until) && !thread.gone {
                    late.push(thread.tid);
                }
            }
            stopped.threads.retain(|_, thread| !thread.gone);
            if !late.is_empty() {
                return Err(NotStopped::Late(late));
            }
            // A thread that was still running may have started others.
            if stopped.seize_new()? == 0 {
                return Ok(stopped);
            }
        }
    }

    fn seize_new(&mut self) -> Result<usize, NotStopped> {
        let mut new = 0;
        for tid in list(self.pid).map_err(NotStopped::Error)? {
            if self.threads.contains_key(&tid) {
                continue;
            }
            match Thread::seize(tid) {
                Ok(thread) => {
                    self.threads.insert(tid, thread);
                    new += 1;
                }
                Err(error) if has_ended(self.pid, tid, &error) => {}
                Err(error) => return Err(NotStopped::Error(error)),
            }
        }
        Ok(new)
    }

    /// The threads.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values()
    }

    /// How long the first of them has been stopped.
    pub fn pause(&self) -> Duration {
        self.since.elapsed()
    }

    /// Lets all go; says how long the first of them was stopped.
    pub fn release(mut self) -> Duration {
        self.let_go();
        self.since.elapsed()
    }

    fn let_go(&mut self) {
        for thread in self.threads.values_mut() {
            thread.resume(self.pid);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(call: i64, result: i64) -> Registers {
        // SAFETY: all-zero is a valid value of this plain data.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        registers.orig_rax = call as u64;
        registers.rax = result as u64;
        registers.rip = 1000;
        registers
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        let read = resumption(&registers(libc::SYS_read, -512));
        assert_eq!((read.rax as i64, read.rip), (libc::SYS_read, 998));
        let poll = resumption(&registers(libc::SYS_poll, -516));
        assert_eq!(
            (poll.rax as i64, poll.rip),
            (libc::SYS_restart_syscall, 998)
        );
        let epoll = resumption(&registers(libc::SYS_epoll_wait, -4));
        assert_eq!((epoll.rax as i64, epoll.rip), (libc::SYS_epoll_wait, 998));
        // A result that the program is to see.
        let failed = resumption(&registers(libc::SYS_read, -4));
        assert_eq!((failed.rax as i64, failed.rip), (-4, 1000));
        // Not in a call: the registers are the program's own.
        let computing = resumption(&registers(-1, -512));
        assert_eq!((computing.rax as i64, computing.rip), (-512, 1000));
    }

    #[test]
    fn fields_of_status_are_read() {
        let status = "Name:\tx\nSigPnd:\t0000000000000400\nSigBlk:\t0\n";
        assert_eq!(field(status, "SigPnd"), Some(0x400));
        assert_eq!(field(status, "ShdPnd"), None);
    }
}
