// build: shared static
/* What is told of pinned host memory, and what its frees answer: for each way of asking for it,
 * for the block, for addresses inside it, and for what is no block any more. Everything is done
 * twice, so that the second time a pool can serve memory that was used before.
 *
 *   pinned_answers [any-portable]   all of that; but whether memory is portable
 *   pinned_answers pages    (for runs with a pool) blocks begin at pages, also small ones
 *   pinned_answers zero     new memory is zero, also where it was used before */
#include "kit.h"

typedef struct {
    const char *name;
    int way;
    unsigned flags;
} how;

enum { PLAIN, RUNTIME, RUNTIME_FLAGS, DRIVER_FLAGS };

static const how ways[] = {
    {"cuMemAllocHost", PLAIN, 0},
    {"cudaMallocHost", RUNTIME, 0},
    {"cudaHostAlloc default", RUNTIME_FLAGS, cudaHostAllocDefault},
    {"cudaHostAlloc portable", RUNTIME_FLAGS, cudaHostAllocPortable},
    {"cudaHostAlloc mapped", RUNTIME_FLAGS, cudaHostAllocMapped},
    {"cudaHostAlloc write-combined", RUNTIME_FLAGS, cudaHostAllocWriteCombined},
    {"cudaHostAlloc portable mapped", RUNTIME_FLAGS, cudaHostAllocPortable | cudaHostAllocMapped},
    {"cuMemHostAlloc 0", DRIVER_FLAGS, 0},
    {"cuMemHostAlloc 7", DRIVER_FLAGS, 7},
};
enum { WAYS = sizeof ways / sizeof *ways };

static const size_t sizes[] = {1, 4096, 70000, MIB + 1, 5 * MIB + 12345};
enum { SIZES = sizeof sizes / sizeof *sizes };

static CUresult (*host_alloc)(void **, size_t, unsigned);
static CUresult (*host_flags)(unsigned *, void *);
static CUresult (*host_register)(void *, size_t, unsigned);
static CUresult (*host_unregister)(void *);
static CUresult (*host_device_pointer)(CUdeviceptr *, void *, unsigned);
static CUresult (*ipc_handle)(CUipcMemHandle *, CUdeviceptr);

static int get(char **out, const how *way, size_t bytes)
{
    void *p = NULL;
    int r = way->way == PLAIN           ? (int)DRV(cuMemAllocHost)(&p, bytes)
            : way->way == RUNTIME       ? (int)cudaMallocHost(&p, bytes)
            : way->way == RUNTIME_FLAGS ? (int)cudaHostAlloc(&p, bytes, way->flags)
                                        : (int)host_alloc(&p, bytes, way->flags);
    *out = (char *)p;
    if (r == 0)
        note_alloc(p, bytes);
    return r;
}

static void put(char *p, size_t bytes)
{
    note_free(p, bytes);
    CHECK(cudaFreeHost(p));
}

/* A number that differs between runs, as its distance from the block. */
static long long from(const void *base, uint64_t p) { return p ? (long long)(p - (uint64_t)(uintptr_t)base) : -1; }

/* Flags that are left out. The driver carves small requests out of memory that was asked for with or
 * without PORTABLE, whatever was there first, and answers for that (seen on an H200). */
static unsigned told_not;

