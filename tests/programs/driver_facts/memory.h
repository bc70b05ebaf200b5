/* Errors, addresses, ranges. */
#ifndef FACTS_MEMORY_H
#define FACTS_MEMORY_H

#include "common.h"

static void errors_of_device_memory(void)
{
    char *p = NULL, *kept = (char *)0x1234;
    CHECK(cudaMalloc((void **)&p, 1 << 20));
    fact("cudaFree of an interior pointer", cudaFree(p + 512), 1);
    fact("the last error after it", cudaGetLastError(), 1);
    fact("the last error is then gone", cudaGetLastError(), 0);
    fact("cudaFree of a block", code_of(cudaFree(p)), 0);
    fact("cudaFree of garbage", code_of(cudaFree((void *)0x123456789000)), 1);
    fact("cudaFree(NULL)", code_of(cudaFree(NULL)), 0);
    fact("cudaMalloc to NULL", code_of(cudaMalloc(NULL, 256)), 1);
    fact("cudaMalloc of 0 bytes", code_of(cudaMalloc((void **)&p, 0)), 0);
    fact("cudaMalloc of 2^50 bytes", code_of(cudaMalloc((void **)&kept, (size_t)1 << 50)), 2);
    fact("its output is 0", kept == NULL, 1);
    CUdeviceptr d = 0;
    fact("cuMemAlloc of 0 bytes", cuMemAlloc(&d, 0), 1);
    fact("cuMemFree(0)", cuMemFree(0), 0);

    char *a = NULL;
    CHECK(cudaMalloc((void **)&a, 1000));
    fact("cudaMemset of a whole block", code_of(cudaMemset(a, 1, 1000)), 0);
    fact("cudaMemset past the end", code_of(cudaMemset(a, 1, 1001)), 1);
    static char host[2048];
    fact("cudaMemcpy past the end", code_of(cudaMemcpy(host, a, 1001, cudaMemcpyDeviceToHost)), 1);
    fact("cudaMemcpy from inside past the end",
         code_of(cudaMemcpy(host, a + 999, 2, cudaMemcpyDeviceToHost)), 1);
    CHECK(cudaFree(a));
}

static void errors_of_a_second_free(void)
{
    void *p = NULL;
    CHECK(cudaMalloc(&p, 3 << 20));
    CHECK(cudaFree(p));
    fact("cudaFree of a freed pointer", code_of(cudaFree(p)), 1);
}

static void crosses(void)
{
    void *p = NULL;
    CHECK(cudaMallocAsync(&p, 5000, 0));
    fact("cudaFree of a cudaMallocAsync pointer", code_of(cudaFree(p)), 0);
    CHECK(cudaMalloc(&p, 5000));
    fact("cudaFreeAsync of a cudaMalloc pointer", code_of(cudaFreeAsync(p, 0)), 0);
    CHECK(cudaDeviceSynchronize());
    cudaMemPool_t pool;
    unsigned long long threshold = 1;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    fact("release threshold of the default pool", (long long)threshold, 0);
}

static void pitched_and_pinned(void)
{
    void *p = NULL;
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&p, &pitch, 1000, 10));
    fact("pitch of 1000 bytes", (long long)pitch, 1024);
    CHECK(cudaFree(p));
    CHECK(cudaMallocPitch(&p, &pitch, 1024, 10));
    fact("pitch of 1024 bytes", (long long)pitch, 1024);
    CHECK(cudaFree(p));

    char *h = NULL;
    CHECK(cudaHostAlloc((void **)&h, 10000, cudaHostAllocMapped));
    unsigned int flags = 0;
    fact("flags of an interior pinned pointer", code_of(cudaHostGetFlags(&flags, h + 5000)), 0);
    struct cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, h + 5000));
    fact("type of an interior pinned pointer", attributes.type, cudaMemoryTypeHost);
    fact("cudaFreeHost of an interior pointer", code_of(cudaFreeHost(h + 512)), 1);
    fact("cudaFreeHost", code_of(cudaFreeHost(h)), 0);
}

