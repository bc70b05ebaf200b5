//! The log: `GPUPOOL_LOG` through the `log` and `env_logger` crates, to stderr.
//!
//! `env_logger` decides what passes; the line is written here, because a
//! library inside other people's programs needs more than it offers: one
//! write(2) a line, so that lines of threads and processes do not mix; no lock,
//! so that a process that forks while another thread logs cannot deadlock; no
//! SIGPIPE when stderr is a pipe that nobody reads; `errno` as it was.
//!
//! Before [`init`] everything is dropped. Stdout is never written.

pub mod callsite;

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use log::{LevelFilter, Log, Metadata, Record};

use crate::config::{self, Changeable};

#[doc(hidden)]
pub use log as log_crate;

/// What passes when the filter asked for is not understood.
const FALLBACK: &str = "warn";

/// Longest line in bytes: PIPE_BUF, up to which a write into a pipe is atomic
/// (pipe(7)).
const LONGEST_LINE: usize = 4096;

/// Starts the log with `filter`, in `env_logger`'s syntax (see
/// [`config::is_log_filter`]). A filter that is not understood becomes `warn`,
/// with one warning. Only the first call of a process has an effect; any thread
/// may make it.
///
/// A process that starts with stderr closed stays silent for good: whatever it
/// opens next gets number 2, and a log line must not land in that file.
pub fn init(filter: &str) {
    let understood = config::is_log_filter(filter);
    let logger = LOGGER.get_or_init(|| {
        Logger::new(
            if understood { filter } else { FALLBACK },
            libc::STDERR_FILENO,
        )
    });
    let level = logger.level();
    // The only error is that a logger is set already: then that one stays.
    if log::set_logger(logger).is_ok() {
        log::set_max_level(level);
        if !understood {
            log::warn!("the log filter {filter:?} is not understood; {FALLBACK:?} is in force");
        }
    }
}

/// Replaces the filter, which [`config::is_log_filter`] has accepted; before
/// [`init`] without effect. Any thread may call it.
pub fn set_filter(filter: &str) {
    if let Some(logger) = LOGGER.get() {
        logger.filter.set(parsed(filter));
        log::set_max_level(logger.level());
    }
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Logs a warning unless one with the same key was logged before in this
/// process: `warn_once!("key", "format {}", args)`. The key is any `&str`.
///
/// A warning that the filter holds back, or that comes before [`init`], does
/// not use up its key.
#[macro_export]
macro_rules! warn_once {
    ($key:expr, $($message:tt)+) => {
        if $crate::logging::log_crate::log_enabled!($crate::logging::log_crate::Level::Warn)
            && $crate::logging::is_first($key)
        {
            $crate::logging::log_crate::warn!($($message)+);
        }
    };
}

/// Whether `key` is seen for the first time in this process. Neither locks nor
/// allocates, so it can be asked anywhere.
///
/// Keys are told apart by a 64-bit hash; after [`SLOTS`] of them, further ones
/// count as seen: a flood of distinct warnings is not worth more.
pub fn is_first(key: &str) -> bool {
    is_first_in(&SEEN, key)
}

/// How many keys [`is_first`] can remember.
pub const SLOTS: usize = 256;

static SEEN: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

fn is_first_in(seen: &[AtomicU64], key: &str) -> bool {
    // FNV-1a; 0 marks an empty slot.
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| {
            (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
        .max(1);
    for step in 0..seen.len() {
        let slot = &seen[(hash as usize).wrapping_add(step) % seen.len()];
        // Relaxed: the table orders nothing but itself.
        match slot.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) if other == hash => return false,
            Err(_) => {}
        }
    }
    false
}

/// `env_logger`'s filter before a file descriptor.
struct Logger {
    filter: Changeable<env_logger::Logger>,
    /// `None`: closed when the log started.
    fd: Option<libc::c_int>,
}

fn parsed(filter: &str) -> env_logger::Logger {
    env_logger::Builder::new().parse_filters(filter).build()
}

impl Logger {
    /// `filter` must be one that `env_logger` parses: it prints about others.
    fn new(filter: &str, fd: libc::c_int) -> Logger {
        // SAFETY: F_GETFD takes no pointer and changes nothing.
        let open = unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
        Logger {
            filter: Changeable::new(parsed(filter)),
            fd: open.then_some(fd),
        }
    }

    fn level(&self) -> LevelFilter {
        if self.fd.is_some() {
            self.filter.filter()
        } else {
            LevelFilter::Off
        }
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.fd.is_some() && self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(fd) = self.fd
            && self.filter.matches(record)
        {
            write_line(fd, &line(record));
        }
    }

    fn flush(&self) {}
}

/// `gpupool[PID] level: message`, with a newline at its end and none inside.
fn line(record: &Record<'_>) -> String {
    // SAFETY: getpid has no preconditions. Not cached: a fork changes it.
    let pid = unsafe { libc::getpid() };
    let level = record.level().as_str().to_ascii_lowercase();
    let mut line = OneLine(format!("gpupool[{pid}] {level}: "));
    // OneLine itself never fails, and a Display that does is cut short.
    let _ = write!(line, "{}", record.args());
    let mut line = line.0;
    if line.len() >= LONGEST_LINE {
        const CUT: &str = "…";
        let mut end = LONGEST_LINE - 1 - CUT.len();
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push_str(CUT);
    }
    line.push('\n');
    line
}

/// Escapes what would break the line or drive a terminal.
struct OneLine(String);

impl std::fmt::Write for OneLine {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            if self.0.len() > LONGEST_LINE {
                break;
            }
            if c.is_control() {
                self.0.extend(c.escape_default());
            } else {
                self.0.push(c);
            }
        }
        Ok(())
    }
}

/// One write(2). What cannot be written is lost: there is nobody to tell.
fn write_line(fd: libc::c_int, line: &str) {
    // SAFETY: the location of this thread's errno is valid while it runs.
    let errno = unsafe { *libc::__errno_location() };
    without_sigpipe(|| {
        loop {
            // SAFETY: the pointer and the length are those of `line`, which
            // lives until the call is over.
            let written = unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
            // SAFETY: as above.
            let error = unsafe { *libc::__errno_location() };
            // Interrupted means that nothing was written.
            if !(written == -1 && error == libc::EINTR) {
                return written == -1 && error == libc::EPIPE;
            }
        }
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs `write` with SIGPIPE blocked in this thread, and takes the signal away
/// again if `write` says that it raised one. A SIGPIPE that was pending before
/// stays pending, and the program's own handler is never touched.
fn without_sigpipe(write: impl FnOnce() -> bool) {
    // SAFETY: sigset_t is plain data for which zeros are a valid value; each
    // pointer is to a local of the type asked for, and the calls change only
    // this thread's signal mask and pending signals.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        if libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) != 0 {
            return;
        }
        if write() && !was_pending {
            let at_once = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // A write's SIGPIPE is for the thread that wrote (pipe(7)), so it
            // is here by now.
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests;
