// Loops that are written as people write them who think that an allocation costs nothing.
#include "bench.h"

#include <algorithm>
#include <memory>

namespace bench {

namespace {

constexpr uint64_t kernel_ns = 20000;
constexpr size_t temporary = 2 * MIB;

// Rounds a second of `round`, with all that they launched done; about `seconds` at `expected`.
double rounds_per_second(double seconds, double expected, const std::function<void()> &round)
{
    int rounds = std::max(2, static_cast<int>(seconds * expected));
    round();
    CHECK(cudaDeviceSynchronize());
    Clock::time_point begun = Clock::now();
    for (int i = 0; i < rounds; i++)
        round();
    CHECK(cudaDeviceSynchronize());
    return rounds / since(begun);
}

} // namespace

// A round is a layer: every attention head, on a stream of its own, has a temporary for its scores.
void heads(const Job &job)
{
    size_t count = job.number(1);
    std::vector<cudaStream_t> streams;
    for (size_t i = 0; i < count; i++)
        streams.push_back(enter_device());
    job.say("", rounds_per_second(job.seconds, 2000, [&] {
                for (cudaStream_t stream : streams) {
                    void *scores = job.peer.alloc(temporary, stream);
                    kit_fill(&kernels(), stream, scores, 4096, 1, kernel_ns);
                    job.peer.free(scores, temporary, stream);
                }
            }));
    for (cudaStream_t stream : streams)
        leave_device(stream);
}

// A buffer that is replaced by one of the same size before each use.
void resize(const Job &job)
{
    size_t bytes = job.number(1);
    cudaStream_t stream = enter_device();
    void *buffer = job.peer.alloc(bytes, stream);
    job.say("", rounds_per_second(job.seconds, 10000, [&] {
                job.peer.free(buffer, bytes, stream);
                buffer = job.peer.alloc(bytes, stream);
                kit_fill(&kernels(), stream, buffer, 4096, 1, kernel_ns);
            }));
    job.peer.free(buffer, bytes, stream);
    leave_device(stream);
}

// Memory for work on the default stream while other streams, which have nothing to do with it,
// always run kernels of 100 us: rounds a second here, and kernels a second there.
void beside(const Job &job)
{
    std::vector<std::unique_ptr<BusyStream>> others;
    for (size_t i = 0; i < job.number(1); i++)
        others.push_back(std::make_unique<BusyStream>(100000));
    auto launched = [&] {
        uint64_t sum = 0;
        for (const auto &other : others)
            sum += other->launched();
        return sum;
    };
    auto round = [&] {
        void *block = job.peer.alloc(temporary, nullptr);
        kit_fill(&kernels(), nullptr, block, 4096, 1, kernel_ns);
        job.peer.free(block, temporary, nullptr);
        // Of the default stream only: what waits for the others here is the call's own doing.
        CHECK(cudaStreamSynchronize(nullptr));
    };
    round();
    uint64_t before = launched(), rounds = 0;
    Clock::time_point begun = Clock::now();
    do {
        round();
        rounds++;
    } while (since(begun) < job.seconds);
    job.say("", static_cast<double>(rounds) / since(begun));
    while (launched() == before) // a loaded machine may not have come to any
        std::this_thread::yield();
    job.say("kernels", static_cast<double>(launched() - before) / since(begun));
}

} // namespace bench
