//! Legacy IPC handles of blocks inside a segment.
//!
//! A handle is 64 bytes. Observed on an H200 (driver 580.159), undocumented,
//! in little-endian fields: bytes 8–15 the exporting process, 16–23 the size
//! of the allocation in bytes, 24–27 the size of the underlying block in 4 KiB
//! pages, 28–31 the byte offset of the allocation in the underlying block; the
//! rest is opaque. For a small allocation the driver itself fills in size and
//! offset, because it carves it out of a larger block. A handle of a segment
//! with size and offset of a block written into it opens at exactly this block
//! in an unmodified importer.
//!
//! The layout is checked once per process against the driver's own small
//! allocations; where it is another, no handle is made.

use super::abi::{CUdeviceptr, CUresult, SUCCESS};
use super::capture::Relaxed;
use super::context::Context;
use super::driver::real;
use super::entered::Entered;
use std::ffi::c_void;
use std::sync::OnceLock;

/// Bytes of a handle.
pub const HANDLE_BYTES: usize = 64;

/// A handle, as `cuIpcGetMemHandle` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; HANDLE_BYTES]);

impl Handle {
    fn of(address: CUdeviceptr) -> Result<Self, CUresult> {
        let mut handle = Self([0; HANDLE_BYTES]);
        // SAFETY: the buffer has the size of a handle.
        match unsafe { real::cuIpcGetMemHandle(handle.0.as_mut_ptr().cast::<c_void>(), address) } {
            SUCCESS => Ok(handle),
            error => Err(error),
        }
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    fn process(&self) -> u64 {
        u64::from_le_bytes(self.field(8))
    }

    fn size(&self) -> u64 {
        u64::from_le_bytes(self.field(16))
    }

    fn pages(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.field(24)))
    }

    fn offset(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.field(28)))
    }

    /// This handle of a whole segment, narrowed to a block inside it. `None`
    /// if the segment's handle does not look as expected, or the offset does
    /// not fit its field.
    fn narrowed(&self, segment_size: u64, offset: u64, bytes: u64) -> Option<Self> {
        let expected = self.size() == segment_size
            && self.pages() == segment_size / 4096
            && self.offset() == 0;
        let offset = u32::try_from(offset).ok().filter(|_| expected)?;
        let mut narrowed = *self;
        narrowed.0[16..24].copy_from_slice(&bytes.to_le_bytes());
        narrowed.0[28..32].copy_from_slice(&offset.to_le_bytes());
        Some(narrowed)
    }
}

/// Why no handle was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The driver's answer, to be handed on.
    Driver(CUresult),
    /// The handles of this driver are not laid out as known.
    Layout,
}

/// A handle of `[address, address + bytes)` in the segment
/// `[base, base + size)` of `context`.
pub fn handle(
    context: &Context,
    base: u64,
    size: u64,
    address: u64,
    bytes: u64,
) -> Result<Handle, Refused> {
    let _entered = Entered::enter(context.handle).ok_or(Refused::Layout)?;
    let whole = Handle::of(base).map_err(Refused::Driver)?;
    if address == base && bytes == size {
        return Ok(whole);
    }
    if !layout_is_known() {
        return Err(Refused::Layout);
    }
    whole
        .narrowed(size, address - base, bytes)
        .ok_or(Refused::Layout)
}

/// Whether this driver's handles are laid out as known. Asked of the driver
/// once; a context must be current.
fn layout_is_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let known = check_layout();
        log::debug!("IPC handles are laid out as known: {known}");
        known
    })
}

/// Small allocations of different sizes: the driver carves them from one
/// block, so that their handles show where size and offset stand.
fn check_layout() -> bool {
    const SIZES: [usize; 3] = [3 * 512, 5 * 512, 9 * 512];
    let _relaxed = Relaxed::enter();
    let mut blocks = [0; SIZES.len()];
    for (block, size) in blocks.iter_mut().zip(SIZES) {
        // SAFETY: the argument is valid for a write.
        unsafe { real::cuMemAlloc_v2(block, size) };
    }
    let handles: Vec<(u64, u64, Handle)> = blocks
        .iter()
        .zip(SIZES)
        .filter_map(|(block, size)| Some((*block, size as u64, Handle::of(*block).ok()?)))
        .collect();
    for block in blocks {
        // SAFETY: allocated above and known to nobody else; 0 is no error.
        unsafe { real::cuMemFree_v2(block) };
    }
    let plausible = handles.len() == SIZES.len()
        && handles.iter().all(|(address, size, handle)| {
            handle.size() == *size
                && handle.process() == handles[0].2.process()
                && handle.offset() + size <= handle.pages() * 4096
                // The underlying block begins at a page of 2 MiB.
                && (address - handle.offset()).is_multiple_of(handle.pages() * 4096)
        });
    // At least one with an offset, or nothing was learnt about that field.
    plausible && handles.iter().any(|(_, _, handle)| handle.offset() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_writes_size_and_offset_only() {
        let mut whole = Handle([7; HANDLE_BYTES]);
        whole.0[16..24].copy_from_slice(&(32u64 << 20).to_le_bytes());
        whole.0[24..28].copy_from_slice(&(8192u32).to_le_bytes());
        whole.0[28..32].copy_from_slice(&0u32.to_le_bytes());
        let block = whole.narrowed(32 << 20, 4 << 20, 100).unwrap();
        assert_eq!(
            (block.size(), block.offset(), block.pages()),
            (100, 4 << 20, 8192)
        );
        assert_eq!(block.0[..16], whole.0[..16]);
        assert_eq!(block.0[32..], whole.0[32..]);
        assert_eq!(whole.narrowed(64 << 20, 0, 100), None);
        assert_eq!(whole.narrowed(32 << 20, 1 << 32, 100), None);
    }
}
