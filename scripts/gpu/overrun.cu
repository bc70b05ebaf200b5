// Writes one element past the end of a block: compute-sanitizer has to find it.
#include <cstdio>
#include <cuda_runtime.h>

__global__ void write(int *p, int n)
{
    int i = threadIdx.x;
    if (i <= n) // one too many
        p[i] = i;
}

int main()
{
    int *p = nullptr, *other = nullptr;
    for (int i = 0; i < 10; i++) { // what a cache would hand out again
        cudaMalloc(&p, 400);
        cudaFree(p);
    }
    cudaMalloc(&p, 400);
    cudaMalloc(&other, 4000);
    write<<<1, 128>>>(p, 100);
    printf("kernel: %d\n", (int)cudaDeviceSynchronize());
    cudaFree(p);
    cudaFree(other);
    return 0;
}
