// build: shared static
/* A thread that allocates on its own stack, and on one that it made itself, as programs with
 * fibers do; the latter lies in memory that ends where nothing is mapped. */
#include "kit.h"
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 256 << 10 };

static ucontext_t outside, inside;
static int rounds;

__attribute__((noinline)) static void pair(size_t bytes)
{
    void *p = NULL;
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaFree(p));
    rounds++;
}

static void fiber(void)
{
    for (;;) {
        pair(8192);
        swapcontext(&inside, &outside);
    }
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    /* A page that nobody may touch on either side. */
    char *memory = mmap(NULL, STACK + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    EXPECT_EQ(mprotect(memory + 4096, STACK, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(getcontext(&inside), 0);
    inside.uc_stack.ss_sp = memory + 4096;
    inside.uc_stack.ss_size = STACK;
    makecontext(&inside, fiber, 0);
    for (int i = 0; i < 50; i++) {
        pair(4096);
        swapcontext(&outside, &inside);
    }
    printf("rounds %d\n", rounds);
    return 0;
}
