/* What the test programs share: checks that name file, line and error; launching of the
 * kernels in kernels.cu; a random generator; threads; and the side channel that tells the
 * simulated driver who owns a block.
 *
 * A program is plain C, is compiled once, and runs unchanged on the simulated and on a real
 * driver. It prints lines that are the same on every run, with and without a pool, and exits
 * 0; a check that fails prints where and why and exits 1.
 *
 * Driver functions that the kit itself needs are looked up by dlsym, so that a program can be
 * linked without libcuda. Define KIT_DRIVER_ONLY before including this file in a program that
 * does not use the runtime at all. */
#ifndef KIT_H
#define KIT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>
#ifndef KIT_DRIVER_ONLY
#include <cuda_runtime.h>
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels_ptx.h"

#define KIT_UNUSED __attribute__((unused))
#define KIT_TEXT_(x) #x
#define KIT_TEXT(x) KIT_TEXT_(x)
#define MIB ((size_t)1 << 20)
#define MS ((uint64_t)1000000) /* nanoseconds */

/* ---- failing ------------------------------------------------------------------------- */

/* _exit: the GPU may be busy for ever when a check fails, and exit handlers would wait. */
static KIT_UNUSED __attribute__((noreturn)) void kit_fail(const char *file, int line, const char *what,
                                                          const char *why)
{
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
    _exit(1);
}

#define EXPECT(condition)                                              \
    do {                                                               \
        if (!(condition))                                              \
            kit_fail(__FILE__, __LINE__, #condition, "is not so");     \
    } while (0)

#define EXPECT_EQ(have, want)                                                                          \
    do {                                                                                               \
        long long have_ = (long long)(have), want_ = (long long)(want);                                \
        if (have_ != want_) {                                                                          \
            char text_[96];                                                                            \
            snprintf(text_, sizeof text_, "is %lld, should be %lld", have_, want_);                    \
            kit_fail(__FILE__, __LINE__, #have, text_);                                                \
        }                                                                                              \
    } while (0)

/* By default the driver loads a kernel when it is first launched, and may wait for the GPU to
 * do so: a kernel that waits for a later one would then wait for ever. */
static __attribute__((constructor)) void kit_load_eagerly(void) { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

/* ---- the driver ---------------------------------------------------------------------- */

/* cuda.h maps most of these names to their `_v2` forms by macros; KIT_TEXT sees the result. */
#define KIT_DRIVER_FUNCTIONS(X)                                                                     \
    X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDevicePrimaryCtxRetain)        \
    X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxGetState)             \
    X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxDestroy)      \
    X(cuCtxSynchronize) X(cuMemAlloc) X(cuMemFree) X(cuMemAllocPitch) X(cuMemGetInfo)                 \
    X(cuMemGetAddressRange) X(cuMemcpyDtoH) X(cuMemcpyHtoD) X(cuMemsetD8) X(cuMemAllocHost)           \
    X(cuMemFreeHost) X(cuPointerGetAttribute) X(cuPointerSetAttribute) X(cuStreamCreate)              \
    X(cuStreamSynchronize) X(cuStreamDestroy) X(cuStreamWaitValue32) X(cuStreamWriteValue32)          \
    X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel)

#define KIT_FIELD(f) __typeof__(&f) p_##f;
typedef struct {
    KIT_DRIVER_FUNCTIONS(KIT_FIELD)
    void *library;
    void (*note_alloc)(unsigned long long, unsigned long long);
    void (*note_free)(unsigned long long, unsigned long long);
} kit_driver_table;

static kit_driver_table kit_driver_table_;
static pthread_once_t kit_driver_once_ = PTHREAD_ONCE_INIT;

static KIT_UNUSED void *kit_symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        kit_fail(__FILE__, __LINE__, name, "not found in libcuda.so.1");
    return found;
}

static void kit_driver_load(void)
{
    kit_driver_table *t = &kit_driver_table_;
    t->library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!t->library)
        kit_fail(__FILE__, __LINE__, "dlopen", dlerror());
