//! Memory: arenas, the table of allocations, owners.

pub(crate) mod arena;
pub(crate) mod owners;
pub(crate) mod small;

use crate::abi::code;
use crate::config;
use crate::report;
use crate::task::{self, Frontier};
use arena::{Arena, PAGE, round_up};
use owners::Owners;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Where an allocation comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// cuMemAlloc and relatives.
    Device,
    /// Stream-ordered, from the memory pool with this number.
    Async(u64),
    /// Pinned host memory, with its cuMemHostAlloc flags.
    Host(u32),
    Managed,
    /// The program's own memory, registered with these flags.
    Registered(u32),
    /// Another process's memory.
    Ipc,
    /// A mapping made by cuMemMap of the handle with this number.
    Vmm(u64),
    /// The storage of an array; its address is nobody's business.
    Array,
}

/// One allocation.
#[derive(Clone)]
pub(crate) struct Alloc {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    /// Id and handle of the context (the primary one for green contexts).
    pub(crate) ctx: u64,
    pub(crate) ctx_handle: u64,
    pub(crate) device: usize,
    pub(crate) buffer_id: u64,
    pub(crate) sync_memops: bool,
    /// False once it is freed in stream order or waits in a memory pool:
    /// pending work may touch it, the program may not name it.
    pub(crate) live: bool,
    /// Bit d: device d may access it, by cuMemSetAccess (VMM) or as far as its
    /// contexts may.
    pub(crate) access: u64,
    /// The block of pages that it lies in.
    pub(crate) block: (u64, u64),
    pub(crate) exported: bool,
    /// Other devices may be given access to it.
    pub(crate) rdma: bool,
}

impl Alloc {
    /// Whether the GPU's own memory backs it.
    pub(crate) fn on_device(&self) -> bool {
        matches!(
            self.kind,
            Kind::Device | Kind::Async(_) | Kind::Ipc | Kind::Vmm(_)
        )
    }
}

/// One device's memory.
pub(crate) struct DeviceMemory {
    pub(crate) arena: Arena,
    pub(crate) used: u64,
    pub(crate) peak: u64,
}

/// All memory of the process.
pub(crate) struct Memory {
    pub(crate) devices: Vec<DeviceMemory>,
    host: Arena,
    /// Bytes of pinned and managed memory now, and at most.
    host_used: u64,
    host_peak: u64,
    pub(crate) allocs: BTreeMap<u64, Alloc>,
    smalls: HashMap<(usize, u64), Vec<small::Block>>,
    pub(crate) owners: Owners,
    /// Bases that were freed and not handed out since.
    freed: HashSet<u64>,
    /// Freed in stream order: given back once the work is done.
    deferred: Vec<(Frontier, u64)>,
    next_buffer: u64,
    pub(crate) vmm: crate::vmm::Vmm,
    pub(crate) imports: crate::ipc::Imports,
    pub(crate) pools: crate::pools::Pools,
    pub(crate) arrays: crate::state::IdMap<crate::copy::Array>,
}

/// Device addresses: 1 TiB for each device, from here on, where neither the
/// program's libraries nor its heap usually lie.
const DEVICE_BASE: u64 = 0x7d00_0000_0000;
const DEVICE_SPAN: u64 = 1 << 39;
const HOST_BASE: u64 = 0x7c00_0000_0000;
const HOST_SPAN: u64 = 1 << 38;

fn memory() -> &'static Mutex<Memory> {
    static MEMORY: OnceLock<Mutex<Memory>> = OnceLock::new();
    MEMORY.get_or_init(|| {
        let devices = (0..config::get().devices as u64)
            .filter_map(|d| Arena::create(DEVICE_BASE + d * (1 << 40), DEVICE_SPAN, PAGE))
            .map(|arena| DeviceMemory {
                arena,
                used: 0,
                peak: 0,
            })
            .collect();
        let host = Arena::create(HOST_BASE, HOST_SPAN, 4096)
            .or_else(|| Arena::create(0, 1 << 32, 4096))
            .unwrap_or_else(|| {
                report::violation(
                    "invalid-access",
                    "no address space for the simulated driver",
                );
                // SAFETY: nothing can work without it.
                unsafe { libc::_exit(99) }
            });
        Mutex::new(Memory {
            devices,
            host,
            host_used: 0,
            host_peak: 0,
            allocs: BTreeMap::new(),
            smalls: HashMap::new(),
            owners: Owners::default(),
            freed: HashSet::new(),
            deferred: Vec::new(),
            next_buffer: 1,
            vmm: Default::default(),
            imports: Default::default(),
            pools: Default::default(),
            arrays: Default::default(),
        })
    })
}

