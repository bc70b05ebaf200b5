//! Plugins opened with RTLD_DEEPBIND find libc's `dlsym` before ours, and one that carries the
//! runtime inside opens, looks up and initialises libcuda without anybody here noticing.
//!
//! So once the program has asked for RTLD_DEEPBIND (the exported `dlopen` sees the flag), and as long
//! as libcuda has not arrived, each lookup of the program's also looks at the objects loaded since:
//! where one has bound its `dlsym` to libc's, the word that says so is changed to ours, which jumps
//! on to libc's as it does for everybody else. The program's own lookup of the plugin's first function
//! comes before that function can run. A process that never uses the flag pays one comparison for a
//! `dlopen`, and nothing of it is changed.
//!
//! What still escapes: a plugin that uses CUDA in its own constructor, or is never asked for a
//! function by `dlsym`; and one that binds lazily, as the word then does not yet say to whom.

use std::mem::size_of;
use std::ops::Range;
use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::arrival;
use super::objects::{self, Object};
use super::patch::is_writable;

/// Whether the program has ever asked for RTLD_DEEPBIND.
static ASKED: AtomicBool = AtomicBool::new(false);
/// The exported `dlsym`; 0 before the constructor has run.
static OURS: AtomicUsize = AtomicUsize::new(0);
/// The loader's count of objects ever added when nothing was left to be done.
static SETTLED: AtomicU64 = AtomicU64::new(0);
/// How many objects there were then, above it how many had ever been removed: as long as none is, the
/// first of the list are the same, as new ones come last.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// The page size of x86-64.
const PAGE: usize = 4096;
/// R_X86_64_64, R_X86_64_GLOB_DAT and R_X86_64_JUMP_SLOT (System V ABI for x86-64, 4.4.1).
const ADDRESSES: [u64; 3] = [1, 6, 7];
/// Keys of the dynamic section (gABI, chapter 5; glibc's elf.h).
mod key {
    pub const PLTRELSZ: i64 = 2;
    pub const HASH: i64 = 4;
    pub const STRTAB: i64 = 5;
    pub const SYMTAB: i64 = 6;
    pub const RELA: i64 = 7;
    pub const RELASZ: i64 = 8;
    pub const JMPREL: i64 = 23;
    pub const GNU_HASH: i64 = 0x6fff_fef5;
    pub const RELACOUNT: i64 = 0x6fff_fff9;
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    key: i64,
    value: usize,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// Names the exported `dlsym`.
pub fn set_ours(function: usize) {
    OURS.store(function, Ordering::Release);
}

/// The program calls `dlopen` with these flags. Async-signal-safe.
#[inline]
pub fn opening(flags: libc::c_int) {
    if flags & libc::RTLD_DEEPBIND != 0 {
        ASKED.store(true, Ordering::Release);
    }
}

/// Redirects what has newly been bound past us, if the program uses RTLD_DEEPBIND at all.
#[inline]
pub(super) fn redirect() {
    if ASKED.load(Ordering::Acquire) {
        redirect_new();
    }
}

#[cold]
fn redirect_new() {
    let (real, ours) = (arrival::real_dlsym(), OURS.load(Ordering::Acquire));
    if real == 0 || ours == 0 {
        return;
    }
    let (mut count, mut removed, mut index, mut settled) = (0, 0, 0, true);
    let known = LOOKED_AT.load(Ordering::Relaxed);
    objects::each(|object| {
        count = object.ever_added;
        if count == SETTLED.load(Ordering::Relaxed) {
            settled = false;
            return false;
        }
        removed = object.ever_removed & 0xffff_ffff;
        index += 1;
        if removed != known >> 32 || index > known & 0xffff_ffff {
            // SAFETY: the object stays mapped during the walk, which holds the loader's list.
            settled &= unsafe { redirect_in(&object, real, ours) };
        }
        true
    });
    if settled {
        LOOKED_AT.store(removed << 32 | index, Ordering::Relaxed);
        SETTLED.fetch_max(count, Ordering::Relaxed);
    }
}

/// What the loader's view of an object says, as addresses.
struct Tables {
    strings: usize,
    symbols: usize,
    /// Which symbols can be undefined ones.
    undefined: Range<usize>,
    /// The two tables of relocations with addends, without those that name no symbol.
    relocations: [Range<usize>; 2],
    /// What the loader makes read-only once it has relocated the object.
    relro: Range<usize>,
}

/// # Safety
/// `object` is mapped.
unsafe fn tables(object: &Object<'_>) -> Option<Tables> {
    let header = |kind| object.headers.iter().find(|header| header.p_type == kind);
    let dynamic = object.base + header(libc::PT_DYNAMIC)?.p_vaddr as usize;
    let relro = header(libc::PT_GNU_RELRO).map_or(0..0, |header| {
        let start = object.base + header.p_vaddr as usize;
        // As the loader rounds it.
        (start & !(PAGE - 1))..((start + header.p_memsz as usize) & !(PAGE - 1))
    });
    let mut values = [0; 9];
    let keys = [
        key::STRTAB,
        key::SYMTAB,
        key::RELA,
        key::RELASZ,
        key::RELACOUNT,
        key::JMPREL,
        key::PLTRELSZ,
        key::GNU_HASH,
        key::HASH,
    ];
    let mut entry = with_exposed_provenance::<Dynamic>(dynamic);
    // SAFETY: the dynamic section ends with a null key.
    while let Some(found) = unsafe { entry.as_ref() }.filter(|entry| entry.key != 0) {
        if let Some(at) = keys.iter().position(|key| *key == found.key) {
            values[at] = found.value;
        }
        // SAFETY: the null key is still to come.
        entry = unsafe { entry.add(1) };
    }
    let [
        strings,
        symbols,
        rela,
        rela_bytes,
        relative,
        jumps,
        jump_bytes,
        gnu_hash,
        hash,
    ] = values;
    // The loader has relocated these in place in most versions of glibc, not in all.
    let at = |value: usize| {
        if value < object.base {
            object.base + value
        } else {
            value
        }
    };
    if strings == 0 || symbols == 0 {
        return None;
    }
    // The second word of one table is the first symbol that it has, before which all undefined ones
    // stand; that of the other the number of all symbols.
    let table = if gnu_hash != 0 { gnu_hash } else { hash };
    if table == 0 {
        return None;
    }
    // SAFETY: both tables begin with more than two words.
    let end = unsafe { *with_exposed_provenance::<u32>(at(table)).add(1) } as usize;
    let first = at(rela) + relative * size_of::<Relocation>();
    Some(Tables {
        strings: at(strings),
        symbols: at(symbols),
        undefined: 1..end,
        relocations: [
            first..(at(rela) + rela_bytes).max(first),
            at(jumps)..at(jumps) + jump_bytes,
        ],
        relro,
    })
}

/// Redirects the words of one object. False if it is not relocated yet: it has to be looked at again.
///
/// # Safety
/// `object` is mapped, and stays so.
unsafe fn redirect_in(object: &Object<'_>, real: usize, ours: usize) -> bool {
    // SAFETY: the caller's promise.
    let Some(tables) = (unsafe { tables(object) }) else {
        return true;
    };
    // SAFETY: as above.
    let Some(dlsym) = (unsafe { undefined_dlsym(&tables) }) else {
        return true;
    };
    let mut settled = true;
    for table in &tables.relocations {
        for at in table.clone().step_by(size_of::<Relocation>()) {
            // SAFETY: inside the table, which the loader itself has read or will read.
            let relocation = unsafe { &*with_exposed_provenance::<Relocation>(at) };
            if (relocation.info >> 32) as usize == dlsym
                && ADDRESSES.contains(&(relocation.info & 0xffff_ffff))
                && relocation.addend == 0
            {
                // SAFETY: the word that this relocation is about.
                settled &= unsafe { redirect_word(object, relocation, &tables, real, ours) };
            }
        }
    }
    settled
}

/// The number of the symbol by which the object asks for `dlsym`.
///
/// # Safety
/// The tables are those of a mapped object.
unsafe fn undefined_dlsym(tables: &Tables) -> Option<usize> {
    tables.undefined.clone().find(|number| {
        // SAFETY: a symbol of the table, and its name in the strings.
        unsafe {
            let symbol = &*with_exposed_provenance::<Symbol>(tables.symbols).add(*number);
            let name = with_exposed_provenance::<u8>(tables.strings + symbol.name as usize);
            symbol.section == 0 && starts_with(name, b"dlsym\0")
        }
    })
}

/// Whether the terminated string at `text` begins with `wanted`.
///
/// # Safety
/// `text` is terminated, or at least as long.
unsafe fn starts_with(text: *const u8, wanted: &[u8]) -> bool {
    // SAFETY: the comparison stops at the first difference, so at the terminator.
    (0..wanted.len()).all(|at| unsafe { *text.add(at) } == wanted[at])
}

/// # Safety
/// The relocation is one of `object`'s, of a word that holds an address.
unsafe fn redirect_word(
    object: &Object<'_>,
    relocation: &Relocation,
    tables: &Tables,
    real: usize,
    ours: usize,
) -> bool {
    let place = object.base + relocation.offset;
    if !place.is_multiple_of(size_of::<usize>()) {
        return true;
    }
    // SAFETY: an aligned word of the object's data; others may call through it meanwhile.
    let word = unsafe { &*with_exposed_provenance::<AtomicUsize>(place) };
    let bound = word.load(Ordering::Relaxed);
    if bound != real {
        // Before it is relocated the word holds an offset, or nothing.
        return bound >= object.base;
    }
    let replace = || {
        let _ = word.compare_exchange(real, ours, Ordering::Relaxed, Ordering::Relaxed);
    };
    if !tables.relro.contains(&place) {
        replace();
        return true;
    }
    // As long as the page can be written, another thread's `dlopen` is relocating the object, and
    // its rights are that one's to change. Once it cannot, the loader is done with it for good.
    if is_writable(place) {
        return false;
    }
    let page = (place & !(PAGE - 1)) as *mut libc::c_void;
    // SAFETY: a page of the object's data, readable before and after.
    unsafe {
        if libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            replace();
            libc::mprotect(page, PAGE, libc::PROT_READ);
        }
    }
    true
}
