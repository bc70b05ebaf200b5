/* Questions about pointers. */
#ifndef DIFFERENTIAL_QUERY_H
#define DIFFERENTIAL_QUERY_H

#include "work.h"

/* Every BUFFER_ID that was ever seen, and whose it was. */
static struct {
    unsigned long long id;
    uint64_t serial;
} ids[1 << 16];

static const char *judge_id(unsigned long long id, uint64_t whose)
{
    unsigned at = (unsigned)mixed(id) & 0xffff;
    for (unsigned i = 0; i < 1u << 16; i++, at = (at + 1) & 0xffff) {
        if (ids[at].id == id && ids[at].serial)
            return ids[at].serial == whose ? "own" : "another's";
        if (!ids[at].serial) {
            ids[at].id = id;
            ids[at].serial = whose;
            return "own";
        }
    }
    return "own";
}

static const char *context_name(CUcontext c)
{
    static const char *const names[CONTEXTS] = {"P0", "P1", "C2", "C3"};
    if (!c)
        return "none";
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].handle == c)
            return names[i];
    return "unknown";
}

/* A pointer to ask about. */
typedef struct {
    char *p;
    const block *b;
    const char *what;
} question;

static question any_question(void)
{
    question q = {GARBAGE, NULL, "garbage"};
    block *b = any_block(~0u);
    switch (roll(8)) {
    case 0: return q;
    case 1:
        q.what = "stale";
        q.p = any_stale();
        return q;
    case 2:
        q.what = "null";
        q.p = NULL;
        return q;
    default: break;
    }
    if (!b)
        return q;
    q.b = b;
    switch (roll(4)) {
    case 0:
        q.what = "interior";
        q.p = b->p + (b->size > 1 ? 1 + kit_random(&dice) % (b->size - 1) : 0);
        return q;
    case 1:
        /* Behind a size that is no multiple of the driver's step there is nobody. */
        if (b->kind == DEVICE && b->size % 512) {
            q.what = "end";
            q.p = b->p + b->size;
            q.b = NULL;
            return q;
        } /* fall through */
    default: q.what = "block"; q.p = b->p; return q;
    }
}

static const char *relative(const void *have, const char *asked, const block *b)
{
    return have == UNTOUCHED ? "kept" : !have ? "null" : have == asked ? "asked" : b && have == b->p ? "base" : "other";
}

static void op_attributes(void)
{
    question q = any_question();
    struct cudaPointerAttributes a;
    memset(&a, 0x5a, sizeof a);
    a.devicePointer = a.hostPointer = UNTOUCHED;
    int r = cudaPointerGetAttributes(&a, q.p);
    say(" %s block=%d r=%d type=%d device=%d dp=%s hp=%s", q.what, q.b ? slot_of(q.b) : -1, r, (int)a.type, a.device,
        relative(a.devicePointer, q.p, q.b), relative(a.hostPointer, q.p, q.b));
}

static void op_range(void)
{
    question q = any_question();
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)UNTOUCHED;
    size_t size = 99;
    unsigned skip = roll(8);
    int r = DRV(cuMemGetAddressRange)(skip == 1 || skip == 3 ? NULL : &base, skip == 2 || skip == 3 ? NULL : &size,
                                      (CUdeviceptr)(uintptr_t)q.p);
    say(" %s block=%d r=%d base=%s size=%zu", q.what, q.b ? slot_of(q.b) : -1, r,
        relative((void *)(uintptr_t)base, q.p, q.b), size);
}

/* Flags and the device's address of pinned memory. */
static void op_host_answers(void)
{
    question q = any_question();
    unsigned flags = 99, again = 99;
    void *p = UNTOUCHED;
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)UNTOUCHED;
    int r = cudaHostGetFlags(&flags, q.p), s = MORE(cuMemHostGetFlags)(&again, q.p);
    say(" %s block=%d flags r=%d,%d %u,%u", q.what, q.b ? slot_of(q.b) : -1, r, s, flags, again);
    r = cudaHostGetDevicePointer(&p, q.p, 0);
    s = MORE(cuMemHostGetDevicePointer)(&d, q.p, 0);
    say(" device r=%d,%d %s,%s", r, s, relative(p, q.p, q.b), relative((void *)(uintptr_t)d, q.p, q.b));
}

/* The attributes but P2P_TOKENS, which drivers give to few. */
enum { ATTRIBUTES = 20 };

