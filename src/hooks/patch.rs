//! Patching of entry points: the first bytes of a function become a jump to its hook.
//!
//! ```text
//!   function:  jmp stub          stub:        jmp [hook]
//!              ...rest...        trampoline:  the displaced instructions; jmp rest
//! ```
//!
//! The trampoline is "the real function" from then on. Stub and trampoline lie within 2 GiB of the
//! function, so that five bytes are enough and RIP-relative operands still reach. Displaced
//! instructions are relocated with a real decoder, so nothing here depends on what a driver's
//! functions begin with; a function that cannot be moved safely is refused.
//!
//! Installation has two phases. Everything that can fail comes first and changes nothing that the
//! process can see: decoding, mapping, relocating, asking for page rights. Then the `original`
//! slots are published, and last the jumps are written. In a process that is attached to, the
//! first phase runs while its threads do ([`ready`]), and the command writes the jumps while they
//! are stopped.

mod arena;
mod maps;
mod relocate;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use arena::Arena;
use maps::Mapping;
use relocate::JUMP;
use text::Opened;

/// Whether the page at `address` is mapped and may be written just now.
pub(super) fn is_writable(address: usize) -> bool {
    let maps = maps::read().unwrap_or_default();
    maps::find(&maps, address).is_some_and(|mapping| mapping.rights & libc::PROT_WRITE != 0)
}

/// Page size of x86-64.
const PAGE: usize = 4096;

/// One function to patch.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// For messages.
    pub name: &'static str,
    /// The function's first byte. Two entries may have one address: the second gets the trampoline of
    /// the first, and calls reach the hook of the first.
    pub address: usize,
    /// The function that calls are to reach instead, of the same type.
    pub hook: usize,
    /// Receives the address of "the real function" before any call can reach the hook. Left alone if
    /// the entry is not patched.
    pub original: &'static AtomicUsize,
    /// Whether nothing may be patched if this one cannot be.
    pub required: bool,
}

/// Why an entry was not patched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// [`Entry::name`].
    pub entry: &'static str,
    /// A clause, with the system's message where there is one.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be patched: {}", self.entry, self.why)
    }
}

/// What [`install`] did. Dropping it undoes nothing.
#[derive(Debug)]
pub struct Installed {
    /// Names of the entries that calls now reach through their hooks.
    pub patched: Vec<&'static str>,
    /// Optional entries that were left alone.
    pub skipped: Vec<Refused>,
    /// The system's message, if some pages of code could not be given their old rights back: they
    /// are writable still.
    pub rights_left_open: Option<String>,
    /// First bytes of each patched function as they were.
    saved: Vec<(usize, [u8; JUMP])>,
}

/// A function that can be patched, with everything ready.
struct Plan {
    address: usize,
    stub: usize,
    trampoline: usize,
    old: [u8; JUMP],
    displaced: usize,
}

/// Entries for which everything is ready but the jumps: nothing that the process can see has
/// changed. Dropping it leaves no trace.
pub struct Ready {
    arenas: Vec<Arena>,
    plans: BTreeMap<usize, Plan>,
    maps: Vec<Mapping>,
    /// Optional entries that will be left alone.
    pub skipped: Vec<Refused>,
}

/// A jump that is still to be written, over the first bytes of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The function's first byte.
    pub address: usize,
    /// How many bytes the displaced instructions take; no thread may be inside them.
    pub displaced: usize,
    /// The first bytes as they are.
    pub old: [u8; JUMP],
    /// The jump.
    pub new: [u8; JUMP],
}

/// Decodes, relocates and prepares all entries, and changes nothing yet.
///
/// Other threads may run meanwhile. Not to be called twice at the same time. The functions must stay
/// mapped for the life of the process (pin their library). Allocates; reads `/proc/self/maps`.
///
/// # Errors
/// Names the required entry that cannot be patched, and why: too short, not decodable, a branch
/// leads into its first bytes, or nothing mappable near it.
pub fn ready(entries: &[Entry]) -> Result<Ready, Refused> {
    let mut ready = Ready {
        arenas: Vec::new(),
        plans: BTreeMap::new(),
        maps: Vec::new(),
        skipped: Vec::new(),
    };
    let Some(first) = entries.first() else {
        return Ok(ready);
    };
    ready.maps = maps::read().map_err(|why| refused(first, why))?;
    for entry in entries {
        if ready.plans.contains_key(&entry.address) {
            continue;
        }
        match plan(entry, entries, &ready.maps, &mut ready.arenas) {
            Ok(plan) => {
                ready.plans.insert(entry.address, plan);
            }
            Err(why) if entry.required => return Err(refused(entry, why)),
            Err(why) => ready.skipped.push(refused(entry, why)),
        }
    }
    for arena in &ready.arenas {
        arena
            .seal()
            .map_err(|why| refused(first, format!("memory cannot be made executable: {why}")))?;
    }
    Ok(ready)
}

impl Ready {
    /// Publishes the trampolines and returns the jumps, which somebody else writes while no thread
    /// is inside the displaced bytes. From here on the prepared memory stays mapped.
    ///
    /// `entries` are those that were prepared.
    pub fn publish(self, entries: &[Entry]) -> Vec<Jump> {
        self.arenas.into_iter().for_each(Arena::keep);
        publish(entries, &self.plans);
        let jump = |plan: &Plan| Jump {
            address: plan.address,
            displaced: plan.displaced,
            old: plan.old,
            new: jump(plan.address, plan.stub),
        };
        self.plans.values().map(jump).collect()
    }
}

