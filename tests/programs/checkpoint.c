// build: shared static
/* A process checkpoints itself (CUDA 12.8): what it holds has its content afterwards, allocations go
 * on, and a thread that allocates meanwhile waits for the end, as natively.
 *   checkpoint [alone]    alone: without that thread */
#include "kit.h"

enum { LIVE = 4 << 20, BLOCK = 8 << 20, BLOCKS = 16 };

typedef CUresult (*step)(int pid, void *arguments);

static const char *const names[] = {"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint",
                                    "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"};

static int stop;

static void *allocate(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        void *p = kit_malloc(3 * MIB);
        kit_free(p, 3 * MIB);
    }
    return NULL;
}

static void blocks(void)
{
    void *p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        p[i] = kit_malloc(BLOCK);
    for (int i = 0; i < BLOCKS; i++)
        kit_free(p[i], BLOCK);
}

int main(int argc, char **argv)
{
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    cudaStream_t s = kit_stream();
    step steps[4];
    int alone = argc > 1 && !strcmp(argv[1], "alone");
    pthread_t other = 0;
    for (int i = 0; i < 4; i++) {
        *(void **)&steps[i] = dlsym(kit_driver()->library, names[i]);
        if (!steps[i])
            return printf("this driver has no %s\n", names[i]), 0;
    }
    void *live = kit_malloc(LIVE);
    for (int round = 0; round < 3; round++) {
        blocks();
        /* Work that the lock has to wait for. */
        kit_fill(&k, (CUstream)s, live, LIVE, 0x01010101u * (uint32_t)(round + 1), 5 * MS);
        if (!alone)
            other = kit_thread(allocate, NULL);
        for (int i = 0; i < 4; i++)
            printf("round %d %s: %d\n", round, names[i], (int)steps[i]((int)getpid(), NULL));
        __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
        if (!alone)
            pthread_join(other, NULL);
        stop = 0;
        CHECK(cudaStreamSynchronize(s));
        printf("round %d wrong bytes %zu\n", round, kit_wrong_bytes(live, LIVE, (unsigned char)(round + 1)));
    }
    /* Without a lock there is nothing to unlock, and of another process nothing is changed here. */
    printf("unlocked again: %d\n", (int)steps[3]((int)getpid(), NULL));
    blocks();
    kit_free(live, LIVE);
    return 0;
}