static void say_attribute(int attribute, uint64_t v, const question *q)
{
    /* A real driver may keep the pages of freed memory mapped. */
    if (!q->b && attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS)
        return say("any");
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: say("%s", context_name((CUcontext)(uintptr_t)v)); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: say("%s", relative((void *)(uintptr_t)v, q->p, q->b)); break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        say("%s", !v ? "zero" : !q->b ? "some" : attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID ? judge_id(v, q->b->serial) : "set");
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: say("%s", v ? "set" : "null"); break;
    /* The mapping is what the driver made for this block and perhaps others (observed on an H200: 2
     * MiB for a block of 100 bytes): a program knows no more than that the block lies in it. */
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        say("%s", !v ? "null" : q->b && v <= (uintptr_t)q->b->p ? "before" : "after");
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: say("%s", !v ? "zero" : q->b && v >= q->b->size ? "enough" : "little"); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: say("%llu", (unsigned long long)v); break;
    default: say("%d", (int)v); break;
    }
}

static void op_attribute(void)
{
    question q = any_question();
    int attribute = 1 + (int)roll(ATTRIBUTES);
    uint64_t v = 0;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    int r = DRV(cuPointerGetAttribute)(&v, (CUpointer_attribute)attribute, (CUdeviceptr)(uintptr_t)q.p);
    say(" %s block=%d attribute=%d r=%d value=", q.what, q.b ? slot_of(q.b) : -1, attribute, r);
    if (r)
        say(v ? "written" : "kept");
    else
        say_attribute(attribute, v, &q);
}

static void op_attributes_of(void)
{
    question q = any_question();
    CUpointer_attribute which[4];
    uint64_t values[4] = {0};
    void *places[4];
    unsigned n = 1 + roll(4);
    for (unsigned i = 0; i < n; i++) {
        int a = 1 + (int)roll(ATTRIBUTES);
        which[i] = (CUpointer_attribute)(a == CU_POINTER_ATTRIBUTE_P2P_TOKENS ? CU_POINTER_ATTRIBUTE_RANGE_SIZE : a);
        places[i] = &values[i];
    }
    int r = MORE(cuPointerGetAttributes)(n, which, places, (CUdeviceptr)(uintptr_t)q.p);
    say(" %s block=%d r=%d", q.what, q.b ? slot_of(q.b) : -1, r);
    for (unsigned i = 0; i < n && !r; i++) {
        say(" %d:", (int)which[i]);
        say_attribute((int)which[i], values[i], &q);
    }
}

/* Holds for a block's life, and for no later owner's of its memory. */
static void op_sync_memops(void)
{
    question q = any_question();
    unsigned on = roll(2), have = 9;
    if (q.b && q.b->kind != DEVICE)
        return say(" none");
    int r = DRV(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)(uintptr_t)q.p);
    int g = DRV(cuPointerGetAttribute)(&have, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)(uintptr_t)q.p);
    say(" %s block=%d on=%u r=%d get=%d have=%u", q.what, q.b ? slot_of(q.b) : -1, on, r, g, have);
}

static void op_sync_memops_of_new(void)
{
    CUdeviceptr p = 0;
    unsigned have = 9;
    int r = DRV(cuMemAlloc)(&p, any_size());
    if (r)
        return say(" r=%d", r);
    releases++;
    r = DRV(cuPointerGetAttribute)(&have, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    say(" r=%d have=%u free=%d", r, have, (int)DRV(cuMemFree)(p));
}

/* Exported memory is never used again, so this is rare. */
static void op_export(void)
{
    question q = any_question();
    CUipcMemHandle a, b;
    int fd = -1;
    block *other = any_block(1 << DEVICE);
    memset(&a, 0x5a, sizeof a);
    b = a;
    /* Whether a small block lies on whole pages is chance, and a range has to. */
    if (roll(4) == 0 && (!q.b || q.b->size > MIB || q.b->size % 4096)) {
        int r = MORE(cuMemGetHandleForAddressRange)(&fd, (CUdeviceptr)(uintptr_t)q.p, q.b ? q.b->size : 4096, 1, 0);
        say(" range %s block=%d r=%d fd=%d", q.what, q.b ? slot_of(q.b) : -1, r, fd >= 0);
        if (fd >= 0)
            close(fd);
        return;
    }
    int r = MORE(cuIpcGetMemHandle)(&a, (CUdeviceptr)(uintptr_t)q.p);
    int again = q.b ? (int)MORE(cuIpcGetMemHandle)(&b, (CUdeviceptr)(uintptr_t)q.b->p) : -1;
    say(" %s block=%d r=%d again=%d equal=%d", q.what, q.b ? slot_of(q.b) : -1, r, again, memcmp(&a, &b, sizeof a) == 0);
    if (other && other != q.b) {
        int o = MORE(cuIpcGetMemHandle)(&b, (CUdeviceptr)(uintptr_t)other->p);
        say(" other=%d equal=%d", o, memcmp(&a, &b, sizeof a) == 0);
    }
    if (r == 0) {
        void *p = UNTOUCHED;
        cudaIpcMemHandle_t h;
        memcpy(&h, &a, sizeof h);
        int open = cudaIpcOpenMemHandle(&p, h, cudaIpcMemLazyEnablePeerAccess);
        say(" open=%d out=%s", open, output(p));
    }
}

#endif
