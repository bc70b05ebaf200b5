//! Where in the program a call came from: collected in a few microseconds,
//! put into words only when there is something to say.
//!
//! Collecting uses the unwinder that is linked into the library, so it works on
//! code without frame pointers. It takes no lock but the dynamic linker's own
//! for its list of objects, which is recursive, and allocates nothing. Code
//! without unwind information (some JIT compilers) ends the list early.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Most frames that are kept of a call site.
pub const DEPTH: usize = 16;
/// Frames that are looked at: those of the library itself are left out.
const LOOKED_AT: usize = DEPTH + 24;

/// The return addresses above a call, innermost first; without those in this
/// library. Plain data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSite {
    /// Zeros after the last.
    frames: [usize; DEPTH],
}

type Reason = c_int;
/// `_URC_NO_REASON` and `_URC_NORMAL_STOP` of the Itanium C++ ABI.
const GO_ON: Reason = 0;
const STOP: Reason = 4;

unsafe extern "C" {
    /// The unwinder's, by the Itanium C++ ABI.
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> Reason,
        argument: *mut c_void,
    ) -> Reason;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
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

/// The start of the linker's description of an object (link.h).
#[repr(C)]
struct LinkMap {
    /// What is added to an address in the file.
    base: usize,
    path: *const c_char,
}

/// Return addresses on their way into a [`CallSite`].
struct Walk {
    frames: [usize; LOOKED_AT],
    count: usize,
}

extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> Reason {
    // SAFETY: the unwinder passes a valid context, and the pointer that
    // `walk` gave it, to a structure that nobody else uses meanwhile.
    let (address, walk) = unsafe { (_Unwind_GetIP(context), &mut *argument.cast::<Walk>()) };
    if address == 0 || walk.count == LOOKED_AT {
        return STOP;
    }
    walk.frames[walk.count] = address;
    walk.count += 1;
    GO_ON
}

fn walk() -> Walk {
    let mut walk = Walk {
        frames: [0; LOOKED_AT],
        count: 0,
    };
    // SAFETY: `visit` gets the pointer back during this call only.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    walk
}

/// Where the code of this library lies. Asked of the linker once.
fn own_range() -> (usize, usize) {
    static RANGE: OnceLock<(usize, usize)> = OnceLock::new();
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        argument: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker passes a valid description with as many headers
        // as it says, and the argument given below.
        let (info, range) = unsafe { (&*info, &mut *argument.cast::<(usize, usize)>()) };
        let own = own_range as *const () as usize;
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: as above.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            let end = start + header.p_memsz as usize;
            if header.p_type == libc::PT_LOAD && (start..end).contains(&own) {
                *range = (start, end);
                return 1;
            }
        }
        0
    }
    *RANGE.get_or_init(|| {
        let mut range = (0, 0);
        // SAFETY: `look` gets a pointer to a local that outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut range).cast()) };
        range
    })
}

impl CallSite {
    /// The call that led here. Thread-safe; may be called with locks held.
    #[inline(never)]
    #[must_use]
    pub fn here() -> Self {
        let (start, end) = own_range();
        Self::outside(&walk(), start, end)
    }

    /// What lies above the innermost frames that are in `[start, end)`.
    fn outside(walk: &Walk, start: usize, end: usize) -> Self {
        let frames = &walk.frames[..walk.count];
        let own = |address: &&usize| (start..end).contains(*address);
        let skipped = frames.iter().take_while(own).count();
        let mut site = Self::default();
        for (kept, address) in site.frames.iter_mut().zip(&frames[skipped..]) {
            *kept = *address;
        }
        site
    }

    /// A line for each frame, innermost first: number, address of the call,
    /// function if its object names it, object and offset in it (what
    /// `addr2line -e OBJECT OFFSET` takes). Allocates, and takes the linker's
    /// lock.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let known = self.frames.iter().take_while(|address| **address != 0);
        // One less: the call, not what comes after it.
        known
            .enumerate()
            .map(|(number, address)| format!("#{number} {}", Place::of(address - 1)))
            .collect()
    }
}

/// An address in words.
struct Place {
    address: usize,
    /// Name and distance from it.
    symbol: Option<(String, usize)>,
    /// Path and offset.
    object: Option<(PathBuf, usize)>,
}

impl Place {
    fn of(address: usize) -> Self {
        let mut place = Self {
            address,
            symbol: None,
            object: None,
        };
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let mut map: *mut c_void = std::ptr::null_mut();
        // SAFETY: both outputs are valid; any address may be asked about.
        let found = unsafe {
            dladdr1(
                address as *const c_void,
                info.as_mut_ptr(),
                &raw mut map,
                LINK_MAP,
            )
        };
        if found == 0 || map.is_null() {
            return place;
        }
        // SAFETY: the call has filled it in, and zeros are a value too; the
        // linker's strings and description stay while the object is loaded, in
        // which a frame of the program is.
        unsafe {
            let info = info.assume_init();
            let map = &*map.cast::<LinkMap>();
            if !info.dli_sname.is_null() {
                let name = CStr::from_ptr(info.dli_sname).to_string_lossy();
                place.symbol = Some((
                    name.into_owned(),
                    address.wrapping_sub(info.dli_saddr as usize),
                ));
            }
            let path = if map.path.is_null() {
                c""
            } else {
                CStr::from_ptr(map.path)
            };
            // The program itself has no path in the linker's list.
            let path = if path.is_empty() {
                std::fs::read_link("/proc/self/exe").unwrap_or_default()
            } else {
                PathBuf::from(OsStr::from_bytes(path.to_bytes()))
            };
            place.object = Some((path, address.wrapping_sub(map.base)));
        }
        place
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)?;
        if let Some((name, distance)) = &self.symbol {
            write!(f, " in {name}+{distance:#x}")?;
        }
        if let Some((path, offset)) = &self.object {
            write!(f, " ({}+{offset:#x})", path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn collected_here() -> CallSite {
        std::hint::black_box(CallSite::outside(&walk(), 0, 0))
    }

    #[test]
    fn a_walk_names_the_object_of_its_caller() {
        let lines = collected_here().lines();
        assert!(lines.len() > 3, "{lines:#?}");
        let me = std::env::current_exe().unwrap();
        assert!(
            lines[0].starts_with("#0 0x") && lines[0].contains(&*me.to_string_lossy()),
            "{lines:#?}"
        );
    }

    #[test]
    fn frames_of_the_library_are_left_out() {
        let (start, end) = own_range();
        assert!((start..end).contains(&(collected_here as *const () as usize)));
        let mut walk = Walk {
            frames: [0; LOOKED_AT],
            count: 4,
        };
        walk.frames[..4].copy_from_slice(&[start, end - 1, end, start]);
        let site = CallSite::outside(&walk, start, end);
        assert_eq!(site.frames[..3], [end, start, 0]);
        walk.count = LOOKED_AT;
        walk.frames.fill(end);
        let site = CallSite::outside(&walk, start, end);
        assert_eq!(site.frames, [end; DEPTH]);
    }

    #[test]
    fn an_address_in_no_object_is_only_a_number() {
        assert_eq!(Place::of(64).to_string(), "0x40");
        assert!(CallSite::default().lines().is_empty());
    }
}
