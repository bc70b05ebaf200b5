// build: shared static
/* Does what it is told, line by line on its standard input, so that a test can look at it in
 * between. Answers each line with `ok`, or with what the line asks for.
 *
 *   init            first use of CUDA
 *   alloc BYTES     one more block
 *   free            the last block
 *   churn N BYTES   N times an allocation and its free
 *   fill            allocations until one fails; prints their number, and frees them
 *   holes BYTES     the device full of blocks of that size, every other one freed
 *   ask BYTES       one allocation, freed at once; prints the result's number
 *   pin BYTES FLAGS one more block of pinned memory (cudaHostAlloc), written by the CPU
 *   unpin           the last one of those
 *   spin MS         a kernel that takes so long, on a stream of its own
 *   sync            waits for the GPU
 *   fork            a child that waits for the end of its input; prints its process id
 *   close           closes every descriptor from 3 on, as a daemon does
 *   threads         prints how many threads the process has */
#include "kit.h"
#include <dirent.h>
#include <sys/syscall.h>

enum { MOST = 65536 };

static void *blocks[MOST];
static int count;
static void *pinned[MOST];
static int pins;

static void more(size_t bytes)
{
    EXPECT(count < MOST);
    CHECK(cudaMalloc(&blocks[count], bytes));
    count++;
}

static int threads(void)
{
    int found = 0;
    DIR *folder = opendir("/proc/self/task");
    EXPECT(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        found += entry->d_name[0] != '.';
    closedir(folder);
    return found;
}

static void child(void)
{
    int pipes[2];
    EXPECT_EQ(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        /* Until the parent is gone. */
        close(pipes[1]);
        char byte;
        _exit((int)read(pipes[0], &byte, 1));
    }
    close(pipes[0]);
    printf("%d\n", (int)pid);
}

int main(void)
{
    char line[256], word[32];
    CUstream spinning = NULL;
    kit_kernels k;
    while (fgets(line, sizeof line, stdin)) {
        unsigned long a = 0, b = 0;
        if (sscanf(line, "%31s %lu %lu", word, &a, &b) < 1)
            continue;
        if (!strcmp(word, "init")) {
            CHECK(cudaSetDevice(0));
            k = kit_load();
            spinning = (CUstream)kit_stream();
        } else if (!strcmp(word, "alloc")) {
            more(a);
        } else if (!strcmp(word, "free")) {
            EXPECT(count > 0);
            CHECK(cudaFree(blocks[--count]));
        } else if (!strcmp(word, "pin")) {
            EXPECT(pins < MOST);
            CHECK(cudaHostAlloc(&pinned[pins], a, (unsigned)b));
            memset(pinned[pins++], 1, a);
        } else if (!strcmp(word, "unpin")) {
            EXPECT(pins > 0);
            CHECK(cudaFreeHost(pinned[--pins]));
        } else if (!strcmp(word, "churn")) {
            for (unsigned long i = 0; i < a; i++) {
                more(b);
                CHECK(cudaFree(blocks[--count]));
            }
        } else if (!strcmp(word, "fill")) {
            int got = 0;
            while (count < MOST && cudaMalloc(&blocks[count], 64 * MIB) == cudaSuccess)
                count++, got++;
            cudaGetLastError();
            for (int i = 0; i < got; i++)
                CHECK(cudaFree(blocks[--count]));
            printf("%d\n", got);
            fflush(stdout);
            continue;
        } else if (!strcmp(word, "holes")) {
            int first = count;
            while (count < MOST && cudaMalloc(&blocks[count], a) == cudaSuccess)
                count++;
            cudaGetLastError();
            for (int i = first; i < count; i += 2) {
                CHECK(cudaFree(blocks[i]));
                blocks[i] = NULL;
            }
        } else if (!strcmp(word, "ask")) {
            void *p = NULL;
            cudaError_t result = cudaMalloc(&p, a);
            if (result == cudaSuccess)
                CHECK(cudaFree(p));
            cudaGetLastError();
            printf("%d\n", (int)result);
            fflush(stdout);
            continue;
        } else if (!strcmp(word, "spin")) {
            kit_spin(&k, spinning, a * MS);
        } else if (!strcmp(word, "sync")) {
            CHECK(cudaDeviceSynchronize());
        } else if (!strcmp(word, "fork")) {
            child();
            fflush(stdout);
            continue;
        } else if (!strcmp(word, "close")) {
            for (int fd = 3; fd < 4096; fd++)
                close(fd);
        } else if (!strcmp(word, "threads")) {
            printf("%d\n", threads());
            fflush(stdout);
            continue;
        } else {
            printf("unknown: %s", line);
            fflush(stdout);
            continue;
        }
        printf("ok\n");
        fflush(stdout);
    }
    return 0;
}
