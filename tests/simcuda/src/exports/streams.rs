//! Streams, events, launches, captures, graphs.

use crate::abi::code;
use crate::capture::{self, Info};
use crate::kernels::{self, LaunchConfig};
use crate::{event, graph, stream};
use std::ffi::c_void;

type Out<T> = *mut T;

super::entries! { ROWS;
    ready "cuStreamCreate" 2000 cuStreamCreate(out: Out<u64>, flags: u32) => stream::create(out, flags, 0);
    ready "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) =>
        stream::create(out, flags, priority);
    ready "cuGreenCtxStreamCreate" 12050 cuGreenCtxStreamCreate(out: Out<u64>, green: u64, flags: u32, priority: i32) =>
        stream::create_green(out, green, flags, priority);
    ready "cuStreamDestroy" 2000 cuStreamDestroy(stream: u64) => stream::destroy(stream);
    ready "cuStreamDestroy" 4000 cuStreamDestroy_v2(stream: u64) => stream::destroy(stream);
    ready "cuThreadExchangeStreamCaptureMode" 10010 cuThreadExchangeStreamCaptureMode(mode: Out<u32>) => capture::exchange_mode(mode);

    ready "cuEventCreate" 2000 cuEventCreate(out: Out<u64>, flags: u32) => event::create(out, flags);
    ready "cuEventDestroy" 2000 cuEventDestroy(event: u64) => event::destroy(event);
    ready "cuEventDestroy" 4000 cuEventDestroy_v2(event: u64) => event::destroy(event);
    ready "cuEventQuery" 2000 cuEventQuery(event: u64) => event::query(event);
    ready "cuEventSynchronize" 2000 cuEventSynchronize(event: u64) => event::synchronize(event);
    ready "cuEventElapsedTime" 2000 cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) => event::elapsed(out, start, end);
    ready "cuEventElapsedTime" 12080 cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) => event::elapsed(out, start, end);

    ready "cuLaunchKernelEx" 11060 cuLaunchKernelEx(config: *const LaunchConfig, function: u64, params: *const *const c_void, _extra: *const c_void) =>
        kernels::launch_ex(config, function, params, false);
    ready "cuLaunchKernelEx" 11060 cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: u64, params: *const *const c_void, _extra: *const c_void) =>
        kernels::launch_ex(config, function, params, true);

    ready "cuGraphCreate" 10000 cuGraphCreate(out: Out<u64>, flags: u32) => graph::create(out, flags);
    ready "cuGraphDestroy" 10000 cuGraphDestroy(graph: u64) => graph::destroy(graph);
    ready "cuGraphGetNodes" 10000 cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) => graph::get_nodes(graph, nodes, count);
    ready "cuGraphAddMemAllocNode" 11040 cuGraphAddMemAllocNode(_node: Out<u64>, _graph: u64, _after: *const u64, _count: usize, _params: Out<u64>) =>
        Err(code::NOT_SUPPORTED);
    ready "cuGraphNodeGetType" 10000 cuGraphNodeGetType(node: u64, out: Out<u32>) => graph::node_type(node, out);
    ready "cuGraphInstantiate" 10000 cuGraphInstantiate(out: Out<u64>, graph: u64, _error: Out<u64>, _log: Out<u8>, _room: usize) =>
        graph::instantiate(out, graph);
    ready "cuGraphInstantiate" 11000 cuGraphInstantiate_v2(out: Out<u64>, graph: u64, _error: Out<u64>, _log: Out<u8>, _room: usize) =>
        graph::instantiate(out, graph);
    ready "cuGraphInstantiateWithFlags" 11040 cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, _flags: u64) =>
        graph::instantiate(out, graph);
    ready "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, params: Out<[u64; 4]>) =>
        graph::instantiate_with(out, graph, params);
    ready "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams_ptsz(out: Out<u64>, graph: u64, params: Out<[u64; 4]>) =>
        graph::instantiate_with(out, graph, params);
    ready "cuGraphExecDestroy" 10000 cuGraphExecDestroy(exec: u64) => graph::exec_destroy(exec);
}

mod streamed {
    use super::*;
    use crate::work::Work;

    /// Begins a capture into a graph that exists.
    fn begin_into(
        stream: u64,
        graph: u64,
        after: *const u64,
        count: usize,
        mode: u32,
    ) -> crate::abi::Answer {
        if count > 0 && after.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the program passes an array of `count` handles.
        let after = (0..count).map(|i| unsafe { *after.add(i) }).collect();
        capture::begin(stream, mode, Some((graph, after)))
    }

    fn info(
        stream: u64,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<u64>,
        nodes: Out<*const u64>,
        edges: Out<*const u64>,
        count: Out<usize>,
    ) -> crate::abi::Answer {
        capture::info(
            stream,
            &Info {
                status,
                id,
                graph,
                nodes,
                edges,
                count,
            },
        )
    }

