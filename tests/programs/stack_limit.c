// build: shared static
/* Most of the device lies unused in the pool when the program asks for larger stacks, which the
 * driver takes from the device's memory: natively nothing is in the way. */
#include "kit.h"

int main(void)
{
    enum { PARTS = 16 };
    void *parts[PARTS];
    size_t available = 0, total = 0;
    int processors = 0, resident = 0;
    CUresult (*set_limit)(int, size_t); /* CU_LIMIT_STACK_SIZE is 0 */
    CHECK(cudaSetDevice(0));
    *(void **)&set_limit = kit_symbol(kit_driver()->library, "cuCtxSetLimit");
    kit_kernels k = kit_load();
    cudaStream_t s = kit_stream();
    CHECK(cudaMemGetInfo(&available, &total));
    CHECK(cudaDeviceGetAttribute(&processors, (enum cudaDeviceAttr)16, 0));
    CHECK(cudaDeviceGetAttribute(&resident, (enum cudaDeviceAttr)39, 0));
    size_t bytes = available / 10 * 8 / PARTS;
    for (int i = 0; i < PARTS; i++)
        parts[i] = kit_malloc(bytes);
    for (int i = 0; i < PARTS; i++)
        kit_free(parts[i], bytes);
    CHECK(cudaDeviceSynchronize());
    /* Attributes 16 and 39: multiprocessors, and threads on each. Half of what was free, for all threads that can run at once. */
    size_t stack = available / 2 / ((size_t)processors * (size_t)resident) / 1024 * 1024;
    printf("a limit: %d\n", (int)set_limit(0, stack));
    void *p = kit_malloc(65536);
    kit_fill(&k, s, p, 65536, 7, 0);
    printf("a kernel: %d\n", (int)cudaStreamSynchronize(s));
    kit_free(p, 65536);
    printf("back: %d\n", (int)set_limit(0, 1024));
    return 0;
}
