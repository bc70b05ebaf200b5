//! Copies, memsets and arrays.

use crate::abi::{Answer, Array2D, Array3D, Memcpy2D, Memcpy3D, code, get, memory_type, put};
use crate::capture;
use crate::memory::{self, Kind, Memory};
use crate::state;
use crate::stream::{self, Wait};
use crate::work::{Rows, Work};
use std::sync::Arc;

/// An array: rows of elements, stored like linear memory.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    base: u64,
    pitch: usize,
    desc: Array3D,
}

/// What one side of a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// The program's own memory, which the driver does not know.
    Pageable,
    Pinned,
    Device,
}

/// Which side of a copy an argument may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Host,
    Device,
    Any,
}

/// Finds out what a range is; an error if it reaches beyond its allocation,
/// or is not what the call takes.
fn side(m: &Memory, at: u64, len: u64, want: Want) -> Result<Side, i32> {
    let end = at.checked_add(len).ok_or(code::INVALID_VALUE)?;
    let Some(a) = m.find(at) else {
        // Memory that the driver does not know is the host's; that it begins
        // before an allocation and reaches into it is an error.
        let clear = m
            .allocs
            .range(..end)
            .next_back()
            .is_none_or(|(b, a)| b + a.size <= at);
        return if want == Want::Device || !clear || at < 4096 {
            Err(code::INVALID_VALUE)
        } else {
            Ok(Side::Pageable)
        };
    };
    let whole = m.cover(at, len).is_some();
    if !a.live || !whole || m.access(at, len) == 0 {
        return Err(code::INVALID_VALUE);
    }
    match a.kind {
        Kind::Host(_) | Kind::Registered(_) | Kind::Managed => Ok(Side::Pinned),
        _ if want == Want::Host => Err(code::INVALID_VALUE),
        _ => Ok(Side::Device),
    }
}

/// Where a call's stream comes from, and whether the call waits.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// A synchronous call, in the legacy stream or (true) the thread's own.
    Sync(bool),
    Async(u64),
}

impl Order {
    fn stream(self) -> u64 {
        match self {
            Order::Sync(true) => crate::abi::STREAM_PER_THREAD,
            Order::Sync(false) => crate::abi::STREAM_LEGACY,
            Order::Async(s) => s,
        }
    }
}

fn capturing(stream: u64) -> Result<bool, i32> {
    let mut core = state::lock();
    let h = core.stream(stream)?;
    Ok(core.streams.get(&h).is_some_and(|s| s.capture.is_some()))
}

fn submit_rows(r: Rows, want: (Want, Want), order: Order) -> Answer {
    let stream = order.stream();
    if let Order::Sync(_) = order {
        let mut core = state::lock();
        let h = core.stream(stream)?;
        if core
            .streams
            .get(&h)
            .is_some_and(|s| s.kind == state::StreamKind::Legacy)
        {
            capture::legacy_use(&mut core, h)?;
        }
        capture::unsafe_call(&mut core)?;
    }
    let captured = capturing(stream)?;
    let to = r.span(r.dst_pitch, r.dst_slice);
    if to == 0 {
        return Ok(());
    }
    let (dst, src) = {
        let m = memory::lock();
        (
            side(&m, r.dst, to, want.0)?,
            side(&m, r.src, r.span(r.src_pitch, r.src_slice), want.1)?,
        )
    };
    if captured {
        return stream::submit(stream, Work::Copy(r), Wait::No);
    }
    match (order, dst, src) {
        // Between device memory, a synchronous copy does not wait.
        (Order::Sync(_), Side::Device, Side::Device) => {
            stream::submit(stream, Work::Copy(r), Wait::No)
        }
        (Order::Sync(_), _, _) => stream::submit(stream, Work::Copy(r), Wait::Yes),
        // From pageable memory: the call takes the bytes over before it
        // returns, so that the program may change them.
        (Order::Async(_), Side::Device | Side::Pinned, Side::Pageable) => {
            let n = r.span(r.src_pitch, r.src_slice) as usize;
            let mut bytes = vec![0u8; n];
            // SAFETY: the program vouches for its own memory.
            unsafe { std::ptr::copy_nonoverlapping(r.src as *const u8, bytes.as_mut_ptr(), n) };
            stream::submit(stream, Work::CopyFrom(Arc::new(bytes), r), Wait::No)
        }
        // To pageable memory: the call returns when it is there.
        (Order::Async(_), Side::Pageable, _) => stream::submit(stream, Work::Copy(r), Wait::Yes),
        (Order::Async(_), _, _) => stream::submit(stream, Work::Copy(r), Wait::No),
    }
}

