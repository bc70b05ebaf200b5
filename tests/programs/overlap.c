// build: shared static
/* Kernels of two threads' streams run at the same time, with allocations (and, with the word
 * `frees`, frees, which natively would wait) between. Each round the kernel of either stream
 * waits for the other's: without overlap neither would end. */
#include "kit.h"

enum { ROUNDS = 50, BYTES = 1 << 20 };

static kit_kernels k;
static volatile uint32_t *flags;
static int frees;
static pthread_barrier_t together;

static void *side(void *argument)
{
    int me = (int)(intptr_t)argument;
    void *held[ROUNDS] = {NULL};
    CHECK(cudaSetDevice(0));
    cudaStream_t s = kit_stream();
    pthread_barrier_wait(&together);
    for (int i = 0; i < ROUNDS; i++) {
        held[i] = kit_malloc(BYTES);
        kit_fill(&k, s, held[i], BYTES, (uint32_t)i, 0);
        kit_fill(&k, s, (void *)(uintptr_t)&flags[me], 4, (uint32_t)i + 1, 0);
        kit_wait(&k, s, &flags[1 - me], (uint32_t)i + 1);
        if (frees) {
            kit_free(held[i], BYTES);
            held[i] = NULL;
        }
        pthread_barrier_wait(&together); /* both have launched round i */
        CHECK(cudaStreamSynchronize(s));
        pthread_barrier_wait(&together);
    }
    for (int i = 0; i < ROUNDS; i++)
        if (held[i])
            kit_free(held[i], BYTES);
    return NULL;
}

int main(int argc, char **argv)
{
    frees = argc > 1 && !strcmp(argv[1], "frees");
    CHECK(cudaSetDevice(0));
    k = kit_load();
    flags = (volatile uint32_t *)kit_pinned(2 * sizeof *flags);
    pthread_barrier_init(&together, NULL, 2);
    pthread_t t = kit_thread(side, (void *)(intptr_t)1);
    side((void *)(intptr_t)0);
    pthread_join(t, NULL);
    printf("rounds in which the kernels met: %d\n", ROUNDS);
    return 0;
}