/// Stores the trampolines' addresses; returns the names of the entries that have one.
fn publish(entries: &[Entry], plans: &BTreeMap<usize, Plan>) -> Vec<&'static str> {
    let mut names = Vec::with_capacity(entries.len());
    for entry in entries {
        if let Some(plan) = plans.get(&entry.address) {
            entry.original.store(plan.trampoline, Ordering::Release);
            names.push(entry.name);
        }
    }
    names
}

fn refused(entry: &Entry, why: String) -> Refused {
    Refused {
        entry: entry.name,
        why,
    }
}

/// Patches all entries, or none if a required one cannot be.
///
/// No other thread may be executing the first bytes of any of the functions, nor call this at the
/// same time. The functions must stay mapped for the life of the process (pin their library).
/// Allocates; reads `/proc/self/maps`.
///
/// # Errors
/// Names the required entry that cannot be patched, and why: those of [`ready`], or the system
/// refuses to make its pages writable. The process is then exactly as before.
pub fn install(entries: &[Entry]) -> Result<Installed, Refused> {
    let Ready {
        arenas,
        plans,
        maps,
        skipped,
    } = ready(entries)?;
    let mut opened = Opened::open(&maps, plans.keys().copied()).map_err(|(page, why)| {
        // Name the function, not the page.
        let on_page =
            |entry: &&Entry| entry.address + JUMP > page && plans.contains_key(&entry.address);
        let on_page = entries.iter().filter(on_page).min_by_key(|e| e.address);
        refused(on_page.unwrap_or(&entries[0]), why)
    })?;

    // Nothing below can fail.
    arenas.into_iter().for_each(Arena::keep);
    let patched = publish(entries, &plans);
    let mut saved = Vec::with_capacity(plans.len());
    for plan in plans.values() {
        opened.write(plan.address, jump(plan.address, plan.stub));
        saved.push((plan.address, plan.old));
    }
    let rights_left_open = opened.close().err().map(|why| why.to_string());
    Ok(Installed {
        patched,
        skipped,
        rights_left_open,
        saved,
    })
}

/// Puts the functions' first bytes back. Calls then reach them directly.
///
/// Only while no other thread can be executing those bytes: with all others stopped, or in a test.
/// The trampolines stay mapped and the `original` slots stay as they are, so a hook that is still
/// running can finish. Calling it twice does no harm.
///
/// # Errors
/// The system's message, if the pages cannot be made writable (then nothing was changed), or cannot
/// be given their old rights back.
pub fn uninstall(installed: &Installed) -> Result<(), String> {
    let maps = maps::read()?;
    let mut opened = Opened::open(&maps, installed.saved.iter().map(|(address, _)| *address))
        .map_err(|(_, why)| why)?;
    for (address, old) in &installed.saved {
        opened.write(*address, *old);
    }
    opened.close().map_err(|why| why.to_string())
}

/// Decodes, relocates and writes stub and trampoline of one entry.
fn plan(
    entry: &Entry,
    all: &[Entry],
    maps: &[Mapping],
    arenas: &mut Vec<Arena>,
) -> Result<Plan, String> {
    let code = code_at(entry.address, maps)?;
    let fits = |arena: &Arena| arena.reaches(entry.address) && arena.next_slot().is_some();
    let index = match arenas.iter().position(fits) {
        Some(index) => index,
        None => {
            // Mapped since `maps` was read: the kernel refuses places that are taken by now.
            arenas.push(Arena::near(maps, entry.address)?);
            arenas.len() - 1
        }
    };
    let full = || "the memory near its code is full".to_owned();
    let arena = arenas.get_mut(index).ok_or_else(full)?;
    let trampoline = arena.next_slot().ok_or_else(full)? + arena::TRAMPOLINE;
    let relocated = relocate::relocate(code, entry.address, trampoline)?;
    // Such a neighbour would lose its own first instruction.
    let displaced = entry.address + 1..entry.address + relocated.displaced;
    if let Some(other) = all.iter().find(|other| displaced.contains(&other.address)) {
        return Err(format!(
            "{} begins inside its first {} bytes",
            other.name, relocated.displaced
        ));
    }
    let stub = arena.push(entry.hook, &relocated.code).ok_or_else(full)?;
    let mut old = [0; JUMP];
    // Relocation found at least five bytes.
    old.copy_from_slice(&code[..JUMP]);
    Ok(Plan {
        address: entry.address,
        stub,
        trampoline,
        old,
        displaced: relocated.displaced,
    })
}

/// The mapped code from `address` on, as far as anyone needs to look.
fn code_at(address: usize, maps: &[Mapping]) -> Result<&'static [u8], String> {
    let mapping = maps::find(maps, address).ok_or("its address is not mapped")?;
    if mapping.rights & libc::PROT_EXEC == 0 {
        return Err("its address is not in executable memory".to_owned());
    }
    let length = maps::extent(maps, address, libc::PROT_READ | libc::PROT_EXEC).min(relocate::LOOK);
    if length == 0 {
        return Err("its code is not readable".to_owned());
    }
    // SAFETY: the range is mapped and readable, and stays so (the caller keeps the library). It is
    // read only before the first jump is written, so it does not change while the slice lives.
    Ok(unsafe { std::slice::from_raw_parts(address as *const u8, length) })
}

/// `jmp rel32` at `from` to `to`, which is within 2 GiB (`Arena::reaches`).
fn jump(from: usize, to: usize) -> [u8; JUMP] {
    let distance = to.wrapping_sub(from + JUMP) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}
