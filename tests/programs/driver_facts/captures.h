/* Stream capture: what each call answers meanwhile, and what becomes of the capture. */
#ifndef FACTS_CAPTURES_H
#define FACTS_CAPTURES_H

#include "fences.h"

/* What a call may use while a stream is being captured. */
static struct {
    cudaEvent_t done;      /* recorded before, and passed */
    cudaStream_t other;    /* idle */
    void *block;
    int relaxed;           /* the calling thread exchanges its mode */
} capturing;

typedef long long (*capture_call)(void *);

static long long as_asked(capture_call body)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (capturing.relaxed)
        CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    long long result = body(NULL);
    if (capturing.relaxed)
        CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    cudaGetLastError();
    return result;
}

static long long do_record_context(void *unused)
{
    (void)unused;
    return cuCtxRecordEvent(shared.context, capturing.done);
}
static long long do_synchronize(void *unused)
{
    (void)unused;
    return cudaDeviceSynchronize();
}
static long long do_query(void *unused)
{
    (void)unused;
    return cuEventQuery(capturing.done);
}
static long long do_malloc(void *unused)
{
    (void)unused;
    void *p = NULL;
    cudaError_t r = cudaMalloc(&p, 4096);
    if (r == cudaSuccess)
        capturing.block = p;
    return r;
}
static long long do_free(void *unused)
{
    (void)unused;
    return cudaFree(capturing.block);
}
static long long do_record(void *unused)
{
    (void)unused;
    return cudaEventRecord(capturing.done, capturing.other);
}
static long long do_stream_query(void *unused)
{
    (void)unused;
    return cuStreamQuery(capturing.other);
}

static long long other_thread(void *body)
{
    CHECK_CU(cuCtxSetCurrent(shared.context));
    return as_asked(*(capture_call *)body);
}

/* One row: begins a capture, makes a call, ends the capture. */
static void row(const char *what, enum cudaStreamCaptureMode mode, capture_call body, int elsewhere,
                int relaxed, long long code, int intact)
{
    static const char *const modes[] = {"global", "thread-local", "relaxed"};
    char name[200], text[240];
    snprintf(name, sizeof name, "%s capture: %s%s%s", modes[mode], what,
             elsewhere ? ", other thread" : "", relaxed ? ", exchanged to relaxed" : "");
    cudaStream_t stream = kit_stream();
    CHECK(cudaStreamBeginCapture(stream, mode));
    kit_spin(&kernels, stream, 0);
    capturing.relaxed = relaxed;
    long long got = elsewhere ? in_thread(other_thread, &body) : as_asked(body);
    fact(name, got, code);
    cudaGraph_t graph = NULL;
    cudaError_t end = cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
    snprintf(text, sizeof text, "%s: the capture's end", name);
    fact(text, end, intact ? 0 : 901);
    if (graph)
        CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
}

static void capture_table(void)
{
    enum cudaStreamCaptureMode mode;
    capturing.other = kit_stream();
    capturing.done = new_event();
    CHECK(cudaEventRecord(capturing.done, capturing.other));
    CHECK(cudaEventSynchronize(capturing.done));
    shared.context = current();
    for (int m = 0; m < 3; m++) {
        mode = (enum cudaStreamCaptureMode)m;
        for (int elsewhere = 0; elsewhere < 2; elsewhere++)
            for (int relaxed = 0; relaxed < 2; relaxed++)
                row("cuCtxRecordEvent", mode, do_record_context, elsewhere, relaxed, 900, 0);
        row("cudaDeviceSynchronize", mode, do_synchronize, 0, 0, 900, 0);
    }
    mode = cudaStreamCaptureModeGlobal;
    row("cuEventQuery", mode, do_query, 0, 0, 900, 0);
    row("cuEventQuery", mode, do_query, 1, 0, 900, 0);
    row("cuEventQuery", mode, do_query, 0, 1, 0, 1);
    row("cuEventQuery", mode, do_query, 1, 1, 0, 1);
    CHECK(cudaMalloc(&capturing.block, 4096));
    row("cudaFree", mode, do_free, 0, 0, 900, 0);
    row("cudaFree", mode, do_free, 0, 1, 0, 1);
    row("cudaMalloc", mode, do_malloc, 0, 0, 900, 0);
    row("cudaMalloc", mode, do_malloc, 0, 1, 0, 1);
    CHECK(cudaFree(capturing.block));
    row("cudaEventRecord on another stream", mode, do_record, 0, 0, 0, 1);
    row("cuStreamQuery of another stream", mode, do_stream_query, 0, 0, 900, 0);
}

static void other_captures(void)
{
    /* A fence or a barrier that is pending when a capture begins. */
    cudaStream_t busy = kit_stream(), stream = kit_stream();
    cudaEvent_t fence = new_event();
    gate g = gate_in(busy);
    CHECK_CU(cuCtxRecordEvent(current(), fence));
    CHECK_CU(cuCtxWaitEvent(current(), fence));
    cudaGraph_t graph = NULL;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    kit_spin(&kernels, stream, 0);
    fact("a capture begun while a fence is pending", code_of(cudaStreamEndCapture(stream, &graph)),
         0);
    gate_open(g);
    CHECK(cudaDeviceSynchronize());
    gate_drop(g);

    /* Launches of the graph run, and fences wait for them. */
    cudaGraphExec_t exec;
    uint32_t *words = (uint32_t *)kit_pinned(4096);
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    kit_wait(&kernels, stream, &words[0], 1);
    kit_fill(&kernels, stream, &words[512], 2048, 0xabcd1234, 0);
    CHECK(cudaStreamEndCapture(stream, &graph));
    fact("a captured kernel does not run", words[512], 0);
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK_CU(cuCtxRecordEvent(current(), fence));
    kit_sleep_ms(LOOK_MS);
    fact("a context-wide fence waits for a graph launch", query(fence), 600);
    __atomic_store_n(&words[0], 1, __ATOMIC_SEQ_CST);
    CHECK(cudaEventSynchronize(fence));
    fact("and the graph's kernels have run then", words[512] == 0xabcd1234, 1);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));

    /* An end on the wrong stream ends nothing. */
    enum cudaStreamCaptureStatus status;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    kit_spin(&kernels, stream, 0);
    fact("the end of a capture on another stream is refused",
         code_of(cudaStreamEndCapture(busy, &graph)) != 0, 1);
    CHECK(cudaStreamIsCapturing(stream, &status));
    fact("and the capture goes on", status, cudaStreamCaptureStatusActive);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphDestroy(graph));

    /* A capture ends with its stream. */
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    fact("destroying a capturing stream", code_of(cudaStreamDestroy(stream)), 0);
    void *p = NULL;
    fact("cudaMalloc after a capturing stream's destruction", code_of(cudaMalloc(&p, 4096)), 0);
    CHECK(cudaFree(p));
    CHECK(cudaFreeHost(words));
    CHECK(cudaEventDestroy(fence));
    CHECK(cudaStreamDestroy(busy));
}

#endif
