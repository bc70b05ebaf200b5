/* One stream capture from its begin to the launch of its graph, with calls in between, of this
 * and of another thread, that may break it. What happens in between concerns memory of its own
 * only: whether the capture ends well or not, the program goes on the same.
 *
 * Natively an allocation or a free in another thread may break the capture; with the library it
 * may not. From such a call on, the lines of this capture begin with `foreign`. */
#ifndef DIFFERENTIAL_CAPTURES_H
#define DIFFERENTIAL_CAPTURES_H

#include "query.h"

enum { CAPTURE_BYTES = 6000, VICTIMS = 2 };

typedef struct {
    int context, mode, foreign;
    cudaStream_t captured, beside, other;
    char *target, *source;
    uint32_t value; /* what the target holds once the graph has run */
    void *mine[8], *theirs[8], *victims[VICTIMS];
    unsigned count, their_count;
    cudaEvent_t event;
    cudaGraph_t graph;
    unsigned what;
    int result;
} capture;

static void line(const capture *k, const char *name) { say("\n   %s%s", k->foreign ? "foreign " : "", name); }

/* An allocation or a free in another thread. */
static void foreign_call(void *argument)
{
    capture *k = (capture *)argument;
    if (k->what < VICTIMS) {
        /* Once it is freed, NULL: the runtime's call gives the thread a context all the same. */
        void *p = k->victims[k->what];
        k->result = roll(2) ? (int)cudaFree(p) : (int)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)p);
        if (k->result == 0)
            k->victims[k->what] = NULL;
    } else {
        void *p = NULL;
        k->result = roll(2) ? (int)cudaMalloc(&p, any_size()) : (int)DRV(cuMemAlloc)((CUdeviceptr *)&p, any_size());
        if (k->result == 0)
            k->theirs[k->their_count++] = p;
    }
}

static void foreign_launch(void *argument)
{
    capture *k = (capture *)argument;
    uint64_t ptr = (uint64_t)(uintptr_t)k->source, bytes = CAPTURE_BYTES, none = 0;
    uint32_t value = 0x77777777u;
    void *args[] = {&ptr, &bytes, &value, &none};
    CUcontext popped;
    k->result = DRV(cuCtxPushCurrent)(contexts[k->context].handle);
    k->result |= (int)kit_launch(contexts[k->context].kernels.fill, 2, 128, k->beside, args);
    DRV(cuCtxPopCurrent)(&popped);
}

static void foreign_end(void *argument)
{
    capture *k = (capture *)argument;
    cudaGraph_t g = NULL;
    k->result = cudaStreamEndCapture(k->captured, &g);
    /* A relaxed capture ends here. */
    if (g)
        (void)cudaGraphDestroy(g);
}

static void foreign_last_error(void *argument) { ((capture *)argument)->result = cudaGetLastError(); }

static int another(void) { return (me + 1) % THREADS; }

