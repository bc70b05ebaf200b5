/* Devices and contexts: changed, made, left, destroyed, reset. */
#ifndef DIFFERENTIAL_CONTEXTS_H
#define DIFFERENTIAL_CONTEXTS_H

#include "captures.h"

/* Before a context ends: its stream-ordered memory, which may outlive it, is freed. */
static void prepare_end(int c)
{
    settle_all();
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &blocks[i];
        if (b->kind != ASYNC || (b->context != c && contexts[b->context].device != contexts[c].device))
            continue;
        int r = cudaFree(b->p);
        say(" async=%d", r);
        forget(b, 0);
    }
    settle_all();
    releases++;
    deferred = 1;
}

/* Devices whose primary context may reach the other device's memory. */
static int peers[CREATED];

/* It has ended, and all that was its: a kernel that relied on its access to the other device would
 * fault. */
static void ended(int c)
{
    if (c < CREATED)
        peers[c] = 0;
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].kind && blocks[i].context == c)
            forget(&blocks[i], 0);
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].alive && streams[i].context == c)
            streams[i].alive = 0;
    contexts[c].loaded = 0;
}

static void op_set_device(void)
{
    int d = (int)roll(8), have = -1;
    d = d == 0 ? 7 : d == 1 ? -1 : d % devices;
    int r = cudaSetDevice(d);
    say(" %d r=%d", d, r);
    r = cudaGetDevice(&have);
    say(" get=%d device=%d", r, have);
}

static void say_current(void)
{
    int c = here();
    say(" current=%s", c < 0 ? "none" : context_name(contexts[c].handle));
}

static void op_context_create(void)
{
    int c = CREATED + (int)roll(CONTEXTS - CREATED), d = (int)roll((unsigned)devices);
    if (contexts[c].alive)
        return say(" there");
    CUcontext made = NULL;
    /* By hand: NVIDIA's newer headers declare other versions only. */
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    *(void **)&create = kit_symbol(kit_driver()->library, "cuCtxCreate_v2");
    int r = (int)create(&made, 0, d);
    say(" C%d device=%d r=%d", c, d, r);
    if (r)
        return;
    contexts[c].handle = made;
    contexts[c].alive = 1;
    contexts[c].device = d;
    contexts[c].loaded = 0;
}

static void op_context_switch(void)
{
    CUcontext popped = NULL;
    int c = (int)roll(CONTEXTS), r;
    int known = c < CREATED ? is_active(c) : contexts[c].alive;
    switch (roll(4)) {
    case 0:
        r = DRV(cuCtxPopCurrent)(&popped);
        say(" pop r=%d", r);
        break;
    case 1: say(" set none r=%d", (int)DRV(cuCtxSetCurrent)(NULL)); break;
    case 2: say(" set C%d r=%d", c, known ? (int)DRV(cuCtxSetCurrent)(contexts[c].handle) : -1); break;
    default: say(" push C%d r=%d", c, known ? (int)DRV(cuCtxPushCurrent)(contexts[c].handle) : -1); break;
    }
    say_current();
}

/* Nowhere in this thread's stack but perhaps on its top: what a driver does with a destroyed
 * context further down is not known. */
static void destroy_context(int c)
{
    CUcontext popped;
    prepare_end(c);
    while (DRV(cuCtxPopCurrent)(&popped) == CUDA_SUCCESS && popped)
        ;
    if (roll(2))
        DRV(cuCtxPushCurrent)(contexts[c].handle);
    int r = DRV(cuCtxDestroy)(contexts[c].handle);
    say(" destroy C%d r=%d", c, r);
    if (r == 0) {
        ended(c);
        contexts[c].alive = 0;
        contexts[c].handle = NULL;
    }
}

static void op_context_destroy(void)
{
    int c = CREATED + (int)roll(CONTEXTS - CREATED);
    if (!contexts[c].alive)
        return say(" none");
    destroy_context(c);
    say_current();
}

static void op_reset(void)
{
    int c = enter();
    if (c < 0)
        return;
    int d = contexts[c].device;
    if (roll(2))
        return say(" not now");
    /* The runtime resets the device that it was told, or that the driver's context is of: here
     * they are the same. */
    if (cudaSetDevice(d))
        return say(" no device");
    /* A block that is live at the reset is foreign after it. */
    void *p = NULL;
    int m = cudaMalloc(&p, any_size());
    prepare_end(d);
    /* The other device's access is to the context that ends. */
    for (int other = 0; other < devices && other < CREATED; other++)
        if (other != d && peers[other]) {
            int left = cudaSetDevice(other) || cudaDeviceDisablePeerAccess(d) || cudaSetDevice(d);
            peers[other] = 0;
            say(" peers=%d", left);
        }
    int r = cudaDeviceReset();
    ended(d);
    say(" device=%d malloc=%d r=%d", d, m, r);
    /* In a new context of the real driver, memory of its own may lie there. */
    if (!real_driver) {
        say(" free=%d", (int)cudaFree(p));
        say(" range=%d", (int)DRV(cuMemGetAddressRange)(NULL, NULL, (CUdeviceptr)(uintptr_t)p));
    }
    cudaFree(NULL);
    say_current();
}

/* ---- two devices ----------------------------------------------------------------------- */

static void op_peer(void)
{
    int c = enter();
    if (c < 0 || c >= CREATED || devices < 2)
        return say(" none");
    int can = -1, other = 1 - contexts[c].device, r;
    if (roll(2)) {
        say(" can=%d", (int)cudaDeviceCanAccessPeer(&can, contexts[c].device, other));
        say(" %d", can);
        r = cudaDeviceEnablePeerAccess(other, 0);
        peers[c] |= r == 0;
        return say(" enable r=%d", r);
    }
    settle_all();
    r = cudaDeviceDisablePeerAccess(other);
    if (r == 0)
        peers[c] = 0;
    say(" disable r=%d", r);
}

/* A copy between devices, and a kernel of one that reads the other's memory. */
static void op_peer_copy(void)
{
    int c = enter();
    block *to = any_block(1 << DEVICE), *from = any_block(1 << DEVICE);
    if (c < 0 || !to || !from || to == from || !from->written || to->context >= CREATED || from->context >= CREATED)
        return say(" none");
    size_t n = to->window < from->window ? to->window : from->window;
    char *d = to->p + to->window_at, *a = from->p + from->window_at;
    int r, how = (int)roll(3);
    settle_all();
    if (how == 0) {
        r = cudaMemcpyPeer(d, contexts[to->context].device, a, contexts[from->context].device, n);
    } else if (how == 1) {
        r = cudaMemcpyPeerAsync(d, contexts[to->context].device, a, contexts[from->context].device, n, cudaStreamLegacy);
    } else if (c < CREATED && peers[c] && (to->context == c || from->context == c)) {
        uint64_t dst = (uint64_t)(uintptr_t)d, src = (uint64_t)(uintptr_t)a, bytes = n, wait = delay();
        void *args[] = {&dst, &src, &bytes, &wait};
        r = kit_launch(contexts[c].kernels.copy, kit_blocks(n), 128, cudaStreamLegacy, args);
    } else {
        r = cudaMemcpy(d, a, n, cudaMemcpyDefault);
    }
    settle_all();
    say(" to=%d from=%d how=%d r=%d", slot_of(to), slot_of(from), how, r);
    if (to->written)
        read_window(to);
}

#endif
