/* What a random program has: contexts, threads, streams and blocks in numbered slots, and the
 * output. A call names slots only, so that a program from which calls were left out still runs. */
#ifndef DIFFERENTIAL_STATE_H
#define DIFFERENTIAL_STATE_H

#include "kit.h"

#include <stdarg.h>

enum { CONTEXTS = 4, THREADS = 3, BLOCKS = 14, STALE = 8, STREAMS = 5 };
/* The first two contexts are the primary ones of the devices, the others are created. */
enum { CREATED = 2 };

/* Driver functions beside those of the kit. */
#define MORE_FUNCTIONS(X)                                                                           \
    X(cuCtxGetDevice) X(cuPointerGetAttributes) X(cuIpcGetMemHandle)              \
    X(cuMemGetHandleForAddressRange) X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemHostAlloc)  \
    X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap)          \
    X(cuMemUnmap) X(cuMemSetAccess) X(cuArrayCreate) X(cuArrayDestroy) X(cuDeviceGetDevResource)   \
    X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuCtxFromGreenCtx)     \
    X(cuStreamBeginCapture) X(cuStreamBeginCaptureToGraph) X(cuMemHostGetFlags)                      \
    X(cuMemHostGetDevicePointer)
static struct {
    MORE_FUNCTIONS(KIT_FIELD)
} more;
#define MORE(f) (more.p_##f)

static int devices, real_driver;

/* ---- output -------------------------------------------------------------------------- */

static __attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
}

/* ---- random numbers: each call has its own ------------------------------------------- */

static uint64_t dice;

static uint64_t mixed(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static unsigned roll(unsigned sides) { return (unsigned)(kit_random(&dice) % sides); }

/* ---- threads: each program has fresh ones, without context and error ------------------ */

typedef struct {
    pthread_t thread;
    int started, stop, busy;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*body)(void *);
    void *argument;
} worker;
static worker workers[THREADS];
static __thread int me;

static void *work(void *argument)
{
    worker *w = (worker *)argument;
    me = (int)(w - workers);
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->busy && !w->stop)
            pthread_cond_wait(&w->changed, &w->lock);
        if (!w->busy)
            break;
        pthread_mutex_unlock(&w->lock);
        w->body(w->argument);
        pthread_mutex_lock(&w->lock);
        w->busy = 0;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Runs `body` in thread `n` and waits for its end. */
static void in_thread(int n, void (*body)(void *), void *argument)
{
    worker *w = &workers[n];
    if (!w->started) {
        w->started = 1;
        w->stop = 0;
        w->thread = kit_thread(work, w);
    }
    pthread_mutex_lock(&w->lock);
    w->body = body;
    w->argument = argument;
    w->busy = 1;
    pthread_cond_broadcast(&w->changed);
    while (w->busy)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void end_threads(void)
{
    for (int i = 0; i < THREADS; i++) {
        worker *w = &workers[i];
        if (!w->started)
            continue;
        pthread_mutex_lock(&w->lock);
        w->stop = 1;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
        w->started = 0;
    }
}

/* ---- contexts ------------------------------------------------------------------------ */

typedef struct {
    CUcontext handle;
    int alive; /* of a created one */
    int device, loaded;
    kit_kernels kernels;
} context;
static context contexts[CONTEXTS];

/* The slot of the calling thread's context; -1: none. */
static int here(void)
{
    CUcontext c = NULL;
    CUdevice d = 0;
    if (DRV(cuCtxGetCurrent)(&c) != CUDA_SUCCESS || !c)
        return -1;
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].handle == c && (i < CREATED || contexts[i].alive))
            return i;
    if (MORE(cuCtxGetDevice)(&d) != CUDA_SUCCESS || d >= CREATED)
        return -1;
    contexts[d].handle = c;
    contexts[d].device = d;
    return d;
}

static int is_active(int c)
{
    unsigned flags = 0;
    int active = 0;
    if (c >= CREATED)
        return contexts[c].alive;
    return c < devices && contexts[c].handle &&
           DRV(cuDevicePrimaryCtxGetState)(c, &flags, &active) == CUDA_SUCCESS && active;
}

/* As `here`, for calls that submit work: a thread without a context gets its device's. -1: the
 * current context is no longer one. */
static int enter(void)
{
    cudaError_t r = cudaFree(NULL);
    int c = here();
    if (r != cudaSuccess || c < 0 || !is_active(c)) {
        say(" enter=%d", (int)r);
        return -1;
    }
    if (!contexts[c].loaded) {
        contexts[c].kernels = kit_load();
        contexts[c].loaded = 1;
    }
    return c;
}

/* ---- streams ------------------------------------------------------------------------- */

typedef struct {
    cudaStream_t handle;
    int alive, context;
} stream_slot;
static stream_slot streams[STREAMS];

/* A stream with the number of whose work is in order: work of equal numbers is. */
typedef struct {
    cudaStream_t handle;
    int order;
} stream;
enum { LEGACY = 0, PER_THREAD = 1, FIRST_SLOT = 2, GONE = 15 };

static stream stream_of(int c, int n)
{
    stream s = {cudaStreamLegacy, c << 12 | LEGACY};
    if (n == PER_THREAD) {
        s.handle = cudaStreamPerThread;
        s.order = c << 12 | me << 8 | PER_THREAD;
    } else if (n >= FIRST_SLOT && streams[n - FIRST_SLOT].alive && streams[n - FIRST_SLOT].context == c) {
        s.handle = streams[n - FIRST_SLOT].handle;
        s.order = c << 12 | n;
    } else {
        s.handle = n % 2 ? NULL : cudaStreamLegacy;
    }
    return s;
}

static stream any_stream(int c) { return stream_of(c, (int)roll(FIRST_SLOT + STREAMS)); }

