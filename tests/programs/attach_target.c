// build: shared static
// options: -rdynamic
/* A program to attach to. It obeys lines on its standard input and answers each with one line.
 *
 *   attach_target [churn] [late] [context]
 *
 *   churn     five threads besides: malloc; dlopen; thread starts and floating point; signals and
 *             interrupted calls; cudaMalloc with kernels that fill and check
 *   late      no CUDA before the first line that needs it
 *   context   a context that is not the device's primary one, made before anything else
 *
 *   pooled      allocates eight blocks, and says how many are the pool's
 *   hold N      allocates N blocks of 1 MiB and keeps them;   drop  frees them
 *   sync        cudaDeviceSynchronize
 *   begin, end  a capture in relaxed mode on a stream of its own, and its end
 *   other       makes the other context current and allocates there
 *   rounds      how often each thread has gone round, and what was wrong
 *   quit        ends the threads; the result of all checks decides the exit status */
#include "kit.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>

enum { THREADS = 5, EARLY = 16, HELD = 4096 };

static volatile int over;
static volatile long rounds[THREADS];
static volatile long wrong;
static volatile long signals;
static void *early[EARLY];
static void *held[HELD];
static int held_count;

static void bad(const char *what)
{
    fprintf(stderr, "wrong: %s\n", what);
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
}

/* ---- the threads ------------------------------------------------------------------------ */

static void *churn_malloc(void *unused)
{
    (void)unused;
    enum { LIVE = 128 };
    unsigned char *live[LIVE] = {0};
    size_t sizes[LIVE] = {0};
    uint64_t rng = 11;
    while (!over) {
        for (int i = 0; i < 200; i++) {
            int at = (int)(kit_random(&rng) % LIVE);
            if (live[at]) {
                if (live[at][0] != (unsigned char)at || live[at][sizes[at] - 1] != (unsigned char)at)
                    bad("malloc's memory");
                free(live[at]);
            }
            sizes[at] = kit_random_size(&rng, 400000);
            live[at] = (unsigned char *)malloc(sizes[at]);
            live[at][0] = live[at][sizes[at] - 1] = (unsigned char)at;
        }
        rounds[0]++;
        if (rounds[0] % 16 == 0)
            sched_yield();
    }
    for (int i = 0; i < LIVE; i++)
        free(live[i]);
    return NULL;
}

static void *churn_dlopen(void *unused)
{
    (void)unused;
    static const char *const names[] = {"libresolv.so.2", "libutil.so.1", "libnsl.so.1", "libanl.so.1"};
    while (!over) {
        void *library = dlopen(names[rounds[1] % 4], RTLD_NOW | RTLD_LOCAL);
        if (library) {
            dlsym(library, "no such function");
            if (!dlerror())
                bad("dlerror");
            dlclose(library);
        }
        rounds[1]++;
        kit_sleep_ms(1);
    }
    return NULL;
}

/* Values in many vector registers, over calls and stops. */
static double series(double from)
{
    double s[16], sum = 0;
    for (int i = 0; i < 16; i++)
        s[i] = from + i;
    for (int k = 0; k < 2000; k++)
        for (int i = 0; i < 16; i++)
            s[i] = s[i] * 1.0000001 + 0.25;
    for (int i = 0; i < 16; i++)
        sum += s[i];
    return sum;
}

static void *short_thread(void *result)
{
    *(double *)result = series(1.5);
    errno = 4711;
    for (int i = 0; i < 50; i++)
        sched_yield();
    if (errno != 4711)
        bad("errno");
    return NULL;
}

static void *churn_threads(void *unused)
{
    (void)unused;
    double right = series(1.5);
    while (!over) {
        double results[3];
        pthread_t t[3];
        for (int i = 0; i < 3; i++)
            t[i] = kit_thread(short_thread, &results[i]);
        for (int i = 0; i < 3; i++) {
            pthread_join(t[i], NULL);
            if (results[i] != right)
                bad("floating point");
        }
        rounds[2]++;
    }
    return NULL;
}