/// Locks the memory tables. `state` may be locked before, never after.
pub(crate) fn lock() -> MutexGuard<'static, Memory> {
    memory().lock().unwrap_or_else(|e| e.into_inner())
}

/// Bytes in use and their peak, for each device. Does not wait for the lock:
/// it is called while the process ends.
pub(crate) fn device_bytes() -> (Vec<u64>, Vec<u64>) {
    match memory().try_lock() {
        Ok(m) => (
            m.devices.iter().map(|d| d.used).collect(),
            m.devices.iter().map(|d| d.peak).collect(),
        ),
        Err(_) => (Vec::new(), Vec::new()),
    }
}

/// Bytes of pinned and managed memory, and their peak; as [`device_bytes`].
pub(crate) fn host_bytes() -> (u64, u64) {
    memory()
        .try_lock()
        .map_or((0, 0), |m| (m.host_used, m.host_peak))
}

/// For whom an allocation is made.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) ctx: u64,
    pub(crate) ctx_handle: u64,
    pub(crate) device: usize,
}

impl Memory {
    /// A number that no allocation has had.
    pub(crate) fn buffer_id(&mut self) -> u64 {
        self.next_buffer += 1;
        self.next_buffer
    }

    /// Physical pages of a device, if its memory has them.
    pub(crate) fn take_pages(&mut self, device: usize, size: u64) -> Result<(u64, u64), i32> {
        let total = config::get().memory.min(config::get().limit);
        let len = round_up(size, PAGE).ok_or(code::OUT_OF_MEMORY)?;
        let d = self.devices.get_mut(device).ok_or(code::INVALID_DEVICE)?;
        if len > total.saturating_sub(d.used) {
            return Err(code::OUT_OF_MEMORY);
        }
        let got = d.arena.take(len).ok_or(code::OUT_OF_MEMORY)?;
        d.used += got.1;
        d.peak = d.peak.max(d.used);
        Ok(got)
    }

    /// Gives pages back.
    pub(crate) fn give_pages(&mut self, device: usize, at: u64, len: u64) {
        if let Some(d) = self.devices.get_mut(device) {
            d.arena.give(at, len);
            d.used -= len;
        }
    }

    /// Allocates device memory. Small requests share blocks with others of
    /// the same context (or memory pool).
    pub(crate) fn alloc(&mut self, owner: Owner, size: u64, kind: Kind) -> Result<u64, i32> {
        self.collect();
        let (base, block) = if size <= small::LARGEST && kind != Kind::Array {
            self.alloc_small(owner, size, kind)?
        } else {
            let (base, len) = self.take_pages(owner.device, size)?;
            (base, (base, len))
        };
        self.insert(owner, base, size, kind, block);
        Ok(base)
    }

    fn small_key(owner: Owner, kind: Kind) -> (usize, u64) {
        match kind {
            Kind::Async(pool) => (owner.device, pool | 1 << 63),
            _ => (owner.device, owner.ctx),
        }
    }

    fn alloc_small(
        &mut self,
        owner: Owner,
        size: u64,
        kind: Kind,
    ) -> Result<(u64, (u64, u64)), i32> {
        let len = round_up(size, small::STEP).ok_or(code::OUT_OF_MEMORY)?;
        let key = Self::small_key(owner, kind);
        let found = self
            .smalls
            .get_mut(&key)
            .and_then(|blocks| blocks.iter_mut().find_map(|b| Some((b.take(len)?, b.base))));
        let ((at, dirty_until), block) = match found {
            Some(f) => f,
            None => {
                let (base, _) = self.take_pages(owner.device, PAGE)?;
                let mut b = small::Block::new(base);
                let got = b.take(len).ok_or(code::OUT_OF_MEMORY)?;
                self.smalls.entry(key).or_default().push(b);
                (got, base)
            }
        };
        if dirty_until > at {
            self.devices[owner.device].arena.clear(at, dirty_until - at);
        }
        Ok((at, (block, PAGE)))
    }

