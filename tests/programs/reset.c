// build: shared static
/* cudaDeviceReset with blocks allocated, cached, and in use by the GPU: a pointer from before
 * is foreign afterwards, and allocation starts afresh. */
#include "kit.h"

enum { COUNT = 32, BYTES = 1 << 20 };

static void *free_old(void *p)
{
    printf("old pointer freed by another thread: %d\n", (int)cudaFree(p));
    return NULL;
}

int main(void)
{
    for (int round = 0; round < 8; round++) {
        CHECK(cudaSetDevice(0));
        kit_kernels k = kit_load(); /* kernels belong to the context */
        cudaStream_t s = kit_stream();
        void *live[COUNT], *fresh[COUNT];
        uint64_t *errors = (uint64_t *)kit_pinned(sizeof *errors);
        for (int i = 0; i < COUNT; i++)
            live[i] = kit_malloc(BYTES);
        for (int i = 0; i < COUNT; i++) {
            kit_fill(&k, s, live[i], BYTES, (uint32_t)i, MS / 10);
            kit_check(&k, s, live[i], BYTES, (uint32_t)i, errors, 0);
        }
        for (int i = 0; i < COUNT; i += 2) /* some wait for the GPU when the reset comes */
            kit_free(live[i], BYTES);
        CHECK(cudaStreamSynchronize(s));
        EXPECT_EQ(*errors, 0);
        for (int i = 1; i < COUNT; i += 2)
            note_free(live[i], BYTES);
        CHECK(cudaDeviceReset());
        cudaError_t code = cudaFree(live[1]);
        printf("round %d: old pointer freed after the reset: %d, last error %d\n", round, (int)code,
               (int)cudaGetLastError());
        CHECK(cudaSetDevice(0));
        if (round == 3)
            pthread_join(kit_thread(free_old, live[3]), NULL);
        for (int i = 0; i < COUNT; i++) {
            fresh[i] = kit_malloc(BYTES);
            CHECK(cudaMemset(fresh[i], i, BYTES));
        }
        size_t wrong = 0;
        for (int i = 0; i < COUNT; i++) {
            wrong += kit_wrong_bytes(fresh[i], BYTES, (unsigned char)i);
            kit_free(fresh[i], BYTES);
        }
        EXPECT_EQ(wrong, 0);
        CHECK(cudaDeviceReset());
    }
    printf("ended\n");
    return 0;
}
