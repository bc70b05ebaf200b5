//! Address ranges backed by one sparse memory file each.
//!
//! A device's whole address range is mapped once, readable and writable, and
//! touched lazily; allocating is bookkeeping, freeing punches a hole into the
//! file, so that fresh memory reads as zero. The file makes ranges mappable by
//! an importing process.

use std::collections::BTreeMap;

/// The driver's page for device memory.
pub(crate) const PAGE: u64 = 2 << 20;

/// Rounds up to a multiple of a power of two; None on overflow.
pub(crate) fn round_up(value: u64, to: u64) -> Option<u64> {
    Some(value.checked_add(to - 1)? & !(to - 1))
}

/// One range of addresses and its file.
pub(crate) struct Arena {
    pub(crate) base: u64,
    pub(crate) fd: i32,
    page: u64,
    free: BTreeMap<u64, u64>,
}

impl Arena {
    /// Maps `size` bytes near `hint`. Fails when the system has no such range.
    pub(crate) fn create(hint: u64, size: u64, page: u64) -> Option<Arena> {
        // SAFETY: plain system calls on values owned here; the mapping is new
        // memory (MAP_FIXED_NOREPLACE or the kernel's choice), nobody's else.
        unsafe {
            let fd = libc::memfd_create(c"simcuda".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 || libc::ftruncate(fd, size as i64) != 0 {
                return None;
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            let wanted = hint as *mut libc::c_void;
            let mut at = libc::mmap(
                wanted,
                size as usize,
                prot,
                flags | libc::MAP_FIXED_NOREPLACE,
                fd,
                0,
            );
            if at == libc::MAP_FAILED {
                // One more page, so that the range can begin on a boundary.
                let raw = libc::mmap(
                    std::ptr::null_mut(),
                    (size + PAGE) as usize,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                );
                if raw == libc::MAP_FAILED {
                    return None;
                }
                let base = round_up(raw as u64, PAGE)? as *mut libc::c_void;
                at = libc::mmap(base, size as usize, prot, flags | libc::MAP_FIXED, fd, 0);
                if at == libc::MAP_FAILED {
                    return None;
                }
            }
            // A device's memory belongs in no core dump.
            libc::madvise(at, size as usize, libc::MADV_DONTDUMP);
            Some(Arena {
                base: at as u64,
                fd,
                page,
                free: BTreeMap::from([(at as u64, size)]),
            })
        }
    }

    /// Takes the first range that fits, of whole pages.
    pub(crate) fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let len = round_up(size.max(1), self.page)?;
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= len)?;
        self.free.remove(&at);
        if have > len {
            self.free.insert(at + len, have - len);
        }
        Some((at, len))
    }

    /// Gives a range back; its content is gone.
    pub(crate) fn give(&mut self, at: u64, len: u64) {
        self.clear(at, len);
        let (mut at, mut len) = (at, len);
        if let Some((&before, &n)) = self.free.range(..at).next_back()
            && before + n == at
        {
            self.free.remove(&before);
            at = before;
            len += n;
        }
        if let Some(&n) = self.free.get(&(at + len)) {
            self.free.remove(&(at + len));
            len += n;
        }
        self.free.insert(at, len);
    }

    /// Makes a range read as zero. Whole pages of the system are dropped from
    /// the file, which costs no time for the untouched ones.
    pub(crate) fn clear(&self, at: u64, len: u64) {
        // SAFETY: the range lies in this arena's mapping, which is writable
        // for the whole life of the process.
        unsafe {
            if len < 64 << 10 {
                std::ptr::write_bytes(at as *mut u8, 0, len as usize);
                return;
            }
            // The kernel zeroes the partial pages at the ends itself.
            let r = libc::fallocate(
                self.fd,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                (at - self.base) as i64,
                len as i64,
            );
            if r != 0 {
                std::ptr::write_bytes(at as *mut u8, 0, len as usize);
            }
        }
    }
}

/// Reserves addresses without memory behind them: for VMM and imports.
/// They are readable (as zero) and writable, so that a kernel that is running
/// while its memory is unmapped does not bring the process down.
pub(crate) fn reserve(size: u64, align: u64, hint: u64) -> Option<u64> {
    let align = align.max(PAGE);
    let span = size.checked_add(align)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new mappings of addresses that nobody uses; what is trimmed off
    // was mapped here.
    unsafe {
        if hint != 0 && hint.is_multiple_of(align) {
            let at = libc::mmap(
                hint as *mut _,
                size as usize,
                prot,
                flags | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
            if at != libc::MAP_FAILED {
                return Some(at as u64);
            }
        }
        let raw = libc::mmap(std::ptr::null_mut(), span as usize, prot, flags, -1, 0);
        if raw == libc::MAP_FAILED {
            return None;
        }
        let raw = raw as u64;
        let base = round_up(raw, align)?;
        if base > raw {
            libc::munmap(raw as *mut _, (base - raw) as usize);
        }
        let end = raw + span;
        if end > base + size {
            libc::munmap((base + size) as *mut _, (end - base - size) as usize);
        }
        Some(base)
    }
}

/// Undoes `reserve`.
pub(crate) fn unreserve(at: u64, size: u64) {
    // SAFETY: the range came from `reserve` and its owner gave it up.
    unsafe { libc::munmap(at as *mut _, size as usize) };
}

/// Maps part of a memory file over reserved addresses.
pub(crate) fn map_over(at: u64, len: u64, fd: i32, offset: u64) -> bool {
    // SAFETY: replaces addresses that `reserve` gave to the caller.
    unsafe {
        libc::mmap(
            at as *mut _,
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
            fd,
            offset as i64,
        ) != libc::MAP_FAILED
    }
}

/// Puts reserved addresses back to what `reserve` gave.
pub(crate) fn unmap_over(at: u64, len: u64) {
    // SAFETY: replaces addresses that `reserve` gave to the caller.
    unsafe {
        libc::mmap(
            at as *mut _,
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        );
    }
}
