// An allocation and its free in one thread: many threads, beside running kernels, synchronised.
#include "bench.h"

namespace bench {

namespace {

// A thread that allocates and frees, warmed up.
Worker pair_worker(Peer &peer, size_t bytes)
{
    cudaStream_t stream = enter_device();
    auto step = [&peer, bytes, stream] {
        void *block = peer.alloc(bytes, stream);
        peer.free(block, bytes, stream);
    };
    for (int i = 0; i < 16; i++)
        step();
    return Worker{step, [stream] { leave_device(stream); }};
}

} // namespace

void pairs(const Job &job)
{
    size_t bytes = job.number(1);
    job.say("", rate(static_cast<int>(job.number(2)), job.seconds,
                     [&](int) { return pair_worker(job.peer, bytes); }));
}

// A stream that has nothing to do with the threads' own always runs a kernel of 100 us.
void busy(const Job &job)
{
    size_t bytes = job.number(1);
    BusyStream other(100000);
    Clock::time_point begun = Clock::now();
    uint64_t before = other.launched();
    job.say("", rate(static_cast<int>(job.number(2)), job.seconds,
                     [&](int) { return pair_worker(job.peer, bytes); }));
    while (other.launched() == before) // a loaded machine may not have come to any
        std::this_thread::yield();
    job.say("kernels", static_cast<double>(other.launched() - before) / since(begun));
}

void sync_each(const Job &job)
{
    size_t bytes = job.number(1);
    job.say("", rate(1, job.seconds, [&](int) {
                cudaStream_t stream = enter_device();
                return Worker{[&job, bytes, stream] {
                                  void *block = job.peer.alloc(bytes, stream);
                                  job.peer.free(block, bytes, stream);
                                  CHECK(cudaStreamSynchronize(stream));
                              },
                              [stream] { leave_device(stream); }};
            }));
}

} // namespace bench
