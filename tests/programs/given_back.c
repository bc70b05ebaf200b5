// build: shared static
/* Most of the device lies unused in the pool, and other kinds of allocation need it: chunks of
 * address ranges, arrays, pools of the program's own, pitched rows. Natively nothing is in the way.
 *
 *   given_back [busy]    busy: the GPU works all the time, so that it is never seen idle */
#include "kit.h"

static size_t free_bytes(void)
{
    size_t available = 0, total = 0;
    CHECK(cudaMemGetInfo(&available, &total));
    return available;
}

/* Eighty percent of what is free, in blocks that a pool keeps. */
static void fill_the_pool(size_t available)
{
    enum { PARTS = 16 };
    void *parts[PARTS];
    size_t bytes = available / 10 * 8 / PARTS;
    for (int i = 0; i < PARTS; i++)
        parts[i] = kit_malloc(bytes);
    for (int i = 0; i < PARTS; i++)
        kit_free(parts[i], bytes);
    CHECK(cudaDeviceSynchronize());
}

static void *look_up(const char *name)
{
    return kit_symbol(kit_driver()->library, name);
}

static int chunk(size_t bytes)
{
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    *(void **)&create = look_up("cuMemCreate");
    *(void **)&release = look_up("cuMemRelease");
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    CUresult r = create(&handle, bytes / (2 * MIB) * (2 * MIB), &prop, 0);
    return r ? (int)r : (int)release(handle);
}

/* In pieces: an array has a limit on each side. */
static int arrays(size_t bytes)
{
    enum { PIECES = 8 };
    CUresult (*create)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
    CUresult (*destroy)(CUarray);
    CUarray made[PIECES];
    int r = 0, n = 0;
    *(void **)&create = look_up("cuArrayCreate_v2");
    *(void **)&destroy = look_up("cuArrayDestroy");
    CUDA_ARRAY_DESCRIPTOR d;
    memset(&d, 0, sizeof d);
    d.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    d.NumChannels = 4;
    d.Width = 16384;
    d.Height = bytes / PIECES / (16 * d.Width);
    if (d.Height > 65536)
        d.Height = 65536;
    while (n < PIECES && (r = (int)create(&made[n], &d)) == 0)
        n++;
    while (n > 0)
        r |= (int)destroy(made[--n]);
    return r;
}

static int own_pool(size_t bytes)
{
    struct cudaMemPoolProps props;
    cudaMemPool_t pool;
    cudaStream_t s = kit_stream();
    void *p = NULL;
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = 0;
    CHECK(cudaMemPoolCreate(&pool, &props));
    cudaError_t r = cudaMallocFromPoolAsync(&p, bytes, pool, s);
    if (r == cudaSuccess)
        r = cudaFreeAsync(p, s);
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemPoolDestroy(pool));
    CHECK(cudaStreamDestroy(s));
    return (int)r;
}

static int pitched_rows(size_t bytes)
{
    void *p = NULL;
    size_t pitch = 0;
    cudaError_t r = cudaMallocPitch(&p, &pitch, MIB, bytes / MIB);
    return r ? (int)r : (int)cudaFree(p);
}

int main(int argc, char **argv)
{
    int busy = argc > 1 && !strcmp(argv[1], "busy");
    struct {
        const char *name;
        int (*allocate)(size_t);
    } kinds[] = {{"a chunk for an address range", chunk},
                 {"arrays", arrays},
                 {"a pool of the program's own", own_pool},
                 {"pitched rows", pitched_rows}};
    CHECK(cudaSetDevice(0));
    kit_kernels k = kit_load();
    cudaStream_t s = kit_stream();
    for (int pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            size_t available = free_bytes();
            fill_the_pool(available);
            if (busy) {
                /* What was freed is complete by then, in the eyes of any pool; what comes now is not. */
                for (int j = 0; j < 50; j++) {
                    kit_free(kit_malloc(4096), 4096);
                    CHECK(cudaDeviceSynchronize());
                }
                kit_spin(&k, s, 400 * MS);
            }
            printf("%s, of six tenths of the device: %d\n", kinds[i].name, kinds[i].allocate(available / 10 * 6));
            CHECK(cudaDeviceSynchronize());
        }
    return 0;
}
