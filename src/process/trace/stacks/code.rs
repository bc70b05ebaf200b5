//! The process's code and its unwind tables, and the walk along a stack.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder};
use once_cell::sync::Lazy;

use super::super::lock;
use crate::config::{Changeable, Control};

/// Most places that the loader is asked about: code made at run time is in no
/// object, and would be asked about again and again.
const MOST_ASKED: usize = 1024;
/// DW_EH_PE_pcrel | DW_EH_PE_sdata4: how linkers write the place of the tables.
const RELATIVE: u8 = 0x1b;

/// All objects at one moment. Never changed; newer ones take its place.
#[derive(Default)]
pub struct Code {
    unwinder: UnwinderX86_64<&'static [u8], MustNotAllocateDuringUnwind>,
    /// Where objects lie, in order.
    ranges: Vec<Range<u64>>,
    /// Where this library lies.
    own: Range<u64>,
}

static CODE: Lazy<Changeable<Code>> = Lazy::new(|| Changeable::new(Code::default()));
/// Pages that the loader was asked about, and the tables that are mapped.
static LEARNT: Mutex<(Vec<u64>, Vec<Tables>)> = Mutex::new((Vec::new(), Vec::new()));

impl Code {
    /// As it is known now.
    pub fn now() -> &'static Code {
        &CODE
    }

    /// Looks at the process's objects again if that was not done yet for the
    /// page of `address`. Whether it was.
    #[cold]
    pub fn learn(address: u64) -> bool {
        let page = address >> 12;
        {
            let asked = &mut lock(&LEARNT).0;
            if asked.len() >= MOST_ASKED || asked.contains(&page) {
                return false;
            }
            asked.push(page);
        }
        // With no lock of ours held, as in `sites`.
        let objects = objects();
        let tables = &mut lock(&LEARNT).1;
        for object in objects {
            if !tables.iter().any(|known| known.range == object.range) {
                tables.extend(Tables::of(object));
            }
        }
        CODE.set(Code::of(tables));
        true
    }

    fn of(tables: &[Tables]) -> Self {
        let mut code = Self::default();
        for table in tables {
            code.unwinder.add_module(table.module());
            code.ranges.push(table.range.clone());
        }
        code.ranges.sort_unstable_by_key(|range| range.start);
        let me = Code::learn as *const () as u64;
        code.own = code.range_of(me).unwrap_or_default();
        code
    }

    fn range_of(&self, address: u64) -> Option<Range<u64>> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        range.contains(&address).then(|| range.clone())
    }

    /// The program's part of a stack: from the frame that returns to `site` on,
    /// else what is below our own frames.
    pub fn of_program<'a>(&self, frames: &'a [u64], site: u64) -> &'a [u64] {
        let from = frames.iter().position(|frame| *frame == site);
        let from = from.or_else(|| frames.iter().position(|frame| !self.own.contains(frame)));
        &frames[from.unwrap_or(frames.len())..]
    }
}

/// What a thread needs to follow its stack.
pub struct Walk {
    cache: CacheX86_64<MustNotAllocateDuringUnwind>,
    /// The thread's own stack; empty where it is not known.
    stack: Range<u64>,
    /// An address that is in no object, at which the last walk ended or went on
    /// by frame pointers.
    unknown: Option<u64>,
}

impl Walk {
    /// For no thread yet.
    pub fn new() -> Self {
        Self {
            cache: CacheX86_64::new_in(),
            stack: 0..0,
            unknown: None,
        }
    }

    /// From now on it is the calling thread's.
    pub fn begin(&mut self) {
        self.stack = own_stack();
    }

    /// See [`Walk::unknown`].
    pub fn unknown(&self) -> Option<u64> {
        self.unknown
    }

