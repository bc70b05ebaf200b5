// build: driver
/* Several contexts of one device, threads without a context, and contexts that come and go:
 * each allocation belongs to the context that was current, a free works from anywhere, and
 * nothing of a destroyed context is ever handed out. */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { BYTES = 1 << 20, COUNT = 24 };

static CUdevice device;

static CUcontext create(void)
{
    /* By its older name: the newest form takes a structure that older drivers do not know. */
    CUresult (*make)(CUcontext *, unsigned, CUdevice);
    CUcontext c;
    *(void **)&make = kit_symbol(kit_driver()->library, "cuCtxCreate_v2");
    CHECK_CU(make(&c, 0, device));
    return c;
}

static CUcontext context_of(CUdeviceptr p)
{
    CUcontext c = NULL;
    CHECK_CU(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    return c;
}

static void *without_context(void *argument)
{
    CUdeviceptr *blocks = (CUdeviceptr *)argument, p = 0;
    CUcontext current = (CUcontext)1;
    size_t available, total;
    CHECK_CU(cuCtxGetCurrent(&current));
    EXPECT(current == NULL);
    printf("no context: alloc %d, info %d, free %d", (int)cuMemAlloc(&p, BYTES), (int)cuMemGetInfo(&available, &total),
           (int)cuMemFree(blocks[0]));
    printf(", free again %d\n", (int)cuMemFree(blocks[0]));
    blocks[0] = 0;
    return NULL;
}

static void allocate(CUdeviceptr *p)
{
    for (int i = 0; i < COUNT; i++) {
        CHECK_CU(cuMemAlloc(&p[i], BYTES + (size_t)i * 4096));
        CHECK_CU(cuMemsetD8(p[i], (unsigned char)i, BYTES));
    }
}

static void verify_and_free(CUdeviceptr *p)
{
    unsigned char *host = (unsigned char *)malloc(BYTES);
    size_t wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        if (!p[i])
            continue;
        CHECK_CU(cuMemcpyDtoH(host, p[i], BYTES));
        for (int b = 0; b < BYTES; b++)
            wrong += host[b] != (unsigned char)i;
        CHECK_CU(cuMemFree(p[i]));
    }
    free(host);
    EXPECT_EQ(wrong, 0);
}

static void two_contexts(void)
{
    CUcontext a = create(), b, popped;
    CUdeviceptr in_a[COUNT], in_b[COUNT], more;
    allocate(in_a);
    b = create(); /* current from now on */
    allocate(in_b);
    for (int i = 0; i < COUNT; i++)
        EXPECT(context_of(in_a[i]) == a && context_of(in_b[i]) == b);
    printf("blocks belong to the context that was current\n");
    /* Free A's with B current, then allocate: the new block is B's. */
    CHECK_CU(cuCtxSynchronize());
    CHECK_CU(cuMemFree(in_a[1]));
    in_a[1] = 0;
    CHECK_CU(cuMemAlloc(&more, BYTES + 4096));
    EXPECT(context_of(more) == b);
    CHECK_CU(cuMemFree(more));
    pthread_join(kit_thread(without_context, in_a), NULL);
    CHECK_CU(cuCtxPopCurrent(&popped));
    EXPECT(popped == b);
    verify_and_free(in_a);
    CHECK_CU(cuCtxPushCurrent(b));
    verify_and_free(in_b);
    CHECK_CU(cuCtxDestroy(b));
    CHECK_CU(cuCtxDestroy(a));
    printf("two contexts: contents right\n");
}

/* Handles come again: a new context may have the handle of a destroyed one. */
static void come_and_go(void)
{
    CUdeviceptr old[COUNT];
    int freed_later = 0;
    for (int round = 0; round < 6; round++) {
        CUcontext c = create();
        CUdeviceptr p[COUNT];
        allocate(p);
        for (int i = 0; i < COUNT; i += 2) { /* half stay allocated, half lie in a cache */
            CHECK_CU(cuMemFree(p[i]));
            old[i] = 0;
        }
        for (int i = 1; i < COUNT; i += 2)
            old[i] = p[i];
        CHECK_CU(cuCtxDestroy(c));
        /* Fresh memory of the next context must be usable: not the old context's. */
        c = create();
        allocate(p);
        for (int i = 0; i < COUNT; i++) {
            int alive = 0;
            for (int j = 0; j < COUNT; j++)
                alive |= old[i] == p[j];
            if (old[i] && !alive)
                freed_later += cuMemFree(old[i]) == CUDA_SUCCESS;
        }
        verify_and_free(p);
        CHECK_CU(cuCtxDestroy(c));
    }
    printf("frees of a destroyed context's blocks that succeeded: %d\n", freed_later);
}

int main(void)
{
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDeviceGet(&device, 0));
    two_contexts();
    come_and_go();
    /* The primary context, retained, released and retained again. */
    for (int round = 0; round < 3; round++) {
        CUcontext primary;
        CUdeviceptr p[COUNT];
        unsigned flags;
        int active = 9;
        CHECK_CU(cuDevicePrimaryCtxRetain(&primary, device));
        CHECK_CU(cuCtxSetCurrent(primary));
        allocate(p);
        for (int i = 0; i < COUNT; i += 3) {
            CHECK_CU(cuMemFree(p[i]));
            p[i] = 0;
        }
        if (round == 1)
            verify_and_free(p);
        CHECK_CU(cuDevicePrimaryCtxRelease(device));
        CHECK_CU(cuDevicePrimaryCtxGetState(device, &flags, &active));
        printf("after the release: active %d\n", active);
        CHECK_CU(cuCtxSetCurrent(NULL));
    }
    return 0;
}