static void step(capture *k)
{
    uint64_t ptr = (uint64_t)(uintptr_t)k->target, bytes = CAPTURE_BYTES, wait = delay();
    uint64_t src = (uint64_t)(uintptr_t)k->source;
    uint32_t value = 0x01010101u * (1 + roll(200));
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const kit_kernels *kernels = &contexts[k->context].kernels;
    int r;
    switch (roll(22)) {
    case 0:
    case 1:
    case 2: {
        void *args[] = {&ptr, &bytes, &value, &wait};
        line(k, "launch");
        say(" r=%d", r = kit_launch(kernels->fill, 2, 128, k->captured, args));
        k->value = value;
        return;
    }
    case 3:
        line(k, "memset");
        say(" r=%d", (int)cudaMemsetAsync(k->target, (int)(value & 255), CAPTURE_BYTES, k->captured));
        k->value = value;
        return;
    case 4:
        line(k, "copy");
        say(" r=%d", (int)cudaMemcpyAsync(k->target, k->source, CAPTURE_BYTES, cudaMemcpyDeviceToDevice, k->captured));
        k->value = 0x77777777u;
        return;
    case 5:
    case 6: {
        void *p = NULL;
        line(k, "malloc");
        r = roll(2) ? (int)cudaMalloc(&p, any_size()) : (int)DRV(cuMemAlloc)((CUdeviceptr *)&p, any_size());
        say(" r=%d", r);
        if (r == 0)
            k->mine[k->count++] = p;
        return;
    }
    case 7:
        line(k, "free");
        if (!k->count)
            return say(" none");
        r = roll(2) ? (int)cudaFree(k->mine[k->count - 1])
                    : (int)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)k->mine[k->count - 1]);
        say(" r=%d", r);
        k->count -= r == 0;
        return;
    case 8:
    case 9:
        if (real_driver)
            return;
        k->foreign = 1;
        k->what = roll(VICTIMS + 1);
        line(k, k->what < VICTIMS ? "free in another thread" : "malloc in another thread");
        in_thread(another(), foreign_call, k);
        return say(" r=%d", k->result);
    case 10: {
        enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)roll(3);
        line(k, "exchange");
        say(" to=%d", (int)mode);
        say(" r=%d", (int)cudaThreadExchangeStreamCaptureMode(&mode));
        return say(" from=%d", (int)mode);
    }
    case 11: line(k, "query event"); return say(" r=%d", (int)cudaEventQuery(k->event));
    case 12: {
        size_t available, total;
        CUdeviceptr base = 0;
        line(k, "ask");
        say(" info=%d", (int)cudaMemGetInfo(&available, &total));
        return say(" range=%d", (int)DRV(cuMemGetAddressRange)(&base, NULL, (CUdeviceptr)(uintptr_t)k->target));
    }
    case 13: line(k, "sync copy"); return say(" r=%d", (int)cudaMemcpy(scratch, k->source, 64, cudaMemcpyDeviceToHost));
    case 14: {
        cudaStream_t s;
        line(k, "stream");
        say(" create=%d", r = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        if (r == 0)
            say(" destroy=%d", (int)cudaStreamDestroy(s));
        return;
    }
    case 15: {
        void *p = NULL;
        line(k, "mallocAsync captured");
        (void)cudaStreamIsCapturing(k->captured, &status);
        if (status != cudaStreamCaptureStatusActive)
            return say(" r=none memset=none free=none");
        say(" r=%d", r = cudaMallocAsync(&p, 1000, k->captured));
        if (r)
            return say(" memset=none free=none");
        say(" memset=%d", (int)cudaMemsetAsync(p, 3, 1000, k->captured));
        return say(" free=%d", (int)cudaFreeAsync(p, k->captured));
    }
    case 16:
        status = (enum cudaStreamCaptureStatus)7;
        line(k, "status");
        say(" r=%d", (int)cudaStreamIsCapturing(k->captured, &status));
        return say(" status=%d", (int)status);
    case 17:
        line(k, "launch in another thread");
        in_thread(another(), foreign_launch, k);
        return say(" r=%d", k->result);
    case 18:
        if (roll(3))
            return;
        line(k, "end in another thread");
        in_thread(another(), foreign_end, k);
        return say(" r=%d", k->result);
    case 19: {
        cudaGraph_t g = NULL;
        if (roll(3))
            return;
        line(k, "end of another stream");
        /* It is not captured, so there is no graph. */
        return say(" r=%d", (int)cudaStreamEndCapture(k->beside, &g));
    }
    case 20: {
        cudaEvent_t fork, joined;
        void *args[] = {&src, &bytes, &value, &wait};
        line(k, "fork");
        (void)cudaStreamIsCapturing(k->captured, &status);
        if (status != cudaStreamCaptureStatusActive)
            return say(" r=none,none,none,none,none,none,none");
        if (cudaEventCreateWithFlags(&fork, cudaEventDisableTiming) ||
            cudaEventCreateWithFlags(&joined, cudaEventDisableTiming))
            return say(" no event");
        say(" r=%d", (int)cudaEventRecord(fork, k->captured));
        say(",%d", (int)cudaStreamWaitEvent(k->other, fork, 0));
        /* The value is that which the source has. */
        value = 0x77777777u;
        say(",%d", (int)kit_launch(kernels->fill, 2, 128, k->other, args));
        say(",%d", (int)cudaEventRecord(joined, k->other));
        say(",%d", (int)cudaStreamWaitEvent(k->captured, joined, 0));
        say(",%d,%d", (int)cudaEventDestroy(fork), (int)cudaEventDestroy(joined));
        return;
    }
    default: {
        /* A stream-ordered free of a pooled block, in a stream that is not captured. */
        line(k, "freeAsync beside");
        /* In the thread of a stricter capture it breaks that on an H200, but on the simulated driver
         * it does not. */
        if (k->mode != cudaStreamCaptureModeRelaxed && !real_driver)
            return say(" not now");
        if (!k->count)
            return say(" none");
        say(" r=%d", r = cudaFreeAsync(k->mine[k->count - 1], k->beside));
        k->count -= r == 0;
        return;
    }
    }
}

/* What the graph does: the target then holds the value. */
static void run_graph(capture *k)
{
    cudaGraphExec_t exec = NULL;
    int i = cudaGraphInstantiate(&exec, k->graph, 0), l = -1, s = -1, d = -1, ok = 1;
    if (i == 0) {
        for (int again = 0; again < 2; again++) {
            l = cudaGraphLaunch(exec, k->beside);
            s = cudaStreamSynchronize(k->beside);
        }
        d = cudaGraphExecDestroy(exec);
    }
    int copied = cudaMemcpy(scratch, k->target, CAPTURE_BYTES, cudaMemcpyDeviceToHost);
    for (int n = 0; n < CAPTURE_BYTES; n++)
        ok &= (unsigned char)scratch[n] == (k->value & 255);
    say(" instantiate=%d launch=%d sync=%d destroy=%d copy=%d content=%s", i, l, s, d, copied, ok ? "right" : "wrong");
    say(" graph=%d", (int)cudaGraphDestroy(k->graph));
}

