// build: shared static
/* Pinned memory whose context ends, and frees from wherever: after a device reset a pointer from
 * before is no pinned memory any more and allocation begins afresh; memory of a context that is
 * destroyed goes with it, also portable memory, and another context's stays.
 *
 *   pinned_ends [fault]   fault: after a kernel fault every call answers with it */
#include "kit.h"

enum { COUNT = 8, BYTES = 100000 };

static CUresult (*host_alloc)(void **, size_t, unsigned);
static CUresult (*create)(CUcontext *, unsigned, CUdevice);

static void *free_here(void *p)
{
    note_free(p, BYTES);
    printf("freed by a thread without a device: %d\n", (int)cudaFreeHost(p));
    return NULL;
}

static char *get(unsigned flags)
{
    void *p = NULL;
    CHECK(cudaHostAlloc(&p, BYTES, flags));
    note_alloc(p, BYTES);
    memset(p, 1, BYTES);
    return (char *)p;
}

static void put(char *p)
{
    note_free(p, BYTES);
    CHECK(cudaFreeHost(p));
}

/* The driver's own function, in a thread that has no context. */
static void *free_by_the_driver(void *p)
{
    note_free(p, BYTES);
    printf("freed by a thread without a context: %d\n", (int)DRV(cuMemFreeHost)(p));
    return NULL;
}

static void threads(void)
{
    for (int i = 0; i < COUNT; i++) {
        char *p = get(i % 2 ? cudaHostAllocPortable : cudaHostAllocDefault);
        pthread_join(kit_thread(free_here, p), NULL);
    }
    pthread_join(kit_thread(free_by_the_driver, get(cudaHostAllocDefault)), NULL);
}

static void reset(void)
{
    for (int round = 0; round < 4; round++) {
        CHECK(cudaSetDevice(0));
        kit_kernels k = kit_load();
        cudaStream_t s = kit_stream();
        char *live[COUNT];
        for (int i = 0; i < COUNT; i++) {
            live[i] = get(i % 2 ? cudaHostAllocPortable : cudaHostAllocMapped);
            kit_fill(&k, s, live[i], BYTES, (uint32_t)i, MS / 10);
        }
        for (int i = 0; i < COUNT; i += 2) /* they wait for the GPU when the reset comes */
            put(live[i]);
        CHECK(cudaStreamSynchronize(s));
        for (int i = 1; i < COUNT; i += 2)
            note_free(live[i], BYTES);
        CHECK(cudaDeviceReset());
        unsigned flags = 99;
        int code = cudaFreeHost(live[1]), last = cudaGetLastError(), asked = cudaHostGetFlags(&flags, live[3]);
        printf("round %d: old pointer freed after the reset: %d, last error %d; flags of another: %d\n", round, code,
               last, asked);
        (void)cudaGetLastError();
        CHECK(cudaSetDevice(0));
        for (int i = 0; i < COUNT; i++)
            put(get(cudaHostAllocPortable));
    }
}

static void contexts(void)
{
    CHECK(cudaSetDevice(0));
    char *ours = get(cudaHostAllocPortable);
    for (int round = 0; round < 3; round++) {
        CUcontext other, popped;
        void *theirs[2] = {NULL, NULL};
        CHECK_CU(create(&other, 0, 0));
        for (unsigned i = 0; i < 2; i++) {
            CHECK_CU(host_alloc(&theirs[i], BYTES, i ? CU_MEMHOSTALLOC_PORTABLE : 0));
            note_alloc(theirs[i], BYTES);
            memset(theirs[i], 2, BYTES);
        }
        CHECK_CU(DRV(cuCtxPopCurrent)(&popped));
        CUcontext owner = NULL;
        int code = DRV(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)(uintptr_t)theirs[0]);
        printf("context of the other's memory: %d, the other %d\n", code, owner == other);
        /* Freed with the first context current. */
        note_free(theirs[0], BYTES);
        printf("freed from here: %d\n", (int)DRV(cuMemFreeHost)(theirs[0]));
        note_free(theirs[1], BYTES);
        CHECK_CU(DRV(cuCtxDestroy)(other));
        printf("freed after its context: %d\n", (int)DRV(cuMemFreeHost)(theirs[1]));
        EXPECT_EQ(ours[BYTES - 1], 1);
    }
    put(ours);
}

static __attribute__((noreturn)) void fault(void)
{
    enum { TRIES = 5000 };
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    char *kept = get(cudaHostAllocPortable), *early[COUNT];
    for (int i = 0; i < COUNT; i++)
        early[i] = get(cudaHostAllocPortable);
    for (int i = 0; i < COUNT; i++)
        put(early[i]);
    CHECK(cudaDeviceSynchronize());
    CHECK_CU(kit_launch(k.fault, 1, 1, cudaStreamPerThread, NULL));
    printf("synchronize: %d\n", (int)cudaDeviceSynchronize());
    cudaError_t code = cudaSuccess;
    void *p = NULL;
    for (int i = 0; i < TRIES && code == cudaSuccess; i++)
        code = cudaHostAlloc(&p, BYTES, cudaHostAllocPortable);
    printf("allocation in the end: %d\n", (int)code);
    printf("allocation of another kind: %d\n", (int)cudaHostAlloc(&p, 3 * MIB, cudaHostAllocMapped));
    printf("free: %d\n", (int)cudaFreeHost(kept));
    printf("last error: %d\n", (int)cudaGetLastError());
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    void *library = kit_driver()->library;
    *(void **)&host_alloc = kit_symbol(library, "cuMemHostAlloc");
    *(void **)&create = kit_symbol(library, "cuCtxCreate_v2");
    if (argc > 1 && !strcmp(argv[1], "fault")) {
        fault();
    }
    threads();
    reset();
    contexts();
    printf("ended\n");
    return 0;
}
