//! Writing into mapped code, with its page rights put back as they were.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::PAGE;
use super::maps::{self, Mapping};
use super::relocate::JUMP;

const OPEN: libc::c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// Pages of code that are writable until this is closed.
#[derive(Debug)]
pub struct Opened {
    /// Each with the rights it had. Neighbours with equal rights are one range.
    pages: Vec<(Range<usize>, libc::c_int)>,
}

impl Opened {
    /// Makes the pages that hold the first bytes of each address writable, executable all along:
    /// other threads may be running code on the same pages.
    ///
    /// # Errors
    /// The address and the system's reason; then all rights are as before.
    pub fn open(
        maps: &[Mapping],
        addresses: impl Iterator<Item = usize>,
    ) -> Result<Self, (usize, String)> {
        let mut pages: Vec<usize> = addresses
            .flat_map(|address| [address & !(PAGE - 1), (address + JUMP - 1) & !(PAGE - 1)])
            .collect();
        pages.sort_unstable();
        pages.dedup();

        let mut ranges: Vec<(Range<usize>, libc::c_int)> = Vec::new();
        for page in pages {
            let Some(mapping) = maps::find(maps, page) else {
                return Err((page, "its code is not mapped".to_owned()));
            };
            match ranges.last_mut() {
                Some((range, rights)) if range.end == page && *rights == mapping.rights => {
                    range.end += PAGE
                }
                _ => ranges.push((page..page + PAGE, mapping.rights)),
            }
        }

        let mut opened = Self {
            pages: Vec::with_capacity(ranges.len()),
        };
        for (range, rights) in ranges {
            if let Err(why) = protect(&range, OPEN) {
                let address = range.start;
                // The reason that is reported is the first one.
                let _ = opened.close();
                return Err((address, format!("its pages cannot be made writable: {why}")));
            }
            opened.pages.push((range, rights));
        }
        Ok(opened)
    }

    /// Puts the rights back.
    ///
    /// # Errors
    /// The system's reason for the first range where it refused; the others are put back all the same.
    pub fn close(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for (range, rights) in self.pages.drain(..) {
            let restored = protect(&range, rights);
            if result.is_ok() {
                result = restored;
            }
        }
        result
    }

    /// Replaces the five bytes at `address`.
    ///
    /// In one store where they lie in one aligned eight-byte word, as they do at every aligned
    /// function: a thread that comes by meanwhile sees the old instruction or the new one.
    pub fn write(&self, address: usize, bytes: [u8; JUMP]) {
        debug_assert!(self.pages.iter().any(|(range, _)| range.contains(&address)));
        let word = address & !7;
        let offset = address - word;
        if offset + JUMP <= 8 {
            // SAFETY: the word is aligned and lies on one of the opened pages, which are readable
            // and writable. Code is data to the processor: atomic access is allowed.
            let cell = unsafe { AtomicU64::from_ptr(word as *mut u64) };
            let mut value = cell.load(Ordering::SeqCst).to_le_bytes();
            value[offset..offset + JUMP].copy_from_slice(&bytes);
            cell.store(u64::from_le_bytes(value), Ordering::SeqCst);
        } else {
            // SAFETY: the bytes lie on opened pages: `open` took those of the first and last byte.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, JUMP) };
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

fn protect(range: &Range<usize>, rights: libc::c_int) -> io::Result<()> {
    // SAFETY: changes rights only, of pages that are mapped code; execution is never taken away
    // while they are open, and then they get back what they had.
    let rc = unsafe { libc::mprotect(range.start as *mut libc::c_void, range.len(), rights) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