static void told(const char *what, char *block, char *p)
{
    unsigned flags = 99, driver_flags = 99, sync = 99, type = 99, managed = 99;
    int ordinal = 99;
    void *device = block - 1;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)block - 1, d = base, start = base, at = (CUdeviceptr)(uintptr_t)p;
    size_t size = 77, range = 77;
    int a = cudaHostGetFlags(&flags, p), b = host_flags(&driver_flags, p);
    flags &= ~told_not;
    driver_flags &= ~told_not;
    int c = cudaHostGetDevicePointer(&device, p, 0), e = host_device_pointer(&d, p, 0);
    printf("  %s: flags %d %u %d %u, device pointer %d %lld %d %lld\n", what, a, flags, b, driver_flags, c,
           from(block, (uint64_t)(uintptr_t)device), e, from(block, d));
    (void)cudaGetLastError();
    struct cudaPointerAttributes attributes;
    memset(&attributes, 0x5a, sizeof attributes);
    a = cudaPointerGetAttributes(&attributes, p);
    if (a == 0)
        printf("  %s: type %d, device pointer %lld, host pointer %lld\n", what, (int)attributes.type,
               from(block, (uint64_t)(uintptr_t)attributes.devicePointer),
               from(block, (uint64_t)(uintptr_t)attributes.hostPointer));
    else
        printf("  %s: attributes %d, last error %d\n", what, a, (int)cudaGetLastError());
    a = DRV(cuMemGetAddressRange)(&base, &size, at);
    printf("  %s: range %d %lld %zu", what, a, from(block, base), size);
    a = DRV(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
    b = DRV(cuPointerGetAttribute)(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
    printf(", attributes %d %lld %d %zu\n", a, from(block, start), b, range);
    a = DRV(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
    b = DRV(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
    c = DRV(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
    e = DRV(cuPointerGetAttribute)(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
    printf("  %s: memory type %d %u, managed %d %u, ordinal %d %d, sync memops %d %u\n", what, a, type, b, managed, c,
           ordinal, e, sync);
}

static uint64_t id_of(const char *p)
{
    uint64_t id = 0;
    CHECK_CU(DRV(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)(uintptr_t)p));
    return id;
}

/* Each allocation has an id of its own, also where it has the place of an earlier one. */
static void ids(void)
{
    enum { COUNT = 12 };
    uint64_t seen[3 * COUNT];
    char *p[COUNT];
    int n = 0, same = 0;
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < COUNT; i++) {
            EXPECT_EQ(get(&p[i], &ways[i % WAYS], 5000), 0);
            seen[n++] = id_of(p[i] + i);
            EXPECT(id_of(p[i]) == seen[n - 1]);
        }
        for (int i = 0; i < COUNT; i++)
            put(p[i], 5000);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            same += seen[i] == seen[j];
    printf("ids that came again: %d\n", same);
}

static void bad(const char *what, int code) { printf("  %s: %d, last error %d\n", what, code, (int)cudaGetLastError()); }

static void bad_calls(const how *way, size_t bytes)
{
    char *p = NULL, *q = NULL;
    void *device = kit_malloc(4096);
    EXPECT_EQ(get(&p, way, bytes), 0);
    EXPECT_EQ(get(&q, way, bytes), 0);
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)p;
    bad("cudaFree of pinned memory", cudaFree(p));
    bad("cuMemFree of pinned memory", (int)DRV(cuMemFree)(d));
    bad("cudaFreeAsync of pinned memory", cudaFreeAsync(p, cudaStreamLegacy));
    bad("cudaFreeHost of device memory", cudaFreeHost(device));
    bad("cuMemFreeHost of device memory", (int)DRV(cuMemFreeHost)(device));
    bad("registered as well", (int)host_register(p, bytes, 0));
    bad("unregistered", (int)host_unregister(p));
    CUipcMemHandle handle;
    bad("exported", (int)ipc_handle(&handle, d));
    if (bytes > 1) {
        bad("cudaFreeHost inside", cudaFreeHost(p + bytes / 2));
        bad("cuMemFreeHost inside", (int)DRV(cuMemFreeHost)(p + 1));
    }
    /* All of that has left it as it was. */
    memset(p, 3, bytes);
    kit_free(kit_malloc(bytes), bytes);
    EXPECT_EQ(p[bytes - 1], 3);
    note_free(p, bytes);
    bad("freed", cudaFreeHost(p));
    bad("freed again", cudaFreeHost(p));
    bad("freed again by the driver's", (int)DRV(cuMemFreeHost)(p));
    told("freed", p, p);
    put(q, bytes);
    kit_free(device, 4096);
}

static void no_memory(void)
{
    void *p = (void *)0x1234;
    bad("no bytes", cudaMallocHost(&p, 0));
    bad("no bytes with flags", cudaHostAlloc(&p, 0, cudaHostAllocMapped));
    bad("no bytes of the driver", (int)DRV(cuMemAllocHost)(&p, 0));
    bad("no output", cudaMallocHost(NULL, 100));
    bad("no output of the driver", (int)host_alloc(NULL, 100, 0));
    bad("flags that there are not", cudaHostAlloc(&p, 100, 0x40));
    bad("flags that there are not of the driver", (int)host_alloc(&p, 100, 0x80));
    bad("NULL freed", cudaFreeHost(NULL));
    bad("garbage freed", cudaFreeHost((void *)0x123456789000));
}

static void registered(void)
{
    enum { BYTES = 64 << 10 };
    char *own = (char *)aligned_alloc(4096, BYTES), *pinned = NULL;
    EXPECT_EQ(get(&pinned, &ways[3], BYTES), 0);
    bad("own memory registered", cudaHostRegister(own, BYTES, cudaHostRegisterDefault));
    unsigned flags = 99;
    bad("its flags asked for", cudaHostGetFlags(&flags, own + 100));
    bad("freed as pinned memory", cudaFreeHost(own));
    bad("unregistered", cudaHostUnregister(own));
    bad("unregistered again", cudaHostUnregister(own));
    put(pinned, BYTES);
    free(own);
}

/* Where a pool serves, small blocks begin at pages too: programs hand them to system calls. */
static void pages(void)
{
    char *p[WAYS * SIZES];
    for (int i = 0; i < WAYS * SIZES; i++) {
        EXPECT_EQ(get(&p[i], &ways[i % WAYS], sizes[i / WAYS]), 0);
        EXPECT_EQ((uintptr_t)p[i] % 4096, 0);
    }
    for (int i = 0; i < WAYS * SIZES; i++)
        put(p[i], sizes[i / WAYS]);
    printf("all at pages\n");
}

static void zero(void)
{
    size_t wrong = 0;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < WAYS * SIZES; i++) {
            char *p;
            size_t bytes = sizes[i / WAYS];
            EXPECT_EQ(get(&p, &ways[i % WAYS], bytes), 0);
            for (size_t n = 0; n < bytes; n++)
                wrong += p[n] != 0;
            memset(p, 0xee, bytes);
            put(p, bytes);
        }
    printf("bytes that are not zero: %zu\n", wrong);
    EXPECT_EQ(wrong, 0);
}

int main(int argc, char **argv)
{
    void *library = kit_driver()->library;
    *(void **)&host_alloc = kit_symbol(library, "cuMemHostAlloc");
    *(void **)&host_flags = kit_symbol(library, "cuMemHostGetFlags");
    *(void **)&host_register = kit_symbol(library, "cuMemHostRegister_v2");
    *(void **)&host_unregister = kit_symbol(library, "cuMemHostUnregister");
    *(void **)&host_device_pointer = kit_symbol(library, "cuMemHostGetDevicePointer_v2");
    *(void **)&ipc_handle = kit_symbol(library, "cuIpcGetMemHandle");
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(NULL));
    if (argc > 1 && !strcmp(argv[1], "any-portable"))
        told_not = cudaHostAllocPortable;
    if (argc > 1 && !strcmp(argv[1], "pages")) {
        pages();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "zero")) {
        zero();
        return 0;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < WAYS * SIZES; i++) {
            const how *way = &ways[i % WAYS];
            size_t bytes = sizes[i / WAYS];
            char *p;
            int r = get(&p, way, bytes);
            printf("%s of %zu: %d\n", way->name, bytes, r);
            if (r)
                continue;
            memset(p, i, bytes);
            told("block", p, p);
            if (bytes > 1)
                told("inside", p, p + bytes / 3);
            told("last byte", p, p + bytes - 1);
            put(p, bytes);
        }
        for (int i = 0; i < WAYS; i++) {
            printf("wrong calls, %s\n", ways[i].name);
            bad_calls(&ways[i], sizes[i % SIZES]);
        }
        no_memory();
        registered();
    }
    ids();
    return 0;
}
