//! GPUPOOL_TRACE_STACKS: the stack of each call, as return addresses.
//!
//! A stack is followed with the unwind tables of the objects' files, which are
//! mapped once more for that (`code.rs`): no lock of the loader or of malloc is
//! taken, nothing is allocated, and what the program unmaps meanwhile makes no
//! difference. Only the thread's own stack is read, between the stack pointer
//! and its end; a thread that runs on another one (a fiber, a signal stack) has
//! no stack recorded. Code without tables is followed by frame pointers, and
//! where there are none the stack ends.
//!
//! The first call from an object that was not there before asks the loader for
//! the list of objects, as [`super::sites`] does; a stack that was not seen
//! before is written to the file at once. An object that is loaded later at the
//! addresses of one that was unloaded is not noticed: its frames are followed
//! wrongly, but never out of the stack.

mod code;

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{append, lock, sites};
use crate::trace::{Stack, stacks};
use code::{Code, Walk};

/// Stacks are recorded.
pub static WANTED: AtomicBool = AtomicBool::new(false);

/// Deepest stack that is recorded, with our own frames.
const DEEPEST: usize = 128;
/// Most stacks in a file. Calls on further ones have none.
const MOST: u32 = 1 << 18;
/// Stacks of which a thread knows that they are in the file.
const SEEN: usize = 256;

/// The numbers of the stacks in the file, by their hash: of 64 bits, so that two
/// of some hundred thousand share one about once in a thousand million traces.
static NUMBERS: Mutex<Option<HashMap<u64, u32>>> = Mutex::new(None);

/// What a thread keeps, some 20 KiB. Without a destructor, as threads call while
/// they end; another thread takes it over.
struct Own {
    walk: Walk,
    seen: [(u64, u32); SEEN],
}

static VACANT: Mutex<Vec<&'static Mutex<Own>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Cell<Option<&'static Mutex<Own>>> = const { Cell::new(None) };
}

/// The number of the calling thread's stack from the frame that returns to
/// `site` on, or without our own frames where that is not on it. 0: none is
/// recorded. Called inside of [`super::guarded`], so never inside itself.
#[inline]
pub fn here(site: u64) -> u32 {
    if WANTED.load(Ordering::Relaxed) {
        find(site)
    } else {
        0
    }
}

#[inline(never)]
fn find(site: u64) -> u32 {
    let own = OWN.get().unwrap_or_else(|| {
        let vacant = lock(&VACANT).pop();
        let own = vacant.unwrap_or_else(|| {
            Box::leak(Box::new(Mutex::new(Own {
                walk: Walk::new(),
                seen: [(0, 0); SEEN],
            })))
        });
        lock(own).walk.begin();
        OWN.set(Some(own));
        own
    });
    let Ok(mut own) = own.try_lock() else {
        return 0;
    };
    let mut frames = [0; DEEPEST];
    let mut count = own.walk.walk(Code::now(), &mut frames);
    if let Some(unknown) = own.walk.unknown()
        && Code::learn(unknown)
    {
        count = own.walk.walk(Code::now(), &mut frames);
    }
    let frames = Code::now().of_program(&frames[..count], site);
    if frames.is_empty() {
        return 0;
    }
    let hash = hash(frames);
    let place = &mut own.seen[(hash % SEEN as u64) as usize];
    if place.0 != hash || place.1 == 0 {
        *place = (hash, number(hash, frames));
    }
    place.1
}

/// The calling thread ends; should it call again, it begins again.
pub fn thread_ends() {
    if let Some(own) = OWN.take() {
        lock(&VACANT).push(own);
    }
}

fn hash(frames: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    frames.iter().for_each(|frame| hasher.write_u64(*frame));
    hasher.finish()
}

/// The number of a stack, which is in the file when this returns.
#[cold]
fn number(hash: u64, frames: &[u64]) -> u32 {
    // Before the lock: the loader may be asked.
    frames.iter().for_each(|frame| sites::tell(*frame));
    let mut numbers = lock(&NUMBERS);
    let numbers = numbers.get_or_insert_default();
    let next = numbers.len() as u32 + 1;
    if next > MOST && !numbers.contains_key(&hash) {
        return 0;
    }
    *numbers.entry(hash).or_insert_with(|| {
        append(&stacks(&[Stack {
            number: next,
            frames: frames.to_vec(),
        }]));
        next
    })
}
