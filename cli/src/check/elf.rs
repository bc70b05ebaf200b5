//! What an ELF file says of itself, as far as `gpupool check` asks. Only for
//! 64-bit little-endian files; of others only the kind.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A file's bytes, mapped: libraries can have gigabytes.
pub struct Bytes {
    address: *mut libc::c_void,
    length: usize,
}

impl Bytes {
    /// Maps a file. An empty one cannot be mapped.
    pub fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len() as usize;
        // SAFETY: a new mapping of an open file.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address, length })
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` lives. Whoever truncates a library
        // in use breaks every process that uses it; this command with them.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the mapping of `of`, to which no reference is left.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// What kind of program a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 64-bit x86.
    X86_64,
    /// ELF for another machine; its number in the header, and 32 or 64 bits.
    Other(u16, u8),
    /// No ELF file.
    NotElf,
}

/// The kind of the file with these bytes.
pub fn kind(bytes: &[u8]) -> Kind {
    const MACHINE_X86_64: u16 = 62;
    if bytes.len() < 64 || !bytes.starts_with(b"\x7fELF") {
        return Kind::NotElf;
    }
    let bits = if bytes[4] == 2 { 64 } else { 32 };
    let machine = if bytes[5] == 2 {
        u16::from_be_bytes([bytes[18], bytes[19]])
    } else {
        u16::from_le_bytes([bytes[18], bytes[19]])
    };
    if (bits, bytes[5], machine) == (64, 1, MACHINE_X86_64) {
        Kind::X86_64
    } else {
        Kind::Other(machine, bits)
    }
}

/// What the dynamic linker reads of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// The dynamic linker; none in a library and in a static program.
    pub interpreter: Option<String>,
    /// Libraries that it was linked to.
    pub needed: Vec<String>,
    /// Where they are searched before LD_LIBRARY_PATH.
    pub rpath: Vec<String>,
    /// The same, after it.
    pub runpath: Vec<String>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let raw = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(raw.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(raw.try_into().ok()?))
}

fn text(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

/// A program header: type, offset in the file, address, size in the file.
struct Part {
    kind: u32,
    offset: usize,
    address: u64,
    size: usize,
}

fn parts(bytes: &[u8]) -> Option<Vec<Part>> {
    let table = word(bytes, 32)? as usize;
    let size = usize::from(u16::from_le_bytes([*bytes.get(54)?, *bytes.get(55)?]));
    let count = usize::from(u16::from_le_bytes([*bytes.get(56)?, *bytes.get(57)?]));
    (0..count)
        .map(|number| {
            let at = table.checked_add(number * size)?;
            Some(Part {
                kind: half(bytes, at)?,
                offset: word(bytes, at + 8)? as usize,
                address: word(bytes, at + 16)?,
                size: word(bytes, at + 32)? as usize,
            })
        })
        .collect()
}

/// Reads an x86-64 object. `None` if it is damaged.
pub fn object(bytes: &[u8]) -> Option<Object> {
    let parts = parts(bytes)?;
    let in_file = |address: u64| {
        parts
            .iter()
            .find(|part| {
                part.kind == PT_LOAD
                    && address >= part.address
                    && address - part.address < part.size as u64
            })
            .and_then(|part| part.offset.checked_add((address - part.address) as usize))
    };
    let mut object = Object::default();
    for part in &parts {
        if part.kind == PT_INTERP {
            object.interpreter = text(bytes, part.offset);
        }
    }
    let Some(dynamic) = parts.iter().find(|part| part.kind == PT_DYNAMIC) else {
        return Some(object);
    };
    let entries: Vec<(u64, u64)> = (0..dynamic.size / 16)
        .map_while(|number| {
            let at = dynamic.offset + number * 16;
            Some((word(bytes, at)?, word(bytes, at + 8)?))
        })
        .take_while(|entry| entry.0 != 0)
        .collect();
    let names = entries.iter().find(|entry| entry.0 == DT_STRTAB)?.1;
    let names = in_file(names)?;
    for (tag, value) in entries {
        let list = match tag {
            DT_NEEDED | DT_RPATH | DT_RUNPATH => text(bytes, names.checked_add(value as usize)?)?,
            _ => continue,
        };
        let folders = || list.split(':').map(str::to_owned);
        match tag {
            DT_NEEDED => object.needed.push(list),
            DT_RPATH => object.rpath.extend(folders()),
            _ => object.runpath.extend(folders()),
        }
    }
    Some(object)
}

/// What of a file is loaded: not its debug information.
pub fn loaded(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    parts(bytes)
        .unwrap_or_default()
        .into_iter()
        .filter(|part| part.kind == PT_LOAD)
        .filter_map(|part| bytes.get(part.offset..part.offset.checked_add(part.size)?))
}

/// Whether the bytes occur.
pub fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(bytes, wanted).is_some()
}

/// The newest glibc version that a library of glibc defines: its own.
pub fn glibc_version(bytes: &[u8]) -> Option<(u32, u32)> {
    let mark: &[u8] = b"GLIBC_2.";
    memchr::memmem::find_iter(bytes, mark)
        .filter_map(|at| {
            let digits: String = bytes[at + mark.len()..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .map(|byte| char::from(*byte))
                .collect();
            digits.parse().ok()
        })
        .max()
        .map(|minor| (2, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_is_read() {
        let bytes = Bytes::of(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(kind(&bytes), Kind::X86_64);
        let object = object(&bytes).unwrap();
        assert!(
            object.needed.iter().any(|name| name == "libc.so.6"),
            "{object:?}"
        );
        assert!(object.interpreter.unwrap().contains("ld-linux"));
    }

    #[test]
    fn damaged_files_are_no_reason_to_fail() {
        let whole = Bytes::of(&std::env::current_exe().unwrap()).unwrap();
        for length in [64, 100, 1000, 5000] {
            let _ = object(&whole[..length]);
        }
        let mut bytes = whole[..4096].to_vec();
        for at in 32..4096 {
            bytes[at] = 0xff;
            let _ = object(&bytes);
        }
        assert_eq!(kind(b"#!/bin/sh\n"), Kind::NotElf);
        assert_eq!(object(b""), None);
    }

    #[test]
    fn glibc_tells_its_version() {
        assert_eq!(
            glibc_version(b"GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"),
            Some((2, 34))
        );
        assert_eq!(glibc_version(b"musl"), None);
    }
}