    /// Enters an allocation into the table.
    pub(crate) fn insert(
        &mut self,
        owner: Owner,
        base: u64,
        size: u64,
        kind: Kind,
        block: (u64, u64),
    ) {
        let buffer_id = self.buffer_id();
        self.freed.remove(&base);
        self.allocs.insert(
            base,
            Alloc {
                base,
                size,
                kind,
                ctx: owner.ctx,
                ctx_handle: owner.ctx_handle,
                device: owner.device,
                buffer_id,
                sync_memops: false,
                live: true,
                access: if matches!(kind, Kind::Vmm(_)) {
                    0
                } else {
                    u64::MAX
                },
                block,
                exported: false,
                rdma: matches!(kind, Kind::Device),
            },
        );
        // The stream-ordered allocator may hand memory out again in stream
        // order, while the earlier owner's work is pending.
        if !matches!(kind, Kind::Async(_)) {
            self.owners.assign(base, size, false);
        }
    }

    /// Pinned or managed host memory.
    pub(crate) fn alloc_host(&mut self, owner: Owner, size: u64, kind: Kind) -> Result<u64, i32> {
        let left = config::get().host.saturating_sub(self.host_used);
        if size > left {
            return Err(code::OUT_OF_MEMORY);
        }
        let (base, len) = self.host.take(size).ok_or(code::OUT_OF_MEMORY)?;
        self.host_used += len;
        self.host_peak = self.host_peak.max(self.host_used);
        self.insert(owner, base, size, kind, (base, len));
        Ok(base)
    }

    /// Takes an allocation out of the table and gives its memory back.
    pub(crate) fn release(&mut self, base: u64, complain: bool) {
        let Some(a) = self.allocs.remove(&base) else {
            return;
        };
        self.owners.release(a.base, a.size.max(1), complain);
        self.freed.insert(base);
        match a.kind {
            Kind::Host(_) | Kind::Managed => {
                self.host.give(a.block.0, a.block.1);
                self.host_used -= a.block.1;
            }
            Kind::Registered(_) | Kind::Ipc | Kind::Vmm(_) => {}
            Kind::Device | Kind::Async(_) | Kind::Array
                if a.base == a.block.0 && a.size > small::LARGEST || a.kind == Kind::Array =>
            {
                // An importer may still see an exported block: it is never
                // used again.
                if !a.exported {
                    self.give_pages(a.device, a.block.0, a.block.1);
                }
            }
            Kind::Device | Kind::Async(_) | Kind::Array => self.release_small(&a),
        }
    }

    fn release_small(&mut self, a: &Alloc) {
        let owner = Owner {
            ctx: a.ctx,
            ctx_handle: a.ctx_handle,
            device: a.device,
        };
        let key = Self::small_key(owner, a.kind);
        let Some(blocks) = self.smalls.get_mut(&key) else {
            return;
        };
        let Some(i) = blocks.iter().position(|b| b.base == a.block.0) else {
            return;
        };
        let len = round_up(a.size, small::STEP).unwrap_or(a.size);
        if blocks[i].give(a.base, len) && !blocks[i].sealed {
            blocks.swap_remove(i);
            self.give_pages(a.device, a.block.0, PAGE);
        }
    }

    /// Marks an allocation as exported to other processes.
    pub(crate) fn seal(&mut self, base: u64) {
        let Some(a) = self.allocs.get_mut(&base) else {
            return;
        };
        a.exported = true;
        let (block, key) = (a.block.0, (a.device, a.ctx));
        if let Some(blocks) = self.smalls.get_mut(&key)
            && let Some(b) = blocks.iter_mut().find(|b| b.base == block)
        {
            b.sealed = true;
        }
    }

    /// The allocation that covers an address.
    pub(crate) fn find(&self, at: u64) -> Option<&Alloc> {
        let (_, a) = self.allocs.range(..=at).next_back()?;
        (at < a.base + a.size.max(1)).then_some(a)
    }

