//! Pages near the patched code, for what the jumps lead to.

use std::io;

use super::maps::{self, Mapping};
use super::{PAGE, relocate};

/// A `jmp rel32` reaches 2 GiB; the rest is left for the code's own data (RIP-relative operands that
/// move here must still reach it) and for the arena's size.
const REACH: usize = (1 << 31) - (256 << 20);

/// Bytes of one [`Arena`]. Forty-five entries take about half.
const SIZE: usize = 4 * PAGE;

/// Stub and trampoline of one entry: `jmp [rip+0]`, the hook's address, then the moved code.
pub const SLOT: usize = 16 + relocate::MOST;

/// Where in a slot the moved code begins.
pub const TRAMPOLINE: usize = 16;

/// A mapping near some code. Unmapped on drop unless [`Arena::keep`] was called.
#[derive(Debug)]
pub struct Arena {
    start: usize,
    used: usize,
}

impl Arena {
    /// Maps writable pages within reach of `address`.
    ///
    /// # Errors
    /// A message with the system's reason, if no free range is near enough or it is refused.
    pub fn near(maps: &[Mapping], address: usize) -> Result<Self, String> {
        let mut refused = None;
        for place in maps::places(maps, address & !(PAGE - 1), SIZE, REACH) {
            // SAFETY: an anonymous mapping; NOREPLACE makes the kernel refuse any range in use.
            let got = unsafe {
                libc::mmap(
                    place as *mut libc::c_void,
                    SIZE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if got == libc::MAP_FAILED {
                refused = Some(io::Error::last_os_error());
                continue;
            }
            let arena = Self {
                start: got as usize,
                used: 0,
            };
            // Linux before 4.17 takes the address for a hint; what lands elsewhere is dropped here.
            if arena.reaches(address) {
                return Ok(arena);
            }
        }
        Err(match refused {
            Some(why) => format!("no memory near its code: {why}"),
            None => "no free addresses near its code".to_owned(),
        })
    }

    /// Whether all of the arena and `address` can jump to each other.
    pub fn reaches(&self, address: usize) -> bool {
        self.start.abs_diff(address) <= REACH + SIZE
    }

    /// Where the next slot will lie, if there is one more.
    pub fn next_slot(&self) -> Option<usize> {
        (self.used + SLOT <= SIZE).then_some(self.start + self.used)
    }

    /// Fills the next slot: a jump to `hook`, then `code`. Returns the slot's address; `None` if the
    /// arena is full or `code` too long.
    pub fn push(&mut self, hook: usize, code: &[u8]) -> Option<usize> {
        let slot = self.next_slot()?;
        let mut bytes = [0xcc; SLOT];
        // jmp qword [rip + 2]: the constant is kept aligned.
        bytes[..6].copy_from_slice(&[0xff, 0x25, 0x02, 0, 0, 0]);
        bytes[8..16].copy_from_slice(&(hook as u64).to_le_bytes());
        bytes
            .get_mut(TRAMPOLINE..TRAMPOLINE + code.len())?
            .copy_from_slice(code);
        // SAFETY: the slot lies inside this arena's own mapping, which is still writable (it is
        // sealed only after the last push), and nothing else knows of it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot as *mut u8, SLOT) };
        self.used += SLOT;
        Some(slot)
    }

    /// Makes the pages executable and no longer writable.
    ///
    /// # Errors
    /// The system's reason (SELinux can refuse).
    pub fn seal(&self) -> io::Result<()> {
        // SAFETY: the range is this arena's own mapping.
        let rc = unsafe {
            libc::mprotect(
                self.start as *mut libc::c_void,
                SIZE,
                libc::PROT_READ | libc::PROT_EXEC,
            )
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Leaves the pages mapped for the life of the process: code leads into them now.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range is this arena's own mapping, and an arena that code leads into is never
        // dropped (`keep`).
        unsafe { libc::munmap(self.start as *mut libc::c_void, SIZE) };
    }
}
