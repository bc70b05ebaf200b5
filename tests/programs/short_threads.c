// build: shared static
/* Thousands of threads that live shortly and leave blocks behind, which others free: whatever
 * a thread keeps for itself must not be lost with it.
 *   short_threads [threads] */
#include "kit.h"

enum { BLOCKS = 16, BYTES = 65536 };

static void *body(void *blocks)
{
    void **mine = (void **)blocks;
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < BLOCKS; i++)
        mine[i] = kit_malloc(BYTES);
    for (int i = 0; i < BLOCKS; i += 2) {
        kit_free(mine[i], BYTES);
        mine[i] = NULL;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1000;
    size_t total, first = 0, last = 0;
    CHECK(cudaSetDevice(0));
    for (int t = 0; t < threads; t += 4) {
        pthread_t running[4];
        void *left[4][BLOCKS] = {{NULL}};
        for (int i = 0; i < 4; i++)
            running[i] = kit_thread(body, left[i]);
        for (int i = 0; i < 4; i++)
            pthread_join(running[i], NULL);
        for (int i = 0; i < 4; i++)
            for (int b = 0; b < BLOCKS; b++)
                if (left[i][b])
                    kit_free(left[i][b], BYTES);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemGetInfo(t < threads / 4 ? &first : &last, &total));
    }
    /* What is missing at the end must not grow with the number of threads. */
    printf("threads %d, memory lost over three quarters of them: %d\n", threads, first > last + 64 * MIB);
    return first > last + 64 * MIB;
}