#define KIT_LOOKUP(f) *(void **)&t->p_##f = kit_symbol(t->library, KIT_TEXT(f));
    KIT_DRIVER_FUNCTIONS(KIT_LOOKUP)
    *(void **)&t->note_alloc = dlsym(t->library, "simNoteAlloc");
    *(void **)&t->note_free = dlsym(t->library, "simNoteFree");
}

static KIT_UNUSED const kit_driver_table *kit_driver(void)
{
    pthread_once(&kit_driver_once_, kit_driver_load);
    return &kit_driver_table_;
}

/* A driver function looked up at run time: DRV(cuMemAlloc)(&p, n). */
#define DRV(f) (kit_driver()->p_##f)

static KIT_UNUSED void kit_check_driver(CUresult r, const char *file, int line, const char *what)
{
    if (r != CUDA_SUCCESS) {
        const char *name = NULL;
        char text[96];
        DRV(cuGetErrorName)(r, &name);
        snprintf(text, sizeof text, "error %d %s", (int)r, name ? name : "?");
        kit_fail(file, line, what, text);
    }
}

/* CHECK for the runtime, CHECK_CU for the driver. */
#define CHECK_CU(call) kit_check_driver((call), __FILE__, __LINE__, #call)
#ifndef KIT_DRIVER_ONLY
static KIT_UNUSED void kit_check_runtime(cudaError_t r, const char *file, int line, const char *what)
{
    if (r != cudaSuccess) {
        char text[96];
        snprintf(text, sizeof text, "error %d %s", (int)r, cudaGetErrorString(r));
        kit_fail(file, line, what, text);
    }
}
#define CHECK(call) kit_check_runtime((call), __FILE__, __LINE__, #call)
#endif

/* ---- who owns a block: for the simulated driver -------------------------------------- */

/* Right after an allocation returned, and right before a free. Without effect elsewhere. */
static KIT_UNUSED void note_alloc(const void *p, size_t bytes)
{
    if (p && kit_driver()->note_alloc)
        kit_driver()->note_alloc((unsigned long long)(uintptr_t)p, bytes);
}

static KIT_UNUSED void note_free(const void *p, size_t bytes)
{
    if (p && kit_driver()->note_free)
        kit_driver()->note_free((unsigned long long)(uintptr_t)p, bytes);
}

#ifndef KIT_DRIVER_ONLY
static KIT_UNUSED void *kit_malloc(size_t bytes)
{
    void *p = NULL;
    CHECK(cudaMalloc(&p, bytes));
    note_alloc(p, bytes);
    return p;
}

static KIT_UNUSED void kit_free(void *p, size_t bytes)
{
    note_free(p, bytes);
    CHECK(cudaFree(p));
}
#endif

/* ---- kernels ------------------------------------------------------------------------- */

typedef struct {
    CUfunction fill, check, spin, wait, copy, fault;
} kit_kernels;

/* Loads the kernels into the current context. */
static KIT_UNUSED kit_kernels kit_load(void)
{
    kit_kernels k;
    CUmodule module;
    CHECK_CU(DRV(cuModuleLoadData)(&module, kernels_ptx));
    CHECK_CU(DRV(cuModuleGetFunction)(&k.fill, module, "gp_fill"));
    CHECK_CU(DRV(cuModuleGetFunction)(&k.check, module, "gp_check"));
    CHECK_CU(DRV(cuModuleGetFunction)(&k.spin, module, "gp_spin"));
    CHECK_CU(DRV(cuModuleGetFunction)(&k.wait, module, "gp_wait"));
    CHECK_CU(DRV(cuModuleGetFunction)(&k.copy, module, "gp_copy"));
    CHECK_CU(DRV(cuModuleGetFunction)(&k.fault, module, "gp_fault"));
    return k;
}

/* Few enough blocks that they all run at once: each thread waits by itself, so a second wave
 * of blocks would wait a second time. */
static KIT_UNUSED unsigned kit_blocks(size_t bytes)
{
    size_t blocks = bytes / 4096 + 1;
    return blocks > 64 ? 64u : (unsigned)blocks;
}

static KIT_UNUSED CUresult kit_launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **args)
{
    return DRV(cuLaunchKernel)(f, blocks, 1, 1, threads, 1, 1, 0, s, args, NULL);
}

