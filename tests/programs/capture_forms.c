// build: shared static
/* Captures begun by every function there is, on created and per-thread streams, two at a time, over
 * several streams joined by events, and one that ends with its context: allocations before, in and
 * after them answer as without a pool, and what a graph writes to is handed to nobody else.
 *
 * Lines as in capture.c: `same …`, and `maybe-better …` for calls of another thread.
 *
 *   capture_forms [context]    context: only the one that ends with its context */
#include "kit.h"

enum { BYTES = 256 << 10 };

static kit_kernels k;
static uint64_t *errors;

typedef CUresult (*begin_old)(CUstream);
typedef CUresult (*begin_mode)(CUstream, CUstreamCaptureMode);
typedef CUresult (*begin_graph)(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                                CUstreamCaptureMode);
typedef CUresult (*end_capture)(CUstream, CUgraph *);

static void *look_up(const char *name)
{
    return kit_symbol(kit_driver()->library, name);
}

static void traffic(void)
{
    for (int i = 0; i < 20; i++) {
        void *p = NULL;
        CHECK(cudaMalloc(&p, BYTES));
        CHECK(cudaMemset(p, 0x77, BYTES));
        CHECK(cudaFree(p));
    }
    CHECK(cudaDeviceSynchronize());
}

static void replay(CUgraph graph, cudaStream_t s)
{
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, (cudaGraph_t)graph, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
        traffic();
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy((cudaGraph_t)graph));
}

/* Begins on `s` by `name`; 0 if it went well. */
static int begin(const char *name, CUstream s, CUstreamCaptureMode mode, CUgraph *into)
{
    void *f = look_up(name);
    *into = NULL;
    if (strstr(name, "ToGraph")) {
        begin_graph call;
        *(void **)&call = f;
        CHECK(cudaGraphCreate((cudaGraph_t *)into, 0));
        return (int)call(s, *into, NULL, NULL, 0, mode);
    }
    if (strstr(name, "_v2")) {
        begin_mode call;
        *(void **)&call = f;
        return (int)call(s, mode);
    }
    begin_old call; /* always global */
    *(void **)&call = f;
    return (int)call(s);
}

/* A free and an allocation of a block of this size, in a thread of their own if asked for. */
typedef struct {
    void *block, *again;
    int freed, allocated;
} pair;

static void *do_pair(void *argument)
{
    pair *p = (pair *)argument;
    p->freed = (int)cudaFree(p->block);
    p->allocated = (int)cudaMalloc(&p->again, BYTES);
    cudaGetLastError();
    return NULL;
}

static void one(const char *name, const char *end_name, int created, CUstreamCaptureMode mode, int other_thread)
{
    cudaStream_t s = created ? kit_stream() : cudaStreamPerThread;
    /* The per-thread forms mean the per-thread stream by NULL. */
    CUstream raw = created ? (CUstream)s : NULL;
    CUgraph into, graph = NULL;
    end_capture end;
    void *used = NULL;
    pair p = {NULL, NULL, -1, -1};
    CHECK(cudaMalloc(&used, BYTES));
    CHECK(cudaMalloc(&p.block, BYTES));
    traffic();
    *(void **)&end = look_up(end_name);
    int begun = begin(name, raw, mode, &into);
    kit_fill(&k, (CUstream)s, used, BYTES, 0x11111111, 0);
    kit_check(&k, (CUstream)s, used, BYTES, 0x11111111, errors, 0);
    if (other_thread)
        pthread_join(kit_thread(do_pair, &p), NULL);
    else
        do_pair(&p);
    int ended = (int)end(raw, &graph);
    int global = strstr(name, "_v2") || strstr(name, "ToGraph") ? mode == CU_STREAM_CAPTURE_MODE_GLOBAL : 0;
    printf("%s %s %s, mode %d, %s: begin %d free %d alloc %d end %d\n",
           other_thread && global ? "maybe-better" : "same", name, created ? "created-stream" : "per-thread-stream",
           (int)mode, other_thread ? "other-thread" : "same-thread", begun, p.freed, p.allocated, ended);
    cudaGetLastError();
    if (ended == 0 && graph)
        replay(graph, s);
    /* After a failed end the driver has destroyed `into` as well: to do it again crashes or hangs. */
    cudaGetLastError();
    CHECK(cudaDeviceSynchronize());
    if (p.freed)
        CHECK(cudaFree(p.block));
    if (p.allocated == 0)
        CHECK(cudaFree(p.again));
    CHECK(cudaFree(used));
    if (created)
        CHECK(cudaStreamDestroy(s));
}

