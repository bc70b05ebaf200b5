//! Another process's page: finding it, reading it, asking through it.

use super::{
    CONTEXTS, ContextFigures, HOSTS, HostFigures, LAYOUT, MAGIC, MODES, NAME, Page, map, now,
};
use crate::cuda::context::Status;
use crate::pool::Usage;
use crate::pool::stats::PoolFigures;
use crate::process::mailbox::{LONGEST, Silence};
use crate::process::snapshot::{ContextSnapshot, HostSnapshot, Snapshot};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Why a process cannot be watched.
#[derive(Debug)]
pub enum Unseen {
    /// There is no such process.
    NoProcess,
    /// It belongs to somebody else, or is protected.
    NotAllowed,
    /// It has no page: no library, no CUDA so far, or the mode is off.
    NoPage {
        /// The library is mapped into it.
        has_library: bool,
    },
    /// The program has closed the library's descriptor.
    Closed,
    /// The page is laid out in another way.
    OtherVersion(String),
    /// Anything else.
    Failed(std::io::Error),
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => f.write_str("there is no such process"),
            Self::NotAllowed => f.write_str(
                "it may not be looked into: be its user, or root, in the same or an outer container",
            ),
            Self::NoPage { has_library: false } => f.write_str(
                "the library is not in it: start it with `gpupool run -- CMD`",
            ),
            Self::NoPage { has_library: true } => f.write_str(
                "the library is in it and shows nothing: it has not used CUDA so far, is a forked child, or GPUPOOL_MODE is off",
            ),
            Self::Closed => f.write_str(
                "the program has closed the library's descriptor, as daemons do: only root can see its figures",
            ),
            Self::OtherVersion(version) => write!(
                f,
                "its library is version {version:?} with another layout: use the command of that version"
            ),
            Self::Failed(error) => write!(f, "it cannot be looked into: {error}"),
        }
    }
}

impl From<std::io::Error> for Unseen {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::NoProcess,
            ErrorKind::PermissionDenied => Self::NotAllowed,
            // What /proc answers for a process that has just ended.
            _ if error.raw_os_error() == Some(libc::ESRCH) => Self::NoProcess,
            _ => Self::Failed(error),
        }
    }
}

/// Another process's page, mapped. Not thread-safe as to [`Watch::ask`].
pub struct Watch {
    page: NonNull<Page>,
    file: OwnedFd,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, to which no reference is left.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}

/// Processes that have a page which may be looked into, by ascending id.
#[must_use]
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| matches!(place(*pid), Ok(Some(_))))
        .collect();
    found.sort_unstable();
    found
}

fn is_page_link(target: &Path) -> bool {
    target
        .as_os_str()
        .as_bytes()
        .strip_prefix(b"/memfd:")
        .and_then(|rest| rest.strip_prefix(NAME.to_bytes()))
        .is_some_and(|rest| rest == b" (deleted)" || rest.is_empty())
}

/// Where the page of `pid` can be opened: its descriptor.
fn place(pid: u32) -> std::io::Result<Option<PathBuf>> {
    let mut found = None;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|target| is_page_link(&target)) {
            found = Some(path);
        }
    }
    Ok(found)
}

/// The same by its mapping, which only root may open; and whether the library
/// itself is mapped.
fn mapped_place(pid: u32) -> std::io::Result<(Option<PathBuf>, bool)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut place = None;
    let mut has_library = false;
    for line in maps.lines() {
        let Some(path) = line.splitn(6, ' ').nth(5).map(str::trim_start) else {
            continue;
        };
        if is_page_link(Path::new(path)) {
            let range = line.split(' ').next().unwrap_or_default();
            place = Some(PathBuf::from(format!("/proc/{pid}/map_files/{range}")));
        }
        let name = path.strip_suffix(" (deleted)").unwrap_or(path);
        has_library |= name.ends_with("/libgpupool.so");
    }
    Ok((place, has_library))
}

fn open_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

