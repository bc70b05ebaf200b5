//! Memory shared between processes by handles.
//!
//! A handle has the layout of NVIDIA's (observed on an H200, driver 580.159):
//! eight little-endian words, of which the first half is described there and
//! the second is this driver's own: where the block lies in the memory file
//! of the device, and the file's descriptor in the exporting process. An
//! importer opens that file through /proc and maps the block.

use crate::abi::{Answer, IpcMemHandle, code, put};
use crate::capture;
use crate::memory::{self, Kind, Memory, Owner, arena};
use crate::state;
use std::collections::HashMap;

/// One block of another process, mapped here.
struct Import {
    at: u64,
    len: u64,
    /// Handles that are open in it.
    uses: u32,
}

/// What this process has opened.
#[derive(Default)]
pub(crate) struct Imports {
    blocks: HashMap<(u64, u64), Import>,
    /// Pointer given out -> its block, and how often it was opened.
    open: HashMap<u64, ((u64, u64), u32)>,
}

const MAGIC: u64 = 0x6d69_732d_6370_692e;

fn word(h: &IpcMemHandle, at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&h.bytes[at..at + 8]);
    u64::from_le_bytes(w)
}

pub(crate) fn get_handle(out: *mut IpcMemHandle, ptr: u64) -> Answer {
    {
        let mut core = state::lock();
        core.current()?;
        capture::unsafe_call(&mut core)?;
    }
    let mut m = memory::lock();
    // Only memory from cuMemAlloc; an interior pointer stands for its block.
    let a = m
        .find_live(ptr)
        .filter(|a| a.kind == Kind::Device && !out.is_null())
        .ok_or(code::INVALID_VALUE)?
        .clone();
    let arena = &m.devices[a.device].arena;
    let mut bytes = [0u8; 64];
    bytes[0..8].copy_from_slice(&a.ctx_handle.to_le_bytes());
    bytes[8..16].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    bytes[16..24].copy_from_slice(&a.size.to_le_bytes());
    // A large allocation is its own block, of its own size.
    let block = if a.size <= crate::memory::small::LARGEST {
        a.block.1
    } else {
        a.size
    };
    bytes[24..28].copy_from_slice(&(block.div_ceil(4096) as u32).to_le_bytes());
    bytes[28..32].copy_from_slice(&((a.base - a.block.0) as u32).to_le_bytes());
    bytes[32..40].copy_from_slice(&(a.block.0 - arena.base).to_le_bytes());
    bytes[40..44].copy_from_slice(&(a.buffer_id as u32).to_le_bytes());
    bytes[44..48].copy_from_slice(&(arena.fd as u32).to_le_bytes());
    bytes[48..56].copy_from_slice(&(a.device as u64).to_le_bytes());
    bytes[56..64].copy_from_slice(&MAGIC.to_le_bytes());
    m.seal(a.base);
    put(out, IpcMemHandle { bytes })
}

/// Maps a block of another process.
fn map_block(pid: u64, fd: u64, offset: u64, len: u64) -> Result<u64, i32> {
    let path =
        std::ffi::CString::new(format!("/proc/{pid}/fd/{fd}")).map_err(|_| code::INVALID_VALUE)?;
    // SAFETY: a valid C string; the descriptor is closed below.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(code::MAP_FAILED);
    }
    let at = arena::reserve(len, arena::PAGE, 0)
        .filter(|at| arena::map_over(*at, len, file, offset))
        .ok_or(code::MAP_FAILED);
    // SAFETY: opened above, and the mapping keeps the file by itself.
    unsafe { libc::close(file) };
    at
}

pub(crate) fn open_handle(out: *mut u64, handle: IpcMemHandle, flags: u32) -> Answer {
    let owner = {
        let mut core = state::lock();
        let owner = core.owner()?;
        capture::unsafe_call(&mut core)?;
        owner
    };
    let pid = word(&handle, 8);
    if out.is_null() || flags != 1 || word(&handle, 56) != MAGIC {
        return Err(code::INVALID_VALUE);
    }
    if pid == u64::from(std::process::id()) {
        return Err(code::INVALID_CONTEXT);
    }
    let size = word(&handle, 16);
    let len = (word(&handle, 24) & 0xffff_ffff) * 4096;
    let offset = word(&handle, 24) >> 32;
    let (place, fd) = (word(&handle, 32), word(&handle, 40) >> 32);
    if size == 0 || offset.checked_add(size).is_none_or(|end| end > len) {
        return Err(code::INVALID_VALUE);
    }
    let mut m = memory::lock();
    let key = (pid << 8 | word(&handle, 48), place);
    if let Some(at) = m.imports.blocks.get(&key).map(|b| b.at) {
        let ptr = at + offset;
        // The very same allocation: counted, and the same pointer.
        if m.allocs.get(&ptr).is_some_and(|a| a.size == size && a.live)
            && let Some(o) = m.imports.open.get_mut(&ptr)
        {
            o.1 += 1;
            return put(out, ptr);
        }
        let before = m.allocs.range(..ptr + size).next_back();
        if before.is_some_and(|(b, a)| b + a.size > ptr) {
            return Err(code::ALREADY_MAPPED);
        }
    } else {
        let at = map_block(pid, fd, place, len)?;
        m.imports.blocks.insert(key, Import { at, len, uses: 0 });
    }
    let Some(block) = m.imports.blocks.get_mut(&key) else {
        return Err(code::MAP_FAILED);
    };
    block.uses += 1;
    let (at, len) = (block.at, block.len);
    let ptr = at + offset;
    m.imports.open.insert(ptr, (key, 1));
    let device = (word(&handle, 48) as usize).min(m.devices.len() - 1);
    m.insert(Owner { device, ..owner }, ptr, size, Kind::Ipc, (at, len));
    put(out, ptr)
}

/// Forgets an opened handle; the caller takes the allocation off the table.
pub(crate) fn drop_import(m: &mut Memory, ptr: u64) {
    let Some((key, _)) = m.imports.open.remove(&ptr) else {
        return;
    };
    if let Some(b) = m.imports.blocks.get_mut(&key) {
        b.uses -= 1;
        if b.uses == 0 {
            let (at, len) = (b.at, b.len);
            m.imports.blocks.remove(&key);
            // Pending work may still touch it: the addresses stay readable.
            arena::unmap_over(at, len);
        }
    }
}

pub(crate) fn close_handle(ptr: u64) -> Answer {
    {
        let mut core = state::lock();
        core.current()?;
        capture::unsafe_call(&mut core)?;
    }
    let mut m = memory::lock();
    let Some(o) = m.imports.open.get_mut(&ptr) else {
        return Err(code::INVALID_VALUE);
    };
    o.1 -= 1;
    if o.1 == 0 {
        drop_import(&mut m, ptr);
        m.release(ptr, true);
    }
    Ok(())
}
