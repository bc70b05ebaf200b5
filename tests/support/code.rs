//! Functions assembled in memory, to be patched: for the tests of patching.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use gpupool::hooks::patch::Entry;

pub const PAGE: usize = 4096;
pub const READ_EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// The tests compare the whole process's page rights, so only one runs at a time.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub type Function = extern "C" fn(u64) -> u64;

/// Code in pages of its own, sealed like a library's.
pub struct Code {
    pub start: usize,
    size: usize,
}

impl Code {
    /// `pieces` are (offset, bytes); what lies between is int3. One more page, of data, follows:
    /// a read there gives 41.
    pub fn new(pages: usize, pieces: &[(usize, &[u8])]) -> Self {
        let size = (pages + 1) * PAGE;
        // SAFETY: a new anonymous mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let code = Self {
            start: start as usize,
            size,
        };
        // SAFETY: the mapping above, writable, nobody else's; each piece is checked to lie inside.
        unsafe {
            std::ptr::write_bytes(start.cast::<u8>(), 0xcc, pages * PAGE);
            for (offset, bytes) in pieces {
                assert!(offset + bytes.len() <= pages * PAGE);
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    start.cast::<u8>().add(*offset),
                    bytes.len(),
                );
            }
            *start.cast::<u8>().add(pages * PAGE).cast::<u32>() = 41;
        }
        code.protect(0, pages, READ_EXEC);
        code
    }

    pub fn protect(&self, first: usize, pages: usize, rights: i32) {
        // SAFETY: pages of this mapping.
        let rc = unsafe {
            libc::mprotect(
                (self.start + first * PAGE) as *mut c_void,
                pages * PAGE,
                rights,
            )
        };
        assert_eq!(rc, 0);
    }

    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping is readable.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.size) }.to_vec()
    }

    pub fn call(&self, offset: usize, argument: u64) -> u64 {
        call(self.start + offset, argument)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the tests keep no pointer into it.
        unsafe { libc::munmap(self.start as *mut c_void, self.size) };
    }
}

/// Code in a file that was opened for reading only: the system lets nobody write to that mapping.
pub struct ReadOnlyCode {
    pub start: usize,
}

impl ReadOnlyCode {
    pub fn new(code: &[u8]) -> Self {
        use std::io::Write;
        use std::os::fd::{AsRawFd, FromRawFd};
        // SAFETY: a new descriptor, owned by the file from here on.
        let mut writable = unsafe {
            let fd = libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            fs::File::from_raw_fd(fd)
        };
        writable.write_all(code).expect("written");
        writable.set_len(PAGE as u64).expect("grown");
        let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
        let file = fs::File::open(path).expect("opened again");
        // SAFETY: a new mapping of a page that the file has.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                READ_EXEC,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self {
            start: start as usize,
        }
    }
}

impl Drop for ReadOnlyCode {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.start as *mut c_void, PAGE) };
    }
}

pub fn call(address: usize, argument: u64) -> u64 {
    // SAFETY: every piece of code here is a function of this type.
    let function: Function = unsafe { std::mem::transmute(address) };
    function(argument)
}

pub extern "C" fn hook(argument: u64) -> u64 {
    argument + 1000
}

pub extern "C" fn other_hook(argument: u64) -> u64 {
    argument + 2000
}

/// A slot for one entry. Leaked: the library wants it for the life of the process.
pub fn slot() -> &'static AtomicUsize {
    Box::leak(Box::new(AtomicUsize::new(0)))
}

pub fn entry(name: &'static str, address: usize, required: bool) -> Entry {
    Entry {
        name,
        address,
        hook: hook as *const () as usize,
        original: slot(),
        required,
    }
}

/// Rights of every page range of the process. Ranges that only meet are one.
pub fn rights() -> BTreeMap<usize, (usize, String)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let mut ranges: BTreeMap<usize, (usize, String)> = BTreeMap::new();
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').expect("range, then rights");
        let (start, end) = range.split_once('-').expect("start-end");
        let start = usize::from_str_radix(start, 16).expect("hexadecimal");
        let end = usize::from_str_radix(end, 16).expect("hexadecimal");
        let letters = rest[..4].to_owned();
        match ranges.values_mut().next_back() {
            Some(last) if last.0 == start && last.1 == letters => last.0 = end,
            _ => {
                ranges.insert(start, (end, letters));
            }
        }
    }
    ranges
}

/// Rights of the page at `address`.
pub fn rights_at(address: usize) -> String {
    let ranges = rights();
    let (_, (end, letters)) = ranges.range(..=address).next_back().expect("mapped");
    assert!(address < *end, "mapped");
    letters.clone()
}

/// Functions of one argument with all kinds of beginnings: name, code, argument, result.
pub fn prologues() -> Vec<(&'static str, Vec<u8>, u64, u64)> {
    vec![
        // push rbp; mov rbp,rsp; push r12; sub rsp,8; lea rax,[rdi+1]; add rsp,8; pop r12; pop rbp; ret
        (
            "frame",
            vec![
                0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x47, 0x01,
                0x48, 0x83, 0xc4, 0x08, 0x41, 0x5c, 0x5d, 0xc3,
            ],
            5,
            6,
        ),
        // endbr64; push rbp; mov rbp,rsp; lea rax,[rdi+2]; pop rbp; ret
        (
            "endbr64",
            vec![
                0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x47, 0x02, 0x5d, 0xc3,
            ],
            5,
            7,
        ),
        // test edi,edi; je zero; lea rax,[rdi+3]; ret; zero: mov eax,99; ret
        (
            "short branch not taken",
            vec![
                0x85, 0xff, 0x74, 0x05, 0x48, 0x8d, 0x47, 0x03, 0xc3, 0xb8, 99, 0, 0, 0, 0xc3,
            ],
            5,
            8,
        ),
        (
            "short branch taken",
            vec![
                0x85, 0xff, 0x74, 0x05, 0x48, 0x8d, 0x47, 0x03, 0xc3, 0xb8, 99, 0, 0, 0, 0xc3,
            ],
            0,
            99,
        ),
        // call helper; add rax,rdi; ret; helper: mov eax,10; ret
        (
            "call",
            vec![
                0xe8, 0x04, 0, 0, 0, 0x48, 0x01, 0xf8, 0xc3, 0xb8, 10, 0, 0, 0, 0xc3,
            ],
            5,
            15,
        ),
        // jmp body; int3; body: lea rax,[rdi+4]; ret
        (
            "near jump",
            vec![0xe9, 0x01, 0, 0, 0, 0xcc, 0x48, 0x8d, 0x47, 0x04, 0xc3],
            5,
            9,
        ),
        // mov eax,edi; nop; nop; ret: five bytes in all
        ("five bytes", vec![0x89, 0xf8, 0x90, 0x90, 0xc3], 5, 5),
        // mov ecx,edi; jrcxz zero; lea rax,[rdi+6]; ret; zero: mov eax,98; ret
        (
            "jrcxz",
            vec![
                0x89, 0xf9, 0xe3, 0x05, 0x48, 0x8d, 0x47, 0x06, 0xc3, 0xb8, 98, 0, 0, 0, 0xc3,
            ],
            0,
            98,
        ),
        // movabs rax,imm64; add rax,rdi; ret
        (
            "long immediate",
            vec![0x48, 0xb8, 7, 0, 0, 0, 1, 0, 0, 0, 0x48, 0x01, 0xf8, 0xc3],
            5,
            (1 << 32) + 12,
        ),
    ]
}