    /// Writes the return addresses on this thread's stack, the innermost first;
    /// how many there are.
    #[inline(never)]
    pub fn walk(&mut self, code: &Code, frames: &mut [u64]) -> usize {
        let (pc, sp, bp): (u64, u64, u64);
        // SAFETY: reads three registers.
        unsafe {
            std::arch::asm!(
                "lea {pc}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                pc = out(reg) pc,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nomem, nostack, preserves_flags)
            );
        }
        if !self.stack.contains(&sp) && !Control::StackCheck.is_off() {
            // Another one, of which nothing is known.
            return 0;
        }
        let end = self.stack.end;
        let mut read = |address: u64| {
            let inside = address >= sp && address.is_multiple_of(8) && address <= end - 8;
            if !inside {
                return Err(());
            }
            // SAFETY: on this thread's own stack, above the stack pointer.
            Ok(unsafe { (address as *const u64).read_volatile() })
        };
        self.unknown = code.range_of(pc).is_none().then_some(pc);
        let regs = UnwindRegsX86_64::new(pc, sp, bp);
        let mut count = 0;
        let mut walk = code
            .unwinder
            .iter_frames(pc, regs, &mut self.cache, &mut read);
        while let Ok(Some(frame)) = walk.next() {
            if !frame.is_return_address() {
                continue;
            }
            let address = frame.address();
            if code.range_of(address - 1).is_none() && self.unknown.is_none() {
                self.unknown = Some(address - 1);
            }
            if count == frames.len() {
                break;
            }
            frames[count] = address;
            count += 1;
        }
        count
    }
}

/// Where the calling thread's stack lies; empty if that cannot be found out.
fn own_stack() -> Range<u64> {
    // SAFETY: the attributes are initialised by the first call, and given back;
    // the outputs are valid for writes.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return 0..0;
        }
        let (mut start, mut size) = (std::ptr::null_mut::<c_void>(), 0);
        let found =
            libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        match found {
            0 => start as u64..start as u64 + size as u64,
            _ => 0..0,
        }
    }
}

/// A mapped object, as the loader tells it. Addresses but `range` and `base`
/// are the file's own.
#[derive(Default)]
struct Loaded {
    path: CString,
    base: u64,
    range: Range<u64>,
    /// .eh_frame_hdr.
    header: Range<u64>,
    /// The segment that holds it: address, and place in the file.
    segment: Range<u64>,
    offset: u64,
}

fn objects() -> Vec<Loaded> {
    let mut found: Vec<Loaded> = Vec::new();
    // SAFETY: `visit` gets back this pointer, to a value that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    if let Some(program) = found.first_mut() {
        // The program itself has no name there.
        program.path = c"/proc/self/exe".to_owned();
    }
    found
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: as in `sites`.
    unsafe {
        let (info, found) = (&*info, &mut *found.cast::<Vec<Loaded>>());
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let mut object = Loaded {
            base: info.dlpi_addr,
            ..Loaded::default()
        };
        if !info.dlpi_name.is_null() {
            object.path = CStr::from_ptr(info.dlpi_name).to_owned();
        }
        let of = |header: &libc::Elf64_Phdr| header.p_vaddr..header.p_vaddr + header.p_filesz;
        for header in headers
            .iter()
            .filter(|one| one.p_type == libc::PT_GNU_EH_FRAME)
        {
            object.header = of(header);
        }
        for header in headers.iter().filter(|one| one.p_type == libc::PT_LOAD) {
            let (start, end) = (header.p_vaddr, header.p_vaddr + header.p_memsz);
            let (start, end) = (
                object.base.wrapping_add(start),
                object.base.wrapping_add(end),
            );
            object.range = match object.range.is_empty() {
                true => start..end,
                false => object.range.start.min(start)..object.range.end.max(end),
            };
            if of(header).contains(&object.header.start) {
                (object.segment, object.offset) = (of(header), header.p_offset);
            }
        }
        found.push(object);
    }
    0
}

