//! What `gpupool attach` and the library say to each other, in the memory of
//! the process: the command reads and writes it from outside.
//!
//! The command loads a copy of the library in which [`Block::attached`] is set,
//! so that its constructor knows that other code runs already, and does
//! nothing. Then it has [`Block::prepare`] called, which makes everything ready
//! for the patches, and writes the jumps, the state and the words below itself
//! while every thread is stopped.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// By which the block is found, in the file and in memory.
pub const MAGIC: [u8; 32] = *b"gpupool: block of the attachment";

/// Version of [`Block`]'s layout.
pub const LAYOUT: u32 = 1;

/// [`WANTED`]: allocations pass.
pub const PASS: u8 = 0;
/// [`WANTED`]: allocations are served from the pool once nothing is against it.
pub const SERVE: u8 = 1;

/// [`PROOF`]: a capture may be open of which nothing is known.
pub const MISSING: u8 = 0;
/// [`PROOF`]: every open capture is known.
pub const GIVEN: u8 = 1;

/// What the command wants of the pool.
pub static WANTED: AtomicU8 = AtomicU8::new(SERVE);
/// Whether all open captures are known.
pub static PROOF: AtomicU8 = AtomicU8::new(MISSING);

/// Whether the driver was in use before its entry points were patched.
static LATE: AtomicBool = AtomicBool::new(false);

/// The stage that the attachment has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// The library is loaded and nothing else.
    Loaded = 0,
    /// The jumps are listed and may be written.
    Ready = 1,
    /// As `Ready`, but the jump is that of `dlsym`, which waits for libcuda.
    Waiting = 2,
    /// The entry points are patched.
    InForce = 3,
}

/// Answers of [`Block::prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Answer {
    /// See [`Block::phase`] for what is ready.
    Ready = 0,
    /// Not possible here; [`Block::message`] says why.
    Refused = 1,
}

/// A jump that the command writes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Jump {
    /// The function's first byte.
    pub address: u64,
    /// How many bytes are displaced: no thread may be inside them.
    pub displaced: u16,
    /// The first bytes before.
    pub old: [u8; 5],
    /// The jump.
    pub new: [u8; 5],
    /// Zero.
    pub padding: [u8; 4],
}

/// Room for a text, ended by a zero byte.
#[repr(transparent)]
pub struct Text<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: the library touches it only in `prepare`, which the command has
// called by one thread at a time; the command writes it only outside that call.
unsafe impl<const N: usize> Sync for Text<N> {}

impl<const N: usize> Text<N> {
    const fn empty() -> Self {
        Self(UnsafeCell::new([0; N]))
    }

    /// Stores what fits of `text`.
    ///
    /// # Safety
    /// Only inside [`Block::prepare`].
    pub unsafe fn set(&self, text: &str) {
        // SAFETY: no other thread uses it now, by the caller's promise.
        let room = unsafe { &mut *self.0.get() };
        room.fill(0);
        let length = text.len().min(N - 1);
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
    }

    /// A copy of all bytes.
    ///
    /// # Safety
    /// Only inside [`Block::prepare`].
    #[must_use]
    pub unsafe fn get(&self) -> Vec<u8> {
        // SAFETY: as in `set`.
        unsafe { (*self.0.get()).to_vec() }
    }
}

/// The block. One in each library; the command knows its layout from the crate
/// of the same version.
#[repr(C)]
pub struct Block {
    /// [`MAGIC`].
    pub magic: [u8; 32],
    /// [`LAYOUT`].
    pub layout: u32,
    /// Not 0: loaded by an attach. Set in the copy's file.
    pub attached: AtomicU32,
    /// The crate's version, ended by a zero byte.
    pub version: [u8; 24],
    /// `Answer prepare(void)`.
    pub prepare: extern "C" fn() -> i32,
    /// The library's [`super::State`].
    pub state: &'static AtomicU8,
    /// [`WANTED`].
    pub wanted: &'static AtomicU8,
    /// [`PROOF`].
    pub proof: &'static AtomicU8,
    /// [`Phase`].
    pub phase: AtomicU32,
    /// How many jumps there are.
    pub jumps: AtomicU32,
    /// The address of the first [`Jump`].
    pub first_jump: AtomicUsize,
    /// Address of libc's `dlsym`, which the command has looked up; 0 if not.
    pub dlsym: AtomicUsize,
    /// [`crate::config::Mode`] that is asked for: 0 the pool, 1 observe.
    pub observe: AtomicU32,
    /// Bytes that the pools held when `prepare` was last called.
    pub reserved: AtomicUsize,
    /// Why `prepare` refused.
    pub message: Text<1024>,
    /// The options, `NAME=VALUE`, each ended by a zero byte, and an empty one.
    pub options: Text<4096>,
}

impl Block {
    /// The block of this library, before anything has happened.
    #[must_use]
    pub const fn new(prepare: extern "C" fn() -> i32) -> Self {
        Self {
            magic: MAGIC,
            layout: LAYOUT,
            attached: AtomicU32::new(0),
            version: version(),
            prepare,
            state: &super::STATE.0,
            wanted: &WANTED,
            proof: &PROOF,
            phase: AtomicU32::new(Phase::Loaded as u32),
            jumps: AtomicU32::new(0),
            first_jump: AtomicUsize::new(0),
            dlsym: AtomicUsize::new(0),
            observe: AtomicU32::new(0),
            reserved: AtomicUsize::new(0),
            message: Text::empty(),
            options: Text::empty(),
        }
    }
}

const fn version() -> [u8; 24] {
    let text = env!("CARGO_PKG_VERSION").as_bytes();
    let mut room = [0; 24];
    let mut i = 0;
    while i < text.len() && i < room.len() - 1 {
        room[i] = text[i];
        i += 1;
    }
    room
}

/// Whether the driver was in use before the library came: of contexts from
/// before, only primary ones are known.
#[inline]
pub fn is_late() -> bool {
    LATE.load(Ordering::Relaxed)
}

/// The entry points are about to be patched in a process that uses the driver.
pub fn set_late() {
    LATE.store(true, Ordering::Relaxed);
}
