// build: shared static
/* What cudaMemGetInfo reports: never more free memory while nothing was freed, and what it
 * reports can be had: by cudaMalloc, and by the driver's other allocators in the process. */
#include "kit.h"

static size_t free_bytes(void)
{
    size_t available = 0, total = 0;
    CHECK(cudaMemGetInfo(&available, &total));
    EXPECT(available <= total && total > 0);
    return available;
}

static void readings_around_traffic(void)
{
    void *held[40];
    size_t before = free_bytes(), last;
    int rises = 0;
    for (int i = 0; i < 500; i++) { /* leaves blocks in a cache */
        void *p = kit_malloc(MIB + (size_t)(i % 7) * 300000);
        kit_free(p, MIB + (size_t)(i % 7) * 300000);
    }
    CHECK(cudaDeviceSynchronize());
    last = free_bytes();
    for (int i = 0; i < 40; i++) {
        held[i] = kit_malloc(3 * MIB);
        size_t now = free_bytes();
        rises += now > last;
        last = now;
    }
    printf("rises while nothing was freed: %d\n", rises);
    printf("what is held is missing: %d\n", last + 40 * 3 * MIB <= before + 2 * MIB);
    EXPECT_EQ(rises, 0);
    for (int i = 0; i < 40; i++)
        kit_free(held[i], 3 * MIB);
    CHECK(cudaDeviceSynchronize());
}

/* Nine tenths of what is reported, in one piece and in eight. */
static void reported_can_be_had(const char *scenario)
{
    void *parts[8];
    size_t all = free_bytes() / 10 * 9;
    void *p = kit_malloc(all);
    CHECK(cudaMemset(p, 1, MIB));
    kit_free(p, all);
    CHECK(cudaDeviceSynchronize());
    size_t part = free_bytes() / 10 * 9 / 8;
    for (int i = 0; i < 8; i++)
        parts[i] = kit_malloc(part);
    for (int i = 0; i < 8; i++)
        kit_free(parts[i], part);
    CHECK(cudaDeviceSynchronize());
    printf("%s: nine tenths of it can be had\n", scenario);
}

static void fill_cache(size_t eighty_percent)
{
    void *parts[8];
    for (int i = 0; i < 8; i++)
        parts[i] = kit_malloc(eighty_percent / 8);
    for (int i = 0; i < 8; i++)
        kit_free(parts[i], eighty_percent / 8);
    CHECK(cudaDeviceSynchronize());
}

/* Most of the device is cached; another allocator of the process needs as much. */
static void others_get_it(void)
{
    size_t available = free_bytes(), most = available / 10 * 6;
    cudaStream_t s = kit_stream();
    void *p = NULL;
    fill_cache(available / 10 * 8);
    CHECK(cudaMallocAsync(&p, most, s));
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamSynchronize(s));
    cudaMemPool_t pool;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolTrimTo(pool, 0));
    printf("stream-ordered allocation of most of the device: ok\n");

    fill_cache(available / 10 * 8);
    CUdeviceptr d = 0;
    CHECK_CU(DRV(cuMemAlloc)(&d, most));
    CHECK_CU(DRV(cuMemFree)(d));
    printf("driver allocation of most of the device: ok\n");
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    size_t only = 1;
    printf("no outputs: %d, ", (int)cudaMemGetInfo(NULL, NULL));
    printf("only the total: %d, ", (int)cudaMemGetInfo(NULL, &only));
    printf("last error %d\n", (int)cudaGetLastError());
    readings_around_traffic();
    reported_can_be_had("after small traffic");
    fill_cache(free_bytes() / 10 * 8);
    reported_can_be_had("with most of it cached");
    others_get_it();
    return 0;
}
