//! cuGetProcAddress: names to addresses.
//!
//! A name stands for the newest of its forms that is not newer than the
//! version asked for, nor than the simulated driver. The addresses are those
//! that dlsym gives (observed with driver 580). With flag 2 the per-thread
//! form is given where there is one.

use crate::abi::{Answer, code, put, put_opt};
use crate::config;
use crate::exports;
use std::ffi::{CStr, c_char};

const PER_THREAD: u64 = 2;

fn per_thread(name: &str) -> bool {
    name.ends_with("_ptsz") || name.ends_with("_ptds")
}

pub(crate) fn look_up(
    name: *const c_char,
    out: *mut usize,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Answer {
    if name.is_null() || out.is_null() || flags & !3 != 0 || flags & 3 == 3 {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the program passes a C string.
    let wanted = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    put(out, 0)?;
    let c = config::get();
    let known = |r: &&exports::Row| {
        r.base == wanted
            && r.since <= c.version
            && !c.missing.iter().any(|m| m == r.name || m == r.base)
    };
    let best = |threaded: bool| {
        exports::rows()
            .filter(known)
            .filter(|r| r.since <= version && per_thread(r.name) == threaded)
            .max_by_key(|r| r.since)
    };
    let found = match flags & PER_THREAD {
        0 => best(false),
        // The plain form is newer than a per-thread one only where that has
        // no newer form of its own.
        _ => best(true).or_else(|| best(false)),
    };
    match found {
        Some(r) => {
            put_opt(status, 0);
            put(out, r.address as usize)
        }
        None => {
            let too_old = exports::rows().any(|r| known(&r));
            put_opt(status, if too_old { 2 } else { 1 });
            Err(code::NOT_FOUND)
        }
    }
}
