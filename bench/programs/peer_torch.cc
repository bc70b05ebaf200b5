// PyTorch's caching allocator, without Python.
#include "peer.h"

#include <c10/cuda/CUDACachingAllocator.h>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Torch : Peer {
    Torch() { allocator::init(1); }
    void *alloc(size_t bytes, cudaStream_t stream) override
    {
        return allocator::raw_alloc_with_stream(bytes, stream);
    }
    void free(void *block, size_t, cudaStream_t) override { allocator::raw_delete(block); }
};

} // namespace

std::unique_ptr<Peer> make_peer(const std::string &name)
{
    return name == "torch" ? std::make_unique<Torch>() : nullptr;
}