static void many_pairs(void)
{
    for (int i = 0; i < 300; i++) {
        void *p = NULL;
        CHECK(cudaMalloc(&p, BYTES));
        CHECK(cudaFree(p));
    }
}

/* Relaxed captures in two streams at once: fences have to wait for the end of both. */
static void two_at_once(void)
{
    cudaStream_t a = kit_stream(), b = kit_stream();
    cudaGraph_t first = NULL, second = NULL;
    void *used = NULL;
    CHECK(cudaMalloc(&used, BYTES));
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    CHECK(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed));
    kit_fill(&k, (CUstream)a, used, BYTES, 0x22222222, 0);
    kit_check(&k, (CUstream)b, used, BYTES, 0x22222222, errors, 0);
    many_pairs();
    int one = (int)cudaStreamEndCapture(a, &first);
    many_pairs();
    int other = (int)cudaStreamEndCapture(b, &second);
    printf("same two captures at once: %d, %d\n", one, other);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, first, 0));
    CHECK(cudaGraphLaunch(exec, a));
    CHECK(cudaStreamSynchronize(a));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphInstantiate(&exec, second, 0));
    CHECK(cudaGraphLaunch(exec, b));
    CHECK(cudaStreamSynchronize(b));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(first));
    CHECK(cudaGraphDestroy(second));
    CHECK(cudaFree(used));
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
}

/* A graph is captured again (CUDA 13.3), with the same nodes. */
static void recaptured(const char *name, const char *end_name, CUstreamCaptureMode mode)
{
    CUresult (*again)(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);
    end_capture end;
    cudaStream_t s = kit_stream();
    cudaGraph_t graph = NULL;
    void *used = NULL;
    *(void **)&again = dlsym(kit_driver()->library, name);
    *(void **)&end = look_up(end_name);
    if (!again) {
        printf("same no %s\n", name);
        CHECK(cudaStreamDestroy(s));
        return;
    }
    CHECK(cudaMalloc(&used, BYTES));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    kit_fill(&k, (CUstream)s, used, BYTES, 0x44444444, 0);
    CHECK(cudaStreamEndCapture(s, &graph));
    traffic();
    int begun = (int)again((CUstream)s, mode, (CUgraph)graph, NULL, NULL);
    kit_fill(&k, (CUstream)s, used, BYTES, 0x55555555, 0);
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        many_pairs();
    else
        EXPECT_EQ(cudaMalloc(&(void *){NULL}, BYTES), cudaErrorStreamCaptureUnsupported);
    int ended = (int)end((CUstream)s, (CUgraph *)&graph);
    printf("same %s, mode %d: begin %d, end %d\n", name, (int)mode, begun, ended);
    cudaGetLastError();
    if (ended == 0)
        replay((CUgraph)graph, s);
    CHECK(cudaFree(used));
    CHECK(cudaStreamDestroy(s));
}

/* A capture into a graphics library's commands (CUDA 13.1), on the simulated driver only. */
static void captured_for_graphics(const char *name, const char *end_name)
{
    CUresult (*start)(CUstream, void *), (*end)(CUstream);
    cudaStream_t s = kit_stream();
    uint64_t params[16] = {0};
    void *used = NULL;
    *(void **)&start = dlsym(kit_driver()->library, name);
    *(void **)&end = dlsym(kit_driver()->library, end_name);
    /* A real driver would read what the graphics library has to give. */
    int begun = start && kit_driver()->note_alloc ? (int)start((CUstream)s, params) : -1, ended = -1;
    if (begun == 0) {
        CHECK(cudaMalloc(&used, BYTES));
        kit_fill(&k, (CUstream)s, used, BYTES, 0x66666666, 0);
        many_pairs();
        ended = (int)end((CUstream)s);
        many_pairs();
        CHECK(cudaFree(used));
    }
    printf("same %s: begin %d, end %d\n", name, begun, ended);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamDestroy(s));
}

