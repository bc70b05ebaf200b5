// build: shared static
/* A block freed while a stream still works on it, and allocated again for another stream: the
 * late work of the first owner must never land in the second owner's data. */
#include "kit.h"

enum { BYTES = 1 << 20 };

static kit_kernels k;

static void *free_it(void *p)
{
    kit_free(p, BYTES);
    return NULL;
}

/* The next owner writes 0x22 on a stream of its own and must find only that at the end. */
static void next_owner(const char *scenario, cudaStream_t s2)
{
    void *b = kit_malloc(BYTES);
    CHECK(cudaMemsetAsync(b, 0x22, BYTES, s2));
    CHECK(cudaDeviceSynchronize());
    printf("%s: wrong bytes %zu\n", scenario, kit_wrong_bytes(b, BYTES, 0x22));
    EXPECT_EQ(kit_wrong_bytes(b, BYTES, 0x22), 0);
    kit_free(b, BYTES);
}

static void kernel_then_free(const char *scenario, cudaStream_t s1, cudaStream_t s2, int other_thread)
{
    void *a = kit_malloc(BYTES);
    kit_fill(&k, s1, a, BYTES, 0x11111111, 200 * MS);
    if (other_thread)
        pthread_join(kit_thread(free_it, a), NULL);
    else
        kit_free(a, BYTES);
    next_owner(scenario, s2);
}

static void copy_then_free(cudaStream_t s1, cudaStream_t s2)
{
    void *host = kit_pinned(BYTES), *a = kit_malloc(BYTES);
    memset(host, 0x11, BYTES);
    kit_spin(&k, s1, 100 * MS);
    CHECK(cudaMemcpyAsync(a, host, BYTES, cudaMemcpyHostToDevice, s1));
    kit_free(a, BYTES);
    next_owner("copy behind a kernel, then free", s2);
    CHECK(cudaFreeHost(host));
}

static void graph_then_free(cudaStream_t s1, cudaStream_t s2)
{
    void *a = kit_malloc(BYTES);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s1, cudaStreamCaptureModeRelaxed));
    kit_spin(&k, s1, 100 * MS);
    kit_fill(&k, s1, a, BYTES, 0x11111111, 0);
    CHECK(cudaStreamEndCapture(s1, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, s1));
    kit_free(a, BYTES);
    next_owner("graph launch, then free", s2);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

/* X is freed under a stalled stream, its neighbours are free already, and a larger request
 * makes the pool join free blocks. X's memory is still not to be had. */
static void merging(cudaStream_t s1, cudaStream_t s2)
{
    enum { PART = 256 << 10, PARTS = 16 };
    void *parts[PARTS];
    for (int i = 0; i < PARTS; i++)
        parts[i] = kit_malloc(PART);
    void *x = parts[PARTS / 2];
    kit_spin(&k, s1, 200 * MS);
    CHECK(cudaMemsetAsync(x, 0x11, PART, s1));
    for (int i = 0; i < PARTS; i++)
        kit_free(parts[i], PART);
    size_t large = (size_t)PART * PARTS;
    void *big = kit_malloc(large), *again[PARTS];
    CHECK(cudaMemsetAsync(big, 0x22, large, s2));
    for (int i = 0; i < PARTS; i++) {
        again[i] = kit_malloc(PART);
        CHECK(cudaMemsetAsync(again[i], 0x33, PART, s2));
    }
    CHECK(cudaDeviceSynchronize());
    size_t wrong = kit_wrong_bytes(big, large, 0x22);
    for (int i = 0; i < PARTS; i++)
        wrong += kit_wrong_bytes(again[i], PART, 0x33);
    printf("a request that forces merging: wrong bytes %zu\n", wrong);
    EXPECT_EQ(wrong, 0);
    kit_free(big, large);
    for (int i = 0; i < PARTS; i++)
        kit_free(again[i], PART);
}

/* The stream is destroyed while its work is pending: the work is done all the same. */
static void destroyed_stream(cudaStream_t s2)
{
    cudaStream_t s1 = kit_stream();
    void *a = kit_malloc(BYTES);
    kit_fill(&k, s1, a, BYTES, 0x11111111, 100 * MS);
    CHECK(cudaStreamDestroy(s1));
    kit_free(a, BYTES);
    next_owner("stream destroyed before the free", s2);
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    k = kit_load();
    cudaStream_t s1 = kit_stream(), s2 = kit_stream(), blocking;
    CHECK(cudaStreamCreate(&blocking));
    /* One pass to have blocks in the pool, so that the second is served from it. */
    for (int pass = 0; pass < 2; pass++) {
        kernel_then_free("kernel on a non-blocking stream", s1, s2, 0);
        kernel_then_free("freed by another thread", s1, s2, 1);
        kernel_then_free("kernel on a blocking stream", blocking, s2, 0);
        kernel_then_free("kernel on the per-thread stream", cudaStreamPerThread, s2, 0);
        kernel_then_free("kernel on the legacy stream", cudaStreamLegacy, s2, 0);
        kernel_then_free("next owner on the per-thread stream", s1, cudaStreamPerThread, 0);
        copy_then_free(s1, s2);
        graph_then_free(s1, s2);
        merging(s1, s2);
        destroyed_stream(s2);
    }
    return 0;
}
