/* Writing and reading blocks: copies, memsets, kernels, on every kind of stream. */
#ifndef DIFFERENTIAL_WORK_H
#define DIFFERENTIAL_WORK_H

#include "memory.h"

/* A block of the context `c` that kernels and memsets of it may touch. */
static block *workable(int c, unsigned kinds)
{
    block *b = any_block(kinds);
    return b && b->context == c ? b : NULL;
}

static uint64_t delay(void) { return roll(6) ? 0 : roll(200000); }

/* Writes the whole window, in one of the ways there are. */
static void write_window(block *b, int c, stream s, uint64_t wait)
{
    char *p = b->p + b->window_at;
    size_t n = b->window;
    uint32_t value = (uint32_t)kit_random(&dice);
    const kit_kernels *k = &contexts[c].kernels;
    unsigned how = wait ? 0 : roll(5);
    order(b, s);
    int r = 0;
    if (how == 0) {
        uint64_t ptr = (uint64_t)(uintptr_t)p, bytes = n;
        void *args[] = {&ptr, &bytes, &value, &wait};
        r = kit_launch(k->fill, kit_blocks(n), 128, s.handle, args);
    } else if (how == 1) {
        r = cudaMemsetAsync(p, (int)(value & 255), n, s.handle);
    } else if (how == 2) {
        /* A synchronous call is in the legacy stream's order. */
        order(b, stream_of(c, LEGACY));
        r = cudaMemset(p, (int)(value & 255), n);
    } else {
        for (size_t i = 0; i < n; i++)
            scratch[i] = (char)(value + i * 7);
        if (how == 3) {
            order(b, stream_of(c, LEGACY));
            r = cudaMemcpy(p, scratch, n, cudaMemcpyHostToDevice);
        } else {
            r = cudaMemcpyAsync(p, scratch, n, cudaMemcpyHostToDevice, s.handle);
        }
    }
    say(" write block=%d stream=%x how=%u r=%d", slot_of(b), (unsigned)s.order, how, r);
    if (r == 0)
        b->written = 1;
}

static void op_write(void)
{
    int c = enter();
    if (c < 0)
        return;
    block *b = workable(c, 1 << DEVICE | 1 << ASYNC);
    if (b)
        write_window(b, c, any_stream(c), delay());
}

/* What the window holds, once all work on it is done. */
static void read_window(block *b)
{
    settle_block(b);
    int r = cudaMemcpy(scratch, b->p + b->window_at, b->window,
                       b->kind == HOST ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost);
    say(" block=%d r=%d", slot_of(b), r);
    if (b->written && r == 0)
        say(" content=%08x", hash(scratch, b->window));
}

static void op_read(void)
{
    block *b = any_block(1 << DEVICE | 1 << ASYNC | 1 << HOST);
    if (b)
        read_window(b);
}

/* From block to block; pinned memory too. */
static void op_copy(void)
{
    int c = enter();
    if (c < 0)
        return;
    block *to = workable(c, 1 << DEVICE | 1 << ASYNC), *from = any_block(1 << DEVICE | 1 << ASYNC | 1 << HOST);
    if (!to || !from || to == from || from->context != c || !from->written)
        return say(" none");
    stream s = any_stream(c);
    size_t n = to->window < from->window ? to->window : from->window;
    char *d = to->p + to->window_at, *a = from->p + from->window_at;
    uint64_t wait = delay();
    unsigned how = roll(4);
    int r;
    if (how == 2)
        s = stream_of(c, LEGACY);
    order_two(to, from, s);
    if (how == 0 && from->kind != HOST) {
        uint64_t dst = (uint64_t)(uintptr_t)d, src = (uint64_t)(uintptr_t)a, bytes = n;
        void *args[] = {&dst, &src, &bytes, &wait};
        r = kit_launch(contexts[c].kernels.copy, kit_blocks(n), 128, s.handle, args);
    } else if (how <= 1) {
        r = cudaMemcpyAsync(d, a, n, from->kind == HOST ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice, s.handle);
    } else if (how == 2) {
        r = cudaMemcpy(d, a, n, cudaMemcpyDefault);
    } else {
        /* Rows: each of eight bytes of a row of sixteen. */
        size_t rows = n / 16;
        r = cudaMemcpy2DAsync(d, 16, a, 16, 8, rows, cudaMemcpyDefault, s.handle);
    }
    say(" to=%d from=%d stream=%x how=%u n=%zu r=%d", slot_of(to), slot_of(from), (unsigned)s.order, how, n, r);
}

