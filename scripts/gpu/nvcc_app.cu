// An ordinary CUDA C++ program, as nvcc builds it: short-lived buffers, kernels in `<<<>>>`
// form on two streams, a reduction. Prints a checksum.   nvcc_app [iterations]
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define OK(call)                                                                           \
    do {                                                                                   \
        cudaError_t code_ = (call);                                                        \
        if (code_ != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

__global__ void make(unsigned *out, int n, unsigned seed)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = (i + seed) * 2654435761u;
}

__global__ void mix(const unsigned *in, unsigned *out, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = in[i] ^ (in[(i + 1) % n] >> 7);
}

__global__ void sum(const unsigned *in, int n, unsigned long long *total)
{
    unsigned long long mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += in[i];
    atomicAdd(total, mine);
}

int main(int argc, char **argv)
{
    // The checksum is that of the first 1000 iterations, so that runs of any length agree.
    int iterations = argc > 1 ? atoi(argv[1]) : 2000;
    cudaStream_t streams[2];
    unsigned long long *total, first = 0, all = 0;
    for (cudaStream_t &s : streams)
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&total, sizeof *total));
    OK(cudaMemset(total, 0, sizeof *total));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < iterations; i++) {
        cudaStream_t s = streams[i % 2];
        int n = 1000 + (i * 7919) % 300000;
        unsigned *a, *b;
        OK(cudaMalloc(&a, n * sizeof *a));
        OK(cudaMalloc(&b, n * sizeof *b));
        make<<<32, 256, 0, s>>>(a, n, i);
        mix<<<32, 256, 0, s>>>(a, b, n);
        OK(cudaFree(a));
        sum<<<32, 256, 0, s>>>(b, n, total);
        OK(cudaFree(b));
        OK(cudaGetLastError());
        if (i == 999) {
            OK(cudaDeviceSynchronize());
            OK(cudaMemcpy(&first, total, sizeof first, cudaMemcpyDeviceToHost));
        }
    }
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&all, total, sizeof all, cudaMemcpyDeviceToHost));
    OK(cudaFree(total));
    printf("checksum of the first 1000: %llu\n", first);
    if (iterations == 2000)
        printf("checksum of all: %llu\n", all);
    return 0;
}
