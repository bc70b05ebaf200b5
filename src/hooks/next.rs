//! The function that an exported name hides from a caller: that caller's own libcudart.
//!
//! A shared libcudart is often loaded RTLD_LOCAL, by Python for instance. `RTLD_NEXT` then finds
//! nothing, and with two runtimes in one process it finds the same one for everybody. So the search
//! begins with the object that holds the return address and with what that object depends on.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::arrival::lookup;
use super::objects;
use crate::process::{self, State};

/// An answer found once. Never freed: there are as many as there are places in programs that call an
/// exported function and fall through.
struct Answer {
    name: *const c_char,
    return_address: usize,
    /// See [`packed`].
    found: AtomicU64,
}

/// Bits of an address in user space (x86-64 with four levels of page tables, which is what the kernel
/// gives to programs that do not ask for more).
const ADDRESS_BITS: u32 = 47;

/// A function, and the loader's count of objects that it has removed when the function was found:
/// another object may lie in a removed one's place, with the same return address. In one word, so
/// that no reader sees one without the other; of the count the lowest bits do.
fn packed(function: usize, removed: u64) -> u64 {
    function as u64 | removed << ADDRESS_BITS
}

/// How many objects the loader has removed so far.
fn removed() -> u64 {
    let mut removed = 0;
    objects::each(|object| {
        removed = object.ever_removed;
        false
    });
    removed
}

/// Answers by caller: open addressing, entries are only ever added. A full neighbourhood means that
/// further callers there are looked up each time.
static ANSWERS: [AtomicPtr<Answer>; SLOTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS];
const SLOTS: usize = 1024;
const PROBES: usize = 16;

/// The start of the linker's description of an object (link.h, `struct link_map`).
#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
}

unsafe extern "C" {
    /// dlfcn.h; glibc 2.3.3 and later.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// `RTLD_DL_LINKMAP` of dlfcn.h.
const LINK_MAP: c_int = 2;

/// The function called `name` that the code at `return_address` would have reached without this
/// library: one that another preloaded library puts before the runtime; else the one of the caller's
/// own object and its dependencies; else the next in the global order; else that of any libcudart in
/// the process. Never a function of this library. `None` if there is no such function.
///
/// The library that it belongs to is pinned, so the address stays valid. Thread-safe; takes the dynamic
/// linker's lock for its list. The first question of a caller may allocate, and may change `dlerror`'s
/// pending message to none.
pub fn next_symbol(name: &'static CStr, return_address: usize) -> Option<usize> {
    // A thread that is not there in a forked child may have held the lock for the list.
    let now = (process::state() != State::Inert).then(removed);
    if let Some(function) = remembered(name, return_address, now) {
        return Some(function);
    }
    let function = search(name, return_address)?;
    if let Some(now) = now.filter(|_| function >> ADDRESS_BITS == 0) {
        remember(name, return_address, packed(function, now));
    }
    Some(function)
}

fn search(name: &CStr, return_address: usize) -> Option<usize> {
    let next = accept(lookup(libc::RTLD_NEXT, name)).inspect(|function| pin(*function));
    if let Some(function) = next.filter(|function| !is_runtime(*function)) {
        return Some(function);
    }
    // A caller that has a function of this name itself, and is no runtime, is another library that
    // forwards: its own function would come straight back here.
    let own = object_of(return_address)
        .and_then(|object| in_object(object, name))
        .filter(|function| is_runtime(*function) || !same_object(*function, return_address));
    own.or(next).or_else(|| in_any_runtime(name))
}

/// Leaves out what lies in this library itself: a call to that would come straight back.
fn accept(found: Option<usize>) -> Option<usize> {
    found.filter(|function| !same_object(*function, accept as *const () as usize))
}

fn same_object(one: usize, other: usize) -> bool {
    match (object_of(one), object_of(other)) {
        (Some(one), Some(other)) => std::ptr::eq(one, other),
        _ => false,
    }
}

/// The loaded object that holds `address`.
fn object_of(address: usize) -> Option<&'static LinkMap> {
    let mut info = std::mem::MaybeUninit::uninit();
    let mut map: *mut c_void = std::ptr::null_mut();
    // SAFETY: both outputs are valid; any address may be asked about.
    let found = unsafe {
        dladdr1(
            address as *const c_void,
            info.as_mut_ptr(),
            &mut map,
            LINK_MAP,
        )
    };
    if found == 0 {
        return None;
    }
    // SAFETY: the linker's description of an object stays while the object does, and callers ask
    // only about code that is running or that a handle keeps.
    unsafe { map.cast::<LinkMap>().as_ref() }
}

fn path_of(object: &LinkMap) -> &CStr {
    if object.path.is_null() {
        return c"";
    }
    // SAFETY: a terminated string that lives as long as the object.
    unsafe { CStr::from_ptr(object.path) }
}

fn is_runtime(function: usize) -> bool {
    object_of(function).is_some_and(|object| objects::is_file(path_of(object), c"libcudart.so"))
}

/// Looks `name` up in an object and its dependencies. The program itself has no name here: what it
/// sees is the global order, which the caller of this function looks at as well.
fn in_object(object: &LinkMap, name: &CStr) -> Option<usize> {
    let path = path_of(object);
    if path.is_empty() {
        None
    } else {
        in_library(path, name)
    }
}

