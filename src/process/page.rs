//! The page in which other processes of the same user see this one's figures,
//! and leave requests: `gpupool stat`, `top`, `trim`, `set`.
//!
//! A memfd, reachable as `/proc/PID/fd/N` by whoever may look into the process,
//! with mode 0600. It vanishes with the process, however that ends; sealed, so
//! that nobody can shrink it under the library. The figures live in it (see
//! [`crate::pool::stats::Shown`]), so publishing costs nothing. It is made
//! when the driver is first initialised: a process without CUDA has none. A
//! forked child gives it up.

pub mod watch;

use super::mailbox::Mailbox;
use super::observe::{self, Observed};
use super::{FOREIGN_FREES, FOREIGN_HOST_FREES, PASSED_ALLOCS, PASSED_HOST_ALLOCS, config};
use crate::config::Mode;
use crate::cuda::context::{Context, Status};
use crate::cuda::device::CALLS;
use crate::cuda::guard::FINDINGS;
use crate::cuda::host::{self, HostPool};
use crate::pool::front::SLOTS;
use crate::pool::stats::{self, Counters, Gauges, PoolFigures};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

/// The memfd's name, by which it is found.
pub const NAME: &CStr = c"gpupool";

/// Begins every page.
const MAGIC: u64 = u64::from_le_bytes(*b"gpupool\0");
/// Changes with the meaning of what is in the page, where names do not tell.
const VERSION: u64 = 1;
/// Contexts that have a place; what further ones do is not shown.
pub const CONTEXTS: usize = 32;
/// Pools of pinned memory that have a place.
pub const HOSTS: usize = 32;

macro_rules! process_figures {
    ($($(#[$doc:meta])* $name:ident => $home:expr,)*) => {
        /// Counts of the process, beside its pools.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct ProcessFigures { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// A reading of them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ProcessCounts { $($(#[$doc])* pub $name: u64,)* }

        impl ProcessFigures {
            const NAMES: &[&str] = &[$(stringify!($name),)*];

            fn adopt(&'static self) {
                $($home.show_on(&self.$name, stats::carry);)*
            }

            /// Reads every one; they may move meanwhile.
            #[must_use]
            pub fn read(&self) -> ProcessCounts {
                ProcessCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl ProcessCounts {
            /// Those of this process.
            #[must_use]
            pub fn own() -> Self {
                Self { $($name: $home.load(Ordering::Relaxed),)* }
            }
        }
    };
}

process_figures! {
    /// See [`PASSED_ALLOCS`].
    passed_allocs => PASSED_ALLOCS,
    /// See [`FOREIGN_FREES`].
    foreign_frees => FOREIGN_FREES,
    /// Allocations that the library asked of the driver.
    driver_allocs => CALLS.allocs,
    /// Frees that the library asked of the driver.
    driver_frees => CALLS.frees,
    /// Fences recorded.
    fence_records => CALLS.fence_records,
    /// Fences asked for.
    fence_queries => CALLS.fence_queries,
    /// See [`PASSED_HOST_ALLOCS`].
    passed_host_allocs => PASSED_HOST_ALLOCS,
    /// See [`FOREIGN_HOST_FREES`].
    foreign_host_frees => FOREIGN_HOST_FREES,
    /// Allocations of pinned memory that the library asked of the driver.
    driver_host_allocs => host::CALLS.allocs,
    /// Frees of pinned memory that the library asked of the driver.
    driver_host_frees => host::CALLS.frees,
    /// Findings of GPUPOOL_GUARD.
    guard_findings => FINDINGS,
}

/// What the page begins with.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    /// See [`LAYOUT`].
    layout: AtomicU64,
    /// Process id, as the process itself sees it.
    pid: AtomicU64,
    /// [`now`] when the page was made.
    made_ns: AtomicU64,
    /// [`Mode`] in force, as its position in [`MODES`].
    mode: AtomicU64,
    /// 1: the process has ended its work, or the library has stepped aside.
    inert: AtomicU64,
    /// 1: a helper thread answers requests at once.
    helper: AtomicU64,
    /// Contexts that have a place.
    contexts: AtomicU64,
    /// Contexts, and pools of pinned memory, that found none.
    not_shown: AtomicU64,
    /// Pools of pinned memory that have a place.
    hosts: AtomicU64,
    /// The library's version, padded with zeros.
    version: [AtomicU8; 32],
}

/// A context's place.
#[derive(Debug)]
#[repr(C)]
pub struct ContextFigures {
    /// Ordinal of its device in the process.
    device: AtomicU64,
    /// The driver's id.
    id: AtomicU64,
    /// Memory of the device.
    total: AtomicU64,
    /// [`Status`] as a number.
    status: AtomicU64,
    pool: PoolFigures,
}

/// The place of a pool of pinned memory.
#[derive(Debug)]
#[repr(C)]
pub struct HostFigures {
    /// The driver's id of its context.
    context: AtomicU64,
    /// [`host::Class::number`].
    class: AtomicU64,
    /// The NUMA node.
    node: AtomicU64,
    pool: PoolFigures,
}

/// The whole page. Zeros are a valid value of each field.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    header: Header,
    mailbox: Mailbox,
    process: ProcessFigures,
    observed: Observed,
    observed_host: observe::Totals,
    contexts: [ContextFigures; CONTEXTS],
    hosts: [HostFigures; HOSTS],
}

/// The modes, in the order of their numbers in the page.
const MODES: [Mode; 3] = [Mode::Pool, Mode::Observe, Mode::Off];

/// Tells layouts apart: made of the names of all figures and the page's size, so
/// that a command of another version cannot read one thing for another.
pub const LAYOUT: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ VERSION;
    let lists = [
        Counters::NAMES,
        Gauges::NAMES,
        ProcessFigures::NAMES,
        Observed::NAMES,
    ];
    let mut list = 0;
    while list < lists.len() {
        let mut name = 0;
        while name < lists[list].len() {
            hash = mix(hash, lists[list][name].as_bytes());
            name += 1;
        }
        hash = mix(hash, b"/");
        list += 1;
    }
    let sizes = [
        SLOTS as u64,
        CONTEXTS as u64,
        HOSTS as u64,
        size_of::<Page>() as u64,
    ];
    let mut size = 0;
    while size < sizes.len() {
        hash = mix(hash, &sizes[size].to_le_bytes());
        size += 1;
    }
    hash
};

/// FNV-1a, with an end of each text.
const fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    (hash ^ 0xff).wrapping_mul(0x100_0000_01b3)
}

