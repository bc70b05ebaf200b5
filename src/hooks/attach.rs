//! The library's part of `gpupool attach`: everything that can fail, done while
//! the program runs. The command then writes the jumps with all threads
//! stopped, where nothing may be called: they may hold any lock.

use super::arrival::{self, Libcuda};
use super::{install, passing, patch};
use crate::config::Mode;
use crate::cuda::capture;
use crate::process::attach::{Answer, Block, Jump, MISSING, PROOF, Phase, set_late};
use crate::process::{self, State};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the command finds in the library.
pub static BLOCK: Block = Block::new(prepare);

/// The function that takes the place of libc's `dlsym`; 0 if there is none.
static TRIGGER: AtomicUsize = AtomicUsize::new(0);

/// Whether this copy of the library was loaded by an attach.
pub fn is_attached() -> bool {
    BLOCK.attached.load(Ordering::Acquire) != 0
}

/// Names the function that looks whether libcuda has arrived and jumps on to
/// the real `dlsym`.
pub fn set_trigger(function: usize) {
    TRIGGER.store(function, Ordering::Release);
}

/// Makes the patches ready, by one thread, while others run; changes nothing
/// that the program can see. The answer is an [`Answer`].
pub extern "C" fn prepare() -> i32 {
    let result = match catch_unwind(make_ready) {
        Ok(result) => result,
        Err(_) => Err("an internal fault, please report it".to_owned()),
    };
    match result {
        Ok(()) => Answer::Ready as i32,
        Err(why) => {
            // SAFETY: this is `prepare`.
            unsafe { BLOCK.message.set(&why) };
            Answer::Refused as i32
        }
    }
}

fn phase() -> u32 {
    BLOCK.phase.load(Ordering::Acquire)
}

fn make_ready() -> Result<(), String> {
    if process::state() == State::Inert {
        return Err("the process is ending, or was forked from one with the library".to_owned());
    }
    BLOCK.reserved.store(
        usize::try_from(passing::reserved()).unwrap_or(usize::MAX),
        Ordering::Release,
    );
    if phase() == Phase::InForce as u32 {
        if !process::keeps_books() {
            capture::forget_all();
            PROOF.store(MISSING, Ordering::Release);
        }
        process::set_mode(wanted_mode());
        return Ok(());
    }
    if phase() == Phase::Ready as u32 {
        return Ok(());
    }
    if is_attached() {
        let mut options = options();
        // Who has enabled access to whose memory before is not known, and mapped
        // memory would not be accessible there.
        let mapped = |option: &(OsString, OsString)| {
            option.0 == "GPUPOOL_BACKEND" && option.1.eq_ignore_ascii_case("vmm")
        };
        let told = options.iter().any(mapped);
        options.retain(|option| !mapped(option));
        process::start_with(options);
        if told {
            log::warn!("GPUPOOL_BACKEND=vmm acts as driver in a process that was attached to");
        }
    }
    match arrival::libcuda()? {
        Some(libcuda) => ready_driver(&libcuda),
        None if phase() == Phase::Waiting as u32 => Ok(()),
        None => ready_trigger(),
    }
}

fn wanted_mode() -> Mode {
    if BLOCK.observe.load(Ordering::Acquire) != 0 {
        Mode::Observe
    } else {
        Mode::Pool
    }
}

/// The options that the command has written.
fn options() -> Vec<(OsString, OsString)> {
    // SAFETY: called from `prepare` only.
    let bytes = unsafe { BLOCK.options.get() };
    bytes
        .split(|byte| *byte == 0)
        .take_while(|option| !option.is_empty())
        .filter_map(|option| {
            let at = option.iter().position(|byte| *byte == b'=')?;
            let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
            Some((text(&option[..at]), text(&option[at + 1..])))
        })
        .collect()
}

fn ready_driver(libcuda: &Libcuda) -> Result<(), String> {
    /// What is registered for forks and the end is registered once.
    static ARRIVED: AtomicBool = AtomicBool::new(false);
    if !ARRIVED.swap(true, Ordering::AcqRel) {
        if !process::driver_arrived() {
            ARRIVED.store(false, Ordering::Release);
            return Err("its options say GPUPOOL_MODE=off".to_owned());
        }
        process::prepare_for_exit();
    }
    process::set_mode(wanted_mode());
    let entries = install::entries(libcuda, true);
    let ready = patch::ready(&entries).map_err(|refused| refused.to_string())?;
    for skipped in &ready.skipped {
        log::info!("{skipped}; calls of it pass");
    }
    set_late();
    list(ready.publish(&entries), Phase::Ready);
    Ok(())
}

/// libcuda is not there: libc's `dlsym` becomes the moment to look for it,
/// which is what the exported one is in a preloaded process.
fn ready_trigger() -> Result<(), String> {
    let (dlsym, hook) = (
        BLOCK.dlsym.load(Ordering::Acquire),
        TRIGGER.load(Ordering::Acquire),
    );
    if dlsym == 0 || hook == 0 {
        return Err("libcuda is not loaded and dlsym was not found".to_owned());
    }
    let entries = [patch::Entry {
        name: "dlsym",
        address: dlsym,
        hook,
        original: arrival::real_dlsym_slot(),
        required: true,
    }];
    let ready = patch::ready(&entries).map_err(|refused| refused.to_string())?;
    list(ready.publish(&entries), Phase::Waiting);
    Ok(())
}

/// Leaves the jumps where the command finds them, for good.
fn list(jumps: Vec<patch::Jump>, phase: Phase) {
    let jumps: Vec<Jump> = jumps
        .into_iter()
        .map(|jump| Jump {
            address: jump.address as u64,
            displaced: jump.displaced as u16,
            old: jump.old,
            new: jump.new,
            padding: [0; 4],
        })
        .collect();
    let jumps = jumps.leak();
    BLOCK
        .first_jump
        .store(jumps.as_ptr() as usize, Ordering::Release);
    BLOCK.jumps.store(jumps.len() as u32, Ordering::Release);
    BLOCK.phase.store(phase as u32, Ordering::Release);
}
