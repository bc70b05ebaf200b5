// Pinned host memory: cudaMallocHost and cudaFreeHost, and staging buffers for each request.
#include "bench.h"

namespace bench {

void host(const Job &job)
{
    size_t bytes = job.number(1);
    job.say("", rate(static_cast<int>(job.number(2)), job.seconds, [&](int) {
                cudaStream_t stream = enter_device();
                auto step = [bytes] {
                    void *block = nullptr;
                    CHECK(cudaMallocHost(&block, bytes));
                    CHECK(cudaFreeHost(block));
                };
                step();
                return Worker{step, [stream] { leave_device(stream); }};
            }));
}

// A request: its input is written into pinned memory, copied to the device, and answered.
// `request`: the pinned memory is allocated and freed in each; `kept`: allocated once.
void staging(const Job &job)
{
    size_t bytes = job.number(1);
    bool kept = job.word(2) == "kept";
    cudaStream_t stream = enter_device();
    std::vector<char> input(bytes, 1);
    void *device = nullptr, *own = nullptr;
    CHECK(cudaMalloc(&device, bytes));
    if (kept)
        CHECK(cudaMallocHost(&own, bytes));
    job.say("", rate(1, job.seconds, [&](int) {
                CHECK(cudaSetDevice(0));
                return Worker{[&] {
                                  void *buffer = own;
                                  if (!kept)
                                      CHECK(cudaMallocHost(&buffer, bytes));
                                  memcpy(buffer, input.data(), bytes);
                                  CHECK(cudaMemcpyAsync(device, buffer, bytes, cudaMemcpyHostToDevice, stream));
                                  CHECK(cudaStreamSynchronize(stream));
                                  if (!kept)
                                      CHECK(cudaFreeHost(buffer));
                              },
                              nullptr};
            }));
    if (kept)
        CHECK(cudaFreeHost(own));
    CHECK(cudaFree(device));
    leave_device(stream);
}

} // namespace bench
