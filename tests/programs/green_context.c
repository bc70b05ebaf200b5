// build: driver
/* Streams of a green context work on blocks of the primary one: a block freed under such a
 * stream is not handed out while the stream still works on it, and what is allocated with a
 * green context current is freed from elsewhere. */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { BYTES = 1 << 20 };

static size_t wrong_bytes(CUdeviceptr p, unsigned char byte)
{
    unsigned char *host = (unsigned char *)malloc(BYTES);
    size_t wrong = 0;
    CHECK_CU(cuMemcpyDtoH(host, p, BYTES));
    for (int i = 0; i < BYTES; i++)
        wrong += host[i] != byte;
    free(host);
    return wrong;
}

static CUgreenCtx make_green(CUdevice device)
{
    CUgreenCtx green;
    CUdevResource resource;
    CUdevResourceDesc description;
    CHECK_CU(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CHECK_CU(cuDevResourceGenerateDesc(&description, &resource, 1));
    CHECK_CU(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

/* A green context on each device in turn, whose handle may be the last one's again. */
static void each_device(CUcontext back)
{
    int devices = 0;
    CHECK_CU(cuDeviceGetCount(&devices));
    for (int i = 0; i < 2 * devices; i++) {
        CUgreenCtx green = make_green(i % devices);
        CUcontext as_context;
        CUdeviceptr p;
        int ordinal = -1;
        CHECK_CU(cuCtxFromGreenCtx(&as_context, green));
        CHECK_CU(cuCtxSetCurrent(as_context));
        CHECK_CU(cuMemAlloc(&p, BYTES));
        CHECK_CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
        EXPECT_EQ(ordinal, i % devices);
        CHECK_CU(cuMemFree(p));
        CHECK_CU(cuCtxSetCurrent(back));
        CHECK_CU(cuGreenCtxDestroy(green));
    }
    printf("each green context allocated on its own device\n");
}

/* A green context holds the primary one: its end can be that one's end. */
static void last_hold(CUdevice device)
{
    CUgreenCtx green = make_green(device);
    CUcontext primary;
    CUdeviceptr p, q;
    unsigned flags;
    int active = -1;
    CHECK_CU(cuMemAlloc(&p, BYTES));
    CHECK_CU(cuDevicePrimaryCtxRelease(device));
    CHECK_CU(cuMemAlloc(&q, BYTES));
    printf("allocated while only a green context holds the primary one; freed: %d\n", (int)cuMemFree(q));
    CHECK_CU(cuGreenCtxDestroy(green));
    CHECK_CU(cuDevicePrimaryCtxGetState(device, &flags, &active));
    printf("the primary context is active: %d\n", active);
    CHECK_CU(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK_CU(cuCtxSetCurrent(primary));
    printf("freed from before its end: %d\n", (int)cuMemFree(p));
    for (int i = 0; i < 20; i++) {
        CHECK_CU(cuMemAlloc(&p, BYTES));
        CHECK_CU(cuMemsetD8(p, (unsigned char)i, BYTES));
        EXPECT_EQ(wrong_bytes(p, (unsigned char)i), 0);
        CHECK_CU(cuMemFree(p));
    }
}

int main(void)
{
    CUdevice device;
    CUcontext primary, as_context;
    CUgreenCtx green;
    CUstream of_green, s2;
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDeviceGet(&device, 0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK_CU(cuCtxSetCurrent(primary));
    kit_kernels k = kit_load();
    green = make_green(device);
    CHECK_CU(cuGreenCtxStreamCreate(&of_green, green, CU_STREAM_NON_BLOCKING, 0));
    CHECK_CU(cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 4; round++) {
        CUdeviceptr a, b;
        CHECK_CU(cuMemAlloc(&a, BYTES));
        kit_fill(&k, of_green, (void *)(uintptr_t)a, BYTES, 0x11111111, 100 * MS);
        CHECK_CU(cuMemFree(a));
        CHECK_CU(cuMemAlloc(&b, BYTES));
        CHECK_CU(cuMemsetD8Async(b, 0x22, BYTES, s2));
        CHECK_CU(cuStreamSynchronize(s2));
        CHECK_CU(cuStreamSynchronize(of_green));
        size_t wrong = wrong_bytes(b, 0x22);
        printf("round %d: wrong bytes %zu\n", round, wrong);
        EXPECT_EQ(wrong, 0);
        CHECK_CU(cuMemFree(b));
    }
    CUdeviceptr p[16];
    CHECK_CU(cuCtxFromGreenCtx(&as_context, green));
    CHECK_CU(cuCtxSetCurrent(as_context));
    for (int i = 0; i < 16; i++)
        CHECK_CU(cuMemAlloc(&p[i], BYTES));
    for (int i = 0; i < 8; i++)
        CHECK_CU(cuMemFree(p[i]));
    CHECK_CU(cuCtxSetCurrent(primary));
    for (int i = 8; i < 16; i++) {
        CHECK_CU(cuMemsetD8(p[i], (unsigned char)i, BYTES));
        EXPECT_EQ(wrong_bytes(p[i], (unsigned char)i), 0);
        CHECK_CU(cuMemFree(p[i]));
    }
    CHECK_CU(cuStreamDestroy(of_green));
    CHECK_CU(cuGreenCtxDestroy(green));
    printf("allocated in a green context, freed in the primary one\n");
    CHECK_CU(cuStreamDestroy(s2));
    each_device(primary);
    last_hold(device);
    return 0;
}
