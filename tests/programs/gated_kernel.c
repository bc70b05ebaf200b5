// build: shared static
/* A stream that is held until this very thread does something, which it does only after its
 * next allocations. Freed blocks wait for the GPU meanwhile, and a fence recorded behind the
 * gate cannot pass before it opens: an allocation that waits for one without a limit hangs. */
#include "kit.h"

enum { BLOCKS = 48, BYTES = 1 << 20 };

static kit_kernels k;
static cudaStream_t s1, s2;
static volatile uint32_t *flag;

/* Blocks that are freed with work pending on them, so that they cannot be had again yet. */
static void freed_blocks(void)
{
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = kit_malloc(BYTES);
        kit_fill(&k, s1, blocks[i], BYTES, 0x11111111, MS / 4);
    }
    for (int i = 0; i < BLOCKS; i++)
        kit_free(blocks[i], BYTES);
}

static void allocate_behind_the_gate(void *blocks[BLOCKS])
{
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = kit_malloc(BYTES);
        CHECK(cudaMemsetAsync(blocks[i], 0x22, BYTES, s2));
    }
}

static void finish(const char *scenario, void *blocks[BLOCKS])
{
    size_t wrong = 0;
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < BLOCKS; i++) {
        wrong += kit_wrong_bytes(blocks[i], BYTES, 0x22);
        kit_free(blocks[i], BYTES);
    }
    printf("%s: wrong bytes %zu\n", scenario, wrong);
    fflush(stdout);
    EXPECT_EQ(wrong, 0);
    *flag = 0;
}

int main(void)
{
    void *blocks[BLOCKS];
    CHECK(cudaSetDevice(0));
    k = kit_load();
    flag = (volatile uint32_t *)kit_pinned(sizeof *flag);
    s1 = kit_stream();
    s2 = kit_stream();

    freed_blocks();
    kit_wait(&k, s1, flag, 1);
    allocate_behind_the_gate(blocks);
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    finish("kernel that waits for the CPU", blocks);

    freed_blocks();
    CHECK_CU(DRV(cuStreamWaitValue32)(s1, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    allocate_behind_the_gate(blocks);
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    finish("stream that waits for a value", blocks);

    /* As a collective does: the kernel waits for its peer, launched after the allocations. */
    freed_blocks();
    kit_wait(&k, s1, flag, 1);
    allocate_behind_the_gate(blocks);
    kit_fill(&k, s2, (void *)(uintptr_t)flag, sizeof *flag, 1, 0);
    finish("kernel that waits for a kernel", blocks);
    return 0;
}
