// build: shared static
/* What new memory holds. `fill zero`: new blocks hold zeros, for every stream that looks, and
 * what a stream writes into one right after the allocation stays. `fill poison`: old data is
 * never seen. `fill any`: nothing is expected of the contents, only that writes stay. */
#include "kit.h"

enum { ROUNDS = 200 };

int main(int argc, char **argv)
{
    const char *want = argc > 1 ? argv[1] : "any";
    int zero = !strcmp(want, "zero"), poison = !strcmp(want, "poison");
    size_t sizes[] = {1, 3, 512, 4097, 65536, (1 << 20) + 1, 5 << 20};
    uint64_t rng = 12345;
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    uint64_t *errors = (uint64_t *)kit_pinned(2 * sizeof *errors);
    cudaStream_t s[3] = {kit_stream(), kit_stream(), cudaStreamPerThread};
    size_t old = 0;
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes = sizes[kit_random(&rng) % (sizeof sizes / sizeof *sizes)];
        cudaStream_t mine = s[i % 3];
        void *p = kit_malloc(bytes);
        if (zero)
            kit_check(&k, mine, p, bytes, 0, &errors[0], 0);
        if (poison)
            old += kit_wrong_bytes(p, bytes, 0xFF) == 0;
        kit_fill(&k, mine, p, bytes, 0xFFFFFFFFu, 0);
        kit_check(&k, mine, p, bytes, 0xFFFFFFFFu, &errors[1], MS / 10);
        kit_free(p, bytes);
    }
    CHECK(cudaDeviceSynchronize());
    printf("words that were not zero: %llu\n", (unsigned long long)errors[0]);
    printf("blocks with old data: %zu\n", old);
    printf("words that did not stay: %llu\n", (unsigned long long)errors[1]);
    return errors[0] || errors[1] || old;
}
