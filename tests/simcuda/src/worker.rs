//! The threads that execute work.
//!
//! Each stream has a queue and, once there has been work, a thread that takes
//! it off in order. What a piece of work waits for is explicit, so the order
//! of a queue only has to agree with it. The threads never end while their
//! stream lives and are never joined: when the process exits they go with it.

use crate::execute::run;
use crate::report;
use crate::task::{self, Frontier, Task};
use crate::work::{Switch, Work};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// Work with all it needs to run.
pub(crate) struct Item {
    pub(crate) task: Arc<Task>,
    pub(crate) after: Frontier,
    pub(crate) work: Work,
    pub(crate) switch: Arc<Switch>,
}

impl Item {
    /// Waits for what it depends on, runs it and marks it done.
    pub(crate) fn execute(self) {
        task::wait_all(&self.after);
        run(&self.work, &self.switch);
        self.task.finish();
    }
}

#[derive(Default)]
struct Pending {
    items: VecDeque<Item>,
    sleeping: bool,
    closed: bool,
}

/// A stream's queue.
#[derive(Default)]
pub(crate) struct Queue {
    pending: Mutex<Pending>,
    arrived: Condvar,
}

impl Queue {
    /// A queue with a thread that empties it.
    pub(crate) fn start() -> Arc<Queue> {
        let queue = Arc::new(Queue::default());
        let mine = queue.clone();
        let worker = std::thread::Builder::new()
            .name("simcuda".into())
            .stack_size(256 << 10);
        // All signals belong to the program's own threads.
        let old = block_signals();
        let started = worker.spawn(move || {
            // Exact sleeps: delays of kernels are meant as given.
            // SAFETY: affects only this thread.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
            while let Some(item) = mine.next() {
                item.execute();
            }
        });
        restore_signals(&old);
        if started.is_err() {
            report::violation(
                "invalid-access",
                "no thread for a stream of the simulated driver",
            );
        }
        queue
    }

    /// Adds work at the end.
    pub(crate) fn push(&self, item: Item) {
        let mut p = self.pending.lock().unwrap_or_else(|e| e.into_inner());
        p.items.push_back(item);
        if p.sleeping {
            p.sleeping = false;
            self.arrived.notify_one();
        }
    }

    /// Lets the thread end when all is done.
    pub(crate) fn close(&self) {
        let mut p = self.pending.lock().unwrap_or_else(|e| e.into_inner());
        p.closed = true;
        self.arrived.notify_one();
    }

    fn next(&self) -> Option<Item> {
        let mut p = self.pending.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if let Some(item) = p.items.pop_front() {
                return Some(item);
            }
            if p.closed {
                return None;
            }
            p.sleeping = true;
            p = self.arrived.wait(p).unwrap_or_else(|e| e.into_inner());
        }
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: plain calls on local values.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut old = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: a mask that `block_signals` gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}
