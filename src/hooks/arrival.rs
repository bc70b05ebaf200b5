//! Noticing that libcuda has arrived in the process, and starting the hooks, once.
//!
//! libcuda may be linked, opened at any time by a runtime or a plugin, or never come. [`check`] is
//! called at load and from the exported `dlsym` and `cuInit`: whoever opened libcuda has to look a
//! function up before it can call one. Which name is looked up does not matter: it may be the entry
//! point of a plugin that was linked to libcuda.
//!
//! A plugin opened with RTLD_DEEPBIND that carries the runtime inside finds libc's own `dlsym` instead
//! of ours, and libcuda does no lookup of its own while it initialises (measured with driver 580.159
//! and glibc 2.39). `deepbind` sees to it. What escapes that too, and where nobody else looks anything
//! up between its opening libcuda and its `cuInit`, runs natively, and the next lookup says so.
//!
//! Until libcuda is there, a check costs one `dl_iterate_phdr` that stops at its first object: the
//! loader counts how many objects it has ever added, and nothing is looked at while that count
//! stands still. Afterwards it costs one atomic load.
//!
//! No allocation, log or lock of ours on the way: `dlsym` is called before constructors, inside
//! `malloc`, and in signal handlers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::deepbind;
use super::install;
use super::objects::{self, Path};

/// libcuda was not seen yet.
const WATCHING: u32 = 0;
/// libcuda was seen; there is nothing more to watch for.
const DONE: u32 = u32::MAX;

/// `WATCHING`, `DONE`, or the id of the thread that is telling `install` about libcuda.
static STATE: AtomicU32 = AtomicU32::new(WATCHING);

/// The loader's count of objects ever added, when all of them were last looked at.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// libcuda's handle, once it was seen.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The real `dlsym`; 0 before it was first needed.
static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);

/// libcuda's path, written only by the thread whose id is in [`STATE`].
static PATH: Path = Path::new();

/// `CUresult` of a call made before `cuInit` (cuda.h: CUDA_ERROR_NOT_INITIALIZED).
const NOT_INITIALIZED: c_int = 3;

/// How long a thread waits for another that is patching, in steps of [`STEP_NS`]: two seconds.
///
/// Patching takes a millisecond or so. The wait must end because that thread may need the loader's
/// lock, and this one may hold it (a lookup inside a library's constructor).
const STEPS: u32 = 2_000;
const STEP_NS: i64 = 1_000_000;

/// The driver library, as it is loaded in this process.
///
/// Pinned: patched code must never be unmapped. Thread-safe.
#[derive(Debug)]
pub struct Libcuda {
    handle: *mut c_void,
    path: &'static CStr,
}

impl Libcuda {
    /// The address of a function that this library, or one that it needs, exports.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        lookup(self.handle, name)
    }

    /// The path under which the dynamic linker loaded it.
    pub fn path(&self) -> &CStr {
        self.path
    }
}

/// Looks whether libcuda has arrived since the last call and, if so, has the hooks installed.
///
/// Preserves `errno`. While another thread installs, waits for it (at most two seconds); in the
/// thread that installs, returns at once.
#[inline]
pub fn check() {
    if STATE.load(Ordering::Acquire) != DONE {
        watch(false);
    }
}

/// [`check`], from the library's constructor. No other code of the program runs yet, so that the
/// hooks can be installed even if libcuda's own constructor has initialised the driver.
pub fn check_at_load() {
    watch(true);
}

#[cold]
fn watch(at_load: bool) {
    let errno = errno();
    match STATE.load(Ordering::Acquire) {
        WATCHING => {
            if has_arrived() {
                claim(at_load);
            } else {
                deepbind::redirect();
            }
        }
        DONE => {}
        _ => wait(),
    }
    set_errno(errno);
}

/// Whether libcuda is among the loaded objects. Walks them only if any was added since the last walk.
fn has_arrived() -> bool {
    let mut count = 0;
    let mut arrived = false;
    objects::each(|object| {
        // The same for every object of one walk: the list is locked.
        count = object.ever_added;
        if count == LOOKED_AT.load(Ordering::Relaxed) {
            return false;
        }
        arrived = object.is_library(c"libcuda.so");
        !arrived
    });
    if !arrived {
        // The count only grows; an older walk that ends later must not set it back.
        LOOKED_AT.fetch_max(count, Ordering::Relaxed);
    }
    arrived
}

