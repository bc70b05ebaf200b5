// build: shared static
/* Frees after main has returned, or while threads end: in atexit handlers, destructors of
 * libraries and of thread-local values, and after quick_exit. Exit status 0 and the same output,
 * however the process ends.
 *
 *   exit_handlers atexit | destructor | thread | quick | busy | detached | return | underscore |
 *                 pthread-exit | exit-in-thread | codes
 *
 * `codes` is for runs with a pool: after the driver's own exit handlers a free of pooled memory
 * answers success, as the pool leaves the memory to the system without asking the driver. */
#include "kit.h"

enum { COUNT = 32, BYTES = 100000 };

static void *blocks[COUNT], *host;
static int destructor_frees;

/* The codes are not printed: at process end the native driver answers one or the other,
 * depending on who was unloaded first. What counts is that the process gets to its end. */
static void free_all(const char *where)
{
    for (int i = 0; i < COUNT; i++)
        (void)cudaFree(blocks[i]);
    if (host)
        (void)cudaFreeHost(host);
    void *p = NULL;
    if (cudaMalloc(&p, BYTES) == cudaSuccess)
        (void)cudaFree(p);
    printf("freed in %s\n", where);
    fflush(stdout);
}

static void at_exit(void) { free_all("an exit handler"); }

static void count_refused(void)
{
    int refused = 0;
    for (int i = 0; i < COUNT; i++)
        refused += cudaFree(blocks[i]) != cudaSuccess;
    refused += cudaFreeHost(host) != cudaSuccess;
    printf("frees refused after the driver's end: %d\n", refused);
    fflush(stdout);
}

static void *free_later(void *unused)
{
    (void)unused;
    kit_sleep_ms(20);
    for (int i = 0; i < COUNT; i++)
        CHECK(cudaFree(blocks[i]));
    printf("freed by the last thread\n");
    fflush(stdout);
    return NULL;
}

static void *exit_here(void *unused)
{
    (void)unused;
    exit(0);
}
static void quick_handler(void) { free_all("a quick_exit handler"); }

__attribute__((destructor)) static void at_unload(void)
{
    if (destructor_frees)
        free_all("a destructor");
}

static void thread_value_end(void *value)
{
    for (int i = 0; i < COUNT; i++)
        (void)cudaFree(((void **)value)[i]);
}

static pthread_key_t key;

static void *allocating_thread(void *unused)
{
    (void)unused;
    void **mine = (void **)calloc(COUNT, sizeof *mine);
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < COUNT; i++)
        CHECK(cudaMalloc(&mine[i], BYTES));
    for (int i = 0; i < COUNT; i += 2) {
        CHECK(cudaFree(mine[i]));
        CHECK(cudaMalloc(&mine[i], BYTES));
    }
    pthread_setspecific(key, mine);
    return NULL;
}

static void *endless_thread(void *unused)
{
    (void)unused;
    for (;;) {
        void *p = NULL;
        if (cudaMalloc(&p, BYTES) == cudaSuccess)
            (void)cudaFree(p);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "return";
    if (!strcmp(how, "atexit"))
        EXPECT_EQ(atexit(at_exit), 0); /* before CUDA's own handlers: runs after them */
    if (!strcmp(how, "codes"))
        EXPECT_EQ(atexit(count_refused), 0);
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    for (int i = 0; i < COUNT; i++)
        CHECK(cudaMalloc(&blocks[i], BYTES));
    CHECK(cudaMallocHost(&host, BYTES));
    for (int i = 0; i < COUNT; i++) {
        CHECK(cudaFree(blocks[i]));
        CHECK(cudaMalloc(&blocks[i], BYTES));
    }
    if (!strcmp(how, "atexit"))
        EXPECT_EQ(atexit(at_exit), 0); /* and once more, to run before them */
    if (!strcmp(how, "destructor"))
        destructor_frees = 1;
    if (!strcmp(how, "thread")) {
        pthread_t t[8];
        EXPECT_EQ(pthread_key_create(&key, thread_value_end), 0);
        for (int i = 0; i < 8; i++)
            t[i] = kit_thread(allocating_thread, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(t[i], NULL);
    }
    if (!strcmp(how, "detached")) /* still at it when main returns */
        for (int i = 0; i < 4; i++)
            kit_thread(endless_thread, NULL);
    if (!strcmp(how, "busy")) {
        cudaStream_t s = kit_stream();
        kit_fill(&k, s, blocks[0], BYTES, 1, 300 * MS);
        for (int i = 1; i < COUNT; i++)
            kit_fill(&k, s, blocks[i], BYTES, 1, 0);
        CHECK(cudaFree(blocks[COUNT - 1]));
    }
    printf("main ends: %s\n", how);
    fflush(stdout);
    if (!strcmp(how, "quick")) {
        EXPECT_EQ(at_quick_exit(quick_handler), 0);
        quick_exit(0);
    }
    if (!strcmp(how, "underscore"))
        _exit(0);
    if (!strcmp(how, "pthread-exit")) {
        kit_thread(free_later, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(how, "exit-in-thread"))
        pthread_join(kit_thread(exit_here, NULL), NULL);
    return 0;
}
