//! Whether a stopped thread may make a call of ours, in between: not while it
//! holds a lock of malloc's or the loader's, which that call takes.
//!
//! Who attaches a debugger and calls dlopen where the thread happens to be
//! hangs or corrupts the process when that is inside malloc, the loader or a
//! system call made by them; a breakpoint on malloc's entry can still be hit
//! by the loader. Here the whole stack is looked at, with the objects' unwind
//! tables, and a thread is taken only if no function of these is on it. If its
//! stack cannot be followed to its end, every word on it that could be a return
//! address counts.

use std::ops::Range;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};

use super::image::Image;
use super::memory::{Mapping, Memory, find};
use super::threads::{Registers, call_of};

/// Calls in which a thread may be taken: neither allocators nor the loader make
/// them while they hold a lock that others need.
const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_futex,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_pause,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_ioctl,
    libc::SYS_sched_yield,
    libc::SYS_fsync,
    libc::SYS_flock,
];

/// Functions that must not be on the stack, in whatever object.
const FUNCTIONS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "free",
    "cfree",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_info",
    "malloc_usable_size",
    "mallinfo",
    "mallinfo2",
    "_Znwm",
    "_Znam",
    "_ZdlPv",
    "_ZdaPv",
    "_ZdlPvm",
    "_ZdaPvm",
    "dlopen",
    "dlmopen",
    "dlclose",
    "dlsym",
    "dlvsym",
    "dladdr",
    "dladdr1",
    "dlinfo",
    "dl_iterate_phdr",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlclose",
    "fork",
    "vfork",
    "__libc_fork",
    "_Fork",
    "pthread_create",
    "pthread_exit",
    "exit",
    "quick_exit",
    "abort",
    "__cxa_finalize",
];

/// Libraries whose code is an allocator's.
const ALLOCATORS: &[&str] = &[
    "jemalloc",
    "tcmalloc",
    "mimalloc",
    "snmalloc",
    "tbbmalloc",
    "hoard",
    "libasan",
    "libtsan",
    "libmsan",
    "liblsan",
    "scudo",
];

/// How deep a stack is followed.
const DEEPEST: usize = 4096;
/// Most bytes of a stack that are looked at.
const STACK: u64 = 64 << 20;

/// What is known of the process's code, for one attempt after the other.
pub struct Code<'a> {
    images: &'a [Image],
    maps: &'a [Mapping],
    memory: &'a Memory,
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    /// Whether an image's unwind tables were given to the unwinder; `None`
    /// before they were asked for.
    known: Vec<Option<bool>>,
}

impl<'a> Code<'a> {
    pub fn new(images: &'a [Image], maps: &'a [Mapping], memory: &'a Memory) -> Self {
        Self {
            images,
            maps,
            memory,
            unwinder: UnwinderX86_64::new(),
            known: vec![None; images.len()],
        }
    }

    fn image_at(&self, address: u64) -> Option<usize> {
        self.images
            .iter()
            .position(|image| image.has_code_at(address))
    }

    /// Whether a thread that is stopped with these registers may make a call.
    ///
    /// # Errors
    /// Why not, as a clause about the thread.
    pub fn check(&mut self, registers: &Registers, restartable: Option<u64>) -> Result<(), String> {
        let Some(at) = self.image_at(registers.rip) else {
            return Err("is in code of no object".to_owned());
        };
        let image = &self.images[at];
        if image.path == "[vdso]" || image.is_linker || is_allocator(image) {
            return Err(format!("is in {}", image.name()));
        }
        match call_of(registers) {
            Some(call) if !CALLS.contains(&call) => {
                return Err(format!("is in system call {call}"));
            }
            Some(_) => {}
            None => {
                // Static functions of an allocator have no name here.
                let allocates = !image.symbols(FUNCTIONS, self.memory).is_empty();
                if allocates {
                    return Err(format!("is in {}", image.name()));
                }
            }
        }
        if restartable.is_some_and(|place| self.memory.read_u64(place).ok() != Some(0)) {
            return Err("is in a restartable sequence".to_owned());
        }
        match self.frames(registers) {
            Some(frames) => frames.iter().try_for_each(|frame| self.allows(*frame)),
            None => self.check_words(registers),
        }
    }

    /// Whether a function that returns to `address` may be on the stack.
    fn allows(&self, address: u64) -> Result<(), String> {
        // The call is before the place that it returns to.
        let call = address - 1;
        let Some(index) = self.image_at(call) else {
            return Err("has code of no object on its stack".to_owned());
        };
        let image = &self.images[index];
        if image.is_linker || is_allocator(image) {
            return Err(format!("has {} on its stack", image.name()));
        }
        let named = image.symbols(FUNCTIONS, self.memory);
        match named.iter().find(|(_, range)| range.contains(&call)) {
            Some((name, _)) => Err(format!("has {name} on its stack")),
            None => Ok(()),
        }
    }

