// What one call costs, whether it waits for the GPU, and what it does to a loop.
#include "bench.h"

#include <algorithm>

namespace bench {

namespace {

constexpr uint64_t long_kernel_ns = 5 * MS, short_kernel_ns = 100000;

struct Times {
    double alloc = 0, free = 0;
    int count = 0;
};

// One allocation and its free, timed apart, with `kernel_ns` of work in flight on another stream
// when each of them is called (0: the GPU idle).
void one(Peer &peer, size_t bytes, cudaStream_t stream, cudaStream_t other, uint64_t kernel_ns, Times &times)
{
    if (kernel_ns)
        kit_spin(&kernels(), other, kernel_ns);
    Clock::time_point begun = Clock::now();
    void *block = peer.alloc(bytes, stream);
    times.alloc += since(begun);
    if (kernel_ns) {
        CHECK(cudaStreamSynchronize(other));
        kit_spin(&kernels(), other, kernel_ns);
    }
    begun = Clock::now();
    peer.free(block, bytes, stream);
    times.free += since(begun);
    times.count++;
    if (kernel_ns)
        CHECK(cudaStreamSynchronize(other));
}

} // namespace

void cost(const Job &job)
{
    size_t bytes = job.number(1);
    cudaStream_t stream = enter_device(), other = enter_device();
    Times idle, busy, warm;
    for (int i = 0; i < 3; i++)
        one(job.peer, bytes, stream, other, 0, warm);
    CHECK(cudaDeviceSynchronize());
    for (Clock::time_point begun = Clock::now(); idle.count < 3 || since(begun) < job.seconds;)
        one(job.peer, bytes, stream, other, 0, idle);
    for (int i = 0; i < 5; i++)
        one(job.peer, bytes, stream, other, long_kernel_ns, busy);
    job.say("alloc", idle.alloc / idle.count * 1e9);
    job.say("free", idle.free / idle.count * 1e9);
    job.say("alloc-busy", busy.alloc / busy.count * 1e9);
    job.say("free-busy", busy.free / busy.count * 1e9);
    leave_device(other);
    leave_device(stream);
}

// Rounds a second, of at most 10,000: each has a kernel of 100 us.
void loop(const Job &job)
{
    size_t bytes = job.number(1);
    cudaStream_t stream = enter_device();
    auto round = [&] {
        void *block = job.peer.alloc(bytes, stream);
        kit_fill(&kernels(), stream, block, 4096, 1, short_kernel_ns);
        job.peer.free(block, bytes, stream);
    };
    int rounds = std::max(2, static_cast<int>(job.seconds * 1e4));
    round();
    CHECK(cudaStreamSynchronize(stream));
    Clock::time_point begun = Clock::now();
    for (int i = 0; i < rounds; i++)
        round();
    CHECK(cudaStreamSynchronize(stream));
    job.say("", rounds / since(begun));
    leave_device(stream);
}

} // namespace bench