/// A plain copy.
pub(crate) fn copy(dst: u64, src: u64, bytes: usize, want: (Want, Want), order: Order) -> Answer {
    let r = Rows {
        dst,
        src,
        width: bytes,
        height: 1,
        depth: 1,
        dst_pitch: bytes,
        src_pitch: bytes,
        dst_slice: bytes,
        src_slice: bytes,
    };
    submit_rows(r, want, order)
}

/// One side of a 2D or 3D copy: kind, host, device, array, pitch, height.
struct Part(u32, u64, u64, u64, usize, usize);

fn part(p: &Part, x: usize, y: usize, z: usize) -> Result<(u64, usize, usize, Want), i32> {
    let (base, pitch, height, want) = match p.0 {
        memory_type::HOST => (p.1, p.4, p.5, Want::Host),
        memory_type::DEVICE => (p.2, p.4, p.5, Want::Device),
        memory_type::UNIFIED => (p.2, p.4, p.5, Want::Any),
        memory_type::ARRAY => {
            let m = memory::lock();
            let a = m.arrays.get(&p.3).ok_or(code::INVALID_HANDLE)?;
            (a.base, a.pitch, a.desc.Height.max(1), Want::Any)
        }
        _ => return Err(code::INVALID_VALUE),
    };
    let slice = pitch * height;
    Ok((
        base + (z * slice + y * pitch + x) as u64,
        pitch,
        slice,
        want,
    ))
}

pub(crate) fn copy_3d(c: *const Memcpy3D, order: Order) -> Answer {
    let c = get(c)?;
    let sp = Part(
        c.srcMemoryType,
        c.srcHost,
        c.srcDevice,
        c.srcArray,
        c.srcPitch,
        c.srcHeight,
    );
    let dp = Part(
        c.dstMemoryType,
        c.dstHost,
        c.dstDevice,
        c.dstArray,
        c.dstPitch,
        c.dstHeight,
    );
    let tight = |mut p: Part| {
        // A single row or slice needs no pitch or height.
        if p.4 == 0 {
            p.4 = c.WidthInBytes;
        }
        if p.5 == 0 {
            p.5 = c.Height;
        }
        p
    };
    let (sp, dp) = (tight(sp), tight(dp));
    let (src, src_pitch, src_slice, ws) = part(&sp, c.srcXInBytes, c.srcY, c.srcZ)?;
    let (dst, dst_pitch, dst_slice, wd) = part(&dp, c.dstXInBytes, c.dstY, c.dstZ)?;
    let too_wide = |x: usize, pitch: usize| c.Height > 1 && x + c.WidthInBytes > pitch;
    if too_wide(c.srcXInBytes, src_pitch) || too_wide(c.dstXInBytes, dst_pitch) {
        return Err(code::INVALID_VALUE);
    }
    let r = Rows {
        dst,
        src,
        width: c.WidthInBytes,
        height: c.Height,
        depth: c.Depth,
        dst_pitch,
        src_pitch,
        dst_slice,
        src_slice,
    };
    submit_rows(r, (wd, ws), order)
}

pub(crate) fn copy_2d(c: *const Memcpy2D, order: Order) -> Answer {
    let c = get(c)?;
    let whole = Memcpy3D {
        srcXInBytes: c.srcXInBytes,
        srcY: c.srcY,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: c.srcMemoryType,
        srcHost: c.srcHost,
        srcDevice: c.srcDevice,
        srcArray: c.srcArray,
        srcContext: 0,
        srcPitch: c.srcPitch,
        srcHeight: c.Height,
        dstXInBytes: c.dstXInBytes,
        dstY: c.dstY,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: c.dstMemoryType,
        dstHost: c.dstHost,
        dstDevice: c.dstDevice,
        dstArray: c.dstArray,
        dstContext: 0,
        dstPitch: c.dstPitch,
        dstHeight: c.Height,
        WidthInBytes: c.WidthInBytes,
        Height: c.Height,
        Depth: 1,
    };
    copy_3d(&whole, order)
}

/// A peer copy names contexts; addresses alone say as much here.
pub(crate) fn copy_peer(
    dst: u64,
    dst_ctx: u64,
    src: u64,
    src_ctx: u64,
    bytes: usize,
    order: Order,
) -> Answer {
    {
        let core = state::lock();
        core.resolve(dst_ctx)?;
        core.resolve(src_ctx)?;
    }
    copy(dst, src, bytes, (Want::Device, Want::Device), order)
}

