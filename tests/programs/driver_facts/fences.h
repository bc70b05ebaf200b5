/* What waits for what: the context-wide fence and barrier, frees, contexts, threads. */
#ifndef FACTS_FENCES_H
#define FACTS_FENCES_H

#include "common.h"

static CUcontext current(void)
{
    CUcontext c;
    CHECK_CU(cuCtxGetCurrent(&c));
    return c;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static long long query(cudaEvent_t e) { return cuEventQuery(e); }

/* What a context-wide fence says while the last work of one stream cannot be done, and then. */
static void fence_over(const char *what, cudaStream_t stream)
{
    char name[120];
    cudaEvent_t fence = new_event();
    gate g = gate_in(stream);
    fact("cuCtxRecordEvent while work is pending", cuCtxRecordEvent(current(), fence), 0);
    kit_sleep_ms(LOOK_MS);
    snprintf(name, sizeof name, "a context-wide fence waits for %s", what);
    fact(name, query(fence), 600);
    gate_open(g);
    CHECK(cudaEventSynchronize(fence));
    fact("and passes once that is done", query(fence), 0);
    gate_drop(g);
    CHECK(cudaEventDestroy(fence));
}

static void fences(void)
{
    cudaStream_t blocking, other = kit_stream(), loose = kit_stream();
    CHECK(cudaStreamCreate(&blocking));
    fence_over("a non-blocking stream", loose);
    fence_over("a blocking stream", blocking);
    fence_over("the legacy stream", 0);
    fence_over("a per-thread default stream", cudaStreamPerThread);

    cudaEvent_t fence = new_event();
    fact("an event that was never recorded", query(fence), 0);

    /* Later work is neither held back nor waited for. */
    gate first = gate_in(loose);
    CHECK_CU(cuCtxRecordEvent(current(), fence));
    kit_spin(&kernels, other, 1000);
    fact("work submitted after a fence does not wait for it", code_of(cudaStreamSynchronize(other)),
         0);
    fact("and the fence is pending still", query(fence), 600);
    gate second = gate_in(other);
    gate_open(first);
    fact("a fence does not wait for later work", code_of(cudaEventSynchronize(fence)), 0);
    fact("which is pending still", cuStreamQuery(other), 600);

    /* Recorded again while pending: it stands for the newer state. */
    CHECK_CU(cuCtxRecordEvent(current(), fence));
    kit_sleep_ms(LOOK_MS);
    fact("a fence recorded again waits again", query(fence), 600);
    gate_open(second);
    CHECK(cudaEventSynchronize(fence));
    gate_drop(first);
    gate_drop(second);

    /* An event in the legacy stream orders the blocking streams, and no others. */
    gate g = gate_in(blocking);
    CHECK(cudaEventRecord(fence, 0));
    cudaStream_t blocking2;
    CHECK(cudaStreamCreate(&blocking2));
    kit_spin(&kernels, blocking2, 1000);
    kit_spin(&kernels, loose, 1000);
    fact("a record in the legacy stream leaves non-blocking streams alone",
         code_of(cudaStreamSynchronize(loose)), 0);
    kit_sleep_ms(LOOK_MS);
    fact("it waits for blocking streams", query(fence), 600);
    fact("and holds their later work back", cuStreamQuery(blocking2), 600);
    gate_open(g);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);

    g = gate_in(loose);
    CHECK(cudaEventRecord(fence, 0));
    fact("a record in the legacy stream does not see non-blocking streams",
         code_of(cudaEventSynchronize(fence)), 0);
    gate_open(g);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);

    /* A destroyed stream's work is waited for. */
    cudaStream_t gone = kit_stream();
    g = gate_in(gone);
    CHECK(cudaStreamDestroy(gone));
    CHECK_CU(cuCtxRecordEvent(current(), fence));
    kit_sleep_ms(LOOK_MS);
    fact("a fence waits for a destroyed stream's work", query(fence), 600);
    gate_open(g);
    CHECK(cudaEventSynchronize(fence));
    gate_drop(g);

    CHECK(cudaEventDestroy(fence));
    CHECK(cudaStreamDestroy(blocking));
    CHECK(cudaStreamDestroy(blocking2));
    CHECK(cudaStreamDestroy(loose));
    CHECK(cudaStreamDestroy(other));
}

