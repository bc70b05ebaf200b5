//! Memory: allocation, pointers, pools, VMM, IPC, arrays.

use crate::abi::{
    AccessDesc, AllocationProp, Answer, Array2D, Array3D, IpcMemHandle, Location, PoolProps, code,
    get,
};
use crate::{alloc, copy, ipc, pointer, pools, vmm};
use std::ffi::c_void;

type Out<T> = *mut T;

/// As a device without that feature answers.
fn not_supported() -> Answer {
    Err(code::NOT_SUPPORTED)
}

super::entries! { ROWS;
    ready "cuMemGetInfo" 3020 cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => alloc::get_info(free, total);
    ready "cuMemGetInfo" 2000 cuMemGetInfo(_free: Out<u32>, _total: Out<u32>) => alloc::pointer_old();
    ready "cuMemAlloc" 3020 cuMemAlloc_v2(out: Out<u64>, size: u64) => alloc::alloc(out, size);
    ready "cuMemAlloc" 2000 cuMemAlloc(_out: Out<u32>, _size: u32) => alloc::alloc_old();
    ready "cuMemAllocPitch" 3020 cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) =>
        alloc::alloc_pitch(out, pitch, width, height, element);
    ready "cuMemAllocPitch" 2000 cuMemAllocPitch(_out: Out<u32>, _pitch: Out<u32>, _width: u32, _height: u32, _element: u32) =>
        alloc::alloc_old();
    ready "cuMemFree" 3020 cuMemFree_v2(ptr: u64) => alloc::free(ptr);
    ready "cuMemFree" 2000 cuMemFree(_ptr: u32) => alloc::pointer_old();
    ready "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, ptr: u64) =>
        alloc::address_range(base, size, ptr);
    ready "cuMemGetAddressRange" 2000 cuMemGetAddressRange(_base: Out<u32>, _size: Out<u32>, _ptr: u32) => alloc::pointer_old();
    ready "cuMemAllocManaged" 6000 cuMemAllocManaged(out: Out<u64>, size: u64, flags: u32) => alloc::alloc_managed(out, size, flags);
    ready "cuMemAllocHost" 3020 cuMemAllocHost_v2(out: Out<u64>, size: u64) => alloc::host_alloc(out, size, 0);
    ready "cuMemAllocHost" 2000 cuMemAllocHost(out: Out<u64>, size: u32) => alloc::host_alloc(out, u64::from(size), 0);
    ready "cuMemHostAlloc" 2020 cuMemHostAlloc(out: Out<u64>, size: u64, flags: u32) => alloc::host_alloc(out, size, flags);
    ready "cuMemFreeHost" 2000 cuMemFreeHost(ptr: u64) => alloc::host_free(ptr);
    ready "cuMemHostGetDevicePointer" 3020 cuMemHostGetDevicePointer_v2(out: Out<u64>, host: u64, flags: u32) =>
        alloc::host_device_pointer(out, host, flags);
    ready "cuMemHostGetDevicePointer" 2020 cuMemHostGetDevicePointer(_out: Out<u32>, _host: u64, _flags: u32) => alloc::pointer_old();
    ready "cuMemHostGetFlags" 2030 cuMemHostGetFlags(out: Out<u32>, host: u64) => alloc::host_flags(out, host);
    ready "cuMemHostRegister" 6050 cuMemHostRegister_v2(ptr: u64, size: u64, flags: u32) => alloc::host_register(ptr, size, flags);
    ready "cuMemHostRegister" 4000 cuMemHostRegister(ptr: u64, size: u64, flags: u32) => alloc::host_register(ptr, size, flags);
    ready "cuMemHostUnregister" 4000 cuMemHostUnregister(ptr: u64) => alloc::host_unregister(ptr);
    ready "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange(out: Out<i32>, at: u64, size: u64, kind: u32, flags: u64) =>
        pointer::handle_for_range(out, at, size, kind, flags);

    ready "cuPointerGetAttribute" 4000 cuPointerGetAttribute(out: Out<u64>, attribute: u32, at: u64) =>
        pointer::attribute(out, attribute, at);
    ready "cuPointerGetAttributes" 7000 cuPointerGetAttributes(count: u32, attributes: *const u32, outs: *const Out<u64>, at: u64) =>
        pointer::attributes(count, attributes, outs, at);
    ready "cuPointerSetAttribute" 6000 cuPointerSetAttribute(value: *const u32, attribute: u32, at: u64) =>
        pointer::set_attribute(value, attribute, at);

    ready "cuIpcGetMemHandle" 4010 cuIpcGetMemHandle(out: Out<IpcMemHandle>, ptr: u64) => ipc::get_handle(out, ptr);
    ready "cuIpcOpenMemHandle" 4010 cuIpcOpenMemHandle(out: Out<u64>, handle: IpcMemHandle, flags: u32) =>
        ipc::open_handle(out, handle, flags);
    ready "cuIpcOpenMemHandle" 11000 cuIpcOpenMemHandle_v2(out: Out<u64>, handle: IpcMemHandle, flags: u32) =>
        ipc::open_handle(out, handle, flags);
    ready "cuIpcCloseMemHandle" 4010 cuIpcCloseMemHandle(ptr: u64) => ipc::close_handle(ptr);

    ready "cuMemAddressReserve" 10020 cuMemAddressReserve(out: Out<u64>, size: u64, align: u64, hint: u64, flags: u64) =>
        vmm::reserve(out, size, align, hint, flags);
    ready "cuMemAddressFree" 10020 cuMemAddressFree(at: u64, size: u64) => vmm::unreserve(at, size);
    ready "cuMemCreate" 10020 cuMemCreate(out: Out<u64>, size: u64, prop: *const AllocationProp, flags: u64) =>
        vmm::create(out, size, prop, flags);
    ready "cuMemRelease" 10020 cuMemRelease(handle: u64) => vmm::release(handle);
    ready "cuMemMap" 10020 cuMemMap(at: u64, size: u64, offset: u64, handle: u64, flags: u64) => vmm::map(at, size, offset, handle, flags);
    ready "cuMemUnmap" 10020 cuMemUnmap(at: u64, size: u64) => vmm::unmap(at, size);
    ready "cuMemSetAccess" 10020 cuMemSetAccess(at: u64, size: u64, desc: *const AccessDesc, count: usize) =>
        vmm::set_access(at, size, desc, count);
    ready "cuMemGetAccess" 10020 cuMemGetAccess(flags: Out<u64>, location: *const Location, at: u64) =>
        vmm::get_access(flags, location, at);
    ready "cuMemGetAllocationGranularity" 10020 cuMemGetAllocationGranularity(out: Out<usize>, prop: *const AllocationProp, _option: u32) =>
        vmm::granularity(out, prop);

    ready "cuImportExternalMemory" 10000 cuImportExternalMemory(_out: Out<u64>, _desc: *const c_void) => not_supported();
    ready "cuExternalMemoryGetMappedBuffer" 10000 cuExternalMemoryGetMappedBuffer(_out: Out<u64>, _memory: u64, _desc: *const c_void) =>
        not_supported();
    ready "cuExternalMemoryGetMappedMipmappedArray" 10000 cuExternalMemoryGetMappedMipmappedArray(_out: Out<u64>, _memory: u64, _desc: *const c_void) =>
        not_supported();

    ready "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool(out: Out<u64>, dev: i32) => pools::get_default(out, dev);
    ready "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool(out: Out<u64>, dev: i32) => pools::get_current(out, dev);
    ready "cuDeviceSetMemPool" 11020 cuDeviceSetMemPool(dev: i32, pool: u64) => pools::set_current(dev, pool);
    ready "cuMemPoolCreate" 11020 cuMemPoolCreate(out: Out<u64>, props: *const PoolProps) => pools::create(out, props);
    ready "cuMemPoolDestroy" 11020 cuMemPoolDestroy(pool: u64) => pools::destroy(pool);
    ready "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo(pool: u64, keep: usize) => pools::trim_to(pool, keep);
    ready "cuMemPoolSetAttribute" 11020 cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *const u64) =>
        pools::set_attribute(pool, attribute, value);
    ready "cuMemPoolGetAttribute" 11020 cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) =>
        pools::get_attribute(pool, attribute, value);
    ready "cuMemPoolSetAccess" 11020 cuMemPoolSetAccess(pool: u64, _map: *const c_void, _count: usize) => pools::set_access(pool);

    ready "cuArrayCreate" 3020 cuArrayCreate_v2(out: Out<u64>, desc: *const Array2D) => copy::array_create_2d(out, desc);
    ready "cuArray3DCreate" 3020 cuArray3DCreate_v2(out: Out<u64>, desc: *const Array3D) =>
        get(desc).and_then(|d| copy::array_create(out, d));
    ready "cuMipmappedArrayCreate" 5000 cuMipmappedArrayCreate(out: Out<u64>, desc: *const Array3D, levels: u32) =>
        copy::mipmapped_create(out, desc, levels);
    ready "cuMipmappedArrayDestroy" 5000 cuMipmappedArrayDestroy(array: u64) => copy::array_destroy(array);
    ready "cuArrayGetDescriptor" 3020 cuArrayGetDescriptor_v2(out: Out<Array2D>, array: u64) => copy::array_descriptor(out, array);
    ready "cuArrayDestroy" 2000 cuArrayDestroy(array: u64) => copy::array_destroy(array);
}

mod stream_ordered {
    use super::Out;
    use crate::pools;

    super::super::stream_entries! { ROWS;
        "cuMemAllocAsync" 11020 cuMemAllocAsync, 11020 cuMemAllocAsync_ptsz
            (stream; out: Out<u64>, size: u64, stream: u64) => pools::alloc_async(out, size, None, stream);
        "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync, 11020 cuMemAllocFromPoolAsync_ptsz
            (stream; out: Out<u64>, size: u64, pool: u64, stream: u64) => pools::alloc_async(out, size, Some(pool), stream);
        "cuMemFreeAsync" 11020 cuMemFreeAsync, 11020 cuMemFreeAsync_ptsz
            (stream; ptr: u64, stream: u64) => pools::free_async(ptr, stream);
    }
}
pub(crate) use stream_ordered::ROWS as ASYNC_ROWS;