static void addresses(void)
{
    static const size_t sizes[] = {1, 511, 512, 513, 4096, 100000, 1 << 20};
    int misaligned = 0, inexact = 0, repeated = 0;
    unsigned long long last_id = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr p = 0, base = 0, start = 0;
        size_t size = 0, range = 0;
        unsigned long long id = 0;
        CHECK_CU(cuMemAlloc(&p, sizes[i]));
        misaligned += p % 512 != 0;
        CHECK_CU(cuMemGetAddressRange(&base, &size, p + sizes[i] - 1));
        CHECK_CU(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p));
        CHECK_CU(cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p));
        CHECK_CU(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
        inexact += base != p || size != sizes[i] || start != p || range != sizes[i];
        repeated += id == last_id;
        last_id = id;
        CHECK_CU(cuMemFree(p));
    }
    fact("small blocks not on 512 bytes", misaligned, 0);
    fact("small blocks with inexact ranges", inexact, 0);
    fact("buffer ids used again", repeated, 0);

    misaligned = inexact = 0;
    for (int i = 0; i < 8; i++) {
        CUdeviceptr p = 0, base = 0;
        size_t size = 0, want = (1 << 20) + 1 + (size_t)i * 700001;
        CHECK_CU(cuMemAlloc(&p, want));
        misaligned += p % (2 << 20) != 0;
        CHECK_CU(cuMemGetAddressRange(&base, &size, p + want / 2));
        inexact += base != p || size != want;
        CHECK_CU(cuMemFree(p));
    }
    fact("large blocks not on 2 MiB", misaligned, 0);
    fact("large blocks with inexact ranges", inexact, 0);
}

enum { MANY = 100 };

static long long mib_used_by(size_t size)
{
    CUdeviceptr p[MANY];
    size_t before = 0, after = 0, total = 0;
    CHECK_CU(cuMemGetInfo(&before, &total));
    for (int i = 0; i < MANY; i++)
        CHECK_CU(cuMemAlloc(&p[i], size));
    CHECK_CU(cuMemGetInfo(&after, &total));
    for (int i = 0; i < MANY; i++)
        CHECK_CU(cuMemFree(p[i]));
    return (long long)((before - after) >> 20);
}

static void pages(void)
{
    fact("MiB used by 100 blocks of 1 MiB + 1", mib_used_by((1 << 20) + 1), 200);
    fact("MiB used by 100 blocks of 3 MiB", mib_used_by(3 << 20), 400);
}

static void after_reset(void)
{
    void *p = NULL;
    CHECK(cudaMalloc(&p, 4096));
    fact("cudaDeviceReset", code_of(cudaDeviceReset()), 0);
    fact("cudaFree of an older pointer", code_of(cudaFree(p)), 1);
    fact("cudaMalloc after a reset", code_of(cudaMalloc(&p, 4096)), 0);
    CHECK(cudaFree(p));
}

static void after_fault(void)
{
    void *p = NULL;
    size_t free_bytes, total;
    cudaEvent_t event;
    CUcontext context;
    CHECK(cudaMalloc(&p, 4096));
    CHECK_CU(cuCtxGetCurrent(&context));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaEventRecord(event, 0));
    CHECK_CU(kit_launch(kernels.fault, 1, 1, 0, (void *[]){NULL}));
    fact("cudaDeviceSynchronize after a fault", code_of(cudaDeviceSynchronize()), 700);
    void *q = NULL;
    fact("cudaMalloc after a fault", code_of(cudaMalloc(&q, 4096)), 700);
    fact("cudaFree after a fault", code_of(cudaFree(p)), 700);
    fact("cudaFree(NULL) after a fault", code_of(cudaFree(NULL)), 700);
    fact("cudaMemGetInfo after a fault", code_of(cudaMemGetInfo(&free_bytes, &total)), 700);
    fact("cuCtxRecordEvent after a fault", cuCtxRecordEvent(context, event), 700);
    fact("cuEventQuery after a fault", cuEventQuery(event), 700);
    fact("cudaDeviceReset after a fault", code_of(cudaDeviceReset()), 0);
    fact("cudaMalloc after that", code_of(cudaMalloc(&q, 4096)), 46);
}

#endif