static PAGE: OnceLock<Option<&'static Page>> = OnceLock::new();
/// The memfd; -1 without one.
static FD: AtomicI32 = AtomicI32::new(-1);

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a system share.
#[must_use]
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for a write; the clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// This process's page, if it has one.
#[inline]
pub fn own() -> Option<&'static Page> {
    PAGE.get().copied().flatten()
}

/// Makes the page, once; where that is not possible there is none, which a log
/// line at level info says.
pub fn open() {
    if PAGE.get().is_some() || super::state() == super::State::Inert {
        return;
    }
    PAGE.get_or_init(|| match make() {
        Ok(page) => {
            page.begin();
            Some(page)
        }
        Err(error) => {
            log::info!("no page for gpupool stat and top: {error}");
            None
        }
    });
}

/// An anonymous file of the page's size, that only this user may open.
fn file() -> std::io::Result<OwnedFd> {
    const NOEXEC_SEAL: libc::c_uint = 8;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let check = |result: libc::c_int| {
        (result != -1)
            .then_some(result)
            .ok_or_else(std::io::Error::last_os_error)
    };
    // SAFETY: the name is terminated. Kernels before 6.3 do not know the flag
    // that newer ones want to see.
    let made = unsafe {
        match libc::memfd_create(NAME.as_ptr(), flags | NOEXEC_SEAL) {
            -1 => libc::memfd_create(NAME.as_ptr(), flags),
            made => made,
        }
    };
    // SAFETY: just made, and nobody else's.
    let made = unsafe { OwnedFd::from_raw_fd(check(made)?) };
    // Out of the way of programs that expect the small numbers, and still in a
    // process's first table of 64: in one with threads a larger table makes the
    // kernel wait for all processors, ten milliseconds to seconds.
    // SAFETY: takes no pointer.
    let high = unsafe { libc::fcntl(made.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 56) };
    let file = match high {
        -1 => made,
        // SAFETY: as above.
        high => unsafe { OwnedFd::from_raw_fd(high) },
    };
    let fd = file.as_raw_fd();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: plain calls on a descriptor of our own.
    unsafe {
        check(libc::fchmod(fd, 0o600))?;
        check(libc::ftruncate(fd, size_of::<Page>() as libc::off_t))?;
        check(libc::fcntl(fd, libc::F_ADD_SEALS, seals))?;
    }
    Ok(file)
}

fn make() -> std::io::Result<&'static Page> {
    let file = file()?;
    // SAFETY: mapped for good, large and aligned enough (mmap aligns to 4096),
    // and made of atomics, for which any content is valid.
    let page = unsafe { map(&file, true)?.as_ref() };
    FD.store(file.as_raw_fd(), Ordering::Relaxed);
    // Open for good: it is how others find the page.
    std::mem::forget(file);
    Ok(page)
}

/// Maps a page.
fn map(file: &OwnedFd, writable: bool) -> std::io::Result<NonNull<Page>> {
    let rights = if writable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    // SAFETY: a new mapping, of a file that is at least this long and sealed
    // against shrinking (whoever maps another one's page checks both).
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Page>(),
            rights,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    NonNull::new(address.cast::<Page>())
        .filter(|_| address != libc::MAP_FAILED)
        .ok_or_else(std::io::Error::last_os_error)
}

