// build: shared static
/* Thousands of short-lived buffers of mixed sizes, as a training loop makes them, by the runtime
 * and by the driver in one process, on several streams, each checked.  churn [iterations] */
#include "kit.h"

enum { LIVE = 64 };

int main(int argc, char **argv)
{
    int iterations = argc > 1 ? atoi(argv[1]) : 5000;
    uint64_t rng = 20240607;
    struct {
        void *p;
        size_t bytes;
        int by_driver;
    } live[LIVE];
    memset(live, 0, sizeof live);
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    uint64_t *errors = (uint64_t *)kit_pinned(sizeof *errors);
    cudaStream_t s[4] = {kit_stream(), kit_stream(), cudaStreamPerThread, cudaStreamLegacy};
    uint64_t sum = 0;
    for (int i = 0; i < iterations; i++) {
        int slot = (int)(kit_random(&rng) % LIVE);
        if (live[slot].p) {
            note_free(live[slot].p, live[slot].bytes);
            if (live[slot].by_driver)
                CHECK_CU(DRV(cuMemFree)((CUdeviceptr)(uintptr_t)live[slot].p));
            else
                CHECK(cudaFree(live[slot].p));
        }
        live[slot].bytes = kit_random_size(&rng, 4 * MIB);
        live[slot].by_driver = kit_random(&rng) % 3 == 0;
        if (live[slot].by_driver)
            CHECK_CU(DRV(cuMemAlloc)((CUdeviceptr *)&live[slot].p, live[slot].bytes));
        else
            CHECK(cudaMalloc(&live[slot].p, live[slot].bytes));
        note_alloc(live[slot].p, live[slot].bytes);
        size_t window = live[slot].bytes < 65536 ? live[slot].bytes : 65536;
        kit_fill(&k, s[i % 4], live[slot].p, window, (uint32_t)i, 0);
        kit_check(&k, s[i % 4], live[slot].p, window, (uint32_t)i, errors, 0);
        sum += live[slot].bytes;
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < LIVE; i++)
        if (live[i].p)
            kit_free(live[i].p, live[i].bytes);
    printf("buffers %d bytes %llu wrong words %llu\n", iterations, (unsigned long long)sum,
           (unsigned long long)*errors);
    return *errors != 0;
}
