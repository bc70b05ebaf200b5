// build: shared static
/* Memory allocated by one family of calls and freed by another, and memory of a pool of the
 * program's own: native codes, and the memory comes back. */
#include "kit.h"

enum { ROUNDS = 12 };

typedef enum { PLAIN, ASYNC, FROM_POOL, DRIVER, WAYS } way;
static const char *const names[] = {"cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync", "cuMemAlloc"};
static const char *const free_names[] = {"cudaFree", "cudaFreeAsync", "cuMemFree"};

static cudaStream_t s;
static cudaMemPool_t own_pool;
static kit_kernels k;

static cudaError_t allocate(way w, void **p, size_t bytes)
{
    switch (w) {
    case PLAIN: return cudaMalloc(p, bytes);
    case ASYNC: return cudaMallocAsync(p, bytes, s);
    case FROM_POOL: return cudaMallocFromPoolAsync(p, bytes, own_pool, s);
    default: return (cudaError_t)DRV(cuMemAlloc)((CUdeviceptr *)p, bytes);
    }
}

static cudaError_t release(int w, void *p)
{
    switch (w) {
    case 0: return cudaFree(p);
    case 1: return cudaFreeAsync(p, s);
    default: return (cudaError_t)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)p);
    }
}

int main(void)
{
    size_t available, total;
    CHECK(cudaSetDevice(0));
    k = kit_load();
    s = kit_stream();
    struct cudaMemPoolProps props;
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = 0;
    CHECK(cudaMemPoolCreate(&own_pool, &props));
    CHECK(cudaMemGetInfo(&available, &total));
    /* A third of what is free, twelve times: fails unless what was freed comes back. */
    size_t bytes = available / 3;
    for (int a = 0; a < WAYS; a++)
        for (int f = 0; f < 3; f++) {
            int codes = 0, wrong_way = 0;
            for (int i = 0; i < ROUNDS; i++) {
                void *p = NULL;
                CHECK(allocate((way)a, &p, i % 2 ? bytes : 65536));
                kit_fill(&k, s, p, 65536, 0x01010101u * (unsigned)(i + 1), 0);
                /* A synchronous free of stream-ordered memory takes it that the work is done. */
                if (f != 1 && (a == ASYNC || a == FROM_POOL))
                    CHECK(cudaStreamSynchronize(s));
                cudaError_t code = release(f, p);
                codes += code != cudaSuccess;
                wrong_way += (int)code;
                cudaGetLastError();
                CHECK(cudaStreamSynchronize(s));
            }
            printf("%s then %s: %d of %d refused, codes sum %d\n", names[a], free_names[f], codes, ROUNDS, wrong_way);
            cudaMemPool_t pool;
            CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaMemPoolTrimTo(pool, 0));
            CHECK(cudaMemPoolTrimTo(own_pool, 0));
        }
    /* Freed twice, the second time by the other family. */
    void *p = NULL;
    CHECK(cudaMalloc(&p, 4096));
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamSynchronize(s));
    printf("cudaMalloc, cudaFreeAsync, cudaFree: %d\n", (int)cudaFree(p));
    cudaGetLastError();
    CHECK(cudaMalloc(&p, 4096));
    CHECK(cudaFree(p));
    printf("cudaMalloc, cudaFree, cudaFreeAsync: %d\n", (int)cudaFreeAsync(p, s));
    cudaGetLastError();
    CHECK(cudaMemPoolDestroy(own_pool));
    return 0;
}
