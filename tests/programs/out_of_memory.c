// build: shared static
/* The device is filled until the native error comes; then everything is freed and can be had
 * again in any shape: what is free in pieces is joined or given back before a request fails. */
#include "kit.h"

enum { PARTS = 16, SMALL = 4096 };

static size_t free_bytes(void)
{
    size_t available = 0, total = 0;
    CHECK(cudaMemGetInfo(&available, &total));
    return available;
}

int main(void)
{
    static void *parts[PARTS + 2], *small[SMALL];
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    cudaStream_t s = kit_stream();
    size_t available = free_bytes(), part = available / PARTS & ~(2 * MIB - 1);
    for (int round = 0; round < 3; round++) {
        int got = 0;
        cudaError_t code = cudaSuccess;
        while (got < PARTS + 2) {
            void *p = (void *)(uintptr_t)0x1234;
            code = cudaMalloc(&p, part);
            if (code != cudaSuccess) {
                /* What a failed call leaves in its output is the driver's business. */
                printf("round %d: output after the failure: %p\n", round, p);
                break;
            }
            parts[got++] = p;
        }
        printf("round %d: full with %d, last error %d; most of it was had %d\n", round, (int)code,
               (int)cudaGetLastError(), got >= PARTS - 2);
        printf(" and then %d\n", (int)cudaGetLastError());
        /* Freed with work pending on each: the next request needs that memory, joined. */
        for (int i = 0; i < got; i++) {
            kit_fill(&k, s, parts[i], 65536, 7, MS);
            CHECK(cudaFree(parts[i]));
        }
        size_t half = part * PARTS / 2;
        void *p = NULL;
        CHECK(cudaMalloc(&p, half));
        CHECK(cudaMemset(p, 1, MIB));
        /* Many small ones beside it, freed in an order that leaves holes. */
        for (int i = 0; i < SMALL; i++)
            CHECK(cudaMalloc(&small[i], 20000));
        for (int i = 0; i < SMALL; i += 2)
            CHECK(cudaFree(small[i]));
        for (int i = 1; i < SMALL; i += 2)
            CHECK(cudaFree(small[i]));
        CHECK(cudaFree(p));
        CHECK(cudaMalloc(&p, part * (PARTS - 3)));
        CHECK(cudaFree(p));
        printf(" freed memory was had in other shapes\n");
    }
    return 0;
}