/* A second stream joins the capture by an event: it captures without a begin of its own. */
static void joined_stream(void)
{
    cudaStream_t a = kit_stream(), b = kit_stream();
    cudaEvent_t fork, join;
    cudaGraph_t graph = NULL;
    void *used = NULL, *p = NULL;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK(cudaMalloc(&used, BYTES));
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    CHECK(cudaEventRecord(fork, a));
    CHECK(cudaStreamWaitEvent(b, fork, 0));
    kit_fill(&k, (CUstream)b, used, BYTES, 0x33333333, 0);
    CHECK(cudaMalloc(&p, BYTES));
    int in_joined = (int)cudaFreeAsync(p, b); /* of memory that no graph allocated */
    cudaGetLastError();
    CHECK(cudaEventRecord(join, b));
    CHECK(cudaStreamWaitEvent(a, join, 0));
    kit_check(&k, (CUstream)a, used, BYTES, 0x33333333, errors, 0);
    int ended = (int)cudaStreamEndCapture(a, &graph);
    printf("same joined stream: free in its order %d, end %d\n", in_joined, ended);
    cudaGetLastError();
    if (ended == 0)
        replay((CUgraph)graph, a);
    CHECK(cudaDeviceSynchronize());
    if (in_joined)
        CHECK(cudaFree(p));
    CHECK(cudaFree(used));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
}

/* A context is destroyed with a capture open in it; elsewhere all goes on. */
static void ended_with_its_context(void)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    CUcontext c, primary = NULL, popped;
    CUstream s;
    begin_mode start;
    *(void **)&create = look_up("cuCtxCreate_v2");
    *(void **)&start = look_up("cuStreamBeginCapture_v2");
    CHECK_CU(DRV(cuCtxGetCurrent)(&primary));
    CHECK_CU(create(&c, 0, 0));
    CHECK_CU(DRV(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
    CHECK_CU(start(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_CU(DRV(cuCtxDestroy)(c));
    CHECK_CU(DRV(cuCtxGetCurrent)(&popped));
    CHECK_CU(DRV(cuCtxSetCurrent)(primary));
    for (int i = 0; i < 20; i++)
        traffic();
    printf("same after a context that ended with a capture open: ok\n");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *begin, *end;
        int created;
    } forms[] = {
        {"cuStreamBeginCapture", "cuStreamEndCapture", 1},
        {"cuStreamBeginCapture_v2", "cuStreamEndCapture", 1},
        {"cuStreamBeginCaptureToGraph", "cuStreamEndCapture", 1},
        {"cuStreamBeginCapture_ptsz", "cuStreamEndCapture_ptsz", 1},
        {"cuStreamBeginCapture_v2_ptsz", "cuStreamEndCapture_ptsz", 0},
        {"cuStreamBeginCapture_v2_ptsz", "cuStreamEndCapture_ptsz", 1},
        {"cuStreamBeginCaptureToGraph_ptsz", "cuStreamEndCapture_ptsz", 0},
    };
    CHECK(cudaSetDevice(0));
    k = kit_load();
    errors = (uint64_t *)kit_pinned(sizeof *errors);
    if (argc > 1 && !strcmp(argv[1], "context")) {
        ended_with_its_context();
        return 0;
    }
    for (unsigned f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int mode = 0; mode < 3; mode++)
            for (int other = 0; other < 2; other++)
                one(forms[f].begin, forms[f].end, forms[f].created, (CUstreamCaptureMode)mode, other);
    two_at_once();
    joined_stream();
    for (int mode = 0; mode < 3; mode++) {
        recaptured("cuStreamBeginRecaptureToGraph", "cuStreamEndCapture", (CUstreamCaptureMode)mode);
        recaptured("cuStreamBeginRecaptureToGraph_ptsz", "cuStreamEndCapture_ptsz", (CUstreamCaptureMode)mode);
    }
    captured_for_graphics("cuStreamBeginCaptureToCig", "cuStreamEndCaptureToCig");
    captured_for_graphics("cuStreamBeginCaptureToCig_ptsz", "cuStreamEndCaptureToCig_ptsz");
    printf("same wrong words in replays: %llu\n", (unsigned long long)*errors);
    EXPECT_EQ(*errors, 0);
    return 0;
}