/// An object's unwind tables, from its file.
struct Tables {
    range: Range<u64>,
    base: u64,
    header: (Range<u64>, &'static [u8]),
    frames: (Range<u64>, &'static [u8]),
}

impl Tables {
    /// Maps the file's part with the tables, for good; `None` where there is no
    /// file or the tables are not as linkers write them.
    fn of(object: Loaded) -> Option<Self> {
        let Loaded {
            header, segment, ..
        } = &object;
        if header.is_empty() || segment.is_empty() {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(object.path.as_bytes()));
        let bytes = map(path, object.offset, segment.end - segment.start)?;
        let at = |address: u64| usize::try_from(address.checked_sub(segment.start)?).ok();
        let table = bytes.get(at(header.start)?..at(header.end)?)?;
        if table.first() != Some(&1) || table.get(1) != Some(&RELATIVE) {
            return None;
        }
        let distance = i32::from_le_bytes(table.get(4..8)?.try_into().ok()?);
        let start = (header.start + 4).checked_add_signed(i64::from(distance))?;
        // The table ends with a zero; its length stands nowhere.
        let frames = bytes.get(at(start)?..)?;
        Some(Self {
            range: object.range.clone(),
            base: object.base,
            header: (header.clone(), table),
            frames: (start..segment.end, frames),
        })
    }

    fn module(&self) -> Module<&'static [u8]> {
        Module::new(
            String::new(),
            self.range.clone(),
            self.base,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                eh_frame_svma: Some(self.frames.0.clone()),
                eh_frame: Some(self.frames.1),
                eh_frame_hdr_svma: Some(self.header.0.clone()),
                eh_frame_hdr: Some(self.header.1),
                ..ExplicitModuleSectionInfo::default()
            },
        )
    }
}

/// Maps `length` bytes of a file from `offset` on, never to be unmapped.
fn map(path: &Path, offset: u64, length: u64) -> Option<&'static [u8]> {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path).ok()?;
    // What lies behind the file's end cannot be read.
    if file.metadata().ok()?.len() < offset.checked_add(length)? {
        return None;
    }
    let before = offset % 4096;
    // SAFETY: a new private mapping that nobody writes and nobody unmaps.
    unsafe {
        let start = libc::mmap(
            std::ptr::null_mut(),
            (before + length) as usize,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            (offset - before) as libc::off_t,
        );
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.cast::<u8>().add(before as usize);
        Some(std::slice::from_raw_parts(start, length as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn inner(walk: &mut Walk, frames: &mut [u64]) -> usize {
        let count = walk.walk(Code::now(), frames);
        std::hint::black_box(count)
    }

    #[inline(never)]
    fn outer(walk: &mut Walk, frames: &mut [u64]) -> usize {
        let count = inner(walk, frames);
        std::hint::black_box(count)
    }

    /// The frames on the stack are those of the functions that called.
    #[test]
    fn a_stack_is_followed_to_its_end() {
        let mut walk = Walk::new();
        walk.begin();
        let mut frames = [0; 128];
        outer(&mut walk, &mut frames);
        let unknown = walk.unknown().unwrap();
        assert!(Code::learn(unknown) && !Code::learn(unknown));
        let count = outer(&mut walk, &mut frames);
        let near = |frame: u64, function: *const ()| frame.wrapping_sub(function as u64) < 400;
        assert!(near(frames[0], inner as *const ()), "{frames:x?}");
        assert!(near(frames[1], outer as *const ()), "{frames:x?}");
        // Through the test harness into libc, which began the thread.
        let libc = Code::now().range_of(libc::malloc as *const () as u64);
        let last = frames[count - 1];
        assert!(count > 5 && libc.unwrap().contains(&last), "{frames:x?}");
        // On another stack nothing is read.
        walk.stack.start += 1 << 40;
        walk.stack.end += 1 << 40;
        assert_eq!(outer(&mut walk, &mut frames), 0);
    }

    #[test]
    fn what_belongs_to_the_program_is_what_is_behind_the_call() {
        let code = Code {
            own: 100..200,
            ..Code::default()
        };
        let frames = [150, 160, 5, 170, 6, 7];
        assert_eq!(code.of_program(&frames, 6), [6, 7]);
        assert_eq!(code.of_program(&frames, 9), [5, 170, 6, 7]);
        assert!(code.of_program(&[150, 160], 9).is_empty());
    }
}
