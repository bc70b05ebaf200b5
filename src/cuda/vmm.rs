//! Segments that are mapped (`GPUPOOL_BACKEND=vmm`): each a range of addresses
//! with one chunk of physical memory under it.
//!
//! `cuMemUnmap` and `cuMemRelease` do not wait for running kernels (35 to 110 µs
//! with one of 20 ms running, on an H200 with driver 580.159), where `cuMemFree`
//! waits for all work of the context, and reserving 4 TiB of addresses costs no
//! memory. So addresses are reserved in large ranges, which last as long as the
//! context.
//!
//! Such memory belongs to the process and its device, not to a context: the
//! driver keeps it when the context ends, and who has enabled access to a
//! context's memory has none to it. So both is done here.

use super::abi::{
    AccessDesc, AllocationProp, CUcontext, CUdevice, CUdeviceptr, OUT_OF_MEMORY, SUCCESS,
};
use super::capture::Relaxed;
use super::context::Context;
use super::device::CALLS;
use super::driver::{function, real};
use super::entered::Entered;
use crate::config::Control;
use crate::pool::addresses::Addresses;
use crate::pool::device::Refusal;
use crate::pool::size_class::PAGE;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED.
const SUPPORTED: i32 = 102;
/// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED.
const RDMA_SUPPORTED: i32 = 110;
/// CU_MEM_ACCESS_FLAGS_PROT_NONE and _READWRITE.
const ACCESS: [i32; 2] = [0, 3];
/// Addresses are reserved in ranges of this many times the device's memory:
/// segments come and go, and leave holes.
const RANGE: u64 = 4;

/// The mapped memory of one context. Thread-safe.
#[derive(Debug)]
pub struct Mapped {
    device: CUdevice,
    total: u64,
    rdma: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    addresses: Addresses,
    /// Size and handle of the chunk at each address.
    chunks: BTreeMap<CUdeviceptr, (u64, u64)>,
    /// Contexts that have access, and their devices.
    peers: Vec<(CUcontext, CUdevice)>,
    /// Chunks that were exported or registered, by address.
    exported: BTreeSet<CUdeviceptr>,
    /// The context has ended.
    ended: bool,
}

/// An attribute of a device, 0 if the driver does not know it.
fn attribute(device: CUdevice, attribute: i32) -> i32 {
    let mut value = 0;
    // SAFETY: `value` is valid for a write.
    match unsafe { real::cuDeviceGetAttribute(&raw mut value, attribute, device) } {
        SUCCESS => value,
        _ => 0,
    }
}

impl Mapped {
    /// For a context on `device`, with `total` bytes. An error says why the driver
    /// cannot.
    pub fn new(device: CUdevice, total: u64) -> Result<Self, &'static str> {
        let all = [
            &function::cuMemAddressReserve,
            &function::cuMemAddressFree,
            &function::cuMemCreate,
            &function::cuMemRelease,
            &function::cuMemMap,
            &function::cuMemUnmap,
            &function::cuMemSetAccess,
            &function::cuMemGetAllocationGranularity,
        ];
        if !all.iter().all(|function| function.is_available()) {
            return Err("the driver is too old");
        }
        if attribute(device, SUPPORTED) == 0 {
            return Err("the device has no virtual memory management");
        }
        let mapped = Self {
            device,
            total,
            rdma: attribute(device, RDMA_SUPPORTED) != 0,
            state: Mutex::default(),
        };
        let mut granularity = 0;
        let prop = mapped.prop();
        // SAFETY: both are valid, and 0 asks for the minimum.
        let result = unsafe {
            real::cuMemGetAllocationGranularity(&raw mut granularity, (&raw const prop).cast(), 0)
        };
        if result != SUCCESS || granularity == 0 || !PAGE.is_multiple_of(granularity as u64) {
            return Err("its pages are not of 2 MiB");
        }
        Ok(mapped)
    }

    fn prop(&self) -> AllocationProp {
        AllocationProp::pinned(self.device, self.rdma)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk of `bytes` (a multiple of 2 MiB) at an address of its own, which
    /// the device and its peers may access. `context` is the one that this belongs
    /// to.
    pub(super) fn map(&self, context: &Context, bytes: u64) -> Result<CUdeviceptr, Refusal> {
        let _entered = Entered::enter(context.handle).ok_or(Refusal::Lost)?;
        let mut state = self.lock();
        if state.ended {
            return Err(Refusal::Lost);
        }
        let address = self.take_addresses(context, &mut state, bytes)?;
        let handle = self.create(context, bytes).inspect_err(|_| {
            state.addresses.give(address, bytes);
        })?;
        // SAFETY: the addresses are reserved and nothing is mapped there; the
        // handle has just been made, of this size.
        let mapped = unsafe { real::cuMemMap(address, bytes as usize, 0, handle, 0) };
        let given = match mapped {
            SUCCESS => set_access(address, bytes, &state.access(self.device)),
            error => error,
        };
        if given == SUCCESS {
            state.chunks.insert(address, (bytes, handle));
            return Ok(address);
        }
        if mapped == SUCCESS {
            unmap(address, bytes);
        }
        release(handle);
        state.addresses.give(address, bytes);
        Err(refusal(context, "mapping a segment", given))
    }

    /// Takes the chunk at `address` away. Does not wait for the GPU.
    pub(super) fn unmap(&self, address: CUdeviceptr) {
        let _relaxed = Relaxed::enter();
        let mut state = self.lock();
        // Nothing is there if the context has ended meanwhile.
        if let Some((bytes, handle)) = state.chunks.remove(&address) {
            take_away(address, bytes, handle);
            if !state.exported.remove(&address) {
                state.addresses.give(address, bytes);
            }
        }
    }

    /// The chunk at `address` is known outside from now on, by its address or its
    /// memory: both go when it is unmapped, and nothing else comes there. Called
    /// while a block in it is live.
    pub fn exported(&self, address: CUdeviceptr) {
        self.lock().exported.insert(address);
    }

    fn take_addresses(
        &self,
        context: &Context,
        state: &mut State,
        bytes: u64,
    ) -> Result<CUdeviceptr, Refusal> {
        if let Some(address) = state.addresses.take(bytes) {
            return Ok(address);
        }
        let range = (self.total.saturating_mul(RANGE))
            .max(bytes)
            .next_multiple_of(PAGE);
        let mut base: CUdeviceptr = 0;
        // SAFETY: `base` is valid for a write.
        let result = unsafe {
            real::cuMemAddressReserve(&raw mut base, range as usize, PAGE as usize, 0, 0)
        };
        if result != SUCCESS {
            return Err(refusal(context, "reserving addresses", result));
        }
        state.addresses.add(base, range);
        state.addresses.take(bytes).ok_or(Refusal::OutOfMemory)
    }

    fn create(&self, context: &Context, bytes: u64) -> Result<u64, Refusal> {
        let (mut handle, prop) = (0, self.prop());
        CALLS.allocs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: both are valid, for a write and a read.
        let result = unsafe {
            real::cuMemCreate(&raw mut handle, bytes as usize, (&raw const prop).cast(), 0)
        };
        match result {
            SUCCESS => Ok(handle),
            error => Err(refusal(context, "cuMemCreate of a segment", error)),
        }
    }

    /// `peer`, a context on `device`, has enabled access to the memory of the
    /// context that this belongs to.
    pub fn grant(&self, peer: CUcontext, device: CUdevice) {
        let mut state = self.lock();
        let new = !state.has_access(device);
        if Control::Peers.is_off() {
            return;
        }
        state.peers.push((peer, device));
        if new && device != self.device {
            state.change_access(device, ACCESS[1]);
        }
    }

    /// `peer` has disabled access again.
    pub fn revoke(&self, peer: CUcontext) {
        let mut state = self.lock();
        let Some(at) = state.peers.iter().position(|known| known.0 == peer) else {
            return;
        };
        let (_, device) = state.peers.swap_remove(at);
        if !state.has_access(device) && device != self.device {
            state.change_access(device, ACCESS[0]);
        }
    }

    /// The context has ended: gives all back. Work of other contexts on this
    /// memory loses it, as natively.
    pub(super) fn end(&self) {
        let _relaxed = Relaxed::enter();
        let mut state = self.lock();
        state.ended = true;
        state.peers.clear();
        for (address, (bytes, handle)) in std::mem::take(&mut state.chunks) {
            take_away(address, bytes, handle);
        }
        for (base, bytes) in state.addresses.drain() {
            // SAFETY: the range was reserved as this, and nothing is mapped in it.
            unsafe { real::cuMemAddressFree(base, bytes as usize) };
        }
    }
}