static void barriers(void)
{
    cudaStream_t first = kit_stream(), second = kit_stream();
    cudaEvent_t event = new_event();
    gate g = gate_in(first);
    CHECK(cudaEventRecord(event, first));
    fact("cuCtxWaitEvent", cuCtxWaitEvent(current(), event), 0);
    cudaStream_t later = kit_stream();
    kit_spin(&kernels, second, 1000);
    kit_spin(&kernels, later, 1000);
    kit_spin(&kernels, cudaStreamPerThread, 1000);
    kit_sleep_ms(LOOK_MS);
    fact("after cuCtxWaitEvent existing streams wait", cuStreamQuery(second), 600);
    fact("and new streams", cuStreamQuery(later), 600);
    fact("and per-thread streams", cuStreamQuery(CU_STREAM_PER_THREAD), 600);
    gate_open(g);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);
    CHECK(cudaEventDestroy(event));
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
    CHECK(cudaStreamDestroy(later));
}

/* ---- frees ---------------------------------------------------------------------------- */

static long long free_it(void *p) { return cudaFree(p); }
static long long free_host_it(void *p) { return cudaFreeHost(p); }
static long long synchronize(void *unused)
{
    (void)unused;
    return cudaDeviceSynchronize();
}
static long long launch_it(void *stream)
{
    kit_spin(&kernels, (cudaStream_t)stream, 1000);
    return 0;
}

static void frees(void)
{
    cudaStream_t busy = kit_stream(), other = kit_stream();
    void *p = NULL, *q = NULL, *h = NULL;
    CHECK(cudaMalloc(&p, 1 << 20));
    CHECK(cudaMallocHost(&h, 4096));
    kit_spin(&kernels, other, 1000);
    CHECK(cudaDeviceSynchronize());

    gate g = gate_in(busy);
    fact("cudaMalloc does not wait for a kernel", code_of(cudaMalloc(&q, 3 << 20)), 0);
    void *h2 = NULL;
    fact("cudaHostAlloc does not wait for a kernel", code_of(cudaHostAlloc(&h2, 4096, 0)), 0);

    call freeing, launching;
    call_start(&freeing, free_it, p);
    kit_sleep_ms(LOOK_MS);
    fact("cudaFree waits for a non-blocking stream", freeing.done, 0);
    call_start(&launching, launch_it, other);
    kit_sleep_ms(LOOK_MS);
    fact("meanwhile launches of other threads block", launching.done, 0);
    gate_open(g);
    fact("cudaFree in the end", call_end(&freeing), 0);
    fact("the launch in the end", call_end(&launching), 0);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);

    g = gate_in(busy);
    call_start(&freeing, free_host_it, h);
    kit_sleep_ms(LOOK_MS);
    fact("cudaFreeHost waits for a kernel", freeing.done, 0);
    gate_open(g);
    fact("cudaFreeHost in the end", call_end(&freeing), 0);
    gate_drop(g);

    /* A thread that waits for the device holds nobody back. */
    g = gate_in(busy);
    call waiting;
    call_start(&waiting, synchronize, NULL);
    kit_sleep_ms(LOOK_MS);
    kit_spin(&kernels, other, 1000);
    fact("cudaDeviceSynchronize does not block others' launches",
         code_of(cudaStreamSynchronize(other)), 0);
    fact("and is waiting still", waiting.done, 0);
    gate_open(g);
    fact("cudaDeviceSynchronize in the end", call_end(&waiting), 0);
    gate_drop(g);
    CHECK(cudaFree(q));
    CHECK(cudaFreeHost(h2));
    CHECK(cudaStreamDestroy(busy));
    CHECK(cudaStreamDestroy(other));
}

static void unmapping(void)
{
    cudaStream_t busy = kit_stream();
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    size_t size = 0;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p = 0;
    CHECK_CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_CU(cuMemAddressReserve(&p, size, 0, 0, 0));
    CHECK_CU(cuMemCreate(&handle, size, &prop, 0));
    CHECK_CU(cuMemMap(p, size, 0, handle, 0));
    CHECK_CU(cuMemSetAccess(p, size, &access, 1));
    fact("cuMemsetD8 of mapped memory", cuMemsetD8(p, 7, size), 0);
    unsigned char byte = 0;
    CHECK_CU(cuMemcpyDtoH(&byte, p + size - 1, 1));
    fact("and what it holds", byte, 7);
    CUipcMemHandle ipc;
    fact("cuIpcGetMemHandle of mapped memory", cuIpcGetMemHandle(&ipc, p), 1);
    gate g = gate_in(busy);
    fact("cuMemUnmap does not wait for a kernel", cuMemUnmap(p, size), 0);
    fact("cuMemRelease does not wait for a kernel", cuMemRelease(handle), 0);
    gate_open(g);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);
    CHECK_CU(cuMemAddressFree(p, size));
    CUdeviceptr large = 0;
    fact("4 TiB of addresses can be reserved", cuMemAddressReserve(&large, (size_t)4 << 40, 0, 0, 0),
         0);
    CHECK_CU(cuMemAddressFree(large, (size_t)4 << 40));
    CHECK(cudaStreamDestroy(busy));
}

