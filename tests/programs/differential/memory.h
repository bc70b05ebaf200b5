/* Allocations and frees, right and wrong ones. */
#ifndef DIFFERENTIAL_MEMORY_H
#define DIFFERENTIAL_MEMORY_H

#include "state.h"

static size_t any_size(void)
{
    static const size_t edges[] = {1,           2,       255,         256,         511,         512,     513,
                                   4095,        4096,    4097,        65536,       65537,       MIB - 1, MIB,
                                   MIB + 1,     2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB,     5 * MIB, 10 * MIB,
                                   10 * MIB + 1, 16 * MIB, 33 * MIB,  64 * MIB,    600 * MIB};
    enum { EDGES = sizeof edges / sizeof *edges };
    if (roll(3) == 0)
        return kit_random_size(&dice, 8 * MIB);
    return edges[roll(roll(10) ? EDGES - 1 : EDGES)];
}

/* Frees that may give memory back to the device: cudaMemGetInfo may then rise. */
static unsigned releases;
/* Something was freed in a stream's order: it may come back at any later call. */
static int deferred;

/* Whether an output was written: NULL, kept, or a value. */
#define UNTOUCHED ((void *)(uintptr_t)0x5a5a5a5a5a5a)
static const char *output(const void *p) { return p == UNTOUCHED ? "kept" : p ? "set" : "null"; }

/* `place` and not its content: a call's arguments are evaluated in no certain order. */
static void finish_alloc(int r, void *const *place, size_t size, enum kind kind, stream s)
{
    void *p = *place;
    block *b = free_slot();
    say(" size=%zu r=%d out=%s", size, r, output(p));
    if (r == 0 && p != UNTOUCHED && p) {
        enter_block(b, p, size, kind);
        if (kind == ASYNC) {
            b->busy = 1;
            b->order = s.order;
        }
    }
}

static void op_alloc(void)
{
    size_t size = any_size(), pitch = 0;
    void *p = UNTOUCHED;
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)UNTOUCHED;
    if (!free_slot())
        return say(" full");
    switch (roll(8)) {
    case 0:
    case 1:
    case 2:
        say(" cudaMalloc");
        return finish_alloc(cudaMalloc(&p, size), &p, size, DEVICE, (stream){0, 0});
    case 3:
    case 4: {
        say(" cuMemAlloc");
        int r = DRV(cuMemAlloc)(&d, size);
        p = (void *)(uintptr_t)d;
        return finish_alloc(r, &p, size, DEVICE, (stream){0, 0});
    }
    case 5: {
        size_t width = 1 + roll(roll(2) ? 2000 : 100000), height = 1 + roll(40);
        int r;
        if (roll(2)) {
            say(" cudaMallocPitch %zux%zu", width, height);
            r = cudaMallocPitch(&p, &pitch, width, height);
        } else {
            say(" cuMemAllocPitch %zux%zu", width, height);
            r = DRV(cuMemAllocPitch)(&d, &pitch, width, height, 4u << roll(3));
            p = (void *)(uintptr_t)d;
        }
        say(" pitch=%zu", pitch);
        return finish_alloc(r, &p, pitch * height, DEVICE, (stream){0, 0});
    }
    case 6: {
        struct cudaExtent e = make_cudaExtent(1 + roll(3000), 1 + roll(9), 1 + roll(5));
        struct cudaPitchedPtr q = make_cudaPitchedPtr(UNTOUCHED, 7, 7, 7);
        int r = cudaMalloc3D(&q, e);
        say(" cudaMalloc3D %zux%zux%zu pitch=%zu xsize=%zu ysize=%zu", e.width, e.height, e.depth, q.pitch, q.xsize,
            q.ysize);
        return finish_alloc(r, &q.ptr, q.pitch * e.height * e.depth, DEVICE, (stream){0, 0});
    }
    default: {
        int c = enter();
        if (c < 0)
            return;
        stream s = any_stream(c);
        say(" cudaMallocAsync stream=%x", (unsigned)s.order);
        int r;
        if (roll(2)) {
            r = cudaMallocAsync(&p, size, s.handle);
        } else {
            r = MORE(cuMemAllocAsync)(&d, size, s.handle);
            p = (void *)(uintptr_t)d;
        }
        return finish_alloc(r, &p, size, ASYNC, s);
    }
    }
}