static KIT_UNUSED void kit_fill(const kit_kernels *k, CUstream s, void *p, size_t bytes, uint32_t value,
                                uint64_t delay_ns)
{
    uint64_t ptr = (uint64_t)(uintptr_t)p, n = bytes;
    void *args[] = {&ptr, &n, &value, &delay_ns};
    CHECK_CU(kit_launch(k->fill, kit_blocks(bytes), 128, s, args));
}

static KIT_UNUSED void kit_check(const kit_kernels *k, CUstream s, const void *p, size_t bytes, uint32_t value,
                                 uint64_t *errors, uint64_t delay_ns)
{
    uint64_t ptr = (uint64_t)(uintptr_t)p, n = bytes, counter = (uint64_t)(uintptr_t)errors;
    void *args[] = {&ptr, &n, &value, &counter, &delay_ns};
    CHECK_CU(kit_launch(k->check, kit_blocks(bytes), 128, s, args));
}

static KIT_UNUSED void kit_spin(const kit_kernels *k, CUstream s, uint64_t delay_ns)
{
    void *args[] = {&delay_ns};
    CHECK_CU(kit_launch(k->spin, 1, 1, s, args));
}

static KIT_UNUSED void kit_wait(const kit_kernels *k, CUstream s, const volatile uint32_t *flag, uint32_t value)
{
    uint64_t ptr = (uint64_t)(uintptr_t)flag;
    void *args[] = {&ptr, &value};
    CHECK_CU(kit_launch(k->wait, 1, 1, s, args));
}

static KIT_UNUSED void kit_copy(const kit_kernels *k, CUstream s, void *to, const void *from, size_t bytes,
                                uint64_t delay_ns)
{
    uint64_t dst = (uint64_t)(uintptr_t)to, src = (uint64_t)(uintptr_t)from, n = bytes;
    void *args[] = {&dst, &src, &n, &delay_ns};
    CHECK_CU(kit_launch(k->copy, kit_blocks(bytes), 128, s, args));
}

#ifndef KIT_DRIVER_ONLY
/* Pinned host memory that kernels reach under the same address, cleared. Never from the pool
 * under test's device memory, so a counter in it cannot be overwritten by an early reissue. */
static KIT_UNUSED void *kit_pinned(size_t bytes)
{
    void *p = NULL, *device = NULL;
    CHECK(cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    CHECK(cudaHostGetDevicePointer(&device, p, 0));
    EXPECT(device == p);
    memset(p, 0, bytes);
    return p;
}

/* How many bytes at `p` differ from `byte`, read back by a plain copy. */
static KIT_UNUSED size_t kit_wrong_bytes(const void *p, size_t bytes, unsigned char byte)
{
    unsigned char *host = (unsigned char *)malloc(bytes);
    size_t wrong = 0;
    CHECK(cudaMemcpy(host, p, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i++)
        wrong += host[i] != byte;
    free(host);
    return wrong;
}

static KIT_UNUSED cudaStream_t kit_stream(void)
{
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}
#endif

/* ---- random numbers ------------------------------------------------------------------ */

static KIT_UNUSED uint64_t kit_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

/* Uniform in the exponent: as many sizes between 1 and 2 as between 1 Mi and 2 Mi. */
static KIT_UNUSED size_t kit_random_size(uint64_t *state, size_t max)
{
    unsigned bits = 0;
    while (bits < 63 && ((size_t)1 << bits) < max)
        bits++;
    unsigned b = (unsigned)(kit_random(state) % (bits + 1));
    size_t low = (size_t)1 << b, size = low + kit_random(state) % low;
    return size > max ? max : size;
}

/* ---- threads and processes ----------------------------------------------------------- */

static KIT_UNUSED pthread_t kit_thread(void *(*body)(void *), void *argument)
{
    pthread_t t;
    EXPECT_EQ(pthread_create(&t, NULL, body, argument), 0);
    return t;
}

static KIT_UNUSED void kit_sleep_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static KIT_UNUSED void kit_await(const volatile int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
        kit_sleep_ms(1);
}

static KIT_UNUSED void kit_set(volatile int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }

static KIT_UNUSED int kit_skip(const char *why)
{
    printf("SKIP %s\n", why);
    return 77;
}

#endif
