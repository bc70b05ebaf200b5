// Blocks that one thread allocates and another frees.
#include "bench.h"

namespace bench {

namespace {

// A queue from one thread to one other.
class Queue {
public:
    bool push(void *block)
    {
        size_t head = head_.load(std::memory_order_relaxed);
        if (head - tail_.load(std::memory_order_acquire) == places)
            return false;
        blocks_[head % places] = block;
        head_.store(head + 1, std::memory_order_release);
        return true;
    }

    void *pop()
    {
        size_t tail = tail_.load(std::memory_order_relaxed);
        if (tail == head_.load(std::memory_order_acquire))
            return nullptr;
        void *block = blocks_[tail % places];
        tail_.store(tail + 1, std::memory_order_release);
        return block;
    }

private:
    static constexpr size_t places = 64;
    void *blocks_[places] = {};
    alignas(64) std::atomic<size_t> head_{0};
    alignas(64) std::atomic<size_t> tail_{0};
};

struct Pass {
    Pass(const Job &job, size_t bytes, size_t queues) : job(job), bytes(bytes), queues(queues) {}

    const Job &job;
    size_t bytes;
    std::vector<Queue> queues;
    pthread_barrier_t start, ended;
    std::atomic<bool> some{false}, stop{false};
    std::atomic<uint64_t> freed{0};
};

// Allocates into `to` and frees from `from`, one of each a round as far as the queues allow; what
// lies in the queue at the end is freed uncounted.
void thread_of(Pass &pass, Queue *to, Queue *from)
{
    Peer &peer = pass.job.peer;
    cudaStream_t stream = enter_device();
    void *next = nullptr; // allocated, and not passed on yet
    uint64_t freed = 0;
    pthread_barrier_wait(&pass.start);
    while (!pass.stop.load(std::memory_order_relaxed)) {
        bool idle = true;
        if (to) {
            if (!next)
                next = peer.alloc(pass.bytes, stream);
            if (to->push(next)) {
                next = nullptr;
                idle = false;
            }
        }
        if (void *block = from ? from->pop() : nullptr) {
            peer.free(block, pass.bytes, stream);
            if (freed++ == 0)
                pass.some = true;
            idle = false;
        }
        if (idle)
            std::this_thread::yield();
    }
    pass.freed += freed;
    if (next)
        peer.free(next, pass.bytes, stream);
    pthread_barrier_wait(&pass.ended);
    while (void *block = from ? from->pop() : nullptr)
        peer.free(block, pass.bytes, stream);
    leave_device(stream);
}

} // namespace

void handoff(const Job &job)
{
    bool ring = job.word(2) == "ring";
    size_t threads = job.number(3), queues = ring ? threads : threads / 2;
    Pass pass(job, job.number(1), queues);
    pthread_barrier_init(&pass.start, nullptr, static_cast<unsigned>(threads) + 1);
    pthread_barrier_init(&pass.ended, nullptr, static_cast<unsigned>(threads));
    std::vector<std::thread> all;
    for (size_t i = 0; i < threads; i++) {
        Queue *to = nullptr, *from = nullptr;
        if (ring) {
            to = &pass.queues[i];
            from = &pass.queues[(i + threads - 1) % threads];
        } else {
            (i % 2 ? from : to) = &pass.queues[i / 2];
        }
        all.emplace_back([&pass, to, from] { thread_of(pass, to, from); });
    }
    pthread_barrier_wait(&pass.start);
    Clock::time_point begun = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(job.seconds));
    while (!pass.some) // a loaded machine may not have come to any
        std::this_thread::yield();
    pass.stop = true;
    double took = since(begun);
    for (std::thread &thread : all)
        thread.join();
    job.say("", static_cast<double>(pass.freed) / took);
    pthread_barrier_destroy(&pass.start);
    pthread_barrier_destroy(&pass.ended);
}

} // namespace bench
