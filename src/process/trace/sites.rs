//! Where call sites lie: the file gets the mapped objects when an address is
//! seen that is in none of those that it has. An object that is loaded later
//! at the addresses of one that was unloaded is not noticed.

use super::{append, lock};
use crate::trace::{Object, objects};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

/// Ranges that the file has, in order.
static KNOWN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

const SEEN: usize = 32;

thread_local! {
    /// Sites that this thread has seen to be in the file.
    static LAST_SEEN: [Cell<u64>; SEEN] = const { [const { Cell::new(0) }; SEEN] };
}

/// Makes sure that the file tells what is at `site`.
#[inline]
pub fn tell(site: u64) {
    let place = (site ^ (site >> 7)) as usize % SEEN;
    if site == 0 || LAST_SEEN.with(|seen| seen[place].get() == site) {
        return;
    }
    if !contains(&lock(&KNOWN), site) {
        look(site);
    }
    LAST_SEEN.with(|seen| seen[place].set(site));
}

fn contains(known: &[(u64, u64)], site: u64) -> bool {
    let after = known.partition_point(|range| range.0 <= site);
    after > 0 && site < known[after - 1].1
}

/// Asks the dynamic linker, with no lock of ours held: a thread that is in its
/// hands may be about to record a call.
#[cold]
fn look(site: u64) {
    let mapped = mapped();
    let mut known = lock(&KNOWN);
    let mut new: Vec<Object> = mapped
        .into_iter()
        .filter(|object| !contains(&known, object.start) && !contains(&known, object.end - 1))
        .collect();
    known.extend(new.iter().map(|object| (object.start, object.end)));
    known.sort_unstable();
    if !contains(&known, site) {
        // Made by a compiler at run time: the page, so as not to ask again.
        let (start, end) = (site & !0xFFF, (site & !0xFFF) + 0x1000);
        new.push(Object {
            start,
            end,
            base: 0,
            path: String::new(),
        });
        known.push((start, end));
        known.sort_unstable();
    }
    append(&objects(&new));
}

/// The ranges with code of all objects.
fn mapped() -> Vec<Object> {
    let mut found: Vec<Object> = Vec::new();
    // SAFETY: `visit` gets back this pointer, to a value that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    // The linker's list has no path for the program itself, which comes first.
    if let Some(program) = found.first().map(|first| first.base) {
        let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let path = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
        for object in &mut found {
            if object.path.is_empty() && object.base == program {
                object.path.clone_from(&path);
            }
        }
    }
    found
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the linker passes a valid description with as many headers as it
    // says and a terminated name or none, and the argument of `mapped`.
    unsafe {
        let (info, found) = (&*info, &mut *found.cast::<Vec<Object>>());
        let path = if info.dlpi_name.is_null() {
            c""
        } else {
            CStr::from_ptr(info.dlpi_name)
        };
        for index in 0..usize::from(info.dlpi_phnum) {
            let header = &*info.dlpi_phdr.add(index);
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
                let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
                found.push(Object {
                    start,
                    end: start + header.p_memsz.max(1),
                    base: info.dlpi_addr,
                    path: path.to_string_lossy().into_owned(),
                });
            }
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_this_program_is_found_in_its_file() {
        let me = mapped as *const () as u64;
        let objects = mapped();
        let object = objects
            .iter()
            .find(|object| (object.start..object.end).contains(&me))
            .unwrap();
        let path = std::env::current_exe().unwrap();
        assert_eq!(object.path, path.to_string_lossy());
        assert!(me > object.base);
    }

    #[test]
    fn ranges_contain_what_lies_in_them() {
        let known = [(10, 20), (30, 31)];
        let inside: Vec<u64> = (0..40).filter(|site| contains(&known, *site)).collect();
        assert_eq!(inside, (10..20).chain([30]).collect::<Vec<u64>>());
    }
}