/* ---- blocks -------------------------------------------------------------------------- */

enum kind { NO_BLOCK, DEVICE, ASYNC, HOST, MANAGED };
static const char *const kind_names[] = {"none", "device", "async", "host", "managed"};

/* Only a window of a block is written and read: memory that was never written differs from run
 * to run. */
typedef struct {
    char *p;
    size_t size, window_at, window;
    enum kind kind;
    int context, written, busy, order;
    uint64_t serial;
    unsigned long long buffer_id;
} block;
static block blocks[BLOCKS];
static uint64_t serial;

/* Pointers that were valid. */
static struct {
    char *p;
    size_t size;
} stale[STALE];
static unsigned stale_count;

/* An address that no driver hands out. */
static char *const GARBAGE = (char *)(uintptr_t)0x1234567000;

static int covered(const char *p)
{
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].kind && p >= blocks[i].p && p < blocks[i].p + blocks[i].size)
            return 1;
    return 0;
}

static void forget(block *b, int remember)
{
    /* Of memory that was freed in a stream's order the real driver goes on answering, and it crashes
     * when it is freed again. */
    if (!remember && real_driver)
        return (void)memset(b, 0, sizeof *b);
    stale[stale_count % STALE].p = b->p;
    stale[stale_count++ % STALE].size = b->size;
    memset(b, 0, sizeof *b);
}

/* A pointer that is no allocation. Addresses come again, and other ones in each run: instead of
 * one that did, another that is no allocation either. */
static char *any_stale(void)
{
    /* A real driver has memory of its own, which may come to lie there. */
    if (real_driver)
        return GARBAGE;
    char *p = stale_count ? stale[roll(stale_count < STALE ? stale_count : STALE)].p : NULL;
    return p && !covered(p) ? p : GARBAGE;
}

static block *any_block(unsigned kinds)
{
    unsigned first = roll(BLOCKS);
    for (unsigned i = 0; i < BLOCKS; i++) {
        block *b = &blocks[(first + i) % BLOCKS];
        if (b->kind && (kinds >> b->kind & 1))
            return b;
    }
    return NULL;
}

static block *free_slot(void)
{
    for (int i = 0; i < BLOCKS; i++)
        if (!blocks[i].kind)
            return &blocks[i];
    return NULL;
}

static int slot_of(const block *b) { return (int)(b - blocks); }

/* Enters a new allocation, and says whether it is as aligned as native ones and apart from all
 * others. */
static void enter_block(block *b, void *p, size_t size, enum kind kind)
{
    /* Whether a block between 1 and 2 MiB begins a page is chance on a real driver. */
    size_t large = real_driver ? 2 * MIB : MIB;
    size_t step = kind == HOST || kind == MANAGED || kind == ASYNC ? 256 : size > large ? 2 * MIB : 512;
    int apart = 1;
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].kind && (char *)p < blocks[i].p + blocks[i].size && blocks[i].p < (char *)p + size)
            apart = 0;
    memset(b, 0, sizeof *b);
    b->p = (char *)p;
    b->size = size;
    b->kind = kind;
    b->context = here();
    b->serial = ++serial;
    b->window = 1 + roll(roll(8) ? 4096 : 65536);
    if (b->window > size)
        b->window = size;
    /* Kernels write words. */
    b->window_at = roll(3) ? 0 : (size - b->window) & ~(size_t)3;
    say(" block=%d aligned=%d apart=%d", slot_of(b), (uintptr_t)p % step == 0, apart);
}

/* ---- order: no two calls race, so all contents are certain --------------------------- */

static void settle(int c)
{
    CUcontext popped;
    if (c < 0 || !is_active(c) || DRV(cuCtxPushCurrent)(contexts[c].handle) != CUDA_SUCCESS)
        return;
    CUresult r = DRV(cuCtxSynchronize)();
    if (r != CUDA_SUCCESS)
        say(" settle=%d", (int)r);
    DRV(cuCtxPopCurrent)(&popped);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].busy && blocks[i].order >> 12 == c)
            blocks[i].busy = 0;
}

static void settle_all(void)
{
    for (int c = 0; c < CONTEXTS; c++)
        settle(c);
}

/* Work on `b` is about to be submitted to `s`: it comes after all earlier work on `b`. */
static void order(block *b, stream s)
{
    if (b->busy && b->order != s.order) {
        int n = b->order & 15, c = b->order >> 12;
        int known = n >= FIRST_SLOT && n != GONE && streams[n - FIRST_SLOT].alive && streams[n - FIRST_SLOT].context == c;
        if (known && c == s.order >> 12 && roll(2)) {
            cudaEvent_t e;
            cudaError_t r = cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
            if (r == cudaSuccess)
                r = cudaEventRecord(e, streams[n - FIRST_SLOT].handle);
            if (r == cudaSuccess)
                r = cudaStreamWaitEvent(s.handle, e, 0);
            if (r == cudaSuccess)
                r = cudaEventDestroy(e);
            if (r != cudaSuccess)
                say(" order=%d", (int)r);
        } else {
            settle(c);
        }
    }
    b->busy = 1;
    b->order = s.order;
}

/* The same for a call that works on two. */
static void order_two(block *a, block *b, stream s)
{
    order(a, s);
    order(b, s);
    /* The second may have waited for the context, which made the first idle. */
    a->busy = 1;
    a->order = s.order;
}

/* All work on `b` is done. */
static void settle_block(block *b)
{
    if (b->busy)
        settle(b->order >> 12);
}

static uint32_t hash(const void *p, size_t n)
{
    const unsigned char *c = (const unsigned char *)p;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ c[i]) * 16777619u;
    return h;
}

static char scratch[1 << 17];

#endif