    /// The return addresses on the stack, if it can be followed to its end.
    fn frames(&mut self, registers: &Registers) -> Option<Vec<u64>> {
        let mut cache = CacheX86_64::new();
        let mut next = registers.rip;
        // Each round may meet an object that was not known before.
        'again: loop {
            self.learn(next)?;
            let memory = self.memory;
            let mut read = |address: u64| memory.read_u64(address).map_err(|_| ());
            let start = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
            let mut frames = Vec::new();
            let mut walk = self
                .unwinder
                .iter_frames(registers.rip, start, &mut cache, &mut read);
            loop {
                match walk.next() {
                    Ok(Some(frame)) => {
                        let address = frame.address();
                        let looked_up = frame.address_for_lookup();
                        let index = self.images.iter().position(|i| i.has_code_at(looked_up))?;
                        if self.known[index].is_none() {
                            next = looked_up;
                            continue 'again;
                        }
                        if self.known[index] == Some(false) || is_signal_return(memory, address) {
                            return None;
                        }
                        if frame.is_return_address() {
                            frames.push(address);
                        }
                        if frames.len() > DEEPEST {
                            return None;
                        }
                    }
                    Ok(None) => return Some(frames),
                    Err(_) => return None,
                }
            }
        }
    }

    /// Reads the unwind tables of the object at `address`.
    fn learn(&mut self, address: u64) -> Option<()> {
        let index = self.image_at(address)?;
        if self.known[index].is_some() {
            return Some(());
        }
        let image = &self.images[index];
        let Some(tables) = image.unwinding(self.memory) else {
            self.known[index] = Some(false);
            return None;
        };
        let in_file = |range: Range<u64>| {
            range.start.wrapping_sub(image.bias)..range.end.wrapping_sub(image.bias)
        };
        self.unwinder.add_module(Module::new(
            image.path.clone(),
            image.range.clone(),
            image.bias,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                eh_frame_svma: Some(in_file(tables.frames)),
                eh_frame: Some(tables.frames_bytes),
                eh_frame_hdr_svma: Some(in_file(tables.header)),
                eh_frame_hdr: Some(tables.header_bytes),
                ..ExplicitModuleSectionInfo::default()
            },
        ));
        self.known[index] = Some(true);
        Some(())
    }

    /// Looks at every word of the stack that follows a call instruction.
    fn check_words(&self, registers: &Registers) -> Result<(), String> {
        let mapping = find(self.maps, registers.rsp).ok_or("has no stack")?;
        let length = (mapping.range.end - registers.rsp).min(STACK);
        let stack = self.memory.read_up_to(registers.rsp, length as usize);
        for word in stack.chunks_exact(8) {
            let address = u64::from_le_bytes(word.try_into().map_err(|_| "has no stack")?);
            if self.image_at(address).is_some() && follows_call(self.memory, address) {
                self.allows(address)?;
            }
        }
        Ok(())
    }
}

/// Words of the stopped thread's stack, near its top.
pub fn top_of_stack(memory: &Memory, registers: &Registers, length: usize) -> Vec<u64> {
    memory
        .read_up_to(registers.rsp, length)
        .chunks_exact(8)
        .map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        })
        .collect()
}

fn is_allocator(image: &Image) -> bool {
    ALLOCATORS.iter().any(|name| image.name().contains(name))
}

/// `mov $15, %rax; syscall`: what a signal handler returns to.
fn is_signal_return(memory: &Memory, address: u64) -> bool {
    memory.read_up_to(address, 9) == [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]
}

/// Whether the bytes before `address` can be a call.
fn follows_call(memory: &Memory, address: u64) -> bool {
    let Some(start) = address.checked_sub(7) else {
        return false;
    };
    let mut before = [0; 7];
    if memory.read(start, &mut before).is_err() {
        return false;
    }
    // call rel32, or call r/m64 (ff /2) of two to seven bytes.
    before[2] == 0xe8 || (0..6).any(|at| before[at] == 0xff && before[at + 1] & 0x38 == 0x10)
}

#[cfg(test)]
mod tests {
    use super::super::image::images;
    use super::super::memory::mappings;
    use super::*;

    /// Registers as they would be if this function were just being run.
    #[inline(never)]
    fn here(call: Option<libc::c_long>) -> Registers {
        // SAFETY: all-zero is a valid value of this plain data.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        registers.orig_rax = call.map_or(u64::MAX, |call| call as u64);
        registers
    }

    #[test]
    fn the_loader_and_libc_are_no_places() {
        let pid = std::process::id() as i32;
        let memory = Memory::open(pid).unwrap();
        let maps = mappings(pid).unwrap();
        let images = images(&maps, &memory);
        let mut code = Code::new(&images, &maps, &memory);
        let at = |rip: u64, call: Option<libc::c_long>| {
            let mut registers = here(call);
            registers.rip = rip;
            registers
        };
        let malloc = libc::malloc as *const () as u64;
        assert!(code.check(&at(malloc, None), None).is_err());
        let linker = images.iter().find(|image| image.is_linker).unwrap();
        assert!(code.check(&at(linker.code[0].start, None), None).is_err());
        let read = libc::read as *const () as u64;
        let mapping = code.check(&at(read, Some(libc::SYS_mmap)), None);
        assert!(mapping.unwrap_err().contains("system call 9"));
        assert!(code.check(&at(8, None), None).is_err());
        // Returning into malloc or the loader is refused; elsewhere not.
        assert!(code.allows(malloc + 4).unwrap_err().contains("malloc"));
        assert!(code.allows(linker.code[0].start + 4).is_err());
        assert_eq!(code.allows(read + 4), Ok(()));
    }

    #[test]
    fn calls_are_recognised() {
        let code: &[u8] = &[
            0x90, 0x90, 0xe8, 1, 2, 3, 4, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x90,
        ];
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let start = std::hint::black_box(code).as_ptr() as u64;
        assert!(follows_call(&memory, start + 7));
        assert!(follows_call(&memory, start + 14));
        assert!(!follows_call(&memory, start + 12));
    }
}