/* ---- contexts and threads ------------------------------------------------------------- */

static struct {
    CUcontext context;
    CUevent event;
    CUdeviceptr ptr;
} shared;

static long long record_without(void *unused)
{
    (void)unused;
    return cuCtxRecordEvent(shared.context, shared.event);
}
static long long query_without(void *unused)
{
    (void)unused;
    return cuEventQuery(shared.event);
}
static long long synchronize_without(void *unused)
{
    (void)unused;
    return cuEventSynchronize(shared.event);
}
static long long free_without(void *unused)
{
    (void)unused;
    return cuMemFree(shared.ptr);
}
static long long alloc_without(void *unused)
{
    (void)unused;
    CUdeviceptr p;
    return cuMemAlloc(&p, 4096);
}
static long long info_without(void *unused)
{
    (void)unused;
    size_t a, b;
    return cuMemGetInfo(&a, &b);
}
static long long create_without(void *unused)
{
    (void)unused;
    CUevent e;
    return cuEventCreate(&e, 0);
}

static void threads_without_context(void)
{
    shared.context = current();
    CHECK_CU(cuEventCreate(&shared.event, CU_EVENT_DISABLE_TIMING));
    CHECK_CU(cuMemAlloc(&shared.ptr, 4096));
    fact("without a context: cuCtxRecordEvent", in_thread(record_without, NULL), 0);
    fact("without a context: cuEventSynchronize", in_thread(synchronize_without, NULL), 0);
    fact("without a context: cuEventQuery", in_thread(query_without, NULL), 0);
    fact("without a context: cuMemFree", in_thread(free_without, NULL), 0);
    fact("without a context: cuMemAlloc", in_thread(alloc_without, NULL), 201);
    fact("without a context: cuMemGetInfo", in_thread(info_without, NULL), 201);
    fact("without a context: cuEventCreate", in_thread(create_without, NULL), 201);
    CHECK_CU(cuEventDestroy(shared.event));
}

static void several_contexts(void)
{
    CUcontext primary = current(), second, popped;
    CUdeviceptr p;
    CHECK_CU(cuMemAlloc(&p, 4096));
    unsigned long long first_id = 0, second_id = 0, third_id = 0;
    CHECK_CU(cuCtxGetId(primary, &first_id));
    CHECK_CU(cuCtxCreate(&second, NULL, 0, 0));
    CHECK_CU(cuCtxGetId(second, &second_id));
    fact("context ids differ", first_id != second_id, 1);
    fact("cuMemFree while another context is current", cuMemFree(p), 0);

    CUevent event;
    CUdeviceptr q;
    CHECK_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_CU(cuMemAlloc(&q, 1 << 20));
    CHECK_CU(cuCtxRecordEvent(second, event));
    CHECK_CU(cuEventSynchronize(event));
    /* Work of the first context is no business of a free in the second. */
    CHECK_CU(cuCtxPushCurrent(primary));
    cudaStream_t busy = kit_stream();
    gate g = gate_in(busy);
    CHECK_CU(cuCtxPopCurrent(&popped));
    fact("cuMemFree does not wait for another context", cuMemFree(q), 0);
    CHECK_CU(cuCtxPushCurrent(primary));
    gate_open(g);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);
    CHECK(cudaStreamDestroy(busy));
    CHECK_CU(cuCtxPopCurrent(&popped));

    CHECK_CU(cuCtxDestroy(second));
    fact("the primary context is current again", current() == primary, 1);
    /* What a query of its event does now is not asked: it gave 709, and sometimes it crashed. */
    CHECK_CU(cuCtxCreate(&second, NULL, 0, 0));
    CHECK_CU(cuCtxGetId(second, &third_id));
    fact("context ids are not used again", third_id != second_id && third_id != first_id, 1);
    CHECK_CU(cuCtxDestroy(second));
}

static void event_of_reset_context(void)
{
    CHECK(cudaFree(NULL));
    cudaEvent_t event = new_event();
    CHECK(cudaEventRecord(event, 0));
    CHECK(cudaEventSynchronize(event));
    CHECK_CU(cuDevicePrimaryCtxReset(0));
    int code = cuEventQuery(event); /* both were seen */
    fact("cuEventQuery of a reset context's event: 201 or 709", code == 201 || code == 709, 1);
}

static void green_contexts(void)
{
    CUdevResource resource;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    CUstream stream;
    CHECK_CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CHECK_CU(cuDevResourceGenerateDesc(&desc, &resource, 1));
    CHECK_CU(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK_CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    fence_over("a green context's stream", stream);
    CHECK_CU(cuStreamDestroy(stream));
    CHECK_CU(cuGreenCtxDestroy(green));
}

#endif
