//! All exported names, as tables.
//!
//! A row: when it may be called (`always`: also before cuInit), the name that
//! cuGetProcAddress knows it by and the driver version that brought this
//! form, its symbol, its arguments, and what it does. `stream_entries!` rows make
//! the `_ptsz` form as well, in which stream NULL is the thread's own;
//! `copy_entries!` rows the `_ptds` form, which runs in the thread's own stream.
//!
//! Each symbol is a function of its own that begins with the instructions
//! that NVIDIA's entry points begin with (driver 580), so that what patches
//! them finds what it would find there. Nothing inside this library calls
//! through them.

mod copies;
mod driver;
mod memory;
mod streams;

use crate::entry::Entry;

/// One exported function.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The name for cuGetProcAddress, without any suffix.
    pub(crate) base: &'static str,
    pub(crate) since: i32,
    pub(crate) entry: &'static Entry,
    pub(crate) address: unsafe extern "C" fn(),
}

/// All of them.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    [
        driver::ROWS,
        driver::NEW_ROWS,
        memory::ROWS,
        streams::ROWS,
        streams::STREAM_ROWS,
    ]
    .into_iter()
    .chain([
        copies::ASYNC_ROWS,
        copies::SYNC_ROWS,
        copies::OLD_ROWS,
        memory::ASYNC_ROWS,
    ])
    .flatten()
}

/// The word that the first instructions compare with: while it holds this
/// value, calls answer CUDA_ERROR_DEINITIALIZED (SIMCUDA_DEINIT).
pub(crate) static STATE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
/// That value.
pub(crate) const DEINITIALIZED: u32 = 0x321c_ba00;

/// Turns a result into what C sees.
pub(crate) fn answer(result: crate::abi::Answer) -> i32 {
    match result {
        Ok(()) => 0,
        Err(code) => code,
    }
}

macro_rules! entries {
    ($rows:ident; $($when:ident $base:literal $since:literal $name:ident
        ($($arg:ident: $ty:ty),* $(,)?) => $body:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod counts {
            $(pub(super) static $name: $crate::entry::Entry =
                $crate::entry::Entry::new(stringify!($name), $crate::exports::$when);)*
        }
        #[allow(non_snake_case, clippy::too_many_arguments)]
        mod bodies {
            #[allow(unused_imports)]
            use super::*;
            $(pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
                if let Some(code) = super::counts::$name.enter() {
                    return code;
                }
                $crate::exports::answer($body)
            })*
        }
        #[allow(non_snake_case)]
        mod symbols {
            $(
            /// # Safety
            /// As NVIDIA documents the function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "push r12",
                    "sub rsp, 8",
                    "cmp dword ptr [rip + {state}], {deinitialized}",
                    "je 2f",
                    "add rsp, 8",
                    "pop r12",
                    "pop rbp",
                    "jmp {body}",
                    "2:",
                    "mov eax, 4",
                    "add rsp, 8",
                    "pop r12",
                    "pop rbp",
                    "ret",
                    // Aligns the section, whose only content this is, so that
                    // the function begins on 16 bytes as NVIDIA's do.
                    ".p2align 4",
                    state = sym $crate::exports::STATE,
                    deinitialized = const $crate::exports::DEINITIALIZED,
                    body = sym super::bodies::$name,
                )
            })*
        }
        pub(crate) static $rows: &[$crate::exports::Row] = &[$($crate::exports::Row {
            name: stringify!($name),
            base: $base,
            since: $since,
            entry: &counts::$name,
            address: symbols::$name,
        }),*];
    };
}
pub(crate) use entries;

/// Rows of calls that take a stream.
macro_rules! stream_entries {
    ($rows:ident; $($base:literal $since:literal $name:ident, $since2:literal $name2:ident
        ($stream:ident; $($arg:ident: $ty:ty),* $(,)?) => $body:expr;)*) => {
        $crate::exports::entries! { $rows;
            $(
            ready $base $since $name($($arg: $ty),*) => $body;
            ready $base $since2 $name2($($arg: $ty),*) => {
                let $stream = $crate::stream::ptsz($stream);
                $body
            };
            )*
        }
    };
}
pub(crate) use stream_entries;

/// Rows of synchronous calls; the body's order argument tells the forms apart.
macro_rules! copy_entries {
    ($rows:ident; $($base:literal $since:literal $name:ident, $since2:literal $name2:ident
        ($order:ident; $($arg:ident: $ty:ty),* $(,)?) => $body:expr;)*) => {
        $crate::exports::entries! { $rows;
            $(
            ready $base $since $name($($arg: $ty),*) => {
                let $order = $crate::copy::Order::Sync(false);
                $body
            };
            ready $base $since2 $name2($($arg: $ty),*) => {
                let $order = $crate::copy::Order::Sync(true);
                $body
            };
            )*
        }
    };
}
pub(crate) use copy_entries;

#[allow(non_upper_case_globals)]
const ready: bool = false;
#[allow(non_upper_case_globals)]
const always: bool = true;

/// The program tells that a block of a pool was handed to it.
#[unsafe(no_mangle)]
pub extern "C" fn simNoteAlloc(ptr: u64, size: u64) {
    if !crate::entry::forked() {
        crate::memory::note_alloc(ptr, size);
    }
}

/// The program tells that it is about to free a block.
#[unsafe(no_mangle)]
pub extern "C" fn simNoteFree(ptr: u64) {
    if !crate::entry::forked() {
        crate::memory::note_free(ptr);
    }
}

/// How many violations there have been.
#[unsafe(no_mangle)]
pub extern "C" fn simViolationCount() -> u64 {
    crate::report::violations()
}