impl State {
    fn has_access(&self, device: CUdevice) -> bool {
        self.peers.iter().any(|peer| peer.1 == device)
    }

    /// What the context's own device and all peers may do.
    fn access(&self, own: CUdevice) -> Vec<AccessDesc> {
        let mut devices = vec![own];
        for &(_, device) in &self.peers {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
            .into_iter()
            .map(|device| AccessDesc::of(device, ACCESS[1]))
            .collect()
    }

    fn change_access(&self, device: CUdevice, flags: i32) {
        let _relaxed = Relaxed::enter();
        for (&address, &(bytes, _)) in &self.chunks {
            let result = set_access(address, bytes, &[AccessDesc::of(device, flags)]);
            if result != SUCCESS {
                log::warn!(
                    "cuMemSetAccess of pooled memory for device {device}: error {result}; \
                     GPUPOOL_BACKEND=driver does without"
                );
                return;
            }
        }
    }
}

fn set_access(address: CUdeviceptr, bytes: u64, access: &[AccessDesc]) -> i32 {
    // SAFETY: a chunk is mapped at exactly this range; the array is valid.
    unsafe {
        real::cuMemSetAccess(
            address,
            bytes as usize,
            access.as_ptr().cast(),
            access.len(),
        )
    }
}

fn unmap(address: CUdeviceptr, bytes: u64) {
    // SAFETY: a chunk is mapped at exactly this range.
    let result = unsafe { real::cuMemUnmap(address, bytes as usize) };
    if result != SUCCESS {
        log::debug!("cuMemUnmap of a segment: error {result}");
    }
}

fn release(handle: u64) {
    // SAFETY: the handle came from cuMemCreate and is known to nobody else.
    let result = unsafe { real::cuMemRelease(handle) };
    if result != SUCCESS {
        log::debug!("cuMemRelease of a segment: error {result}");
    }
}

fn take_away(address: CUdeviceptr, bytes: u64, handle: u64) {
    CALLS.frees.fetch_add(1, Ordering::Relaxed);
    unmap(address, bytes);
    release(handle);
}

/// What `error` of such a call means: where it has another reason than a lack of
/// memory, and the context is well otherwise, the driver's own allocation may do.
fn refusal(context: &Context, what: &str, error: i32) -> Refusal {
    if error == OUT_OF_MEMORY {
        return Refusal::OutOfMemory;
    }
    log::debug!("{what}: error {error} in context {:#x}", context.id);
    if context.answers_errors() {
        Refusal::Lost
    } else {
        Refusal::OutOfMemory
    }
}