/// Becomes the one thread that installs, or waits for it.
fn claim(at_load: bool) {
    let claimed =
        STATE.compare_exchange(WATCHING, thread_id(), Ordering::Acquire, Ordering::Acquire);
    if claimed.is_err() {
        return wait();
    }
    let finished = arrived(at_load);
    STATE.store(if finished { DONE } else { WATCHING }, Ordering::Release);
}

/// Opens libcuda and passes it on. False if it is gone again.
fn arrived(at_load: bool) -> bool {
    let Some(libcuda) = open() else {
        return false;
    };
    if !at_load && is_initialised(&libcuda) {
        install::too_late();
    } else {
        install::on_libcuda(&libcuda);
    }
    true
}

/// Opens the libcuda that is loaded. Only by the thread that claimed [`STATE`].
fn open() -> Option<Libcuda> {
    let mut found = false;
    objects::each(|object| {
        found = object.is_library(c"libcuda.so");
        // SAFETY: only the thread that claimed STATE gets here, and readers get the path from it.
        found = found && unsafe { PATH.set(object.path) };
        !found
    });
    if !found {
        return None;
    }
    // SAFETY: see above; the path does not change again once libcuda could be opened.
    let path = unsafe { PATH.get() };
    // SAFETY: with NOLOAD this finds the loaded object and raises its count; no constructor runs.
    // The handle is never closed.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    HANDLE.store(handle, Ordering::Release);
    Some(Libcuda { handle, path })
}

/// For an attach: the libcuda that is loaded, which from now on is watched for
/// no more. `None` if there is none.
///
/// # Errors
/// Another thread is just patching.
pub fn libcuda() -> Result<Option<Libcuda>, String> {
    let busy = || "another thread is just patching libcuda: try again".to_owned();
    match STATE.load(Ordering::Acquire) {
        DONE => {}
        WATCHING => {
            if !has_arrived() {
                return Ok(None);
            }
            STATE
                .compare_exchange(WATCHING, thread_id(), Ordering::Acquire, Ordering::Acquire)
                .map_err(|_| busy())?;
            let opened = open();
            let next = if opened.is_some() { DONE } else { WATCHING };
            STATE.store(next, Ordering::Release);
            return Ok(opened);
        }
        _ => return Err(busy()),
    }
    let handle = HANDLE.load(Ordering::Acquire);
    // SAFETY: the path does not change once libcuda was opened.
    let path = unsafe { PATH.get() };
    Ok((!handle.is_null()).then_some(Libcuda { handle, path }))
}

/// Where the address of the real `dlsym` is kept.
pub(super) fn real_dlsym_slot() -> &'static AtomicUsize {
    &REAL_DLSYM
}

/// Whether the driver has been initialised, so that other threads may be inside its functions.
fn is_initialised(libcuda: &Libcuda) -> bool {
    let Some(address) = libcuda.symbol(c"cuCtxGetCurrent") else {
        return false;
    };
    // SAFETY: `CUresult cuCtxGetCurrent(CUcontext *)` (cuda.h).
    let get_current: extern "C" fn(*mut *mut c_void) -> c_int =
        unsafe { std::mem::transmute(address) };
    let mut context = std::ptr::null_mut();
    get_current(&mut context) != NOT_INITIALIZED
}

