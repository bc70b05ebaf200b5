//! Calls through which a program sees a pooled block: what they answer is
//! about the block, as if it were an allocation of its own.
//!
//! An address in a segment that belongs to no live block is natively no
//! allocation: the driver is asked about one that never is.

use crate::config::Ipc;
use crate::cuda::abi::{
    ATTRIBUTE_BUFFER_ID, ATTRIBUTE_CONTEXT, ATTRIBUTE_HOST_POINTER, ATTRIBUTE_P2P_TOKENS,
    ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_RANGE_START_ADDR, ATTRIBUTE_SYNC_MEMOPS, CUcontext,
    CUdeviceptr, CUresult, NOT_SUPPORTED, SUCCESS,
};
use crate::cuda::context::{self, Context};
use crate::cuda::driver::{NEVER_VALID, real};
use crate::cuda::host::{self, HostPool};
use crate::cuda::vmm::Mapped;
use crate::cuda::{SEGMENTS, ipc};
use crate::pool::{BlockInfo, Pool};
use crate::process::{self, shielded};
use std::ffi::c_void;

/// Whose pool a block is of.
#[derive(Clone, Copy)]
enum Owner {
    Device(&'static Context),
    Host(&'static HostPool),
}

impl Owner {
    fn pool(&self) -> &'static Pool {
        match self {
            Self::Device(context) => &context.pool,
            Self::Host(host) => &host.pool,
        }
    }

    /// The context whose memory it is, if its segments are mapped.
    fn mapped_of(&self) -> Option<(&'static Context, &'static Mapped)> {
        match self {
            Self::Device(context) => Some((context, context.mapped.as_ref()?)),
            Self::Host(_) => None,
        }
    }
}

/// Whose address it is.
enum Whose {
    /// The driver's to answer for.
    Foreign,
    /// In this live block.
    Block(Owner, BlockInfo),
    /// In a segment, but in no live block.
    Nobody,
}

impl Whose {
    /// The address to ask the driver about in place of `address`.
    fn ask(&self, address: CUdeviceptr) -> CUdeviceptr {
        match self {
            Self::Nobody => NEVER_VALID,
            _ => address,
        }
    }
}

fn whose(address: CUdeviceptr) -> Whose {
    let owner = SEGMENTS
        .get(address)
        .map(Owner::Device)
        .or_else(|| host::SEGMENTS.get(address).map(Owner::Host));
    let Some(owner) = owner.filter(|_| process::keeps_books()) else {
        return Whose::Foreign;
    };
    match shielded(|| owner.pool().containing(address)) {
        Some(Some(block)) => match owner {
            // The pool was asked for more than the program knows of.
            Owner::Device(Context {
                guard: Some(guard), ..
            }) => guard
                .as_asked(block, address)
                .map_or(Whose::Nobody, |block| Whose::Block(owner, block)),
            _ => Whose::Block(owner, block),
        },
        Some(None) => Whose::Nobody,
        None => Whose::Foreign,
    }
}

/// Another process or device may see the block from now on: its segment, whose
/// address and size this returns, takes no new blocks.
fn export(owner: Owner, block: &BlockInfo) -> Option<(u64, u64)> {
    if let Owner::Device(Context {
        guard: Some(guard), ..
    }) = owner
    {
        guard.exported(block.address);
    }
    retire(owner, block)
}

/// The block's segment takes no new blocks. Returns its address and size.
fn retire(owner: Owner, block: &BlockInfo) -> Option<(u64, u64)> {
    let segment = owner.pool().retire(block.address)?;
    if let Some((_, mapped)) = owner.mapped_of() {
        mapped.exported(segment.0);
    }
    Some(segment)
}

/// cuMemGetInfo: what the program could have counts as free, so also the
/// segments in which no block is live.
pub unsafe fn memory_info(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the program's arguments as they came.
    let result = unsafe { real::cuMemGetInfo_v2(free, total) };
    if result != SUCCESS || free.is_null() || !process::keeps_books() {
        return result;
    }
    let ours = shielded(|| {
        let here = context::current()?;
        let same = |context: &&'static Context| context.device == here.device && context.serves();
        Some(
            context::all()
                .into_iter()
                .filter(same)
                .map(|context| context.pool.unowned())
                .sum::<u64>(),
        )
    });
    if let Some(Some(bytes)) = ours {
        // SAFETY: the successful call has just written it.
        unsafe { free.write_unaligned(free.read_unaligned() + bytes as usize) };
    }
    result
}

/// cuMemGetAccess: the driver would answer for the segment, also where no block
/// lives in it.
pub unsafe fn access(flags: *mut u64, location: *const c_void, address: CUdeviceptr) -> CUresult {
    // SAFETY: the program's arguments, but for the address.
    unsafe { real::cuMemGetAccess(flags, location, whose(address).ask(address)) }
}

/// cuMemGetAddressRange.
pub unsafe fn address_range(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    let whose = whose(address);
    let (ask, block) = match whose {
        Whose::Block(_, block) => (address, Some(block)),
        _ => (whose.ask(address), None),
    };
    // SAFETY: the program's arguments, but for the address.
    let result = unsafe { real::cuMemGetAddressRange_v2(base, size, ask) };
    if let Some(block) = block.filter(|_| result == SUCCESS) {
        // SAFETY: the successful call has just written those that are not null.
        unsafe {
            if !base.is_null() {
                base.write_unaligned(block.address);
            }
            if !size.is_null() {
                size.write_unaligned(block.requested as usize);
            }
        }
    }
    result
}

/// The BUFFER_ID of a block: never one of the driver's (which count from 1),
/// and another for each allocation.
fn buffer_id(owner: Owner, block: &BlockInfo) -> u64 {
    let pool = match owner {
        Owner::Device(context) => context.ordinal << 1,
        Owner::Host(host) => host.ordinal << 1 | 1,
    };
    (1 << 62) | (pool << 44) | block.id
}

/// Corrects what the driver wrote to `data` about the segment.
///
/// # Safety
/// `data` is valid for a value of `attribute`.
unsafe fn correct(data: *mut c_void, attribute: i32, owner: Owner, block: &BlockInfo) {
    if data.is_null() {
        return;
    }
    // SAFETY: the caller's; sizes are those of the documented types.
    unsafe {
        match attribute {
            ATTRIBUTE_CONTEXT => {
                if let Some((context, _)) = owner.mapped_of() {
                    data.cast::<CUcontext>().write_unaligned(context.handle);
                }
            }
            ATTRIBUTE_RANGE_START_ADDR => data.cast::<u64>().write_unaligned(block.address),
            ATTRIBUTE_RANGE_SIZE => data
                .cast::<usize>()
                .write_unaligned(block.requested as usize),
            ATTRIBUTE_BUFFER_ID => data.cast::<u64>().write_unaligned(buffer_id(owner, block)),
            ATTRIBUTE_SYNC_MEMOPS => data
                .cast::<u32>()
                .write_unaligned(u32::from(block.sync_memops)),
            // Another device may read the block from now on.
            ATTRIBUTE_P2P_TOKENS => {
                export(owner, block);
            }
            _ => {}
        }
    }
}

/// cuPointerGetAttribute.
pub unsafe fn attribute(data: *mut c_void, attribute: i32, address: CUdeviceptr) -> CUresult {
    let whose = whose(address);
    let ask = whose.ask(address);
    // SAFETY: the program's arguments, but for the address.
    let mut result = unsafe { real::cuPointerGetAttribute(data, attribute, ask) };
    if let (Whose::Block(owner, _), ATTRIBUTE_CONTEXT) = (&whose, attribute)
        && owner.mapped_of().is_some()
        && !data.is_null()
    {
        // Mapped memory belongs to no context, and what is asked then fails.
        result = SUCCESS;
    }
    if let (Whose::Block(owner, block), SUCCESS) = (whose, result) {
        // SAFETY: the successful call has just written the attribute there.
        shielded(|| unsafe { correct(data, attribute, owner, &block) });
    }
    result
}

/// cuPointerGetAttributes: succeeds also for pointers that are no allocation.
pub unsafe fn attributes(
    count: u32,
    attributes: *mut i32,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    let whose = whose(address);
    let ask = whose.ask(address);
    // SAFETY: the program's arguments, but for the address.
    let result = unsafe { real::cuPointerGetAttributes(count, attributes, data, ask) };
    if result != SUCCESS || matches!(whose, Whose::Foreign) {
        return result;
    }
    for index in 0..count as usize {
        // SAFETY: the successful call has just read `count` attributes and
        // written as many values.
        unsafe {
            let (attribute, place) = (
                attributes.add(index).read_unaligned(),
                data.add(index).read_unaligned(),
            );
            match &whose {
                Whose::Block(owner, block) => {
                    shielded(|| correct(place, attribute, *owner, block));
                }
                // Where the driver repeats the address, it is the asked one.
                _ => {
                    let repeats = attribute == ATTRIBUTE_HOST_POINTER
                        && !place.is_null()
                        && place.cast::<u64>().read_unaligned() == NEVER_VALID;
                    if repeats {
                        place.cast::<u64>().write_unaligned(address);
                    }
                }
            }
        }
    }
    result
}

/// cuPointerSetAttribute: SYNC_MEMOPS is the block's, while the driver keeps
/// it for the segment. So the segment takes no new blocks, and the attribute
/// goes when the segment does.
pub unsafe fn set_attribute(data: *const c_void, attribute: i32, address: CUdeviceptr) -> CUresult {
    let whose = whose(address);
    let ask = whose.ask(address);
    // SAFETY: the program's arguments, but for the address.
    let result = unsafe { real::cuPointerSetAttribute(data, attribute, ask) };
    if let (Whose::Block(owner, block), SUCCESS, ATTRIBUTE_SYNC_MEMOPS) = (whose, result, attribute)
    {
        // SAFETY: the successful call has just read the value there.
        let on = unsafe { data.cast::<u32>().read_unaligned() } != 0;
        shielded(|| {
            retire(owner, &block);
            owner.pool().set_sync_memops(block.address, on);
        });
    }
    result
}

/// cuIpcGetMemHandle: a handle that opens at exactly this block, in a process
/// with or without the library. From here on another process may map it at any
/// time, so its segment takes no new blocks.
pub unsafe fn ipc_handle(handle: *mut c_void, address: CUdeviceptr) -> CUresult {
    let (owner, block) = match whose(address) {
        // Without a current context the driver has an error of its own.
        // The driver refuses handles of mapped memory, with an error of its own.
        Whose::Block(Owner::Device(owner), block)
            if !handle.is_null() && context::any_is_current() && owner.mapped.is_none() =>
        {
            (owner, block)
        }
        Whose::Foreign | Whose::Block(..) => {
            // SAFETY: the program's arguments as they came.
            return unsafe { real::cuIpcGetMemHandle(handle, address) };
        }
        // SAFETY: the program's arguments, but for the address.
        Whose::Nobody => return unsafe { real::cuIpcGetMemHandle(handle, NEVER_VALID) },
    };
    let refused = |why: &str| {
        log::warn!(
            "cuIpcGetMemHandle of {:#x} ({} bytes) is refused: {why}",
            block.address,
            block.requested
        );
        NOT_SUPPORTED
    };
    if process::config().ipc == Ipc::Deny {
        return refused("GPUPOOL_IPC=deny");
    }
    let made = shielded(|| {
        let (base, size) = export(Owner::Device(owner), &block)?;
        Some(ipc::handle(
            owner,
            base,
            size,
            block.address,
            block.requested,
        ))
    });
    match made.flatten() {
        Some(Ok(made)) => {
            // SAFETY: not null, and the program's, of a handle's size.
            unsafe { handle.cast::<ipc::Handle>().write_unaligned(made) };
            SUCCESS
        }
        Some(Err(ipc::Refused::Driver(error))) => error,
        Some(Err(ipc::Refused::Layout)) | None => refused(
            "the handles of this driver are not laid out as known; use GPUPOOL_MODE=off here",
        ),
    }
}

/// cuMemGetHandleForAddressRange (dma-buf): the block counts as exported; its
/// segment takes no new blocks, so that the memory is not reissued.
pub unsafe fn range_handle(
    handle: *mut c_void,
    address: CUdeviceptr,
    size: usize,
    kind: i32,
    flags: u64,
) -> CUresult {
    let ask = match whose(address) {
        Whose::Foreign => address,
        Whose::Nobody => NEVER_VALID,
        Whose::Block(owner, block) => {
            // Natively a range that leaves the allocation is an error.
            let end = address.checked_add(size as u64);
            if end.is_some_and(|end| end <= block.address + block.requested) {
                shielded(|| export(owner, &block));
                address
            } else {
                NEVER_VALID
            }
        }
    };
    // SAFETY: the program's arguments, but for the address.
    unsafe { real::cuMemGetHandleForAddressRange(handle, ask, size, kind, flags) }
}
