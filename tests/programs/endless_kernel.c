// build: shared static
/* A kernel that does not end until the CPU says so, and another thread that allocates and frees
 * meanwhile. The allocations return in every mode; natively (and with frees that wait) the
 * first free does not return before the kernel has ended.
 *
 * Prints `freed while the kernel ran: yes|no`; that line alone depends on the mode. */
#include "kit.h"

enum { BLOCKS = 64, BYTES = 1 << 20 };

static volatile int allocated, freed;

static void *other_thread(void *unused)
{
    (void)unused;
    void *blocks[BLOCKS];
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cudaMalloc(&blocks[i], BYTES));
    kit_set(&allocated);
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cudaFree(blocks[i]));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cudaMalloc(&blocks[i], BYTES));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cudaFree(blocks[i]));
    kit_set(&freed);
    return NULL;
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    volatile uint32_t *flag = (volatile uint32_t *)kit_pinned(sizeof *flag);
    cudaStream_t s1 = kit_stream();
    kit_wait(&k, s1, flag, 1);
    /* Before the frees begin: natively a query could wait behind one. */
    EXPECT_EQ(cudaStreamQuery(s1), cudaErrorNotReady);
    pthread_t t = kit_thread(other_thread, NULL);
    kit_await(&allocated);
    printf("allocated while the kernel ran\n");
    fflush(stdout);
    /* How long to look before the answer is `no`; a `yes` ends the wait. */
    for (int i = 0; i < 3000 && !__atomic_load_n(&freed, __ATOMIC_ACQUIRE); i++)
        kit_sleep_ms(1);
    printf("freed while the kernel ran: %s\n", __atomic_load_n(&freed, __ATOMIC_ACQUIRE) ? "yes" : "no");
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    pthread_join(t, NULL);
    CHECK(cudaStreamSynchronize(s1));
    printf("ended\n");
    return 0;
}
