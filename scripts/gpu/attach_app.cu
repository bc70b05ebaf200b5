// An ordinary CUDA C++ program that never ends by itself, to attach to: buffers of many sizes,
// kernels, frees. Prints `RATE CHECKSUM POOLED` for each half second: iterations per second, a sum
// that is the same each time, and how many of eight new blocks are the library's (their BUFFER_ID
// is far from the driver's own). Ends when its standard input does.
#include <cstdio>
#include <cstdlib>
#include <chrono>
#include <poll.h>
#include <unistd.h>
#include <cuda.h>
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

__global__ void sum(const unsigned *in, int n, unsigned long long *total)
{
    unsigned long long mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += in[i];
    atomicAdd(total, mine);
}

typedef CUresult (*get_attribute)(void *, CUpointer_attribute, CUdeviceptr);

static int pooled(get_attribute attribute)
{
    int count = 0;
    void *p[8];
    for (void *&q : p) {
        unsigned long long id = 0;
        OK(cudaMalloc(&q, 100000));
        if (attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)q) != CUDA_SUCCESS)
            exit(1);
        count += id >> 62 == 1;
    }
    for (void *q : p)
        OK(cudaFree(q));
    return count;
}

int main()
{
    typedef std::chrono::steady_clock Clock;
    unsigned long long *total;
    cudaStream_t stream;
    void *attribute = nullptr;
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &attribute, 4000, cudaEnableDefault, &found));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&total, sizeof *total));
    for (;;) {
        auto start = Clock::now();
        unsigned long long first = 0;
        int count = 0;
        OK(cudaMemset(total, 0, sizeof *total));
        OK(cudaDeviceSynchronize());
        while (Clock::now() - start < std::chrono::milliseconds(500)) {
            // The sum is that of the first 100 rounds, so that stretches of any length agree.
            int n = 1000 + count % 100 * 7919 % 300000;
            unsigned *a;
            OK(cudaMalloc(&a, n * sizeof *a));
            make<<<32, 256, 0, stream>>>(a, n, count % 100);
            sum<<<32, 256, 0, stream>>>(a, n, total);
            OK(cudaGetLastError());
            OK(cudaFree(a));
            if (++count == 100) {
                OK(cudaDeviceSynchronize());
                OK(cudaMemcpy(&first, total, sizeof first, cudaMemcpyDeviceToHost));
            }
        }
        OK(cudaDeviceSynchronize());
        double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        printf("%.1f %llu %d\n", count / seconds, first, pooled((get_attribute)attribute));
        fflush(stdout);
        pollfd input = {STDIN_FILENO, POLLIN, 0};
        if (poll(&input, 1, 0) > 0)
            return 0;
    }
}
