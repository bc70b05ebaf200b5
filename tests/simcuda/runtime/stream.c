/* Streams, events, captures, graphs. */
#include "runtime.h"

API cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    BEGIN;
    RETURN(driver.cuStreamCreate_(stream, 0));
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    BEGIN;
    RETURN(driver.cuStreamCreate_(stream, flags));
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags,
                                             int priority)
{
    BEGIN;
    RETURN(driver.cuStreamCreateWithPriority_(stream, flags, priority));
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuStreamDestroy_(stream));
}

API cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuStreamQuery_(stream));
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuStreamSynchronize_(stream));
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    BEGIN;
    RETURN(driver.cuStreamGetPriority_(stream, priority));
}

API cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags)
{
    BEGIN;
    RETURN(driver.cuStreamGetFlags_(stream, flags));
}

API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    BEGIN;
    RETURN(driver.cuStreamGetId_(stream, id));
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    BEGIN;
    RETURN(driver.cuStreamWaitEvent_(stream, event, flags));
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                      void *data, unsigned int flags)
{
    BEGIN;
    /* The two callback types differ in the enumeration of the status only,
     * whose values are the same. */
    RETURN(driver.cuStreamAddCallback_(stream, (CUstreamCallback)(void (*)(void))callback, data,
                                       flags));
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    BEGIN;
    RETURN(driver.cuLaunchHostFunc_(stream, fn, data));
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    BEGIN;
    RETURN(driver.cuStreamBeginCapture_(stream, (CUstreamCaptureMode)mode));
}

API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                              const cudaGraphNode_t *dependencies,
                                              const cudaGraphEdgeData *edges, size_t count,
                                              enum cudaStreamCaptureMode mode)
{
    BEGIN;
    RETURN(driver.cuStreamBeginCaptureToGraph_(stream, graph, dependencies,
                                               (const CUgraphEdgeData *)edges, count,
                                               (CUstreamCaptureMode)mode));
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    BEGIN;
    RETURN(driver.cuStreamEndCapture_(stream, graph));
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    BEGIN;
    RETURN(driver.cuStreamIsCapturing_(stream, (CUstreamCaptureStatus *)status));
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph,
                                         const cudaGraphNode_t **dependencies,
                                         const cudaGraphEdgeData **edges, size_t *count)
{
    BEGIN;
    RETURN(driver.cuStreamGetCaptureInfo_(stream, (CUstreamCaptureStatus *)status,
                                          (cuuint64_t *)id, graph, dependencies,
                                          (const CUgraphEdgeData **)edges, count));
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuThreadExchangeStreamCaptureMode_((CUstreamCaptureMode *)mode));
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    BEGIN;
    RETURN(driver.cuEventCreate_(event, flags));
}

API cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    BEGIN;
    RETURN(driver.cuEventDestroy_(event));
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuEventRecord_(event, stream));
}

API cudaError_t cudaEventQuery(cudaEvent_t event)
{
    BEGIN;
    RETURN(driver.cuEventQuery_(event));
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    BEGIN;
    RETURN(driver.cuEventSynchronize_(event));
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    BEGIN;
    RETURN(driver.cuEventElapsedTime_(ms, start, end));
}

API cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned int flags)
{
    BEGIN;
    RETURN(driver.cuGraphCreate_(graph, flags));
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    BEGIN;
    RETURN(driver.cuGraphDestroy_(graph));
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    BEGIN;
    RETURN(driver.cuGraphGetNodes_(graph, nodes, count));
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                     unsigned long long flags)
{
    BEGIN;
    RETURN(driver.cuGraphInstantiateWithFlags_(exec, graph, flags));
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuGraphLaunch_(exec, stream));
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    BEGIN;
    RETURN(driver.cuGraphExecDestroy_(exec));
}
