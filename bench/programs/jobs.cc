// Runs jobs one after the other, with one allocator:   jobs ALLOCATOR SECONDS JOB...
// SECONDS is the length of one measurement. bench.h lists the jobs.
#include "bench.h"

#include <memory>
#include <mutex>
#include <sstream>

namespace bench {

namespace {

std::mutex streams_lock;
std::vector<cudaStream_t> unused_streams;

} // namespace

cudaStream_t enter_device()
{
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(nullptr));
    std::lock_guard<std::mutex> guard(streams_lock);
    if (unused_streams.empty())
        return kit_stream();
    cudaStream_t stream = unused_streams.back();
    unused_streams.pop_back();
    return stream;
}

void leave_device(cudaStream_t stream)
{
    CHECK(cudaStreamSynchronize(stream));
    std::lock_guard<std::mutex> guard(streams_lock);
    unused_streams.push_back(stream);
}

const kit_kernels &kernels()
{
    static const kit_kernels loaded = kit_load();
    return loaded;
}

double rate(int threads, double seconds, const std::function<Worker(int)> &make)
{
    pthread_barrier_t start;
    std::atomic<bool> stop{false};
    std::vector<double> rates(static_cast<size_t>(threads));
    std::vector<std::thread> all;
    pthread_barrier_init(&start, nullptr, static_cast<unsigned>(threads) + 1);
    for (int i = 0; i < threads; i++)
        all.emplace_back([&, i] {
            Worker worker = make(i);
            pthread_barrier_wait(&start);
            Clock::time_point begun = Clock::now();
            uint64_t steps = 0;
            do {
                worker.step();
                steps++;
            } while (!stop.load(std::memory_order_relaxed));
            rates[static_cast<size_t>(i)] = static_cast<double>(steps) / since(begun);
            if (worker.end)
                worker.end();
        });
    pthread_barrier_wait(&start);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
    double sum = 0;
    for (int i = 0; i < threads; i++) {
        all[static_cast<size_t>(i)].join();
        sum += rates[static_cast<size_t>(i)];
    }
    pthread_barrier_destroy(&start);
    return sum;
}

BusyStream::BusyStream(uint64_t kernel_ns) : thread_([this, kernel_ns] { work(kernel_ns); })
{
    while (launched_ == 0)
        std::this_thread::yield();
}

BusyStream::~BusyStream()
{
    stop_ = true;
    thread_.join();
}

void BusyStream::work(uint64_t kernel_ns)
{
    // Some kernels ahead, so that the stream never runs dry, and no more, so that it ends soon.
    constexpr size_t ahead = 4;
    cudaStream_t stream = enter_device();
    cudaEvent_t done[ahead];
    for (cudaEvent_t &event : done)
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (uint64_t i = 0; !stop_; i++) {
        if (i >= ahead)
            CHECK(cudaEventSynchronize(done[i % ahead]));
        kit_spin(&kernels(), stream, kernel_ns);
        CHECK(cudaEventRecord(done[i % ahead], stream));
        launched_++;
    }
    CHECK(cudaStreamSynchronize(stream));
    for (cudaEvent_t &event : done)
        CHECK(cudaEventDestroy(event));
    leave_device(stream);
}

} // namespace bench

namespace {

const struct {
    const char *kind;
    void (*run)(const bench::Job &);
} kinds[] = {
    {"pairs", bench::pairs},   {"busy", bench::busy},     {"sync", bench::sync_each}, {"handoff", bench::handoff},
    {"cost", bench::cost},     {"loop", bench::loop},     {"heads", bench::heads},    {"resize", bench::resize},
    {"beside", bench::beside}, {"live", bench::live},     {"host", bench::host},      {"staging", bench::staging},
};

void run_job(const std::string &name, Peer &peer, double seconds)
{
    std::vector<std::string> words;
    std::istringstream parts(name);
    for (std::string word; std::getline(parts, word, ':');)
        words.push_back(word);
    for (const auto &kind : kinds)
        if (!words.empty() && words[0] == kind.kind)
            return kind.run(bench::Job{name, words, peer, seconds});
    kit_fail(__FILE__, __LINE__, name.c_str(), "is no job");
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: jobs ALLOCATOR SECONDS JOB...\n");
        return 2;
    }
    double seconds = atof(argv[2]);
    EXPECT(seconds > 0);
    cudaStream_t stream = bench::enter_device();
    bench::kernels(); // loaded before anything is timed
    std::unique_ptr<Peer> peer = make_peer(argv[1]);
    if (!peer)
        kit_fail(__FILE__, __LINE__, argv[1], "is no allocator of this program");
    for (int i = 3; i < argc; i++)
        run_job(argv[i], *peer, seconds);
    bench::leave_device(stream);
    // The allocator's own end may outlast the runtime's: what is measured is over.
    fflush(stdout);
    (void)peer.release();
    return 0;
}