impl Watch {
    /// Opens the page of `pid`.
    pub fn open(pid: u32) -> Result<Self, Unseen> {
        let file = match place(pid)? {
            Some(path) => open_file(&path)?,
            None => match mapped_place(pid)? {
                (Some(path), _) => open_file(&path).map_err(|_| Unseen::Closed)?,
                (None, has_library) => return Err(Unseen::NoPage { has_library }),
            },
        };
        let length = file.metadata()?.len();
        let file = OwnedFd::from(file);
        // SAFETY: takes no pointer.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals == -1 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(Unseen::NoPage { has_library: true });
        }
        if length != size_of::<Page>() as u64 {
            return Err(Unseen::OtherVersion(format!("of {length} bytes")));
        }
        let watch = Self {
            page: map(&file, true)?,
            file,
        };
        let header = &watch.page().header;
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Unseen::NoPage { has_library: true });
        }
        if header.layout.load(Ordering::Relaxed) != LAYOUT {
            return Err(Unseen::OtherVersion(watch.version()));
        }
        // A child of a raw clone() has its parent's page.
        if !is_own_pid(pid, header.pid.load(Ordering::Relaxed)) {
            return Err(Unseen::NoPage { has_library: true });
        }
        Ok(watch)
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped as long as `self` lives; made of atomics.
        unsafe { self.page.as_ref() }
    }

    fn version(&self) -> String {
        let bytes: Vec<u8> = self
            .page()
            .header
            .version
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The figures now.
    #[must_use]
    pub fn read(&self) -> Snapshot {
        let page = self.page();
        let header = &page.header;
        let read = |field: &AtomicU64| field.load(Ordering::Relaxed);
        let count = header.contexts.load(Ordering::Acquire) as usize;
        Snapshot {
            version: self.version(),
            mode: MODES[(read(&header.mode) as usize).min(MODES.len() - 1)],
            pid: read(&header.pid),
            age_ns: page.age_ns(),
            inert: read(&header.inert) == 1,
            helper: page.has_helper(),
            process: page.process.read(),
            seen: page.observed.totals.read(),
            classes: page
                .observed
                .classes
                .iter()
                .map(|class| class.read())
                .collect(),
            contexts: page.contexts[..count.min(CONTEXTS)]
                .iter()
                .map(context)
                .collect(),
            hosts: page.hosts[..(read(&header.hosts) as usize).min(HOSTS)]
                .iter()
                .filter_map(host)
                .collect(),
            seen_host: page.observed_host.read(),
            not_shown: read(&header.not_shown),
        }
    }

    /// Asks the process to do something, see [`super::super::mailbox`], and
    /// waits at most `limit` for it to begin.
    pub fn ask(&self, request: &str, limit: Duration) -> Result<Result<String, String>, Silence> {
        if request.len() > LONGEST {
            return Ok(Err(format!("longer than {LONGEST} bytes")));
        }
        // One asker at a time. Gone with the descriptor, however this ends.
        // SAFETY: takes no pointer.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX) };
        let answer = self.page().mailbox().ask(request, limit);
        // SAFETY: as above.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        answer
    }
}

/// Whether `pid`, as seen here, is `own` to itself: in a container of its own it
/// has another number there.
fn is_own_pid(pid: u32, own: u64) -> bool {
    if u64::from(pid) == own {
        return true;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    let innermost = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|numbers| numbers.split_whitespace().last());
    innermost.and_then(|number| number.parse().ok()) == Some(own)
}

fn context(place: &ContextFigures) -> ContextSnapshot {
    let read = |field: &AtomicU64| field.load(Ordering::Relaxed);
    let gauges = &place.pool.gauges;
    ContextSnapshot {
        device: read(&place.device),
        id: read(&place.id),
        total: read(&place.total),
        status: match read(&place.status) {
            0 => Status::Serving,
            1 => Status::Aside,
            2 => Status::Closing,
            _ => Status::Gone,
        },
        lost: read(&gauges.lost) == 1,
        usage: usage(&place.pool),
        inflight_limit: read(&gauges.inflight_limit),
        counts: place.pool.counts(),
    }
}

/// A pool of pinned memory; `None` while it is being made.
fn host(place: &HostFigures) -> Option<HostSnapshot> {
    let context = place.context.load(Ordering::Acquire);
    (context != 0).then(|| HostSnapshot {
        context,
        class: place.class.load(Ordering::Relaxed),
        node: place.node.load(Ordering::Relaxed),
        usage: usage(&place.pool),
        counts: place.pool.counts(),
    })
}

fn usage(pool: &PoolFigures) -> Usage {
    let read = |field: &AtomicU64| field.load(Ordering::Relaxed);
    let gauges = &pool.gauges;
    let cached = pool.cached();
    Usage {
        live: read(&gauges.carved).saturating_sub(cached),
        waiting: read(&gauges.waiting) + cached,
        reserved: read(&gauges.reserved),
        peak_live: read(&gauges.peak_live),
        peak_reserved: read(&gauges.peak_reserved),
        unowned: read(&gauges.unowned),
        largest_free: read(&gauges.largest_free),
        carved_blocks: read(&gauges.carved_blocks),
        segments: read(&gauges.segments),
    }
}

impl Page {
    /// Nanoseconds since the page was made.
    pub(in crate::process) fn age_ns(&self) -> u64 {
        now().saturating_sub(self.header.made_ns.load(Ordering::Relaxed))
    }

    /// Whether a helper thread answers requests.
    pub(in crate::process) fn has_helper(&self) -> bool {
        self.header.helper.load(Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_told_by_the_name_of_its_file() {
        for (target, expected) in [
            ("/memfd:gpupool (deleted)", true),
            ("/memfd:gpupool", true),
            ("/memfd:gpupool2 (deleted)", false),
            ("/tmp/memfd:gpupool (deleted)", false),
            ("/dev/null", false),
        ] {
            assert_eq!(is_page_link(Path::new(target)), expected, "{target}");
        }
    }

    #[test]
    fn a_process_without_a_page_is_told_why() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let seen = Watch::open(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(seen, Err(Unseen::NoPage { has_library: false })));
        // Above the largest number that the kernel gives.
        assert!(matches!(Watch::open(1 << 30), Err(Unseen::NoProcess)));
    }
}
