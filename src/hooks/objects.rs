//! The shared objects of this process, as the dynamic linker lists them.
//!
//! No allocation and no lock but the linker's own for its list, which is recursive.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};

/// One loaded object. Valid only inside the callback of [`each`].
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    /// The path it was loaded under; empty for the program itself.
    pub path: &'a CStr,
    /// What its addresses are relative to.
    pub base: usize,
    /// Its program headers.
    pub headers: &'a [libc::Elf64_Phdr],
    /// How many objects the linker has ever added (`dlpi_adds`).
    pub ever_added: u64,
    /// How many it has ever removed (`dlpi_subs`).
    pub ever_removed: u64,
}

impl Object<'_> {
    /// Whether the file is called `name` or `name.VERSION`.
    pub fn is_library(&self, name: &CStr) -> bool {
        is_file(self.path, name)
    }
}

/// Whether the last component of `path` is `name`, alone or with a version behind a dot.
pub(super) fn is_file(path: &CStr, name: &CStr) -> bool {
    let (path, name) = (path.to_bytes(), name.to_bytes());
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    file.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'.')
}

/// Calls `visit` for each object of the program's namespace, in load order, until it returns false.
/// The linker's list is locked meanwhile: no call that may load or wait.
pub(super) fn each(mut visit: impl FnMut(Object<'_>) -> bool) {
    let mut visit: &mut dyn FnMut(Object<'_>) -> bool = &mut visit;
    // SAFETY: `callback` gets back the pointer passed here, to a reference that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback), (&raw mut visit).cast()) };
}

unsafe extern "C" fn callback(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the linker passes a valid description, whose name and headers stay for this call (all
    // glibc from 2.4 on fills in the counters), and the argument that `each` gave it.
    unsafe {
        let info = &*info;
        let visit = &mut *argument.cast::<&mut dyn FnMut(Object<'_>) -> bool>();
        let object = Object {
            path: if info.dlpi_name.is_null() {
                c""
            } else {
                CStr::from_ptr(info.dlpi_name)
            },
            base: info.dlpi_addr as usize,
            headers: if info.dlpi_phdr.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into())
            },
            ever_added: info.dlpi_adds,
            ever_removed: info.dlpi_subs,
        };
        c_int::from(!visit(object))
    }
}

/// Room for a path without allocation.
pub(super) struct Path(UnsafeCell<[u8; libc::PATH_MAX as usize]>);

// SAFETY: `set` and `get` are unsafe; their callers keep readers and the one writer apart.
unsafe impl Sync for Path {}

impl Path {
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; libc::PATH_MAX as usize]))
    }

    /// Stores `path`; false, and nothing stored, if it is too long.
    ///
    /// # Safety
    /// No other thread uses this path meanwhile, and no reference from [`Path::get`] is alive.
    pub unsafe fn set(&self, path: &CStr) -> bool {
        let bytes = path.to_bytes_with_nul();
        // SAFETY: exclusive, by the caller's promise.
        let room = unsafe { &mut *self.0.get() };
        match room.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// What was stored, or the empty string.
    ///
    /// # Safety
    /// No [`Path::set`] happens while the result is in use.
    pub unsafe fn get(&self) -> &CStr {
        // SAFETY: shared, by the caller's promise.
        let room = unsafe { &*self.0.get() };
        CStr::from_bytes_until_nul(room).unwrap_or(c"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names() {
        for (path, expected) in [
            (c"/usr/lib/libcuda.so.1", true),
            (c"libcuda.so", true),
            (c"/x/libcuda.so.580.159.04", true),
            (c"/x/libcudart.so.13", false),
            (c"/x/libcuda.so/libfoo.so", false),
            (c"/x/libcuda.sox", false),
            (c"/x/mylibcuda.so.1", false),
            (c"", false),
        ] {
            assert_eq!(is_file(path, c"libcuda.so"), expected, "{path:?}");
        }
    }

    #[test]
    fn the_program_comes_first_and_libc_is_found() {
        let (mut program, mut libc, mut counts) = (false, false, Vec::new());
        each(|object| {
            program |= counts.is_empty() && object.path.is_empty();
            libc |= object.is_library(c"libc.so");
            counts.push(object.ever_added);
            true
        });
        assert!(program && libc);
        assert!(counts[0] >= counts.len() as u64);
        assert!(
            counts.iter().all(|count| *count == counts[0]),
            "one count for one walk: {counts:?}"
        );
    }

    #[test]
    fn visiting_stops_when_told() {
        let mut calls = 0;
        each(|_| {
            calls += 1;
            false
        });
        assert_eq!(calls, 1);
    }

    #[test]
    fn a_path_fits_or_is_refused() {
        let path = Path::new();
        let long = std::ffi::CString::new(vec![b'a'; 5000]).expect("no zero inside");
        // SAFETY: one thread, and no reference is kept.
        unsafe {
            assert!(path.set(c"/a/b"));
            assert_eq!(path.get(), c"/a/b");
            assert!(!path.set(&long));
            assert_eq!(path.get(), c"/a/b");
        }
    }
}