/* Into pinned memory, which the CPU then reads; and the CPU writes it. */
static void op_pinned(void)
{
    int c = enter();
    block *h = any_block(1 << HOST), *b = any_block(1 << DEVICE | 1 << ASYNC);
    if (c < 0 || !h || !b || h->context != c || b->context != c)
        return say(" none");
    settle_block(h);
    memset(h->p + h->window_at, (int)roll(256), h->window);
    h->written = 1;
    if (!b->written)
        return;
    size_t n = h->window < b->window ? h->window : b->window;
    stream s = any_stream(c);
    order_two(h, b, s);
    int r = cudaMemcpyAsync(h->p + h->window_at, b->p + b->window_at, n, cudaMemcpyDeviceToHost, s.handle);
    settle_block(h);
    say(" to=%d from=%d stream=%x r=%d content=%08x", slot_of(h), slot_of(b), (unsigned)s.order, r,
        hash(h->p + h->window_at, h->window));
}

/* A block is freed while work on it is pending, and one of the same size allocated and written
 * elsewhere: the new one's content has to be the new one's. */
static void op_reuse(void)
{
    int c = enter();
    if (c < 0)
        return;
    size_t size = any_size();
    if (size > 64 * MIB)
        size = 1 + roll(100000);
    size_t n = size < 8192 ? size : 8192, wrong = 0;
    stream s = any_stream(c), other = any_stream(c);
    uint64_t wait = 20000 + roll(200000);
    uint32_t first = 0x11111111u, second = 0x22222222u;
    uint64_t bytes = n, none = 0;
    void *a = NULL, *b = NULL;
    int copies = (int)roll(3), r[7] = {0};
    releases++;
    r[0] = roll(2) ? (int)cudaMalloc(&a, size) : (int)DRV(cuMemAlloc)((CUdeviceptr *)&a, size);
    if (r[0])
        return say(" size=%zu r=%d", size, r[0]);
    void *args[] = {&a, &bytes, &first, &wait};
    r[1] = kit_launch(contexts[c].kernels.fill, kit_blocks(n), 128, s.handle, args);
    for (int i = 0; i < copies; i++)
        r[1] |= cudaMemsetAsync(a, 0x33, n, s.handle);
    if (roll(4) == 0) {
        deferred = 1;
        r[2] = cudaFreeAsync(a, s.handle);
    } else {
        r[2] = roll(2) ? (int)cudaFree(a) : (int)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)a);
    }
    r[3] = roll(2) ? (int)cudaMalloc(&b, size) : (int)DRV(cuMemAlloc)((CUdeviceptr *)&b, size);
    if (r[3])
        return say(" size=%zu r=%d,%d,%d,%d", size, r[0], r[1], r[2], r[3]);
    void *more_args[] = {&b, &bytes, &second, &none};
    r[4] = kit_launch(contexts[c].kernels.fill, kit_blocks(n), 128, other.handle, more_args);
    settle_all();
    r[5] = cudaMemcpy(scratch, b, n, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n; i++)
        wrong += scratch[i] != 0x22;
    r[6] = cudaFree(b);
    say(" size=%zu streams=%x,%x copies=%d r=%d,%d,%d,%d,%d,%d,%d wrong=%zu", size, (unsigned)s.order,
        (unsigned)other.order, copies, r[0], r[1], r[2], r[3], r[4], r[5], r[6], wrong);
}

/* A free natively waits for all work. */
static void op_free_waits(void)
{
    int c = enter();
    if (c < 0)
        return;
    stream s = any_stream(c);
    void *p = NULL;
    uint64_t wait = 1000000;
    void *args[] = {&wait};
    releases++;
    int r = cudaMalloc(&p, 1 + roll(100000)), launched = kit_launch(contexts[c].kernels.spin, 1, 1, s.handle, args);
    int freed = cudaFree(p), idle = cudaStreamQuery(s.handle);
    settle_all();
    say(" r=%d,%d,%d", r, launched, freed);
    if (!real_driver)
        say(" idle=%d", idle);
    (void)cudaGetLastError();
}

/* Copies and memsets that are natively refused: past the end of a block, and of a freed one. The
 * error does not stay pending. */