    const NONE: Out<u64> = std::ptr::null_mut();

    super::super::stream_entries! { ROWS;
        "cuStreamGetPriority" 5050 cuStreamGetPriority, 7000 cuStreamGetPriority_ptsz
            (stream; stream: u64, out: Out<i32>) => stream::with(stream, out, |_, s| s.priority);
        "cuStreamGetFlags" 5050 cuStreamGetFlags, 7000 cuStreamGetFlags_ptsz
            (stream; stream: u64, out: Out<u32>) => stream::with(stream, out, |_, s| s.flags);
        "cuStreamGetId" 12000 cuStreamGetId, 12000 cuStreamGetId_ptsz
            (stream; stream: u64, out: Out<u64>) => stream::with(stream, out, |_, s| s.id);
        "cuStreamGetDevice" 12080 cuStreamGetDevice, 12080 cuStreamGetDevice_ptsz
            (stream; stream: u64, out: Out<i32>) => stream::with(stream, out, |core, s| {
                core.contexts.get(&s.ctx).map_or(0, |c| c.device as i32)
            });
        "cuStreamGetCtx" 9020 cuStreamGetCtx, 9020 cuStreamGetCtx_ptsz
            (stream; stream: u64, out: Out<u64>) => stream::get_ctx(stream, out);
        "cuStreamWaitEvent" 3020 cuStreamWaitEvent, 7000 cuStreamWaitEvent_ptsz
            (stream; stream: u64, event: u64, _flags: u32) => stream::wait_event(stream, event);
        "cuStreamAddCallback" 5000 cuStreamAddCallback, 7000 cuStreamAddCallback_ptsz
            (stream; stream: u64, function: u64, data: u64, flags: u32) => stream::add_callback(stream, function, data, flags);
        "cuStreamAttachMemAsync" 6000 cuStreamAttachMemAsync, 7000 cuStreamAttachMemAsync_ptsz
            (stream; stream: u64, _at: u64, _len: usize, _flags: u32) => stream::submit(stream, Work::Empty, stream::Wait::No);
        "cuStreamQuery" 2000 cuStreamQuery, 7000 cuStreamQuery_ptsz (stream; stream: u64) => stream::query(stream);
        "cuStreamSynchronize" 2000 cuStreamSynchronize, 7000 cuStreamSynchronize_ptsz
            (stream; stream: u64) => stream::synchronize(stream);
        "cuStreamWaitValue32" 8000 cuStreamWaitValue32, 8000 cuStreamWaitValue32_ptsz
            (stream; stream: u64, at: u64, value: u32, flags: u32) => stream::memory_operation(
                stream, at, false, Work::WaitValue { at, value: u64::from(value), wide: false, condition: flags });
        "cuStreamWaitValue32" 11070 cuStreamWaitValue32_v2, 11070 cuStreamWaitValue32_v2_ptsz
            (stream; stream: u64, at: u64, value: u32, flags: u32) => stream::memory_operation(
                stream, at, false, Work::WaitValue { at, value: u64::from(value), wide: false, condition: flags });
        "cuStreamWaitValue64" 11070 cuStreamWaitValue64_v2, 11070 cuStreamWaitValue64_v2_ptsz
            (stream; stream: u64, at: u64, value: u64, flags: u32) => stream::memory_operation(
                stream, at, true, Work::WaitValue { at, value, wide: true, condition: flags });
        "cuStreamWriteValue32" 8000 cuStreamWriteValue32, 8000 cuStreamWriteValue32_ptsz
            (stream; stream: u64, at: u64, value: u32, _flags: u32) => stream::memory_operation(
                stream, at, false, Work::WriteValue { at, value: u64::from(value), wide: false });
        "cuStreamWriteValue32" 11070 cuStreamWriteValue32_v2, 11070 cuStreamWriteValue32_v2_ptsz
            (stream; stream: u64, at: u64, value: u32, _flags: u32) => stream::memory_operation(
                stream, at, false, Work::WriteValue { at, value: u64::from(value), wide: false });
        "cuStreamWriteValue64" 11070 cuStreamWriteValue64_v2, 11070 cuStreamWriteValue64_v2_ptsz
            (stream; stream: u64, at: u64, value: u64, _flags: u32) => stream::memory_operation(
                stream, at, true, Work::WriteValue { at, value, wide: true });

        "cuStreamBeginCapture" 10000 cuStreamBeginCapture, 10000 cuStreamBeginCapture_ptsz
            (stream; stream: u64) => capture::begin(stream, 2, None);
        "cuStreamBeginCapture" 10010 cuStreamBeginCapture_v2, 10010 cuStreamBeginCapture_v2_ptsz
            (stream; stream: u64, mode: u32) => capture::begin(stream, mode, None);
        "cuStreamBeginCaptureToGraph" 12030 cuStreamBeginCaptureToGraph, 12030 cuStreamBeginCaptureToGraph_ptsz
            (stream; stream: u64, graph: u64, after: *const u64, _edges: *const u64, count: usize, mode: u32) =>
                begin_into(stream, graph, after, count, mode);
        "cuStreamBeginRecaptureToGraph" 13030 cuStreamBeginRecaptureToGraph, 13030 cuStreamBeginRecaptureToGraph_ptsz
            (stream; stream: u64, mode: u32, graph: u64, _differs: u64, _data: u64) =>
                graph::empty(graph).and_then(|()| begin_into(stream, graph, std::ptr::null(), 0, mode));
        "cuStreamBeginCaptureToCig" 13010 cuStreamBeginCaptureToCig, 13010 cuStreamBeginCaptureToCig_ptsz
            (stream; stream: u64, _params: *const c_void) => capture::begin(stream, 2, None);
        "cuStreamEndCaptureToCig" 13010 cuStreamEndCaptureToCig, 13010 cuStreamEndCaptureToCig_ptsz
            (stream; stream: u64) => {
                let mut graph = 0;
                capture::end(stream, &mut graph).and_then(|()| graph::destroy(graph))
            };
        "cuStreamEndCapture" 10000 cuStreamEndCapture, 10000 cuStreamEndCapture_ptsz
            (stream; stream: u64, out: Out<u64>) => capture::end(stream, out);
        "cuStreamIsCapturing" 10000 cuStreamIsCapturing, 10000 cuStreamIsCapturing_ptsz
            (stream; stream: u64, out: Out<u32>) => capture::is_capturing(stream, out);
        "cuStreamGetCaptureInfo" 10010 cuStreamGetCaptureInfo, 10010 cuStreamGetCaptureInfo_ptsz
            (stream; stream: u64, status: Out<u32>, id: Out<u64>) =>
                info(stream, status, id, NONE, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        "cuStreamGetCaptureInfo" 11030 cuStreamGetCaptureInfo_v2, 11030 cuStreamGetCaptureInfo_v2_ptsz
            (stream; stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, count: Out<usize>) =>
                info(stream, status, id, graph, nodes, std::ptr::null_mut(), count);
        "cuStreamGetCaptureInfo" 12030 cuStreamGetCaptureInfo_v3, 12030 cuStreamGetCaptureInfo_v3_ptsz
            (stream; stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, edges: Out<*const u64>, count: Out<usize>) =>
                info(stream, status, id, graph, nodes, edges, count);
        "cuStreamUpdateCaptureDependencies" 11030 cuStreamUpdateCaptureDependencies, 11030 cuStreamUpdateCaptureDependencies_ptsz
            (stream; stream: u64, nodes: *const u64, count: usize, flags: u32) => capture::update(stream, nodes, count, flags);
        "cuStreamUpdateCaptureDependencies" 12030 cuStreamUpdateCaptureDependencies_v2, 12030 cuStreamUpdateCaptureDependencies_v2_ptsz
            (stream; stream: u64, nodes: *const u64, _edges: *const u64, count: usize, flags: u32) => capture::update(stream, nodes, count, flags);

        "cuEventRecord" 2000 cuEventRecord, 7000 cuEventRecord_ptsz
            (stream; event: u64, stream: u64) => event::record(event, stream);
        "cuEventRecordWithFlags" 11010 cuEventRecordWithFlags, 11010 cuEventRecordWithFlags_ptsz
            (stream; event: u64, stream: u64, _flags: u32) => event::record(event, stream);

        "cuLaunchKernel" 4000 cuLaunchKernel, 7000 cuLaunchKernel_ptsz
            (stream; function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: u64, params: *const *const c_void, _extra: *const c_void) =>
                kernels::launch(function, [gx, gy, gz], [bx, by, bz], stream, params);
        "cuLaunchHostFunc" 10000 cuLaunchHostFunc, 10000 cuLaunchHostFunc_ptsz
            (stream; stream: u64, function: u64, data: u64) => stream::launch_host(stream, function, data);
        "cuGraphLaunch" 10000 cuGraphLaunch, 10000 cuGraphLaunch_ptsz
            (stream; exec: u64, stream: u64) => graph::launch(exec, stream);
        "cuGraphUpload" 11010 cuGraphUpload, 11010 cuGraphUpload_ptsz
            (stream; exec: u64, stream: u64) => graph::upload(exec, stream);
    }
}
pub(crate) use streamed::ROWS as STREAM_ROWS;
