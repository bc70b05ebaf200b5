// CUDA's own calls, and buffers that are allocated once.
#include "kit.h"

#include "peer.h"

#include <unordered_map>

namespace {

struct Malloc : Peer {
    void *alloc(size_t bytes, cudaStream_t) override
    {
        void *block = nullptr;
        CHECK(cudaMalloc(&block, bytes));
        return block;
    }
    void free(void *block, size_t, cudaStream_t) override { CHECK(cudaFree(block)); }
};

// The driver's functions, as programs find them that do without the runtime.
struct Driver : Peer {
    decltype(&cuMemAlloc) allocate = DRV(cuMemAlloc);
    decltype(&cuMemFree) release = DRV(cuMemFree);

    void *alloc(size_t bytes, cudaStream_t) override
    {
        CUdeviceptr block = 0;
        CHECK_CU(allocate(&block, bytes));
        return reinterpret_cast<void *>(static_cast<uintptr_t>(block));
    }
    void free(void *block, size_t, cudaStream_t) override
    {
        CHECK_CU(release(static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(block))));
    }
};

struct Async : Peer {
    explicit Async(bool keep)
    {
        if (!keep)
            return;
        cudaMemPool_t pool;
        unsigned long long threshold = ~0ull; // as a program does that wants these calls to be fast
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    }
    void *alloc(size_t bytes, cudaStream_t stream) override
    {
        void *block = nullptr;
        CHECK(cudaMallocAsync(&block, bytes, stream));
        return block;
    }
    void free(void *block, size_t, cudaStream_t stream) override { CHECK(cudaFreeAsync(block, stream)); }
};

// A buffer for each thread, stream and size, allocated at its first use and never freed: what a
// program can reach that is written so.
struct Preallocated : Peer {
    void *alloc(size_t bytes, cudaStream_t stream) override
    {
        thread_local std::unordered_map<cudaStream_t, std::unordered_map<size_t, void *>> buffers;
        void *&buffer = buffers[stream][bytes];
        if (!buffer)
            CHECK(cudaMalloc(&buffer, bytes));
        return buffer;
    }
    void free(void *, size_t, cudaStream_t) override {}
    bool frees() const override { return false; }
};

} // namespace

std::unique_ptr<Peer> make_peer(const std::string &name)
{
    if (name == "malloc")
        return std::make_unique<Malloc>();
    if (name == "driver")
        return std::make_unique<Driver>();
    if (name == "async" || name == "async-untuned")
        return std::make_unique<Async>(name == "async");
    if (name == "preallocated")
        return std::make_unique<Preallocated>();
    return nullptr;
}
