// build: shared static
/* Allocations and frees while a stream is being captured: every capture mode, in the capturing
 * thread and in another one.
 *
 * A line `same …` is the same with and without the pool. In a line `maybe-better …` the pool
 * may give 0 where natively an error stands (the call succeeds and the capture survives), never
 * the reverse. */
#include "kit.h"

enum { BYTES = 1 << 20 };

typedef enum { ALLOC_NEW, ALLOC_AGAIN, FREE, FREE_BUSY, ALLOC_PITCHED, MEM_INFO, OPERATIONS } operation;
static const char *const operation_names[] = {"alloc-new", "alloc-again", "free",
                                              "free-busy", "alloc-pitched", "mem-info"};
static const char *const mode_names[] = {"global", "thread-local", "relaxed"};

static kit_kernels k;
static uint64_t *errors;

typedef struct {
    operation what;
    void *block;  /* to be freed; or what was allocated */
    size_t bytes; /* its size */
    cudaError_t code;
} job;

static void do_job(job *j)
{
    size_t pitch, total, available;
    switch (j->what) {
    case ALLOC_NEW:
    case ALLOC_AGAIN:
        j->code = cudaMalloc(&j->block, j->bytes);
        break;
    case ALLOC_PITCHED:
        j->code = cudaMallocPitch(&j->block, &pitch, 1000, 100);
        break;
    case MEM_INFO:
        j->code = cudaMemGetInfo(&available, &total);
        break;
    default:
        j->code = cudaFree(j->block);
        break;
    }
}

static void *do_job_thread(void *j)
{
    CHECK(cudaSetDevice(0));
    do_job((job *)j);
    return NULL;
}

static void one(enum cudaStreamCaptureMode mode, operation what, int other_thread)
{
    static size_t new_size = 9 * MIB;
    cudaStream_t s = kit_stream(), busy = kit_stream();
    void *used = NULL;
    job j = {what, NULL, BYTES, cudaSuccess};
    CHECK(cudaMalloc(&used, BYTES));
    if (what == FREE || what == FREE_BUSY)
        CHECK(cudaMalloc(&j.block, BYTES));
    if (what == ALLOC_AGAIN) {
        CHECK(cudaMalloc(&j.block, BYTES));
        CHECK(cudaFree(j.block));
        j.block = NULL;
        CHECK(cudaDeviceSynchronize());
    }
    if (what == ALLOC_NEW)
        j.bytes = new_size += 2 * MIB;
    if (what == FREE_BUSY)
        kit_fill(&k, busy, j.block, BYTES, 7, 20 * MS);

    cudaGraph_t graph = NULL;
    CHECK(cudaStreamBeginCapture(s, mode));
    kit_fill(&k, s, used, BYTES, 0x11111111, 0);
    kit_check(&k, s, used, BYTES, 0x11111111, errors, 0);
    if (other_thread)
        pthread_join(kit_thread(do_job_thread, &j), NULL);
    else
        do_job(&j);
    cudaError_t ended = cudaStreamEndCapture(s, &graph);
    int strict = !other_thread && mode != cudaStreamCaptureModeRelaxed;
    printf("%s %s %s %s: call %d capture %d\n", strict ? "same" : "maybe-better", mode_names[mode],
           other_thread ? "other-thread" : "same-thread", operation_names[what], (int)j.code, (int)ended);
    cudaGetLastError();

    if (ended == cudaSuccess) {
        cudaGraphExec_t exec;
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        for (int i = 0; i < 3; i++) {
            CHECK(cudaGraphLaunch(exec, s));
            CHECK(cudaStreamSynchronize(s));
            /* Eager traffic between the replays must not get the graph's memory. */
            void *p = NULL;
            CHECK(cudaMalloc(&p, BYTES));
            CHECK(cudaMemset(p, 0x77, BYTES));
            CHECK(cudaFree(p));
        }
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    CHECK(cudaDeviceSynchronize());
    int frees = what == FREE || what == FREE_BUSY;
    if (j.block && (frees ? j.code != cudaSuccess : j.code == cudaSuccess))
        CHECK(cudaFree(j.block));
    CHECK(cudaFree(used));
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaStreamDestroy(busy));
}

/* A capture can end by its stream's destruction, and an end on the wrong stream ends nothing. */
static void odd_ends(void)
{
    cudaGraph_t graph = NULL;
    cudaStream_t s = kit_stream(), wrong = kit_stream();
    void *p = NULL;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    cudaError_t code = cudaStreamEndCapture(wrong, &graph);
    printf("same end on the wrong stream: %d\n", (int)code);
    cudaGetLastError();
    CHECK(cudaMalloc(&p, BYTES));
    CHECK(cudaFree(p));
    code = cudaStreamEndCapture(s, &graph);
    printf("same end on the right stream: %d\n", (int)code);
    if (code == cudaSuccess && graph)
        CHECK(cudaGraphDestroy(graph));
    cudaGetLastError();

    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    printf("same capturing stream destroyed: %d\n", (int)cudaStreamDestroy(s));
    cudaGetLastError();
    for (int i = 0; i < 100; i++) {
        CHECK(cudaMalloc(&p, BYTES));
        kit_fill(&k, wrong, p, BYTES, 5, 0);
        CHECK(cudaFree(p));
    }
    CHECK(cudaDeviceSynchronize());
    printf("same after the capturing stream's destruction: ok\n");
    CHECK(cudaStreamDestroy(wrong));
}

/* A free and its fence are pending when a capture begins; the capture is long, and allocation
 * goes on in another thread all the time (legal natively: the mode is thread-local). */
static void *allocate_a_lot(void *stop)
{
    uint64_t rng = 99;
    cudaStream_t s = kit_stream();
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < 20000 && !__atomic_load_n((int *)stop, __ATOMIC_ACQUIRE); i++) {
        size_t bytes = kit_random_size(&rng, BYTES);
        void *p = NULL;
        CHECK(cudaMalloc(&p, bytes));
        kit_fill(&k, s, p, bytes, (uint32_t)i, 0);
        kit_check(&k, s, p, bytes, (uint32_t)i, errors, 0);
        /* Natively a free waits for the stream, which is legal here too. */
        CHECK(cudaFree(p));
    }
    CHECK(cudaStreamSynchronize(s));
    return NULL;
}

static void long_capture(void)
{
    int stop = 0, broken = 0;
    cudaStream_t s = kit_stream();
    void *used = NULL;
    CHECK(cudaMalloc(&used, BYTES));
    pthread_t t = kit_thread(allocate_a_lot, &stop);
    for (int i = 0; i < 20; i++) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        kit_fill(&k, s, used, BYTES, (uint32_t)i, 0);
        kit_sleep_ms(5);
        kit_check(&k, s, used, BYTES, (uint32_t)i, errors, 0);
        if (cudaStreamEndCapture(s, &graph) != cudaSuccess) {
            broken++;
            cudaGetLastError();
            continue;
        }
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(t, NULL);
    CHECK(cudaFree(used));
    printf("same thread-local captures broken by another thread's traffic: %d\n", broken);
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    k = kit_load();
    errors = (uint64_t *)kit_pinned(sizeof *errors);
    for (int other = 1; other >= 0; other--)
        for (int mode = 0; mode < 3; mode++)
            for (int what = 0; what < OPERATIONS; what++)
                one((enum cudaStreamCaptureMode)mode, (operation)what, other);
    odd_ends();
    long_capture();
    printf("same wrong words in replays: %llu\n", (unsigned long long)*errors);
    EXPECT_EQ(*errors, 0);
    return 0;
}
