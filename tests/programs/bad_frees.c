// build: shared static
/* Frees of what is not (or no longer) a block, absurd sizes and missing outputs: every answer,
 * the last error included, is the native one, and no block is ever issued twice. */
#include "kit.h"

static void say(const char *what, cudaError_t code)
{
    printf("%s: %d, last error %d\n", what, (int)code, (int)cudaGetLastError());
}

static void *untouched(void) { return (void *)(uintptr_t)0x1234; }

static void frees(size_t bytes)
{
    char *p = (char *)kit_malloc(bytes);
    int on_stack = 0;
    printf("block of %zu bytes\n", bytes);
    say(" free NULL", cudaFree(NULL));
    if (bytes > 1)
        say(" free interior + 1", cudaFree(p + 1));
    if (bytes > 256)
        say(" free interior + 256", cudaFree(p + 256));
    if (bytes > MIB)
        say(" free interior + 1 MiB", cudaFree(p + MIB));
    say(" free 16", cudaFree((void *)(uintptr_t)16));
    say(" free garbage", cudaFree((void *)(uintptr_t)0xDEADBEEF000));
    say(" free all ones", cudaFree((void *)~(uintptr_t)0));
    say(" free a stack address", cudaFree(&on_stack));
    say(" free it as host memory", cudaFreeHost(p));
    /* The block is still whole after all that. */
    CHECK(cudaMemset(p, 0x5A, bytes));
    EXPECT_EQ(kit_wrong_bytes(p, bytes, 0x5A), 0);
    note_free(p, bytes);
    say(" free", cudaFree(p));
    say(" free again", cudaFree(p));
    say(" free once more by the driver", (cudaError_t)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)p));
    char *a = (char *)kit_malloc(bytes), *b = (char *)kit_malloc(bytes);
    EXPECT(a + bytes <= b || b + bytes <= a);
    kit_free(a, bytes);
    kit_free(b, bytes);
}

static void sizes(void)
{
    size_t absurd[] = {(size_t)1 << 50, (size_t)1 << 62, (size_t)1 << 63, ~(size_t)0,
                       ~(size_t)0 - 510, ~(size_t)0 - 511, ~(size_t)0 - (2 * MIB), ~(size_t)0 - (2 * MIB) + 1};
    void *p = untouched();
    say("malloc 0", cudaMalloc(&p, 0));
    printf(" output NULL %d\n", p == NULL);
    say("free that", cudaFree(p));
    say("malloc to NULL", cudaMalloc(NULL, 4096));
    say("malloc 0 to NULL", cudaMalloc(NULL, 0));
    for (unsigned i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        p = untouched();
        cudaError_t code = cudaMalloc(&p, absurd[i]);
        printf("malloc %zx: %d, last error %d, output untouched %d\n", absurd[i], (int)code,
               (int)cudaGetLastError(), p == untouched());
        EXPECT(code != cudaSuccess);
        CUdeviceptr d = 0x1234;
        CUresult r = DRV(cuMemAlloc)(&d, absurd[i]);
        printf("driver %zx: %d, output untouched %d\n", absurd[i], (int)r, d == 0x1234);
    }
    CUdeviceptr d = 0x1234;
    printf("driver 0: %d\n", (int)DRV(cuMemAlloc)(&d, 0));
    printf("driver to NULL: %d\n", (int)DRV(cuMemAlloc)(NULL, 4096));
    printf("driver free 0: %d\n", (int)DRV(cuMemFree)(0));
    printf("driver free 16: %d\n", (int)DRV(cuMemFree)(16));
}

static void pitched(void)
{
    struct {
        size_t width, height;
    } odd[] = {{0, 0}, {0, 5}, {5, 0}, {(size_t)1 << 63, 4}, {1, (size_t)1 << 63}, {~(size_t)0, ~(size_t)0}};
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) {
        void *p = untouched();
        size_t pitch = 77;
        cudaError_t code = cudaMallocPitch(&p, &pitch, odd[i].width, odd[i].height);
        printf("pitched %zx x %zx: %d, last error %d\n", odd[i].width, odd[i].height, (int)code,
               (int)cudaGetLastError());
        if (code == cudaSuccess)
            CHECK(cudaFree(p));
    }
    size_t pitch;
    void *p;
    say("pitched to NULL", cudaMallocPitch(NULL, &pitch, 64, 64));
    say("pitched without pitch", cudaMallocPitch(&p, NULL, 64, 64));
}

/* An error that the program has not fetched yet stays, whatever is allocated meanwhile. */
static void pending_error(void)
{
    EXPECT_EQ(cudaMalloc(NULL, 1), cudaErrorInvalidValue);
    for (int i = 0; i < 10; i++)
        kit_free(kit_malloc(8192), 8192);
    printf("pending error: %d\n", (int)cudaPeekAtLastError());
    int fetched = (int)cudaGetLastError(), then = (int)cudaGetLastError();
    printf("fetched: %d, then %d\n", fetched, then);
}

static void *free_in_thread(void *p)
{
    cudaError_t code = cudaFree(p);
    printf("free by a second thread: %d, its last error %d\n", (int)code, (int)cudaGetLastError());
    return NULL;
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    frees(64);
    frees(4096);
    frees(3 * MIB);
    frees(4096);
    sizes();
    pitched();
    pending_error();
    void *p = kit_malloc(4096);
    note_free(p, 4096);
    CHECK(cudaFree(p));
    pthread_join(kit_thread(free_in_thread, p), NULL);
    printf("last error of the first thread: %d\n", (int)cudaGetLastError());
    return 0;
}
