// Threads with a stream each: an allocation of 4 MiB, a kernel of about 50 us, a free, over and
// over. What the allocation costs shows as kernels that are missing against the line in which
// each thread uses one buffer for all.
//   multi_stream [kernels a thread] [malloc|async|preallocated]...
// Prints `WAY THREADS KERNELS_PER_SECOND` lines.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

#define OK(call)                                                                           \
    do {                                                                                   \
        cudaError_t code_ = (call);                                                        \
        if (code_ != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

constexpr size_t bytes = 4 << 20;
constexpr int elements = 1024, blocks = 8, block_threads = 128;

static __device__ long long now()
{
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__global__ void work(float *p, int n, long long ns)
{
    long long start = now();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = (float)i;
    while (now() - start < ns) {
    }
}

static void loop(const std::string &way, int kernels, std::atomic<int> &ready, std::atomic<bool> &go)
{
    cudaStream_t s;
    float *own;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&own, bytes));
    work<<<blocks, block_threads, 0, s>>>(own, elements, 1000);
    OK(cudaStreamSynchronize(s));
    ready++;
    while (!go) {
    }
    for (int k = 0; k < kernels; k++) {
        float *p = own;
        if (way == "malloc")
            OK(cudaMalloc(&p, bytes));
        else if (way == "async")
            OK(cudaMallocAsync(&p, bytes, s));
        work<<<blocks, block_threads, 0, s>>>(p, elements, 50000);
        if (way == "malloc")
            OK(cudaFree(p));
        else if (way == "async")
            OK(cudaFreeAsync(p, s));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(own));
}

static double kernels_per_second(const std::string &way, int threads, int kernels)
{
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&] { loop(way, kernels, ready, go); });
    while (ready < threads)
        std::this_thread::yield();
    auto start = std::chrono::steady_clock::now();
    go = true;
    for (auto &t : all)
        t.join();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return threads * (double)kernels / took.count();
}

int main(int argc, char **argv)
{
    int kernels = argc > 1 ? atoi(argv[1]) : 4000;
    std::vector<std::string> ways(argv + (argc > 2 ? 2 : argc), argv + argc);
    if (ways.empty())
        ways = {"malloc", "async", "preallocated"};
    OK(cudaFree(nullptr));
    cudaMemPool_t pool;
    unsigned long long threshold = ~0ull; // as a program does that wants cudaMallocAsync to be fast
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    for (const std::string &way : ways)
        for (int threads : {1, 4, 8}) {
            printf("%s %d %.0f\n", way.c_str(), threads, kernels_per_second(way, threads, kernels));
            fflush(stdout);
        }
    return 0;
}