/// Looks `name` up in a loaded library and its dependencies, and pins it if the name is there.
fn in_library(path: &CStr, name: &CStr) -> Option<usize> {
    // SAFETY: NOLOAD only finds what is loaded; no constructor runs.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        // As in `lookup`: no message about a question of ours.
        // SAFETY: no arguments; the result is not used.
        unsafe { libc::dlerror() };
        return None;
    }
    let found = accept(lookup(handle, name));
    if let Some(function) = found {
        pin(function);
    }
    // SAFETY: closes only what was opened above; the library was loaded before.
    unsafe { libc::dlclose(handle) };
    found
}

/// Keeps the object that holds `function` loaded: remembered addresses must stay valid.
fn pin(function: usize) {
    if let Some(object) = object_of(function) {
        let path = path_of(object);
        if !path.is_empty() {
            // SAFETY: as in `in_library`. The handle is left open on purpose.
            unsafe {
                libc::dlopen(
                    path.as_ptr(),
                    libc::RTLD_NOLOAD | libc::RTLD_LAZY | libc::RTLD_NODELETE,
                )
            };
        }
    }
}

/// The last resort: any libcudart at all, the first in load order that has the function.
fn in_any_runtime(name: &CStr) -> Option<usize> {
    let mut paths = Vec::new();
    objects::each(|object| {
        if object.is_library(c"libcudart.so") {
            paths.push(object.path.to_owned());
        }
        true
    });
    paths.iter().find_map(|path| in_library(path, name))
}

fn slots(name: &CStr, return_address: usize) -> impl Iterator<Item = &'static AtomicPtr<Answer>> {
    let key = (return_address as u64 ^ (name.as_ptr() as u64).rotate_left(32))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let start = (key >> 40) as usize;
    (start..start + PROBES).map(|index| &ANSWERS[index % SLOTS])
}

/// What was found for this caller when `removed` objects had been removed; without a number, whenever
/// that was.
fn remembered(name: &CStr, return_address: usize, removed: Option<u64>) -> Option<usize> {
    for slot in slots(name, return_address) {
        // SAFETY: an entry is complete before it is published, and never freed.
        let answer = unsafe { slot.load(Ordering::Acquire).as_ref() }?;
        if answer.return_address == return_address && answer.name == name.as_ptr() {
            let found = answer.found.load(Ordering::Acquire);
            let function = found & ((1 << ADDRESS_BITS) - 1);
            let valid = removed.is_none_or(|now| found == packed(function as usize, now));
            return valid.then_some(function as usize);
        }
    }
    None
}

fn remember(name: &'static CStr, return_address: usize, found: u64) {
    let new = Box::into_raw(Box::new(Answer {
        name: name.as_ptr(),
        return_address,
        found: AtomicU64::new(found),
    }));
    for slot in slots(name, return_address) {
        let Err(there) = slot.compare_exchange(
            std::ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) else {
            return;
        };
        // SAFETY: as in `remembered`.
        let answer = unsafe { &*there };
        if answer.return_address == return_address && answer.name == name.as_ptr() {
            answer.found.store(found, Ordering::Release);
            break;
        }
    }
    // SAFETY: made above and published nowhere.
    drop(unsafe { Box::from_raw(new) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_own_library_answers() {
        // A name that only libc has, asked for on behalf of libc itself.
        let there = libc::getpid as *const () as usize;
        let own = object_of(there).and_then(|object| in_object(object, c"gnu_get_libc_release"));
        assert_eq!(own, lookup(libc::RTLD_DEFAULT, c"gnu_get_libc_release"));
        assert!(own.is_some());
    }

    #[test]
    fn own_functions_are_never_the_answer() {
        let here = own_functions_are_never_the_answer as *const () as usize;
        assert_eq!(accept(Some(here)), None);
        let there = libc::getpid as *const () as usize;
        assert_eq!(accept(Some(there)), Some(there));
    }

    #[test]
    fn a_name_that_nobody_has() {
        assert_eq!(next_symbol(c"gpupool_no_such_function", 0), None);
        assert_eq!(remembered(c"gpupool_no_such_function", 0, None), None);
    }

    #[test]
    fn answers_are_remembered_by_caller_and_name() {
        static ONE: &CStr = c"one";
        static TWO: &CStr = c"two";
        remember(ONE, 0x1000, packed(11, 3));
        remember(TWO, 0x1000, packed(12, 3));
        remember(ONE, 0x2000, packed(13, 3));
        assert_eq!(remembered(ONE, 0x1000, Some(3)), Some(11));
        assert_eq!(remembered(TWO, 0x1000, Some(3)), Some(12));
        assert_eq!(remembered(ONE, 0x2000, Some(3)), Some(13));
        assert_eq!(remembered(TWO, 0x2000, Some(3)), None);
        // Something was unloaded since: asked anew, in the same place.
        assert_eq!(remembered(ONE, 0x1000, Some(4)), None);
        remember(ONE, 0x1000, packed(21, 4));
        assert_eq!(remembered(ONE, 0x1000, Some(4)), Some(21));
        assert_eq!(remembered(ONE, 0x1000, Some(3)), None);
        assert_eq!(remembered(ONE, 0x1000, None), Some(21));
    }
}
