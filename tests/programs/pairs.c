// build: shared
/* What an allocation and its free cost: nanoseconds a pair, for each thread, by size and number
 * of threads. Each thread has a stream of its own.
 *   pairs [pairs a thread] [malloc|async]
 * Prints `WAY BYTES THREADS NANOSECONDS` lines; for the benchmark, checks nothing. */
#include "kit.h"

static size_t bytes;
static int count, async_calls;
static pthread_barrier_t start;

static void *worker(void *result)
{
    cudaStream_t s = kit_stream();
    struct timespec a, b;
    void *p = NULL;
    CHECK(cudaSetDevice(0));
    for (int i = -10; i < count; i++) {
        if (i == 0) {
            pthread_barrier_wait(&start);
            clock_gettime(CLOCK_MONOTONIC, &a);
        }
        if (async_calls) {
            CHECK(cudaMallocAsync(&p, bytes, s));
            CHECK(cudaFreeAsync(p, s));
        } else {
            CHECK(cudaMalloc(&p, bytes));
            CHECK(cudaFree(p));
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaStreamDestroy(s));
    *(double *)result = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / count;
    return NULL;
}

int main(int argc, char **argv)
{
    size_t sizes[] = {4096, MIB, 100 * MIB};
    int threads[] = {1, 4, 16};
    int all = argc > 1 ? atoi(argv[1]) : 1000;
    async_calls = argc > 2 && !strcmp(argv[2], "async");
    CHECK(cudaSetDevice(0));
    if (async_calls) { /* as a program does that wants these calls to be fast */
        cudaMemPool_t pool;
        unsigned long long keep = ~0ull;
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    }
    for (int z = 0; z < 3; z++)
        for (int t = 0; t < 3; t++) {
            pthread_t running[16];
            double ns[16], sum = 0;
            bytes = sizes[z];
            count = all / threads[t] > 50 ? all / threads[t] : 50;
            pthread_barrier_init(&start, NULL, (unsigned)threads[t]);
            for (int i = 0; i < threads[t]; i++)
                running[i] = kit_thread(worker, &ns[i]);
            for (int i = 0; i < threads[t]; i++) {
                pthread_join(running[i], NULL);
                sum += ns[i];
            }
            pthread_barrier_destroy(&start);
            printf("%s %zu %d %.0f\n", async_calls ? "async" : "malloc", bytes, threads[t], sum / threads[t]);
            fflush(stdout);
        }
    return 0;
}
