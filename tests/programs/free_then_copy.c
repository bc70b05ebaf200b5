// build: shared static
/* A program that relies on a free as its only synchronisation: natively cudaFree waits until
 * the GPU is idle, so what was submitted before it is done when it returns.
 *
 *   free_then_copy copy    a copy after the free reads what a kernel wrote
 *   free_then_copy cpu     the CPU reads pinned memory that a kernel wrote
 *
 * Prints `final: yes` for what is final after the free, as it always is natively. */
#include "kit.h"

enum { BYTES = 1 << 20 };

static kit_kernels k;
static void *out, *scratch;

static void *free_scratch(void *unused)
{
    (void)unused;
    CHECK(cudaFree(scratch));
    return NULL;
}

static void say(const char *scenario, size_t wrong) { printf("%s final: %s\n", scenario, wrong ? "no" : "yes"); }

static void prepare(cudaStream_t s1, uint32_t value)
{
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMalloc(&scratch, BYTES));
    kit_fill(&k, s1, out, BYTES, value, 100 * MS);
}

static size_t wrong_in(const void *host, unsigned char byte)
{
    size_t wrong = 0;
    for (size_t i = 0; i < BYTES; i++)
        wrong += ((const volatile unsigned char *)host)[i] != byte;
    return wrong;
}

int main(int argc, char **argv)
{
    int cpu = argc > 1 && !strcmp(argv[1], "cpu");
    CHECK(cudaSetDevice(0));
    k = kit_load();
    cudaStream_t s1 = kit_stream(), s2 = kit_stream();
    if (cpu) {
        out = kit_pinned(BYTES);
        prepare(s1, 0x11111111);
        CHECK(cudaFree(scratch));
        say("read by the CPU", wrong_in(out, 0x11));
    } else {
        CHECK(cudaMalloc(&out, BYTES));
        prepare(s1, 0x11111111);
        CHECK(cudaFree(scratch));
        say("cudaMemcpy", kit_wrong_bytes(out, BYTES, 0x11));

        prepare(s1, 0x22222222);
        pthread_join(kit_thread(free_scratch, NULL), NULL);
        say("freed by another thread, cudaMemcpy", kit_wrong_bytes(out, BYTES, 0x22));

        void *host = kit_pinned(BYTES);
        prepare(s1, 0x33333333);
        CHECK(cudaFree(scratch));
        CHECK(cudaMemcpyAsync(host, out, BYTES, cudaMemcpyDeviceToHost, s2));
        CHECK(cudaStreamSynchronize(s2));
        say("asynchronous copy on another stream", wrong_in(host, 0x33));

        prepare(s1, 0x44444444);
        CHECK_CU(DRV(cuMemFree)((CUdeviceptr)(uintptr_t)scratch));
        say("cuMemFree, cudaMemcpy", kit_wrong_bytes(out, BYTES, 0x44));
    }
    CHECK(cudaDeviceSynchronize());
    return 0;
}
