// build: shared static
/* What is asked about a pointer is answered for the block that was asked for, interior
 * addresses too; each allocation has an id of its own, also when its address comes again. */
#include "kit.h"

static void range(size_t bytes, size_t offset)
{
    char *p = (char *)kit_malloc(bytes);
    CUdeviceptr base = 0, start = 0, at = (CUdeviceptr)(uintptr_t)(p + offset);
    size_t size = 0, size2 = 0;
    CHECK_CU(DRV(cuMemGetAddressRange)(&base, &size, at));
    CHECK_CU(DRV(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at));
    CHECK_CU(DRV(cuPointerGetAttribute)(&size2, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
    printf("%zu bytes, at %zu: base %d, size %zu, attribute base %d, size %zu\n", bytes, offset,
           base == (CUdeviceptr)(uintptr_t)p, size, start == (CUdeviceptr)(uintptr_t)p, size2);
    EXPECT_EQ(size, bytes);
    struct cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, p + offset));
    printf(" type %d device %d same address %d host %d\n", (int)a.type, a.device, a.devicePointer == p + offset,
           a.hostPointer != NULL);
    kit_free(p, bytes);
    CHECK(cudaDeviceSynchronize());
}

static unsigned long long buffer_id(const void *p)
{
    unsigned long long id = 0;
    CHECK_CU(DRV(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)(uintptr_t)p));
    return id;
}

static void ids(void)
{
    enum { COUNT = 200 };
    unsigned long long seen[COUNT];
    int repeated = 0, differs_inside = 0;
    for (int i = 0; i < COUNT; i++) {
        char *p = (char *)kit_malloc(8192);
        seen[i] = buffer_id(p);
        differs_inside += buffer_id(p + 5000) != seen[i];
        kit_free(p, 8192);
        CHECK(cudaDeviceSynchronize());
        for (int j = 0; j < i; j++)
            repeated += seen[j] == seen[i];
    }
    printf("ids that came again: %d, that differ inside a block: %d\n", repeated, differs_inside);
    EXPECT_EQ(repeated, 0);
}

/* SYNC_MEMOPS belongs to one block's life, not to the memory. */
static void sync_memops(void)
{
    int leaked = 0;
    for (int i = 0; i < 20; i++) {
        unsigned on = 1, value = 99;
        void *p = kit_malloc(4 * MIB);
        CUdeviceptr d = (CUdeviceptr)(uintptr_t)p;
        CHECK_CU(DRV(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
        leaked += value != 0;
        CHECK_CU(DRV(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
        CHECK_CU(DRV(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
        EXPECT_EQ(value, 1);
        kit_free(p, 4 * MIB);
        CHECK(cudaDeviceSynchronize());
    }
    printf("SYNC_MEMOPS found on new blocks: %d\n", leaked);
}

/* A descriptor for other devices covers what lies in the block, and nothing behind it. */
static void descriptors(void)
{
    CUresult (*handle)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
    *(void **)&handle = kit_symbol(kit_driver()->library, "cuMemGetHandleForAddressRange");
    char *p = (char *)kit_malloc(40 * MIB);
    const struct {
        size_t at, bytes;
    } asked[] = {{0, 40 * MIB}, {2 * MIB, 38 * MIB}, {0, 48 * MIB}, {2 * MIB, 40 * MIB}, {4096, 0}};
    for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
        int fd = -1;
        CUresult r = handle(&fd, (CUdeviceptr)(uintptr_t)(p + asked[i].at), asked[i].bytes,
                            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        printf("descriptor for %zu bytes at %zu: %d\n", asked[i].bytes, asked[i].at, (int)r);
        if (r == CUDA_SUCCESS)
            close(fd);
    }
    kit_free(p, 40 * MIB);
    CHECK(cudaDeviceSynchronize());
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    for (int pass = 0; pass < 2; pass++) {
        range(1, 0);
        range(1000, 999);
        range(65536, 40000);
        range(MIB, MIB - 1);
        range(MIB + 1, MIB);
        range(5 * MIB + 12345, 3 * MIB);
        range(64 * MIB, 64 * MIB - 1);
    }
    ids();
    sync_memops();
    descriptors();
    /* After the free nothing is known about the address any more. */
    void *p = kit_malloc(3 * MIB);
    kit_free(p, 3 * MIB);
    CUdeviceptr base;
    size_t size;
    printf("range of freed memory: %d\n", (int)DRV(cuMemGetAddressRange)(&base, &size, (CUdeviceptr)(uintptr_t)p));
    struct cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, p));
    printf("type of freed memory: %d\n", (int)a.type);
    return 0;
}
