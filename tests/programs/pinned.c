// build: shared static
/* Pinned host memory that is freed while the GPU still reads it, and allocated again: the CPU
 * may write to the new memory at once, and the GPU must have read the old bytes. */
#include "kit.h"

enum { BYTES = 1 << 20 };

static kit_kernels k;

static void copy_from(const char *scenario, unsigned flags, int other_thread);

static void *free_host(void *p)
{
    CHECK(cudaFreeHost(p));
    return NULL;
}

static void copy_from(const char *scenario, unsigned flags, int other_thread)
{
    void *h, *h2, *d = kit_malloc(BYTES);
    cudaStream_t s = kit_stream();
    CHECK(cudaHostAlloc(&h, BYTES, flags));
    memset(h, 1, BYTES);
    kit_spin(&k, s, 200 * MS);
    CHECK(cudaMemcpyAsync(d, h, BYTES, cudaMemcpyHostToDevice, s));
    if (other_thread)
        pthread_join(kit_thread(free_host, h), NULL);
    else
        CHECK(cudaFreeHost(h));
    CHECK(cudaHostAlloc(&h2, BYTES, flags));
    memset(h2, 2, BYTES);
    CHECK(cudaDeviceSynchronize());
    printf("%s: wrong bytes %zu\n", scenario, kit_wrong_bytes(d, BYTES, 1));
    EXPECT_EQ(kit_wrong_bytes(d, BYTES, 1), 0);
    CHECK(cudaFreeHost(h2));
    CHECK(cudaStreamDestroy(s));
    kit_free(d, BYTES);
}

static void read_by_a_kernel(void)
{
    uint64_t *errors = (uint64_t *)kit_pinned(sizeof *errors);
    void *h = kit_pinned(BYTES), *h2;
    cudaStream_t s = kit_stream();
    memset(h, 1, BYTES);
    kit_check(&k, s, h, BYTES, 0x01010101, errors, 200 * MS);
    CHECK(cudaFreeHost(h));
    h2 = kit_pinned(BYTES);
    memset(h2, 2, BYTES);
    CHECK(cudaDeviceSynchronize());
    printf("read by a kernel: wrong words %llu\n", (unsigned long long)*errors);
    EXPECT_EQ(*errors, 0);
    CHECK(cudaFreeHost(h2));
    CHECK(cudaFreeHost(errors));
    CHECK(cudaStreamDestroy(s));
}

/* Flags and device address are those of the allocation asked for, also the second time. */
static void flags_answer(void)
{
    unsigned wanted[] = {cudaHostAllocDefault, cudaHostAllocPortable | cudaHostAllocMapped,
                         cudaHostAllocWriteCombined | cudaHostAllocMapped};
    for (int pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
            char *h;
            void *device;
            unsigned flags = 99;
            CHECK(cudaHostAlloc((void **)&h, 3 * 4096, wanted[i]));
            CHECK(cudaHostGetFlags(&flags, h + 5000));
            CHECK(cudaHostGetDevicePointer(&device, h + 5000, 0));
            printf("flags %u: %u, same address %d, interior free %d", wanted[i], flags,
                   device == (void *)(h + 5000), (int)cudaFreeHost(h + 4096));
            printf(", last error %d\n", (int)cudaGetLastError());
            CHECK(cudaFreeHost(h));
        }
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    k = kit_load();
    copy_from("copy from it, then free", cudaHostAllocDefault, 0);
    copy_from("freed by another thread", cudaHostAllocPortable, 1);
    copy_from("again", cudaHostAllocDefault, 0);
    read_by_a_kernel();
    flags_answer();
    return 0;
}
