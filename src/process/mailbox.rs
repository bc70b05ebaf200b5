//! Requests from outside: `gpupool trim` and `set` leave one in the page, and
//! the library answers at its next call that leaves the fast path, or at once
//! where a helper thread waits for it.
//!
//! One request at a time: whoever asks holds a lock on the memfd meanwhile. The
//! library never waits for an asker.

use super::{live, page};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nobody asks anything.
const FREE: u32 = 0;
/// A request stands in the box.
const ASKED: u32 = 1;
/// It is being worked on.
const TAKEN: u32 = 2;
/// The answer stands in the box.
const ANSWERED: u32 = 3;

/// How long a text in the box may be, in bytes.
pub const LONGEST: usize = 1000;

/// A text that another process writes or reads: any content is valid.
#[derive(Debug)]
#[repr(C)]
struct Text {
    length: AtomicU32,
    bytes: [AtomicU8; LONGEST],
}

impl Text {
    fn write(&self, text: &str) {
        let mut length = text.len().min(LONGEST);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        for (place, byte) in self.bytes.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.length.store(length as u32, Ordering::Relaxed);
    }

    fn read(&self) -> String {
        let length = self.length.load(Ordering::Relaxed) as usize;
        let bytes: Vec<u8> = self
            .bytes
            .iter()
            .take(length)
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Part of the page. Thread-safe.
#[derive(Debug)]
#[repr(C)]
pub struct Mailbox {
    state: AtomicU32,
    /// 1: the request was done.
    done: AtomicU32,
    request: Text,
    answer: Text,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nobody took the request within the time; it was withdrawn.
    NotTaken,
    /// It was taken, and no answer came within the time.
    NotAnswered,
}

impl Mailbox {
    /// Whether somebody waits for an answer.
    #[inline]
    pub fn has_request(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASKED
    }

    /// Asks, and waits at most `limit` for the request to be taken, and as long
    /// again, at least 10 s, for its answer. The answer is `Err` where it says
    /// that the request was not done. The caller holds the memfd's lock.
    pub fn ask(&self, request: &str, limit: Duration) -> Result<Result<String, String>, Silence> {
        let start = Instant::now();
        // An earlier asker that was killed may have left anything behind; but
        // what was taken must first be answered.
        while self.state.load(Ordering::Acquire) == TAKEN {
            if start.elapsed() >= limit {
                return Err(Silence::NotAnswered);
            }
            self.wait(TAKEN, limit);
        }
        self.request.write(request);
        self.state.store(ASKED, Ordering::Release);
        self.wake();
        let start = Instant::now();
        let longest = limit.max(Duration::from_secs(10));
        loop {
            let state = self.state.load(Ordering::Acquire);
            match state {
                ANSWERED => break,
                ASKED if start.elapsed() >= limit => {
                    let withdrawn = self.state.compare_exchange(
                        ASKED,
                        FREE,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if withdrawn.is_ok() {
                        return Err(Silence::NotTaken);
                    }
                }
                TAKEN if start.elapsed() >= limit + longest => return Err(Silence::NotAnswered),
                _ => self.wait(state, Duration::from_millis(50)),
            }
        }
        let (answer, done) = (self.answer.read(), self.done.load(Ordering::Relaxed));
        self.state.store(FREE, Ordering::Release);
        Ok(if done == 1 { Ok(answer) } else { Err(answer) })
    }

    /// Does what is asked, if anything is. `may_wait`: the calling thread may
    /// wait for the GPU.
    #[inline]
    pub fn attend(&self, may_wait: bool) {
        if self.has_request() {
            self.answer(may_wait);
        }
    }

    #[cold]
    fn answer(&self, may_wait: bool) {
        let taken = self
            .state
            .compare_exchange(ASKED, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            return;
        }
        let request = self.request.read();
        let result = live::act(&request, may_wait);
        log::info!("asked from outside: {request}: {result:?}");
        let (text, done) = match &result {
            Ok(text) => (text, 1),
            Err(text) => (text, 0),
        };
        self.answer.write(text);
        self.done.store(done, Ordering::Relaxed);
        self.state.store(ANSWERED, Ordering::Release);
        self.wake();
    }

    /// Waits until a request arrives, at most `limit` if there is one.
    pub fn wait_for_request(&self, limit: Option<Duration>) {
        let state = self.state.load(Ordering::Acquire);
        if state != ASKED {
            self.wait(state, limit.unwrap_or(Duration::from_secs(3600)));
        }
    }

    /// Waits while the state is `state`, at most `limit`; may return early.
    fn wait(&self, state: u32, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // Not the private kind: the page belongs to two processes.
        // SAFETY: the word and the time are valid during the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                libc::FUTEX_WAIT,
                state,
                &raw const limit,
            );
        }
    }

    fn wake(&self) {
        // SAFETY: the word is valid; waking changes no memory.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
            )
        };
    }
}

/// A call has left the fast path: the moment to answer.
#[inline]
pub fn attend(may_wait: bool) {
    if let Some(page) = page::own() {
        page.mailbox().attend(may_wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox() -> &'static Mailbox {
        Box::leak(Box::new(Mailbox {
            state: AtomicU32::new(FREE),
            done: AtomicU32::new(0),
            request: Text {
                length: AtomicU32::new(0),
                bytes: [const { AtomicU8::new(0) }; LONGEST],
            },
            answer: Text {
                length: AtomicU32::new(u32::MAX),
                bytes: [const { AtomicU8::new(b'x') }; LONGEST],
            },
        }))
    }

    #[test]
    fn a_request_that_nobody_takes_is_withdrawn() {
        let mailbox = mailbox();
        let asked = mailbox.ask("trim", Duration::from_millis(1));
        assert_eq!(asked, Err(Silence::NotTaken));
        assert!(!mailbox.has_request());
    }

    #[test]
    fn what_is_asked_is_answered() {
        let mailbox = mailbox();
        let helper = std::thread::spawn(move || {
            while !mailbox.has_request() {
                mailbox.wait_for_request(Some(Duration::from_secs(60)));
            }
            mailbox.attend(true);
        });
        let answer = mailbox.ask("no such thing", Duration::from_secs(60));
        assert!(
            matches!(&answer, Ok(Err(text)) if text.contains("no such thing")),
            "{answer:?}"
        );
        helper.join().unwrap();
    }

    #[test]
    fn a_text_from_outside_may_be_anything() {
        let mailbox = mailbox();
        assert_eq!(mailbox.answer.read().len(), LONGEST);
        mailbox.request.write(&"é".repeat(LONGEST));
        assert_eq!(mailbox.request.read().len(), LONGEST);
        mailbox.request.write("short");
        assert_eq!(mailbox.request.read(), "short");
    }
}
