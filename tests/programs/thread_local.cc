// build: shared static
// options: -static-libstdc++ -static-libgcc
/* Frees in the destructors of C++: of thread-local objects when threads end and when the process
 * does, of objects with static life that were made before CUDA was used and after, and of one that
 * allocates again while it is destroyed. Exit status 0 and the same output every time.
 *
 *   thread_local threads | main | static | detached */
#include "kit.h"

#include <thread>
#include <vector>

namespace {

enum { COUNT = 16, BYTES = 100000 };

/* The codes are not looked at: at process end the native driver answers one or the other, depending
 * on who was unloaded first. */
struct holder {
    std::vector<void *> blocks;

    void fill()
    {
        CHECK(cudaSetDevice(0));
        for (int i = 0; i < COUNT; i++) {
            void *p = nullptr;
            CHECK(cudaMalloc(&p, BYTES));
            blocks.push_back(p);
        }
        for (int i = 0; i < COUNT; i += 2) {
            CHECK(cudaFree(blocks[i]));
            CHECK(cudaMalloc(&blocks[i], BYTES));
        }
    }

    ~holder()
    {
        void *p = nullptr;
        for (void *block : blocks)
            (void)cudaFree(block);
        if (!blocks.empty() && cudaMalloc(&p, BYTES) == cudaSuccess)
            (void)cudaFree(p);
    }
};

thread_local holder of_thread, second_of_thread;
holder early; /* destroyed after what CUDA registers for the end */

holder &late()
{
    static holder made_at_first_use; /* destroyed before it */
    return made_at_first_use;
}

void use_both()
{
    of_thread.fill();
    second_of_thread.fill();
}

} // namespace

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "main";
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(nullptr));
    if (!strcmp(how, "threads")) {
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; i++)
            threads.emplace_back(use_both);
        for (std::thread &t : threads)
            t.join();
        /* What they freed can be had again. */
        of_thread.fill();
    } else if (!strcmp(how, "main")) {
        use_both();
    } else if (!strcmp(how, "static")) {
        early.fill();
        late().fill();
        use_both();
    } else if (!strcmp(how, "detached")) {
        /* It ends while main does, and its destructors run beside the exit handlers. */
        std::thread(use_both).detach();
        use_both();
    }
    printf("main ends: %s\n", how);
    fflush(stdout);
    return 0;
}
