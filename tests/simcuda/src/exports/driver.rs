//! Initialisation, devices, contexts, modules.

use crate::abi::Answer;
use crate::{checkpoint, context, device, getproc, kernels};
use std::ffi::{c_char, c_void};

type Out<T> = *mut T;

fn nothing() -> Answer {
    Ok(())
}

super::entries! { ROWS;
    always "cuInit" 2000 cuInit(flags: u32) => device::init(flags);
    always "cuDriverGetVersion" 2020 cuDriverGetVersion(out: Out<i32>) => device::version(out);
    always "cuGetProcAddress" 11030 cuGetProcAddress(name: *const c_char, out: Out<usize>, version: i32, flags: u64) =>
        getproc::look_up(name, out, version, flags, std::ptr::null_mut());
    always "cuGetProcAddress" 12000 cuGetProcAddress_v2(name: *const c_char, out: Out<usize>, version: i32, flags: u64, status: Out<u32>) =>
        getproc::look_up(name, out, version, flags, status);
    always "cuCheckpointProcessGetState" 12080 cuCheckpointProcessGetState(pid: i32, out: Out<u32>) => checkpoint::state(pid, out);
    always "cuCheckpointProcessLock" 12080 cuCheckpointProcessLock(pid: i32, args: *const u64) => checkpoint::lock(pid, args);
    always "cuCheckpointProcessCheckpoint" 12080 cuCheckpointProcessCheckpoint(pid: i32, _args: *const c_void) => checkpoint::checkpoint(pid);
    always "cuCheckpointProcessRestore" 12080 cuCheckpointProcessRestore(pid: i32, _args: *const c_void) => checkpoint::restore(pid);
    always "cuCheckpointProcessUnlock" 12080 cuCheckpointProcessUnlock(pid: i32, _args: *const c_void) => checkpoint::unlock(pid);
    always "cuGetErrorName" 6000 cuGetErrorName(error: i32, out: Out<*const u8>) => device::error_name(error, out);
    always "cuGetErrorString" 6000 cuGetErrorString(error: i32, out: Out<*const u8>) => device::error_string(error, out);

    ready "cuDeviceGet" 2000 cuDeviceGet(out: Out<i32>, ordinal: i32) => device::get(out, ordinal);
    ready "cuDeviceGetCount" 2000 cuDeviceGetCount(out: Out<i32>) => device::count(out);
    ready "cuDeviceGetName" 2000 cuDeviceGetName(out: Out<u8>, room: i32, dev: i32) => device::name(out, room, dev);
    ready "cuDeviceGetUuid" 9020 cuDeviceGetUuid(out: Out<[u8; 16]>, dev: i32) => device::uuid(out, dev);
    ready "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2(out: Out<[u8; 16]>, dev: i32) => device::uuid(out, dev);
    ready "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2(out: Out<usize>, dev: i32) => device::total_mem(out, dev);
    ready "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute(out: Out<i32>, attribute: i32, dev: i32) =>
        device::attribute(out, attribute, dev);
    ready "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId(out: Out<u8>, room: i32, dev: i32) => device::pci_bus_id(out, room, dev);
    ready "cuDeviceGetByPCIBusId" 4010 cuDeviceGetByPCIBusId(out: Out<i32>, id: *const c_char) => device::by_pci_bus_id(out, id);
    ready "cuDeviceCanAccessPeer" 4000 cuDeviceCanAccessPeer(out: Out<i32>, dev: i32, peer: i32) => device::can_access_peer(out, dev, peer);
    ready "cuDeviceGetDevResource" 12040 cuDeviceGetDevResource(dev: i32, out: Out<u8>, kind: u32) => device::resource(dev, out, kind);
    ready "cuDevResourceGenerateDesc" 12040 cuDevResourceGenerateDesc(out: Out<u64>, resources: *const u8, count: u32) =>
        device::resource_desc(out, resources, count);

    ready "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain(out: Out<u64>, dev: i32) => context::primary_retain(out, dev);
    ready "cuDevicePrimaryCtxRelease" 7000 cuDevicePrimaryCtxRelease(dev: i32) => context::primary_release(dev);
    ready "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2(dev: i32) => context::primary_release(dev);
    ready "cuDevicePrimaryCtxReset" 7000 cuDevicePrimaryCtxReset(dev: i32) => context::primary_reset(dev);
    ready "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2(dev: i32) => context::primary_reset(dev);
    ready "cuDevicePrimaryCtxSetFlags" 7000 cuDevicePrimaryCtxSetFlags(dev: i32, flags: u32) => context::primary_set_flags(dev, flags);
    ready "cuDevicePrimaryCtxSetFlags" 11000 cuDevicePrimaryCtxSetFlags_v2(dev: i32, flags: u32) => context::primary_set_flags(dev, flags);
    ready "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState(dev: i32, flags: Out<u32>, active: Out<i32>) =>
        context::primary_state(dev, flags, active);

    ready "cuCtxCreate" 2000 cuCtxCreate(out: Out<u64>, flags: u32, dev: i32) => context::create(out, flags, dev);
    ready "cuCtxCreate" 3020 cuCtxCreate_v2(out: Out<u64>, flags: u32, dev: i32) => context::create(out, flags, dev);
    ready "cuCtxCreate" 11040 cuCtxCreate_v3(out: Out<u64>, _affinity: *const c_void, _count: i32, flags: u32, dev: i32) =>
        context::create(out, flags, dev);
    ready "cuCtxCreate" 12050 cuCtxCreate_v4(out: Out<u64>, _params: *const c_void, flags: u32, dev: i32) => context::create(out, flags, dev);
    ready "cuGLCtxCreate" 2000 cuGLCtxCreate(out: Out<u64>, flags: u32, dev: i32) => context::create(out, flags, dev);
    ready "cuGLCtxCreate" 3020 cuGLCtxCreate_v2(out: Out<u64>, flags: u32, dev: i32) => context::create(out, flags, dev);
    ready "cuVDPAUCtxCreate" 3010 cuVDPAUCtxCreate(out: Out<u64>, flags: u32, dev: i32, _display: u32, _look_up: *const c_void) =>
        context::create(out, flags, dev);
    ready "cuVDPAUCtxCreate" 3020 cuVDPAUCtxCreate_v2(out: Out<u64>, flags: u32, dev: i32, _display: u32, _look_up: *const c_void) =>
        context::create(out, flags, dev);
    ready "cuCtxDestroy" 2000 cuCtxDestroy(ctx: u64) => context::destroy(ctx);
    ready "cuCtxDestroy" 4000 cuCtxDestroy_v2(ctx: u64) => context::destroy(ctx);
    ready "cuCtxDetach" 2000 cuCtxDetach(ctx: u64) => context::detach(ctx);
    ready "cuCtxPushCurrent" 2000 cuCtxPushCurrent(ctx: u64) => context::push(ctx);
    ready "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2(ctx: u64) => context::push(ctx);
    ready "cuCtxPopCurrent" 2000 cuCtxPopCurrent(out: Out<u64>) => context::pop(out);
    ready "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2(out: Out<u64>) => context::pop(out);
    ready "cuCtxSetCurrent" 4000 cuCtxSetCurrent(ctx: u64) => context::set_current(ctx);
    ready "cuCtxGetCurrent" 4000 cuCtxGetCurrent(out: Out<u64>) => context::get_current(out);
    ready "cuCtxGetDevice" 2000 cuCtxGetDevice(out: Out<i32>) => context::get_device(out);
    ready "cuCtxGetDevice" 13000 cuCtxGetDevice_v2(out: Out<i32>, ctx: u64) => context::device_of_context(out, ctx);
    ready "cuCtxGetFlags" 7000 cuCtxGetFlags(out: Out<u32>) => context::get_flags(out);
    ready "cuCtxGetApiVersion" 3020 cuCtxGetApiVersion(ctx: u64, out: Out<u32>) => context::get_api_version(ctx, out);
    ready "cuCtxGetLimit" 3010 cuCtxGetLimit(out: Out<usize>, limit: u32) => context::get_limit(out, limit);
    ready "cuCtxSetLimit" 3010 cuCtxSetLimit(limit: u32, value: usize) => context::set_limit(limit, value);
    ready "cuCtxGetStreamPriorityRange" 5050 cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) =>
        context::priority_range(least, greatest);
    ready "cuCtxSynchronize" 2000 cuCtxSynchronize() => context::synchronize(0);
    ready "cuCtxSynchronize" 13000 cuCtxSynchronize_v2(ctx: u64) => context::synchronize(ctx);
    ready "cuCtxEnablePeerAccess" 4000 cuCtxEnablePeerAccess(peer: u64, flags: u32) => context::enable_peer(peer, flags);
    ready "cuCtxDisablePeerAccess" 4000 cuCtxDisablePeerAccess(peer: u64) => context::disable_peer(peer);

    ready "cuGreenCtxCreate" 12040 cuGreenCtxCreate(out: Out<u64>, desc: u64, dev: i32, flags: u32) =>
        context::green_create(out, desc, dev, flags);
    ready "cuGreenCtxDestroy" 12040 cuGreenCtxDestroy(green: u64) => context::green_destroy(green);
    ready "cuCtxFromGreenCtx" 12040 cuCtxFromGreenCtx(out: Out<u64>, green: u64) => context::from_green(out, green);

    ready "cuModuleLoadData" 2000 cuModuleLoadData(out: Out<u64>, image: *const c_void) => kernels::load(out, image);
    ready "cuModuleLoadDataEx" 2010 cuModuleLoadDataEx(out: Out<u64>, image: *const c_void, _count: u32, _options: *const u32, _values: *const u64) =>
        kernels::load(out, image);
    ready "cuModuleLoadFatBinary" 2000 cuModuleLoadFatBinary(out: Out<u64>, image: *const c_void) => kernels::load(out, image);
    ready "cuModuleLoad" 2000 cuModuleLoad(out: Out<u64>, path: *const c_char) => kernels::load_file(out, path);
    ready "cuFuncLoad" 12040 cuFuncLoad(function: u64) => kernels::loaded(function);
    ready "cuLibraryLoadData" 12000 cuLibraryLoadData(out: Out<u64>, image: *const c_void, _jit: *const u32, _jit_values: *const u64, _jit_count: u32, _options: *const u32, _values: *const u64, _count: u32) =>
        kernels::load(out, image);
    ready "cuLibraryLoadFromFile" 12000 cuLibraryLoadFromFile(out: Out<u64>, path: *const c_char, _jit: *const u32, _jit_values: *const u64, _jit_count: u32, _options: *const u32, _values: *const u64, _count: u32) =>
        kernels::load_file(out, path);
    ready "cuLibraryUnload" 12000 cuLibraryUnload(library: u64) => kernels::unload(library);
    ready "cuLibraryGetModule" 12000 cuLibraryGetModule(out: Out<u64>, library: u64) => kernels::module_of(out, library);
    ready "cuLibraryGetKernel" 12000 cuLibraryGetKernel(out: Out<u64>, library: u64, name: *const c_char) =>
        kernels::function(out, library, name);
    ready "cuKernelGetFunction" 12000 cuKernelGetFunction(out: Out<u64>, kernel: u64) => kernels::function_of(out, kernel);
    ready "cuModuleUnload" 2000 cuModuleUnload(module: u64) => kernels::unload(module);
    ready "cuModuleGetFunction" 2000 cuModuleGetFunction(out: Out<u64>, module: u64, name: *const c_char) =>
        kernels::function(out, module, name);
    ready "cuProfilerStart" 4000 cuProfilerStart() => nothing();
    ready "cuProfilerStop" 4000 cuProfilerStop() => nothing();
}

#[cfg(not(feature = "old-driver"))]
mod new {
    use super::Out;
    use crate::{context, event};

    super::super::entries! { ROWS;
        ready "cuCtxGetId" 12000 cuCtxGetId(ctx: u64, out: Out<u64>) => context::get_id(ctx, out);
        ready "cuCtxRecordEvent" 12050 cuCtxRecordEvent(ctx: u64, event: u64) => event::record_context(ctx, event);
        ready "cuCtxWaitEvent" 12050 cuCtxWaitEvent(ctx: u64, event: u64) => event::wait_context(ctx, event);
        ready "cuGreenCtxRecordEvent" 12040 cuGreenCtxRecordEvent(green: u64, event: u64) => event::record_context(green, event);
        ready "cuGreenCtxWaitEvent" 12040 cuGreenCtxWaitEvent(green: u64, event: u64) => event::wait_context(green, event);
    }
}

#[cfg(not(feature = "old-driver"))]
pub(crate) use new::ROWS as NEW_ROWS;
/// What drivers before 12.5 do not have.
#[cfg(feature = "old-driver")]
pub(crate) static NEW_ROWS: &[super::Row] = &[];