    /// The same, if the program may name it.
    pub(crate) fn find_live(&self, at: u64) -> Option<&Alloc> {
        self.find(at).filter(|a| a.live && a.kind != Kind::Array)
    }

    /// The allocation or the neighbouring mappings that cover all of a range:
    /// the first of them. Mappings by cuMemMap may adjoin.
    pub(crate) fn cover(&self, at: u64, len: u64) -> Option<&Alloc> {
        let (_, first) = self.allocs.range(..=at).next_back()?;
        let end = at.checked_add(len)?;
        // Work of the block's earlier, larger use in the same stream may still
        // be pending.
        let size = match first.kind {
            Kind::Async(_) => crate::pools::length(first.size).unwrap_or(first.size),
            _ => first.size,
        };
        let mut have = first.base + size.max(1);
        if at >= have {
            return None;
        }
        while have < end {
            let next = self.allocs.get(&have)?;
            if !matches!((first.kind, next.kind), (Kind::Vmm(_), Kind::Vmm(_))) {
                return None;
            }
            have += next.size;
        }
        Some(first)
    }

    /// The allocation that covers `at`, and the neighbouring mappings, as long as
    /// they begin before `end`: what all of them let devices do.
    pub(crate) fn access(&self, at: u64, len: u64) -> u64 {
        let first = self.find(at).map_or(at, |a| a.base);
        self.allocs
            .range(first..at.saturating_add(len.max(1)))
            .fold(u64::MAX, |access, (_, a)| access & a.access)
    }

    /// Says that a pointer which is not live was given to a free.
    pub(crate) fn complain_if_freed(&self, base: u64) {
        if self.freed.contains(&base) {
            report::violation("double-free", &format!("{base:#x} was freed already"));
        }
    }

    /// Frees in stream order something that is not stream-ordered memory.
    pub(crate) fn defer(&mut self, base: u64, after: Frontier) {
        if let Some(a) = self.allocs.get_mut(&base) {
            a.live = false;
        }
        self.deferred.push((after, base));
        self.collect();
    }

    /// Gives back what was freed in stream order and is done.
    pub(crate) fn collect(&mut self) {
        let mut i = 0;
        while i < self.deferred.len() {
            if task::all_done(&self.deferred[i].0) {
                let (_, base) = self.deferred.swap_remove(i);
                self.release(base, true);
            } else {
                i += 1;
            }
        }
    }

    /// Drops all memory of a context that is gone.
    pub(crate) fn release_context(&mut self, ctx: u64, device: usize) {
        self.collect();
        let Memory {
            deferred, allocs, ..
        } = self;
        deferred.retain(|(_, base)| allocs.get(base).is_some_and(|a| a.ctx != ctx));
        crate::pools::context_gone(self, ctx, device);
        let bases: Vec<u64> = self
            .allocs
            .values()
            .filter(|a| a.ctx == ctx && !matches!(a.kind, Kind::Async(_)))
            .map(|a| a.base)
            .collect();
        for base in bases {
            if let Some(Kind::Ipc) = self.allocs.get(&base).map(|a| a.kind) {
                crate::ipc::drop_import(self, base);
            } else if let Some(Kind::Vmm(_)) = self.allocs.get(&base).map(|a| a.kind) {
                continue;
            }
            self.release(base, false);
        }
    }
}

/// `simNoteAlloc(ptr, size)`: a block was handed to the program.
pub(crate) fn note_alloc(ptr: u64, size: u64) {
    if ptr == 0 || size == 0 {
        return;
    }
    let mut m = lock();
    match m.find(ptr).map(|a| (a.base, a.kind)) {
        // Stream-ordered memory is reused in stream order: nothing to check.
        Some((_, Kind::Async(_))) => {}
        Some((region, _)) => m.owners.note_alloc(region, ptr, size),
        None => report::violation(
            "invalid-access",
            &format!("a block of {size} bytes at {ptr:#x} lies in no allocation"),
        ),
    }
}

/// `simNoteFree(ptr)`: the program is about to free a block.
pub(crate) fn note_free(ptr: u64) {
    let mut m = lock();
    if let Some((region, kind)) = m.find(ptr).map(|a| (a.base, a.kind))
        && !matches!(kind, Kind::Async(_))
    {
        m.owners.note_free(region, ptr);
    }
}
