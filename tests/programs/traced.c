// build: shared static
/* Allocations and frees of every kind that a trace records, in several threads that end early.
 * With `tell`, each call is printed as the program saw it:
 *   THREAD alloc|free KIND BYTES ADDRESS RESULT
 * where THREAD is the system's number of it; so the output differs from run to run.
 *
 *   traced how [tell]    how it ends: return | quick | thread | late | fork */
#include "kit.h"
#include <sys/syscall.h>
#include <sys/wait.h>

enum { BLOCKS = 40, THREADS = 6 };

static int tells, calls;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void tell(const char *what, const char *kind, size_t bytes, const void *p, int result)
{
    pthread_mutex_lock(&mutex);
    calls++;
    if (tells) {
        printf("%ld %s %s %zu %#llx %d\n", (long)syscall(SYS_gettid), what, kind, bytes,
               (unsigned long long)(uintptr_t)p, result);
        fflush(stdout);
    }
    pthread_mutex_unlock(&mutex);
}

static void *take(size_t bytes)
{
    void *p = NULL;
    int result = cudaMalloc(&p, bytes);
    tell("alloc", "device", bytes, result ? NULL : p, result);
    return p;
}

static void give(void *p) { tell("free", "device", 0, p, cudaFree(p)); }

static void *many(void *argument)
{
    uint64_t rng = 7 + (uint64_t)(uintptr_t)argument;
    void *mine[BLOCKS];
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < BLOCKS; i++)
        mine[i] = take(kit_random_size(&rng, 3 * MIB));
    for (int i = 0; i < BLOCKS; i++)
        give(mine[i]);
    return NULL;
}

static void every_kind(void)
{
    void *p = take(1000);
    give(p);
    give(take(1000));
    give(NULL);
    EXPECT(take((size_t)1 << 45) == NULL); /* no device has that much */
    (void)cudaGetLastError();
    give((void *)(uintptr_t)0x123400); /* nobody's */
    (void)cudaGetLastError();
    size_t pitch = 0;
    for (int i = 0; i < 2; i++) { /* the second one's pitch is known */
        CHECK(cudaMallocPitch(&p, &pitch, 1000, 30));
        tell("alloc", "device", pitch * 30, p, 0);
        give(p);
    }
    cudaStream_t s = kit_stream();
    CHECK(cudaMallocAsync(&p, 70000, s));
    tell("alloc", "async", 70000, p, 0);
    CHECK(cudaFreeAsync(p, s));
    tell("free", "async", 0, p, 0);
    CHECK(cudaMallocManaged(&p, 5000, cudaMemAttachGlobal));
    tell("alloc", "managed", 5000, p, 0);
    give(p);
    CHECK_CU(DRV(cuMemAlloc)((CUdeviceptr *)&p, 4096));
    tell("alloc", "device", 4096, p, 0);
    CHECK_CU(DRV(cuMemFree)((CUdeviceptr)(uintptr_t)p));
    tell("free", "device", 0, p, 0);
}

static void at_exit(void) { give(take(123456)); }

static void *ending_thread(void *unused)
{
    (void)unused;
    give(take(4444));
    exit(0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "return";
    tells = argc > 2 && !strcmp(argv[2], "tell");
    if (!strcmp(how, "late"))
        EXPECT_EQ(atexit(at_exit), 0); /* before anything of CUDA: runs after all of that */
    CHECK(cudaSetDevice(0));
    every_kind();
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i += 2) {
        for (int j = i; j < i + 2; j++)
            t[j] = kit_thread(many, (void *)(uintptr_t)j);
        for (int j = i; j < i + 2; j++)
            pthread_join(t[j], NULL);
    }
    if (!strcmp(how, "fork")) {
        pid_t child = fork();
        if (child == 0) {
            void *p = NULL;
            if (cudaMalloc(&p, 100) == cudaSuccess)
                (void)cudaFree(p);
            _exit(0);
        }
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    give(take(2 * MIB));
    if (!tells)
        printf("calls %d\n", calls);
    fflush(stdout);
    if (!strcmp(how, "thread")) {
        pthread_join(kit_thread(ending_thread, NULL), NULL);
        return 1;
    }
    if (!strcmp(how, "quick"))
        quick_exit(0);
    return 0;
}
