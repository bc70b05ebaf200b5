// build: shared static
/* After a kernel fault the context is lost: every call answers so, in the end also those that
 * a pool could have served from memory it still has. */
#include "kit.h"

enum { COUNT = 64, TRIES = 5000 };

int main(void)
{
    void *blocks[COUNT], *p = NULL;
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    for (int i = 0; i < COUNT; i++)
        CHECK(cudaMalloc(&blocks[i], 65536));
    for (int i = 0; i < COUNT / 2; i++)
        CHECK(cudaFree(blocks[i]));
    CHECK(cudaDeviceSynchronize());
    CHECK_CU(kit_launch(k.fault, 1, 1, cudaStreamPerThread, NULL));
    printf("synchronize: %d\n", (int)cudaDeviceSynchronize());
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < TRIES && code == cudaSuccess; i++)
        code = cudaMalloc(&p, 65536);
    printf("allocation in the end: %d\n", (int)code);
    printf("allocation of a new size: %d\n", (int)cudaMalloc(&p, 77 * MIB));
    printf("free: %d\n", (int)cudaFree(blocks[COUNT - 1]));
    printf("last error: %d\n", (int)cudaGetLastError());
    printf("reset: %d\n", (int)cudaDeviceReset());
    printf("allocation after the reset: %d\n", (int)cudaMalloc(&p, 65536));
    fflush(stdout);
    return 0;
}
