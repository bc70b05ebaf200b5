/* Memory that no pool serves, and contexts that count as others: each call cleans up after itself. */
#ifndef DIFFERENTIAL_OTHERS_H
#define DIFFERENTIAL_OTHERS_H

#include "contexts.h"

/* Memory of a pool of the program's own, freed by either family. */
static void op_pool(void)
{
    int c = enter(), r;
    if (c < 0 || c >= CREATED)
        return say(" none");
    struct cudaMemPoolProps props;
    cudaMemPool_t pool;
    size_t size = any_size();
    void *p = UNTOUCHED;
    stream s = any_stream(c);
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = contexts[c].device;
    releases++;
    deferred = 1;
    say(" create=%d", r = cudaMemPoolCreate(&pool, &props));
    if (r)
        return;
    say(" size=%zu r=%d", size, r = cudaMallocFromPoolAsync(&p, size, pool, s.handle));
    if (r == 0) {
        say(" memset=%d", (int)cudaMemsetAsync(p, 0x5c, size < 4096 ? size : 4096, s.handle));
        settle_all();
        int how = (int)roll(3);
        r = how == 0 ? (int)cudaFree(p)
                     : how == 1 ? (int)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)p) : (int)cudaFreeAsync(p, s.handle);
        say(" how=%d free=%d", how, r);
    }
    settle_all();
    say(" destroy=%d", (int)cudaMemPoolDestroy(pool));
}

/* A range of addresses with memory behind it. */
static void op_mapped(void)
{
    int c = enter();
    if (c < 0)
        return;
    size_t size = (1 + roll(3)) * 2 * MIB, ranged = 0;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle memory;
    CUdeviceptr at = 0, base = 0;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = contexts[c].device;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    releases++;
    say(" reserve=%d", (int)MORE(cuMemAddressReserve)(&at, size, 0, 0, 0));
    say(" create=%d", (int)MORE(cuMemCreate)(&memory, size, &prop, 0));
    say(" map=%d", (int)MORE(cuMemMap)(at, size, 0, memory, 0));
    say(" access=%d", (int)MORE(cuMemSetAccess)(at, size, &access, 1));
    say(" set=%d", (int)DRV(cuMemsetD8)(at, 0x3b, 4096));
    int r = (int)DRV(cuMemGetAddressRange)(&base, &ranged, at + 4096);
    say(" range=%d base=%d size=%zu", r, base == at, ranged);
    say(" free=%d", (int)DRV(cuMemFree)(at));
    settle_all();
    say(" unmap=%d", (int)MORE(cuMemUnmap)(at, size));
    say(" release=%d", (int)MORE(cuMemRelease)(memory));
    say(" give=%d", (int)MORE(cuMemAddressFree)(at, size));
}

static void op_array(void)
{
    if (enter() < 0)
        return;
    CUDA_ARRAY_DESCRIPTOR wanted;
    CUarray array = NULL;
    memset(&wanted, 0, sizeof wanted);
    wanted.Width = 1 + roll(2000);
    wanted.Height = roll(50);
    wanted.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    wanted.NumChannels = 1 + roll(2);
    releases++;
    int r = (int)MORE(cuArrayCreate)(&array, &wanted);
    say(" %zux%zu r=%d", wanted.Width, wanted.Height, r);
    if (r == 0)
        say(" destroy=%d", (int)MORE(cuArrayDestroy)(array));
}

/* A green context of some device: its memory is the primary one's. */
static void op_green(void)
{
    int d = (int)roll((unsigned)devices), first = (int)roll(2);
    CUdevResource resource;
    CUdevResourceDesc description = NULL;
    CUgreenCtx green = NULL;
    CUcontext context = NULL, popped;
    CUdeviceptr p = 0;
    size_t size = any_size(), n = size < 4096 ? size : 4096, wrong = 0;
    unsigned char *bytes = (unsigned char *)scratch;
    if (!is_active(d))
        return say(" none");
    releases++;
    say(" device=%d resource=%d", d, (int)MORE(cuDeviceGetDevResource)(d, &resource, CU_DEV_RESOURCE_TYPE_SM));
    say(" description=%d", (int)MORE(cuDevResourceGenerateDesc)(&description, &resource, 1));
    int r = (int)MORE(cuGreenCtxCreate)(&green, description, d, CU_GREEN_CTX_DEFAULT_STREAM);
    say(" create=%d", r);
    if (r)
        return;
    say(" context=%d", (int)MORE(cuCtxFromGreenCtx)(&context, green));
    say(" push=%d", (int)DRV(cuCtxPushCurrent)(context));
    say(" size=%zu alloc=%d", size, r = (int)DRV(cuMemAlloc)(&p, size));
    if (r == 0)
        say(" set=%d", (int)DRV(cuMemsetD8)(p, 0x9d, n));
    say(" settle=%d", (int)DRV(cuCtxSynchronize)());
    say(" pop=%d", (int)DRV(cuCtxPopCurrent)(&popped));
    if (first)
        say(" destroy=%d", (int)MORE(cuGreenCtxDestroy)(green));
    if (r == 0) {
        DRV(cuCtxPushCurrent)(contexts[d].handle);
        say(" read=%d", (int)DRV(cuMemcpyDtoH)(scratch, p, n));
        for (size_t i = 0; i < n; i++)
            wrong += bytes[i] != 0x9d;
        say(" wrong=%zu free=%d", wrong, (int)DRV(cuMemFree)(p));
        DRV(cuCtxPopCurrent)(&popped);
    }
    if (!first)
        say(" destroy=%d", (int)MORE(cuGreenCtxDestroy)(green));
}

/* A primary context is held once more, which its release does not end. */
static void op_retain(void)
{
    int d = (int)roll((unsigned)devices), active = -1;
    unsigned flags;
    CUcontext primary = NULL;
    void *p = NULL;
    if (!is_active(d))
        return say(" none");
    int r = (int)DRV(cuDevicePrimaryCtxRetain)(&primary, d);
    say(" device=%d retain=%d known=%d", d, r, primary == contexts[d].handle);
    if (here() >= 0) {
        releases++;
        say(" malloc=%d", (int)cudaMalloc(&p, any_size()));
    }
    say(" release=%d", (int)DRV(cuDevicePrimaryCtxRelease)(d));
    (void)DRV(cuDevicePrimaryCtxGetState)(d, &flags, &active);
    say(" active=%d free=%d", active, (int)cudaFree(p));
}

/* The process checkpoints itself. Not on a real driver, which would do it. */
static void op_checkpoint(void)
{
    static const char *const names[] = {"Lock", "Checkpoint", "Restore", "Unlock"};
    if (real_driver)
        return say(" none");
    releases++;
    for (int i = 0; i < 4; i++) {
        char name[40];
        CUresult (*step)(int, void *);
        snprintf(name, sizeof name, "cuCheckpointProcess%s", names[i]);
        *(void **)&step = kit_symbol(kit_driver()->library, name);
        say(" %d", (int)step((int)getpid(), NULL));
    }
}

#endif
