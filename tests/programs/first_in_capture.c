// build: shared static
/* One thread captures in global mode; the process's first allocation of all, and its first
 * free, happen meanwhile in another thread. The capture ends no worse than natively. */
#include "kit.h"

static cudaError_t malloc_code, free_code;

static void *first_allocation(void *unused)
{
    void *p = NULL;
    (void)unused;
    malloc_code = cudaMalloc(&p, MIB);
    free_code = malloc_code == cudaSuccess ? cudaFree(p) : cudaSuccess;
    cudaGetLastError();
    return NULL;
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    cudaStream_t s = kit_stream();
    cudaGraph_t graph = NULL;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    kit_spin(&k, s, 1000);
    pthread_join(kit_thread(first_allocation, NULL), NULL);
    cudaError_t ended = cudaStreamEndCapture(s, &graph);
    cudaGetLastError();
    printf("maybe-better first allocation: alloc %d free %d capture %d\n", (int)malloc_code, (int)free_code,
           (int)ended);
    void *p = NULL;
    CHECK(cudaMalloc(&p, MIB));
    CHECK(cudaMemset(p, 1, MIB));
    EXPECT_EQ(kit_wrong_bytes(p, MIB, 1), 0);
    CHECK(cudaFree(p));
    printf("same afterwards: ok\n");
    return 0;
}