/// Waits until no other thread is installing.
fn wait() {
    let me = thread_id();
    for _ in 0..STEPS {
        let state = STATE.load(Ordering::Acquire);
        if matches!(state, WATCHING | DONE) || state == me {
            return;
        }
        let step = libc::timespec {
            tv_sec: 0,
            tv_nsec: STEP_NS,
        };
        // SAFETY: the argument is valid; a signal may end the sleep early, which only shortens it.
        unsafe { libc::nanosleep(&step, std::ptr::null_mut()) };
    }
    // Once is enough: a child forked meanwhile does not have that thread, and would wait each time.
    let state = STATE.load(Ordering::Acquire);
    if state != WATCHING {
        let _ = STATE.compare_exchange(state, DONE, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The address of the real `cuInit`: that of the next library in lookup order, so that another
/// preloaded library keeps its turn, else libcuda's own. `None` if there is no driver.
pub fn real_cu_init() -> Option<usize> {
    lookup(libc::RTLD_NEXT, c"cuInit").or_else(|| {
        let handle = HANDLE.load(Ordering::Acquire);
        if handle.is_null() {
            None
        } else {
            lookup(handle, c"cuInit")
        }
    })
}

/// Calls the real `dlsym`. `RTLD_NEXT` means "after this library".
pub(super) fn lookup(handle: *mut c_void, name: &CStr) -> Option<usize> {
    let real = real_dlsym();
    if real == 0 {
        return None;
    }
    // SAFETY: `void *dlsym(void *, const char *)` (dlfcn.h).
    let dlsym: extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(real) };
    let found = dlsym(handle, name.as_ptr()) as usize;
    if found == 0 {
        // The program must not find a message about a lookup that it did not make.
        // SAFETY: no arguments; the result is not used.
        unsafe { libc::dlerror() };
        return None;
    }
    Some(found)
}

/// The real `dlopen`; 0 before it was first needed.
static REAL_DLOPEN: AtomicUsize = AtomicUsize::new(0);

/// The address of the next library's `dlopen` in lookup order, so that another preloaded library keeps
/// its turn; in the end libc's (before glibc 2.34: libdl's). 0 if there is none.
#[inline]
pub fn real_dlopen() -> usize {
    let known = REAL_DLOPEN.load(Ordering::Acquire);
    if known != 0 { known } else { find_dlopen() }
}

#[cold]
fn find_dlopen() -> usize {
    let found = lookup(libc::RTLD_NEXT, c"dlopen").unwrap_or(0);
    REAL_DLOPEN.store(found, Ordering::Release);
    found
}

/// The address of libc's (before glibc 2.34: libdl's) `dlsym`; 0 if there is none.
///
/// libdl is among the libraries that this one needs, so it is loaded on an old glibc too. Found by
/// `dlvsym`, which this library does not export: a `dlsym` would find ours.
#[inline]
pub fn real_dlsym() -> usize {
    let known = REAL_DLSYM.load(Ordering::Acquire);
    if known != 0 { known } else { find_real_dlsym() }
}

#[cold]
fn find_real_dlsym() -> usize {
    // The version is taken from glibc's number, not by trying: a failed lookup allocates its message,
    // and the caller may be malloc.
    // SAFETY: returns a static string.
    let release = unsafe { CStr::from_ptr(gnu_get_libc_version()) };
    let versions = if at_least_2_34(release.to_bytes()) {
        [c"GLIBC_2.34", c"GLIBC_2.2.5"]
    } else {
        [c"GLIBC_2.2.5", c"GLIBC_2.34"]
    };
    for version in versions {
        // SAFETY: the strings are terminated.
        let found =
            unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) } as usize;
        if found != 0 {
            REAL_DLSYM.store(found, Ordering::Release);
            return found;
        }
    }
    0
}

unsafe extern "C" {
    fn gnu_get_libc_version() -> *const c_char;
}

/// Whether a glibc release ("2.28", "2.34.9000") has `dlsym` in libc itself.
fn at_least_2_34(release: &[u8]) -> bool {
    let mut numbers = release.split(|byte| *byte == b'.').map(|part| {
        let digits = part.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0_u32, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(u32::from(digit - b'0'))
        })
    });
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (2, 34)
}

fn thread_id() -> u32 {
    // SAFETY: no arguments, no failure. By number: glibc has a wrapper only from 2.30 on.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_numbers() {
        for (release, expected) in [
            ("2.28", false),
            ("2.33", false),
            ("2.34", true),
            ("2.39", true),
            ("2.34.9000", true),
            ("3.0", true),
        ] {
            assert_eq!(at_least_2_34(release.as_bytes()), expected, "{release}");
        }
        assert!(!at_least_2_34(b""));
    }

    #[test]
    fn the_real_dlsym_finds_libc() {
        assert_ne!(real_dlsym(), 0);
        assert_eq!(
            lookup(libc::RTLD_DEFAULT, c"malloc"),
            Some(libc::malloc as *const () as usize)
        );
        assert_eq!(lookup(libc::RTLD_DEFAULT, c"no such function"), None);
    }

    #[test]
    fn errno_survives_a_check() {
        set_errno(4711);
        check();
        assert_eq!(errno(), 4711);
    }
}