static void op_capture(void)
{
    int c = enter(), r;
    if (c < 0)
        return;
    capture k = {.context = c, .mode = (int)roll(3), .value = 0x42424242u};
    settle_all();
    releases++;
    deferred = 1;
    if (cudaMalloc((void **)&k.target, CAPTURE_BYTES) || cudaMalloc((void **)&k.source, CAPTURE_BYTES))
        return say(" no memory");
    for (int i = 0; i < VICTIMS; i++)
        if (cudaMalloc(&k.victims[i], any_size() % (20 * MIB) + 1))
            return say(" no memory");
    cudaMemset(k.target, 0x42, CAPTURE_BYTES);
    cudaMemset(k.source, 0x77, CAPTURE_BYTES);
    r = cudaStreamCreateWithFlags(&k.captured, roll(4) ? cudaStreamNonBlocking : cudaStreamDefault);
    r |= cudaStreamCreateWithFlags(&k.beside, cudaStreamNonBlocking);
    r |= cudaStreamCreateWithFlags(&k.other, cudaStreamNonBlocking);
    r |= cudaEventCreateWithFlags(&k.event, cudaEventDisableTiming);
    r |= cudaEventRecord(k.event, k.beside);
    r |= cudaStreamSynchronize(k.beside);
    settle_all();
    if (r)
        return say(" setup=%d", r);
    cudaGraph_t into = NULL;
    int form = (int)roll(3);
    if (form == 0) {
        r = cudaStreamBeginCapture(k.captured, (enum cudaStreamCaptureMode)k.mode);
    } else if (form == 1) {
        r = MORE(cuStreamBeginCapture)((CUstream)k.captured, (CUstreamCaptureMode)k.mode);
    } else {
        r = cudaGraphCreate(&into, 0);
        r |= MORE(cuStreamBeginCaptureToGraph)((CUstream)k.captured, (CUgraph)into, NULL, NULL, 0,
                                               (CUstreamCaptureMode)k.mode);
    }
    say(" mode=%d form=%d begin=%d", k.mode, form, r);
    /* Each step has its own dice, however many the one before took. */
    uint64_t base = dice;
    for (unsigned steps = 1 + roll(6); steps > 0; steps--) {
        dice = mixed(base + steps) | 1;
        step(&k);
    }
    enum cudaStreamCaptureMode global = cudaStreamCaptureModeGlobal;
    line(&k, "end");
    say(" exchange=%d", (int)cudaThreadExchangeStreamCaptureMode(&global));
    say(" r=%d", r = cudaStreamEndCapture(k.captured, &k.graph));
    if (r == 0 && k.graph)
        run_graph(&k);
    else
        say(" instantiate=none launch=none sync=none destroy=none copy=none content=none graph=none");
    /* A graph that was there before outlives a capture that failed on some drivers. */
    if (into && !k.graph)
        (void)cudaGraphDestroy(into);
    line(&k, "after");
    settle_all();
    for (int i = 0; i < VICTIMS; i++)
        say(" free=%d", k.victims[i] ? (int)cudaFree(k.victims[i]) : 0);
    /* How many there are depends on what was broken. */
    for (r = 0; k.count > 0; k.count--)
        r |= cudaFree(k.mine[k.count - 1]);
    for (; k.their_count > 0; k.their_count--)
        r |= cudaFree(k.theirs[k.their_count - 1]);
    say(" rest=%d target=%d source=%d", r, (int)cudaFree(k.target), (int)cudaFree(k.source));
    say(" streams=%d,%d,%d", (int)cudaStreamDestroy(k.captured), (int)cudaStreamDestroy(k.beside),
        (int)cudaStreamDestroy(k.other));
    say(" event=%d", (int)cudaEventDestroy(k.event));
    /* The last error is that of a call that the library lets succeed, or an earlier one. */
    in_thread(another(), foreign_last_error, &k);
    r = cudaGetLastError();
    if (!k.foreign)
        say(" last=%d,%d", r, k.result);
    line(&k, "done");
}

/* A capture that its stream's destruction ends: the library has to notice. */
static void op_capture_lost(void)
{
    int c = enter();
    if (c < 0)
        return;
    cudaStream_t s;
    void *p = NULL;
    settle_all();
    int r = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (r)
        return say(" r=%d", r);
    r = cudaStreamBeginCapture(s, (enum cudaStreamCaptureMode)roll(3));
    int d = cudaStreamDestroy(s), m = cudaMalloc(&p, any_size());
    releases++;
    say(" begin=%d destroy=%d malloc=%d synchronize=%d", r, d, m, (int)cudaDeviceSynchronize());
    say(" free=%d", (int)cudaFree(p));
}

#endif
