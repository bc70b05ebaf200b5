// build: shared static
/* A process becomes another program while it has blocks, the GPU works on them, and other threads
 * allocate: the new program begins afresh, with the library if it is still asked for, and without it
 * if not; and children started by posix_spawn and vfork do no harm.
 *
 *   exec [STEP] */
#include "kit.h"
#include <spawn.h>
#include <sys/wait.h>

enum { COUNT = 32, BYTES = 100000, STEPS = 3 };

extern char **environ;

static void *churn(void *unused)
{
    (void)unused;
    for (;;) {
        void *p = NULL;
        if (cudaMalloc(&p, BYTES) == cudaSuccess)
            (void)cudaFree(p);
    }
    return NULL;
}

static int status_of(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) != pid) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void children(void)
{
    char *args[] = {(char *)"true", NULL};
    pid_t pid = -1;
    EXPECT_EQ(posix_spawnp(&pid, "true", NULL, NULL, args, environ), 0);
    printf("spawned: %d\n", status_of(pid));
    pid = vfork();
    if (pid == 0) {
        execv("/bin/true", args);
        _exit(126);
    }
    printf("after vfork: %d\n", status_of(pid));
    printf("by the shell: %d\n", system("exit 3") >> 8);
}

int main(int argc, char **argv)
{
    int step = argc > 1 ? atoi(argv[1]) : 0;
    char self[4096], next[16];
    size_t wrong = 0;
    void *blocks[COUNT];
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    cudaStream_t s = kit_stream();
    for (int i = 0; i < COUNT; i++) {
        CHECK(cudaMalloc(&blocks[i], BYTES));
        CHECK(cudaMemset(blocks[i], i, BYTES));
    }
    for (int i = 0; i < COUNT; i++)
        wrong += kit_wrong_bytes(blocks[i], BYTES, (unsigned char)i);
    printf("step %d: wrong bytes %zu\n", step, wrong);
    EXPECT_EQ(wrong, 0);
    if (step == 0)
        children();
    if (step == STEPS) {
        printf("ended\n");
        return 0;
    }
    for (int i = 0; i < COUNT; i++)
        kit_fill(&k, s, blocks[i], BYTES, 1, MS);
    for (int i = 0; i < COUNT; i += 2)
        (void)cudaFree(blocks[i]);
    kit_thread(churn, NULL);
    kit_thread(churn, NULL);
    kit_sleep_ms(5);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    EXPECT(n > 0);
    self[n] = 0;
    snprintf(next, sizeof next, "%d", step + 1);
    if (step == STEPS - 1)
        unsetenv("LD_PRELOAD");
    fflush(stdout);
    char *args[] = {argv[0], next, NULL};
    execve(self, args, environ);
    return 126;
}