/// All memsets: `height` rows of `width` elements.
pub(crate) fn set(
    at: u64,
    pitch: usize,
    value: u32,
    element: usize,
    width: usize,
    height: usize,
    order: Order,
) -> Answer {
    let stream = order.stream();
    capturing(stream)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let row = width.checked_mul(element).ok_or(code::INVALID_VALUE)?;
    if !at.is_multiple_of(element as u64) || (height > 1 && row > pitch) {
        return Err(code::INVALID_VALUE);
    }
    let len = (height - 1)
        .checked_mul(pitch)
        .and_then(|n| n.checked_add(row));
    let kind = side(
        &memory::lock(),
        at,
        len.ok_or(code::INVALID_VALUE)? as u64,
        Want::Any,
    )?;
    // A memset of device memory never waits; one of pinned memory does when
    // the call is a synchronous one.
    let wait = match (order, kind) {
        (_, Side::Pageable) => return Err(code::INVALID_VALUE),
        (Order::Sync(_), Side::Pinned) => Wait::Yes,
        _ => Wait::No,
    };
    stream::submit(
        stream,
        Work::Memset {
            at,
            value,
            element,
            width,
            height,
            pitch,
        },
        wait,
    )
}

fn element_size(format: u32, channels: u32) -> Result<usize, i32> {
    let one = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(code::INVALID_VALUE),
    };
    if matches!(channels, 1 | 2 | 4) {
        Ok(one * channels as usize)
    } else {
        Err(code::INVALID_VALUE)
    }
}

pub(crate) fn array_create(out: *mut u64, desc: Array3D) -> Answer {
    let owner = {
        let mut core = state::lock();
        let owner = core.owner()?;
        capture::unsafe_call(&mut core)?;
        owner
    };
    let element = element_size(desc.Format, desc.NumChannels)?;
    if out.is_null() || desc.Width == 0 {
        return Err(code::INVALID_VALUE);
    }
    let pitch = desc.Width.checked_mul(element).ok_or(code::INVALID_VALUE)?;
    let size = pitch
        .checked_mul(desc.Height.max(1))
        .and_then(|n| n.checked_mul(desc.Depth.max(1)))
        .ok_or(code::OUT_OF_MEMORY)?;
    let handle = state::lock().handle();
    let mut m = memory::lock();
    let base = m.alloc(owner, size as u64, Kind::Array)?;
    m.arrays.insert(handle, Array { base, pitch, desc });
    put(out, handle)
}

pub(crate) fn array_create_2d(out: *mut u64, desc: *const Array2D) -> Answer {
    let d = get(desc)?;
    array_create(
        out,
        Array3D {
            Width: d.Width,
            Height: d.Height,
            Depth: 0,
            Format: d.Format,
            NumChannels: d.NumChannels,
            Flags: 0,
        },
    )
}

/// A mipmapped array's levels together take less than twice the first one;
/// that is what is allocated, and no level can be named apart.
pub(crate) fn mipmapped_create(out: *mut u64, desc: *const Array3D, levels: u32) -> Answer {
    let mut d = get(desc)?;
    if levels == 0 {
        return Err(code::INVALID_VALUE);
    }
    if levels > 1 {
        d.Height = d.Height.max(1).checked_mul(2).ok_or(code::OUT_OF_MEMORY)?;
    }
    array_create(out, d)
}

pub(crate) fn array_descriptor(out: *mut Array2D, array: u64) -> Answer {
    let m = memory::lock();
    let d = m.arrays.get(&array).ok_or(code::INVALID_HANDLE)?.desc;
    put(
        out,
        Array2D {
            Width: d.Width,
            Height: d.Height,
            Format: d.Format,
            NumChannels: d.NumChannels,
        },
    )
}

/// Waits for all work of the context first, as every free of memory does.
pub(crate) fn array_destroy(array: u64) -> Answer {
    let base = memory::lock()
        .arrays
        .get(&array)
        .ok_or(code::INVALID_HANDLE)?
        .base;
    let pending = {
        let mut core = state::lock();
        let ctx = core.current()?;
        capture::unsafe_call(&mut core)?;
        stream::context_frontier(&core, ctx)?
    };
    crate::task::wait_all(&pending);
    let mut m = memory::lock();
    m.arrays.remove(&array);
    m.release(base, true);
    Ok(())
}
