// What the benchmark's jobs share. A job is named `KIND:ARGUMENT:…`; it prints `JOB VALUE` lines,
// or `JOB/PART VALUE`. Programs are plain C++ over the CUDA runtime: one compiler builds them for
// a GPU and for the simulated driver. Threads, failing and kernels come from tests/programs/kit.h.
#ifndef BENCH_H
#define BENCH_H

#include "kit.h"

#include "peer.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// A job's words, what allocates, and how long one measurement may take.
struct Job {
    std::string name;
    std::vector<std::string> words;
    Peer &peer;
    double seconds;

    size_t number(size_t i) const { return i < words.size() ? strtoull(words[i].c_str(), nullptr, 10) : 0; }
    const std::string &word(size_t i) const { return words.at(i); }

    void say(const char *part, double value) const
    {
        printf("%s%s%s %.6g\n", name.c_str(), *part ? "/" : "", part, value);
        fflush(stdout);
    }
};

// Makes the device's context the calling thread's; returns a stream that nobody else uses until
// `leave_device`. Streams are never destroyed: some allocators keep the streams of their blocks.
cudaStream_t enter_device();
void leave_device(cudaStream_t stream);

// The kernels, for the current context.
const kit_kernels &kernels();

// One thread's part of a rate: `step` is what is counted, called until the time is over.
struct Worker {
    std::function<void()> step, end;
};

// Makes a worker in each of `threads` threads, lets all start at once, and gives the steps a
// second of all together, each thread over its own time: every thread makes at least one step.
double rate(int threads, double seconds, const std::function<Worker(int)> &make);

// Keeps one stream busy with kernels of `kernel_ns` from a thread of its own, until destroyed.
class BusyStream {
public:
    explicit BusyStream(uint64_t kernel_ns);
    ~BusyStream();
    // Kernels that have been launched so far.
    uint64_t launched() const { return launched_; }

private:
    void work(uint64_t kernel_ns);

    std::atomic<uint64_t> launched_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

// The jobs, each in a file of its own kind.
void pairs(const Job &);     // pairs:BYTES:THREADS               an allocation and its free
void busy(const Job &);      // busy:BYTES:THREADS                the same beside running kernels
void sync_each(const Job &); // sync:BYTES                        and a synchronisation each time
void handoff(const Job &);   // handoff:BYTES:pairs|ring:THREADS  freed by another thread
void cost(const Job &);      // cost:BYTES                        of a call, GPU idle and busy
void loop(const Job &);      // loop:BYTES                        allocate, a kernel, free
void heads(const Job &);     // heads:STREAMS                     a temporary for each stream's kernel
void resize(const Job &);    // resize:BYTES                      free, then allocate the same
void beside(const Job &);    // beside:STREAMS                    the default stream beside busy ones
void live(const Job &);      // live:BLOCKS                       cost and memory of live blocks
void host(const Job &);      // host:BYTES:THREADS                pinned memory
void staging(const Job &);   // staging:BYTES:request|kept        pinned memory for each request

} // namespace bench

#endif