static void op_alloc_host(void)
{
    static const unsigned most[] = {5000, 5000, 5000, 300000, 300000, 3 << 20, 9 << 20};
    size_t size = 1 + roll(most[roll(sizeof most / sizeof *most)]);
    void *p = UNTOUCHED;
    if (!free_slot())
        return say(" full");
    switch (roll(6)) {
    case 0:
        say(" cudaMallocHost");
        return finish_alloc(cudaMallocHost(&p, size), &p, size, HOST, (stream){0, 0});
    case 1: {
        unsigned flags = roll(8);
        say(" cudaHostAlloc flags=%u", flags);
        return finish_alloc(cudaHostAlloc(&p, size, flags), &p, size, HOST, (stream){0, 0});
    }
    case 2:
        say(" cuMemAllocHost");
        return finish_alloc(DRV(cuMemAllocHost)(&p, size), &p, size, HOST, (stream){0, 0});
    case 3: {
        /* Some that there are not. */
        unsigned flags = roll(10);
        say(" cuMemHostAlloc flags=%u", flags);
        return finish_alloc(MORE(cuMemHostAlloc)(&p, size, flags), &p, size, HOST, (stream){0, 0});
    }
    case 4:
        say(" cudaMallocManaged");
        return finish_alloc(cudaMallocManaged(&p, size, cudaMemAttachGlobal), &p, size, MANAGED, (stream){0, 0});
    default: {
        /* The program's own memory, pinned for a while. */
        releases++;
        static char own[8192] __attribute__((aligned(4096)));
        int r = cudaHostRegister(own, sizeof own, cudaHostRegisterDefault), freed = cudaFreeHost(own);
        say(" cudaHostRegister r=%d freeHost=%d", r, freed);
        say(" free=%d", (int)cudaFree(own));
        say(" unregister=%d", (int)cudaHostUnregister(own));
        return say(" again=%d", (int)cudaHostUnregister(own));
    }
    }
}

/* No memory: size zero, NULL output, more than any device has. */
static void op_alloc_none(void)
{
    static const size_t absurd[] = {(size_t)1 << 50, (size_t)-1, ((size_t)1 << 63) + 1, (size_t)1 << 43};
    size_t size = absurd[roll(4)], pitch = 77;
    void *p = UNTOUCHED;
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)UNTOUCHED;
    int r = 0, which = (int)roll(real_driver ? 7 : 11);
    switch (which) {
    case 0: r = cudaMalloc(&p, 0); break;
    case 1: r = cudaMalloc(&p, size); break;
    case 2: r = cudaMalloc(NULL, roll(2) ? 100 : 0); break;
    case 3: r = DRV(cuMemAlloc)(&d, 0); break;
    case 4: r = DRV(cuMemAlloc)(&d, size); break;
    case 5: r = DRV(cuMemAlloc)(NULL, 100); break;
    case 6: r = cudaMallocPitch(&p, &pitch, roll(2) * 10, 0); break;
    case 7: r = cudaMallocPitch(NULL, &pitch, 10, 10); break;
    case 8: r = cudaMallocPitch(&p, NULL, 10, 10); break;
    case 9: r = DRV(cuMemAllocPitch)(&d, &pitch, 10, 10, 3 + roll(2) * 10); break;
    default: r = cudaMalloc3D(NULL, make_cudaExtent(1, 1, 1)); break;
    }
    say(" %d size=%zx r=%d out=%s out=%s pitch=%zu", which, size, r, output(p), output((void *)(uintptr_t)d), pitch);
}

/* Frees a block, in one of the ways that fit it. The block's earlier work need not be done, but
 * for those that free in a stream's order. */
