// build: shared static
/* A process with blocks forks: children that do nothing, that run another program, and that
 * free what the parent allocated. No child hangs, none harms the parent.
 *
 *   fork                  one child of each kind, and the parent goes on
 *   fork storm N          8 threads allocate while main forks N times
 *   fork child-frees N    the same, and each child frees blocks of the parent: a pool answers
 *                         success and leaves them to the system; natively that fails */
#include "kit.h"
#include <sys/wait.h>

enum { COUNT = 64, BYTES = 65536 };

static void *blocks[COUNT], *host;
static volatile int stop;

static void *churn(void *argument)
{
    uint64_t rng = (uint64_t)(intptr_t)argument * 7919 + 1;
    CHECK(cudaSetDevice(0));
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        void *p = NULL;
        CHECK(cudaMalloc(&p, kit_random_size(&rng, MIB)));
        CHECK(cudaFree(p));
        if (kit_random(&rng) % 16 == 0) {
            CHECK(cudaMallocHost(&p, kit_random_size(&rng, MIB)));
            CHECK(cudaFreeHost(p));
        }
    }
    return NULL;
}

/* Runs `body` in a child; returns its exit status. The alarm ends a child that hangs. */
static int child(void (*body)(void))
{
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        alarm(30);
        body();
        _exit(0);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) != pid) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void nothing(void) {}

static void run_another_program(void)
{
    char *args[] = {(char *)"true", NULL};
    execv("/bin/true", args);
    _exit(126);
}

static void free_the_parents(void)
{
    int failed = 0;
    for (int i = 0; i < COUNT; i++)
        failed += cudaFree(blocks[i]) != cudaSuccess;
    failed += cudaFreeHost(host) != cudaSuccess;
    _exit(failed);
}

static void allocate(void)
{
    void *p = NULL;
    _exit(cudaMalloc(&p, BYTES) == cudaSuccess ? 99 : 0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "plain";
    int times = argc > 2 ? atoi(argv[2]) : 100;
    CHECK(cudaSetDevice(0));
    for (int i = 0; i < COUNT; i++) {
        CHECK(cudaMalloc(&blocks[i], BYTES));
        CHECK(cudaMemset(blocks[i], i, BYTES));
    }
    CHECK(cudaMallocHost(&host, BYTES));
    memset(host, 7, BYTES);
    CHECK(cudaDeviceSynchronize());
    if (!strcmp(how, "plain")) {
        printf("child that does nothing: %d\n", child(nothing));
        printf("child that runs another program: %d\n", child(run_another_program));
        printf("child that allocates: %d (99: it succeeded)\n", child(allocate));
    } else {
        pthread_t t[8];
        int failed = 0;
        for (int i = 0; i < 8; i++)
            t[i] = kit_thread(churn, (void *)(intptr_t)i);
        for (int i = 0; i < times; i++)
            failed += child(!strcmp(how, "child-frees") ? free_the_parents : nothing) != 0;
        kit_set(&stop);
        for (int i = 0; i < 8; i++)
            pthread_join(t[i], NULL);
        printf("children that failed: %d of %d\n", failed, times);
        EXPECT_EQ(failed, 0);
    }
    /* The parent's memory is as it was, and can be freed. */
    size_t wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        wrong += kit_wrong_bytes(blocks[i], BYTES, (unsigned char)i);
        CHECK(cudaFree(blocks[i]));
    }
    for (int i = 0; i < BYTES; i++)
        wrong += ((char *)host)[i] != 7;
    CHECK(cudaFreeHost(host));
    printf("parent: wrong bytes %zu\n", wrong);
    return wrong != 0;
}