static void op_out_of_range(void)
{
    int c = enter();
    block *b = any_block(1 << DEVICE);
    if (c < 0 || !b)
        return say(" none");
    settle_all();
    size_t n = b->size < 64 ? b->size : 64;
    switch (real_driver ? 2 : (int)roll(4)) {
    case 0:
        say(" past-end=%d", (int)cudaMemcpy(scratch, b->p + b->size - n, n + 1 + roll(64), cudaMemcpyDeviceToHost));
        break;
    case 1: say(" stale=%d", (int)cudaMemcpy(scratch, any_stale(), 1 + roll(16), cudaMemcpyDeviceToHost)); break;
    case 2: say(" garbage=%d", (int)cudaMemset(GARBAGE, 1, 4)); break;
    default: say(" huge=%d", (int)cudaMemcpy(scratch, b->p, (size_t)1 << 45, cudaMemcpyDeviceToHost)); break;
    }
    (void)cudaGetLastError();
}

static void op_check(void)
{
    int c = enter();
    block *b;
    if (c < 0 || !(b = workable(c, 1 << DEVICE | 1 << ASYNC)))
        return;
    stream s = any_stream(c);
    uint64_t ptr = (uint64_t)(uintptr_t)(b->p + b->window_at), bytes = b->window, wait = delay();
    uint32_t value = roll(1000) * 0x01010101u;
    void *fill[] = {&ptr, &bytes, &value, &wait};
    order(b, s);
    int r = kit_launch(contexts[c].kernels.fill, kit_blocks(bytes), 128, s.handle, fill);
    void *counter = NULL;
    int h = cudaHostAlloc(&counter, 8, cudaHostAllocMapped | cudaHostAllocPortable);
    if (h)
        return say(" hostAlloc=%d", h);
    memset(counter, 0, 8);
    void *check[] = {&ptr, &bytes, &value, &counter, &wait};
    r |= kit_launch(contexts[c].kernels.check, kit_blocks(bytes), 128, s.handle, check);
    b->written = 1;
    settle_block(b);
    say(" block=%d stream=%x r=%d errors=%llu", slot_of(b), (unsigned)s.order, r, *(unsigned long long *)counter);
    say(" free=%d", (int)cudaFreeHost(counter));
}

/* ---- streams and events ---------------------------------------------------------------- */

static void op_stream(void)
{
    stream_slot *s = &streams[roll(STREAMS)];
    if (!s->alive) {
        unsigned flags = roll(3) ? cudaStreamNonBlocking : cudaStreamDefault;
        int r = roll(2) ? (int)cudaStreamCreateWithFlags(&s->handle, flags)
                        : (int)cudaStreamCreateWithPriority(&s->handle, flags, -(int)roll(3));
        s->alive = r == 0;
        s->context = here();
        return say(" create %d flags=%u r=%d", (int)(s - streams), flags, r);
    }
    if (roll(3) == 0) {
        int r = cudaStreamDestroy(s->handle);
        s->alive = r != 0;
        /* Its work goes on, and a new stream in this slot is not ordered after it. */
        for (int i = 0; i < BLOCKS; i++)
            if (blocks[i].busy && (blocks[i].order & 15) == FIRST_SLOT + (int)(s - streams))
                blocks[i].order |= GONE;
        return say(" destroy %d r=%d", (int)(s - streams), r);
    }
    int r = cudaStreamSynchronize(s->handle), query = cudaStreamQuery(s->handle);
    say(" synchronize %d r=%d query=%d", (int)(s - streams), r, query);
}

static void op_event(void)
{
    int c = enter();
    if (c < 0)
        return;
    cudaEvent_t a, b;
    float ms = -1;
    stream s = any_stream(c);
    unsigned flags = roll(2) ? cudaEventDefault : cudaEventDisableTiming;
    int r[6];
    r[0] = cudaEventCreateWithFlags(&a, flags);
    if (r[0] || cudaEventCreate(&b))
        return say(" create r=%d", r[0]);
    r[1] = cudaEventRecord(a, s.handle);
    r[2] = cudaEventRecord(b, s.handle);
    r[3] = cudaEventSynchronize(b);
    r[4] = cudaEventQuery(a);
    r[5] = cudaEventElapsedTime(&ms, a, b);
    say(" flags=%u r=%d,%d,%d,%d,%d ms=%d", flags, r[1], r[2], r[3], r[4], r[5], ms >= 0);
    say(" destroy=%d", (int)cudaEventDestroy(a));
    say(",%d", (int)cudaEventDestroy(b));
}

static void op_synchronize(void)
{
    say(" r=%d", (int)cudaDeviceSynchronize());
    settle_all();
}

static void op_last_error(void)
{
    say(" last=%d", (int)cudaGetLastError());
    say(" then=%d", (int)cudaGetLastError());
}

#endif
