// What many live blocks cost the CPU: time and memory for each.
#include "bench.h"

namespace bench {

namespace {

constexpr size_t bytes = 512;

// Bytes of memory that this process occupies.
double resident()
{
    unsigned long all = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    EXPECT(file && fscanf(file, "%lu %lu", &all, &pages) == 2);
    fclose(file);
    return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

} // namespace

// Live blocks, of this and all earlier jobs of its kind: only ever more.
void live(const Job &job)
{
    static std::vector<void *> blocks;
    static cudaStream_t stream;
    size_t wanted = job.number(1), had = blocks.size();
    EXPECT(wanted > had);
    if (!stream) {
        stream = enter_device();
        job.peer.free(job.peer.alloc(bytes, stream), bytes, stream);
    }
    // The list of blocks itself is in memory before, so that it does not count.
    std::vector<void *> room(wanted, nullptr);
    std::copy(blocks.begin(), blocks.end(), room.begin());
    double with_room = resident();
    Clock::time_point begun = Clock::now();
    for (size_t i = had; i < wanted; i++)
        room[i] = job.peer.alloc(bytes, stream);
    job.say("alloc", since(begun) / static_cast<double>(wanted - had) * 1e9);
    job.say("memory", (resident() - with_room) / static_cast<double>(wanted - had));
    blocks.swap(room);
    begun = Clock::now();
    size_t pairs = 0;
    do {
        job.peer.free(job.peer.alloc(bytes, stream), bytes, stream);
        pairs++;
    } while (since(begun) < job.seconds);
    job.say("pair", since(begun) / static_cast<double>(pairs) * 1e9);
}

} // namespace bench