impl Page {
    /// Fills in what is known, and has the figures live here.
    fn begin(&'static self) {
        let header = &self.header;
        header
            .pid
            .store(u64::from(std::process::id()), Ordering::Relaxed);
        header.made_ns.store(now(), Ordering::Relaxed);
        for (place, byte) in header.version.iter().zip(env!("CARGO_PKG_VERSION").bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.process.adopt();
        observe::SEEN.show_on(&self.observed, Observed::carry);
        observe::SEEN_HOST.show_on(&self.observed_host, observe::Totals::carry);
        self.set_mode(config().mode);
        header.layout.store(LAYOUT, Ordering::Relaxed);
        // Last: who sees it sees the rest.
        header.magic.store(MAGIC, Ordering::Release);
    }

    /// Shows the mode in force.
    pub fn set_mode(&self, mode: Mode) {
        let number = MODES.iter().position(|known| *known == mode).unwrap_or(0);
        self.header.mode.store(number as u64, Ordering::Relaxed);
    }

    /// Shows that a helper thread is there.
    pub fn set_helper(&self) {
        self.header.helper.store(1, Ordering::Relaxed);
    }

    /// Shows that nothing will answer any more.
    pub fn set_inert(&self) {
        self.header.inert.store(1, Ordering::Relaxed);
    }

    /// Where requests arrive.
    #[inline]
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn show_context(&'static self, context: &'static Context) {
        let number = self.header.contexts.load(Ordering::Relaxed) as usize;
        let Some(place) = self.contexts.get(number) else {
            self.header.not_shown.fetch_add(1, Ordering::Relaxed);
            return;
        };
        place.device.store(context.device as u64, Ordering::Relaxed);
        place.id.store(context.id, Ordering::Relaxed);
        place.total.store(context.total, Ordering::Relaxed);
        place
            .status
            .store(context.status() as u64, Ordering::Relaxed);
        context.pool.show_on(&place.pool);
        let count = number as u64 + 1;
        self.header.contexts.store(count, Ordering::Release);
    }
}

/// A pool of pinned memory was made. Called by one thread at a time for each
/// context, before it serves.
pub fn host_registered(host: &'static HostPool) {
    let Some(page) = own() else { return };
    let number = page.header.hosts.fetch_add(1, Ordering::AcqRel) as usize;
    let Some(place) = page.hosts.get(number) else {
        page.header.not_shown.fetch_add(1, Ordering::Relaxed);
        return;
    };
    place.class.store(host.class.number(), Ordering::Relaxed);
    place.node.store(u64::from(host.node), Ordering::Relaxed);
    host.pool.show_on(&place.pool);
    // Last: 0 is no context, and shows that the place is not ready.
    place.context.store(host.context.id, Ordering::Release);
}

/// A context became known. Called with the contexts locked, so by one thread at
/// a time.
pub fn registered(context: &'static Context) {
    open();
    if let Some(page) = own() {
        page.show_context(context);
    }
}

/// A context has ended.
pub fn ended(context: &'static Context) {
    let Some(page) = own() else { return };
    let known = page
        .contexts
        .iter()
        .find(|place| place.id.load(Ordering::Relaxed) == context.id);
    if let Some(place) = known {
        place.status.store(Status::Gone as u64, Ordering::Relaxed);
    }
}

/// In a forked child: whatever it still counts stays its own, and nobody finds
/// a page of it. Only system calls.
pub fn give_up() {
    let fd = FD.swap(-1, Ordering::Relaxed);
    let Some(page) = own() else { return };
    // SAFETY: replaces the whole mapping by private zeros, for which every
    // field is valid; no other thread exists in the child. The descriptor is
    // the library's own, unless the program closed it: then the number may be
    // the program's, and stays.
    unsafe {
        libc::mmap(
            std::ptr::from_ref(page).cast_mut().cast(),
            size_of::<Page>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
        if fd != -1 && is_page(fd) {
            libc::close(fd);
        }
    }
}

/// Whether the descriptor is that of a page: sealed as no ordinary file is, and
/// of its size.
fn is_page(fd: libc::c_int) -> bool {
    // SAFETY: `stat` is plain data and valid for a write; nothing else is
    // touched.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fcntl(fd, libc::F_GET_SEALS) & libc::F_SEAL_SHRINK != 0
            && libc::fstat(fd, &raw mut stat) == 0
            && stat.st_size == size_of::<Page>() as libc::off_t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_rights_and_the_size_that_it_says() {
        let file = file().unwrap();
        assert!(is_page(file.as_raw_fd()));
        let metadata = std::fs::File::from(file.try_clone().unwrap())
            .metadata()
            .unwrap();
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let shrunk = std::fs::File::from(file.try_clone().unwrap()).set_len(1);
        assert!(shrunk.is_err());
        // SAFETY: mapped for good, as in `make`.
        let (page, other) = unsafe {
            let mapped = (map(&file, true).unwrap(), map(&file, false).unwrap());
            (mapped.0.as_ref(), mapped.1.as_ref())
        };
        page.process.fence_records.store(7, Ordering::Relaxed);
        assert_eq!(other.process.read().fence_records, 7);
        assert_eq!(other.header.magic.load(Ordering::Relaxed), 0);
    }
}