static void on_signal(int number)
{
    (void)number;
    __atomic_fetch_add(&signals, 1, __ATOMIC_SEQ_CST);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* Waits that must be neither cut short nor interrupted but by a signal of this thread. */
static void *churn_waits(void *unused)
{
    (void)unused;
    int pipes[2];
    EXPECT(pipe(pipes) == 0);
    while (!over) {
        long before = signals;
        double start = now_ms();
        struct pollfd p = {pipes[0], POLLIN, 0};
        int n = poll(&p, 1, 4);
        if (n == 1)
            bad("poll of an empty pipe");
        if (n == 0 && now_ms() - start < 3.9)
            bad("a poll that ended early");
        if (n < 0 && (errno != EINTR || signals == before))
            bad("a poll that was interrupted by nothing");
        pthread_kill(pthread_self(), SIGUSR1);
        if (signals == before)
            bad("a signal that did not come");
        struct timespec left, nap = {0, 2000000};
        start = now_ms();
        while (nanosleep(&nap, &left) < 0)
            nap = left;
        if (now_ms() - start < 1.9)
            bad("a nanosleep that ended early");
        char byte = 7;
        EXPECT(write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1 && byte == 7);
        rounds[3]++;
    }
    return NULL;
}

static void *churn_cuda(void *unused)
{
    (void)unused;
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    uint64_t *errors = (uint64_t *)kit_pinned(sizeof *errors);
    cudaStream_t s[2] = {kit_stream(), kit_stream()};
    struct {
        void *p;
        size_t bytes;
    } live[24];
    memset(live, 0, sizeof live);
    uint64_t rng = 5;
    while (!over) {
        for (int i = 0; i < 20; i++) {
            int at = (int)(kit_random(&rng) % 24);
            if (live[at].p)
                kit_free(live[at].p, live[at].bytes);
            live[at].bytes = kit_random_size(&rng, 2 * MIB);
            live[at].p = kit_malloc(live[at].bytes);
            size_t window = live[at].bytes < 16384 ? live[at].bytes : 16384;
            kit_fill(&k, s[i % 2], live[at].p, window, (uint32_t)at, 0);
            kit_check(&k, s[i % 2], live[at].p, window, (uint32_t)at, errors, 0);
        }
        CHECK(cudaDeviceSynchronize());
        if (*errors)
            bad("device memory");
        rounds[4]++;
    }
    for (int i = 0; i < 24; i++)
        if (live[i].p)
            kit_free(live[i].p, live[i].bytes);
    return NULL;
}

/* ---- what is asked for ------------------------------------------------------------------ */

/* Blocks of the pool have numbers of their own, far from the driver's. */
static int is_pooled(void *p)
{
    unsigned long long id = 0;
    CHECK_CU(DRV(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)(uintptr_t)p));
    return id >> 62 == 1;
}

static int pooled(void)
{
    int count = 0;
    void *p[8];
    for (int i = 0; i < 8; i++)
        count += is_pooled(p[i] = kit_malloc(100000));
    for (int i = 0; i < 8; i++)
        kit_free(p[i], 100000);
    return count;
}

static CUcontext other;
static cudaStream_t capturing;

static void use_device(void)
{
    static int used;
    if (!used++) {
        CHECK(cudaSetDevice(0));
        for (int i = 0; i < EARLY; i++)
            early[i] = kit_malloc((size_t)1000 << i % 12);
    }
}

static int obey(char *line)
{
    if (!strncmp(line, "quit", 4))
        return 0;
    if (strncmp(line, "rounds", 6))
        use_device();
    if (!strncmp(line, "pooled", 6)) {
        printf("pooled %d\n", pooled());
    } else if (!strncmp(line, "hold", 4)) {
        int n = atoi(line + 4), count = 0;
        for (int i = 0; i < n && held_count < HELD; i++)
            count += is_pooled(held[held_count++] = kit_malloc(MIB));
        printf("held %d pooled %d\n", held_count, count);
    } else if (!strncmp(line, "drop", 4)) {
        while (held_count > 0)
            kit_free(held[--held_count], MIB);
        printf("dropped\n");
    } else if (!strncmp(line, "sync", 4)) {
        CHECK(cudaDeviceSynchronize());
        printf("synchronised\n");
    } else if (!strncmp(line, "begin", 5)) {
        CHECK(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
        CHECK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
        printf("capturing\n");
    } else if (!strncmp(line, "end", 3)) {
        cudaGraph_t graph = NULL;
        cudaError_t r = cudaStreamEndCapture(capturing, &graph);
        printf("captured %d\n", (int)r);
    } else if (!strncmp(line, "other", 5)) {
        CUdeviceptr p = 0;
        CHECK_CU(DRV(cuCtxSetCurrent)(other));
        CHECK_CU(DRV(cuMemAlloc)(&p, 100000));
        int count = is_pooled((void *)(uintptr_t)p);
        CHECK_CU(DRV(cuMemFree)(p));
        CUcontext primary = NULL;
        CHECK_CU(DRV(cuDevicePrimaryCtxRetain)(&primary, 0));
        CHECK_CU(DRV(cuCtxSetCurrent)(primary));
        printf("other pooled %d\n", count);
    } else {
        printf("rounds %ld %ld %ld %ld %ld wrong %ld\n", rounds[0], rounds[1], rounds[2], rounds[3], rounds[4], wrong);
    }
    return 1;
}

int main(int argc, char **argv)
{
    int churn = 0, late = 0;
    for (int i = 1; i < argc; i++) {
        churn |= !strcmp(argv[i], "churn");
        late |= !strcmp(argv[i], "late");
        if (!strcmp(argv[i], "context")) {
            CUresult (*create)(CUcontext *, unsigned, CUdevice);
            CHECK_CU(DRV(cuInit)(0));
            *(void **)&create = kit_symbol(kit_driver()->library, "cuCtxCreate_v2");
            CHECK_CU(create(&other, 0, 0));
            CHECK_CU(DRV(cuCtxPopCurrent)(NULL));
        }
    }
    signal(SIGUSR1, on_signal);
    if (!late)
        use_device();
    pthread_t t[THREADS];
    void *(*const bodies[THREADS])(void *) = {churn_malloc, churn_dlopen, churn_threads, churn_waits, churn_cuda};
    for (int i = 0; churn && i < THREADS; i++)
        t[i] = kit_thread(bodies[i], NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    char line[64];
    while (fgets(line, sizeof line, stdin) && obey(line))
        ;
    over = 1;
    for (int i = 0; churn && i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < EARLY; i++)
        if (early[i])
            kit_free(early[i], (size_t)1000 << i % 12);
    while (held_count > 0)
        kit_free(held[--held_count], MIB);
    printf("end wrong %ld\n", wrong);
    return wrong != 0;
}
