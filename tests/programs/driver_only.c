// build: driver
/* A program that uses the driver alone, linked to it. */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { ROUNDS = 2000, BYTES = 1 << 20 };

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUstream s;
    void *counter = NULL;
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDeviceGet(&device, 0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_CU(cuCtxSetCurrent(context));
    CHECK_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    kit_kernels k = kit_load();
    CHECK_CU(cuMemAllocHost(&counter, 8));
    *(uint64_t *)counter = 0;
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr p = 0;
        size_t bytes = BYTES + (size_t)(i % 5) * 3000;
        CHECK_CU(cuMemAlloc(&p, bytes));
        note_alloc((void *)(uintptr_t)p, bytes);
        kit_fill(&k, s, (void *)(uintptr_t)p, 65536, (uint32_t)i, 0);
        kit_check(&k, s, (void *)(uintptr_t)p, 65536, (uint32_t)i, (uint64_t *)counter, 0);
        note_free((void *)(uintptr_t)p, bytes);
        CHECK_CU(cuMemFree(p));
    }
    CHECK_CU(cuStreamSynchronize(s));
    printf("rounds %d wrong words %llu\n", ROUNDS, (unsigned long long)*(uint64_t *)counter);
    return *(uint64_t *)counter != 0;
}