static void release(block *b)
{
    unsigned how = roll(6);
    int slot = slot_of(b), r;
    const char *name;
    releases++;
    deferred |= b->kind == ASYNC || how >= 4;
    if (b->kind == HOST) {
        name = how % 2 ? "cudaFreeHost" : "cuMemFreeHost";
        r = how % 2 ? (int)cudaFreeHost(b->p) : (int)DRV(cuMemFreeHost)(b->p);
    } else if (b->kind == MANAGED || (b->kind == DEVICE && how < 4)) {
        name = how % 2 ? "cudaFree" : "cuMemFree";
        r = how % 2 ? (int)cudaFree(b->p) : (int)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)b->p);
    } else if (how == 0) {
        name = "cudaFree";
        settle_block(b);
        r = cudaFree(b->p);
    } else {
        int c = enter();
        if (c < 0)
            return;
        name = how % 2 ? "cudaFreeAsync" : "cuMemFreeAsync";
        stream s = any_stream(c);
        order(b, s);
        r = how % 2 ? (int)cudaFreeAsync(b->p, s.handle) : (int)MORE(cuMemFreeAsync)((CUdeviceptr)(uintptr_t)b->p, s.handle);
    }
    say(" %s block=%d %s r=%d", name, slot, kind_names[b->kind], r);
    if (r == 0)
        forget(b, b->kind == DEVICE && how < 4);
}

static void op_free(void)
{
    block *b = any_block(~0u);
    if (!b)
        return say(" none");
    release(b);
}

/* Each of the frees, of a pointer that none of them may take. */
static void free_wrongly(char *p, const char *what)
{
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)p;
    int which = (int)roll(4), r = 0;
    switch (which) {
    case 0: r = cudaFree(p); break;
    case 1: r = DRV(cuMemFree)(d); break;
    case 2: r = cudaFreeAsync(p, cudaStreamLegacy); break;
    default: r = cudaFreeHost(p); break;
    }
    say(" %s how=%d r=%d", what, which, r);
}

static void op_free_wrong(void)
{
    block *b = any_block(~0u);
    switch (roll(7)) {
    case 0: return free_wrongly(any_stale(), "stale");
    case 1: return free_wrongly(GARBAGE, "garbage");
    case 2: return say(" null r=%d,%d,%d,%d", (int)cudaFree(NULL), (int)DRV(cuMemFree)(0), (int)cudaFreeHost(NULL), (int)cudaFreeAsync(NULL, 0));
    case 3:
    case 4:
        if (!b || b->size < 2)
            return say(" none");
        return free_wrongly(b->p + 1 + roll((unsigned)(b->size > 1 << 20 ? 1 << 20 : b->size - 1)), "interior");
    case 5:
        if (!b)
            return say(" none");
        if (b->kind == HOST)
            return say(" kind=host r=%d", (int)cudaFree(b->p));
        return say(" kind=%s r=%d", kind_names[b->kind], (int)cudaFreeHost(b->p));
    default: {
        /* Twice. */
        if (!(b = any_block(1 << DEVICE)))
            return say(" none");
        char *p = b->p;
        unsigned before = stale_count;
        release(b);
        if (!covered(p) && stale_count > before)
            free_wrongly(p, "twice");
    }
    }
}

/* New memory happens to be zero (on a real driver not always). */
static void op_fresh(void)
{
    size_t size = 1 + roll(200000), n = size < 4096 ? size : 4096, old = 0;
    void *p = NULL;
    int r = cudaMalloc(&p, size);
    say(" size=%zu r=%d", size, r);
    if (r)
        return;
    int copied = cudaMemcpy(scratch, p, n, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n; i++)
        old += scratch[i] != 0;
    releases++;
    if (!real_driver)
        say(" zero=%d", old == 0);
    say(" copy=%d free=%d", copied, (int)cudaFree(p));
}

static void op_info(void)
{
    static size_t before[CREATED];
    static unsigned at[CREATED];
    size_t available = 1, total = 2;
    int r, c;
    if (roll(8) == 0 && !real_driver)
        return say(" null r=%d,%d", (int)cudaMemGetInfo(NULL, &total), (int)cudaMemGetInfo(&available, NULL));
    r = roll(2) ? (int)cudaMemGetInfo(&available, &total) : (int)DRV(cuMemGetInfo)(&available, &total);
    c = here();
    say(" r=%d total=%zu sane=%d", r, total >> 20, available <= total);
    if (r || c < 0)
        return;
    int d = contexts[c].device;
    /* A real device is not this process's alone. */
    if (at[d] == releases + 1 && !deferred && !real_driver)
        say(" rose=%d", available > before[d]);
    before[d] = available;
    at[d] = releases + 1;
}

#endif
