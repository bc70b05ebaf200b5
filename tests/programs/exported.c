// build: shared static
/* Memory that was exported is not handed out again while its segment lives, because another process
 * or device may see it at any time: every other block is exported and freed, the blocks between keep
 * their segments, and no later block lies in what was exported.
 *
 *   exported ipc | dmabuf | token     the ways to export
 *   exported sync                     an attribute that the driver keeps for more than the block
 *   exported pages                    what a handle says of the memory around its block */
#include "kit.h"

enum { BLOCKS = 16, LATER = 200 };

static void *look_up(const char *name)
{
    return kit_symbol(kit_driver()->library, name);
}

/* `by`: which of several calls is to do it. */
static int export_it(const char *how, int by, void *p, size_t bytes)
{
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)p;
    if (!strcmp(how, "ipc")) {
        cudaIpcMemHandle_t h;
        return (int)cudaIpcGetMemHandle(&h, p);
    }
    if (!strcmp(how, "dmabuf")) {
        CUresult (*handle)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
        int fd = -1;
        *(void **)&handle = look_up("cuMemGetHandleForAddressRange");
        CUresult r = handle(&fd, d, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        if (r == CUDA_SUCCESS)
            close(fd);
        return (int)r;
    }
    if (!strcmp(how, "sync")) {
        unsigned on = 1;
        return (int)DRV(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d);
    }
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_P2P_TOKENS;
    void *place = &tokens;
    CUresult (*several)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
    if (by)
        return (int)DRV(cuPointerGetAttribute)(&tokens, attribute, d);
    *(void **)&several = look_up("cuPointerGetAttributes");
    return (int)several(1, &attribute, &place, d);
}

static void round_of(const char *how, size_t bytes)
{
    char *blocks[BLOCKS], *later[LATER];
    int exported[BLOCKS] = {0}, refused[2] = {0}, inside = 0;
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = (char *)kit_malloc(bytes);
    for (int i = 0; i < BLOCKS; i += 2) {
        int by = i / 2 % 2;
        exported[i] = export_it(how, by, blocks[i], bytes) == 0;
        refused[by] += !exported[i];
        kit_free(blocks[i], bytes);
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < LATER; i++) {
        later[i] = (char *)kit_malloc(bytes);
        for (int j = 0; j < BLOCKS; j += 2)
            inside += exported[j] && later[i] < blocks[j] + bytes && blocks[j] < later[i] + bytes;
        if (i % 2) {
            kit_free(later[i], bytes);
            CHECK(cudaDeviceSynchronize());
        }
    }
    for (int i = 0; i < LATER; i += 2)
        kit_free(later[i], bytes);
    for (int i = 1; i < BLOCKS; i += 2)
        kit_free(blocks[i], bytes);
    (void)cudaGetLastError();
    /* A device or a call that has no such thing always refuses: on an H200 one of the two calls for
     * tokens does. */
    EXPECT_EQ(refused[0] % (BLOCKS / 4), 0);
    EXPECT_EQ(refused[1] % (BLOCKS / 4), 0);
    printf("%s of %zu bytes: later blocks in what was exported: %d\n", how, bytes, inside);
}

/* Bytes 24 to 27 of a handle: how many pages of 4 KiB an importer maps (observed on an H200). */
static void pages(void)
{
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = (char *)kit_malloc((size_t)(i + 1) * 2 * MIB);
    for (int i = 0; i < BLOCKS; i++) {
        cudaIpcMemHandle_t h;
        uint32_t mapped;
        CHECK(cudaIpcGetMemHandle(&h, blocks[i]));
        memcpy(&mapped, (char *)&h + 24, sizeof mapped);
        printf("a block of %d MiB: an importer maps %u pages\n", (i + 1) * 2, mapped);
    }
    for (int i = 0; i < BLOCKS; i++)
        kit_free(blocks[i], (size_t)(i + 1) * 2 * MIB);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "ipc";
    CHECK(cudaSetDevice(0));
    if (!strcmp(how, "pages")) {
        pages();
        return 0;
    }
    if (!strcmp(how, "ipc"))
        round_of(how, 65536);
    round_of(how, 3 * MIB);
    round_of(how, 4 * MIB);
    return 0;
}
