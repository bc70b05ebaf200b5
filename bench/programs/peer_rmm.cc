// RMM's pool and its arena, over cudaMalloc. Written for librmm 26.10, whose resources take the
// stream first.
#include "peer.h"

#include <rmm/aligned.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

namespace {

constexpr size_t first_bytes = size_t{1} << 30, most_bytes = size_t{8} << 30;

template <typename Resource>
struct Rmm : Peer {
    Resource resource;

    template <typename... Sizes>
    explicit Rmm(Sizes... sizes) : resource(rmm::mr::cuda_memory_resource{}, sizes...)
    {
    }
    void *alloc(size_t bytes, cudaStream_t stream) override
    {
        return resource.allocate(cuda::stream_ref{stream}, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
    }
    void free(void *block, size_t bytes, cudaStream_t stream) override
    {
        resource.deallocate(cuda::stream_ref{stream}, block, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
    }
};

} // namespace

std::unique_ptr<Peer> make_peer(const std::string &name)
{
    if (name == "rmm-pool")
        return std::make_unique<Rmm<rmm::mr::pool_memory_resource>>(first_bytes, most_bytes);
    if (name == "rmm-arena")
        return std::make_unique<Rmm<rmm::mr::arena_memory_resource>>(most_bytes);
    return nullptr;
}
