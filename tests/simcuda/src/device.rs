//! Devices and the driver itself: what never changes.

use crate::abi::{Answer, RESULTS, code, put};
use crate::config;

fn valid(device: i32) -> Answer {
    let n = config::get().devices as i32;
    if (0..n).contains(&device) {
        Ok(())
    } else {
        Err(code::INVALID_DEVICE)
    }
}

pub(crate) fn init(flags: u32) -> Answer {
    if flags != 0 {
        return Err(code::INVALID_VALUE);
    }
    if config::get().devices == 0 {
        return Err(100);
    }
    crate::entry::initialize();
    Ok(())
}

pub(crate) fn version(out: *mut i32) -> Answer {
    put(out, config::get().version)
}

pub(crate) fn error_name(error: i32, out: *mut *const u8) -> Answer {
    let found = RESULTS.iter().find(|r| r.0 == error);
    put(out, found.map_or(std::ptr::null(), |r| r.1.as_ptr()))?;
    found.map(|_| ()).ok_or(code::INVALID_VALUE)
}

pub(crate) fn error_string(error: i32, out: *mut *const u8) -> Answer {
    let found = RESULTS.iter().find(|r| r.0 == error);
    put(out, found.map_or(std::ptr::null(), |r| r.2.as_ptr()))?;
    found.map(|_| ()).ok_or(code::INVALID_VALUE)
}

pub(crate) fn get(out: *mut i32, ordinal: i32) -> Answer {
    valid(ordinal)?;
    put(out, ordinal)
}

pub(crate) fn count(out: *mut i32) -> Answer {
    put(out, config::get().devices as i32)
}

fn put_text(out: *mut u8, room: i32, text: &str) -> Answer {
    if out.is_null() || room < 1 {
        return Err(code::INVALID_VALUE);
    }
    let n = text.len().min(room as usize - 1);
    // SAFETY: the program says that it has `room` bytes there.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out, n);
        *out.add(n) = 0;
    }
    Ok(())
}

pub(crate) fn name(out: *mut u8, room: i32, device: i32) -> Answer {
    valid(device)?;
    put_text(out, room, "Simulated GPU")
}

pub(crate) fn uuid(out: *mut [u8; 16], device: i32) -> Answer {
    valid(device)?;
    let mut id = *b"simcuda-device-0";
    id[15] += device as u8;
    put(out, id)
}

pub(crate) fn total_mem(out: *mut usize, device: i32) -> Answer {
    valid(device)?;
    put(out, config::get().shown as usize)
}

pub(crate) fn pci_bus_id(out: *mut u8, room: i32, device: i32) -> Answer {
    valid(device)?;
    put_text(out, room, &format!("0000:{:02x}:00.0", device + 1))
}

pub(crate) fn by_pci_bus_id(out: *mut i32, id: *const std::ffi::c_char) -> Answer {
    if id.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the program passes a C string.
    let id = unsafe { std::ffi::CStr::from_ptr(id) }
        .to_string_lossy()
        .to_lowercase();
    let found = (0..config::get().devices)
        .find(|d| id == format!("0000:{:02x}:00.0", d + 1) || id == format!("{:02x}:00.0", d + 1));
    put(out, found.ok_or(code::INVALID_DEVICE)? as i32)
}

/// Attributes by number; those of an H200 where they have a meaning here.
pub(crate) fn attribute(out: *mut i32, attribute: i32, device: i32) -> Answer {
    valid(device)?;
    let value = match attribute {
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 => 65536,
        13 => 1_980_000,
        14 => 512,
        16 => 132,
        33 => device + 1,
        34 | 50 => 0,
        39 => 2048,
        51 => 32,
        75 => 9,
        76 => 0,
        119 => 1,
        // Capabilities: mapped host memory, concurrent kernels, unified
        // addressing, managed memory, VMM, memory pools, stream memory
        // operations, dma-buf, and so on.
        102 => i32::from(config::get().vmm),
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 88 | 89 | 90 | 91 | 95 | 99 | 103 | 110 | 115
        | 116 | 122 | 123 | 124 | 125 => 1,
        17 | 18 | 20 | 32 | 35 => 0,
        a if (1..=160).contains(&a) => 0,
        _ => return Err(code::INVALID_VALUE),
    };
    put(out, value)
}

pub(crate) fn can_access_peer(out: *mut i32, device: i32, peer: i32) -> Answer {
    valid(device)?;
    valid(peer)?;
    put(out, i32::from(device != peer))
}

/// CUdevResource: type, padding up to byte 96, then the multiprocessors.
pub(crate) fn resource(device: i32, out: *mut u8, kind: u32) -> Answer {
    valid(device)?;
    if kind != 1 {
        return Err(915);
    }
    put(out.cast::<[u8; 144]>(), [0; 144])?;
    put(out.cast::<u32>(), 1)?;
    // SAFETY: the structure is 144 bytes long.
    unsafe { out.add(96).cast::<[u32; 3]>().write_unaligned([132, 8, 8]) };
    Ok(())
}

/// A description is nothing but a sign that resources were given.
pub(crate) fn resource_desc(out: *mut u64, resources: *const u8, count: u32) -> Answer {
    if resources.is_null() || count == 0 {
        return Err(code::INVALID_VALUE);
    }
    put(out, 0x5603_0000_0000)
}
