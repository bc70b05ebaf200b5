// build: shared
/* A pool holds memory that nobody uses when the program makes a call that needs device memory and
 * is no allocation of the pool's.
 *   other_needs FUNCTION
 * Prints what the driver's function answers. */
#include "kit.h"

enum { BYTES = 2 << 20, MOST = 8 };

/* Integers and pointers alike travel in registers or whole words of the stack on x86-64, so that one
 * prototype does for all of these functions. */
typedef CUresult (*any)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static CUresult made(const char *name, const uintptr_t *a)
{
    any call;
    *(void **)&call = kit_symbol(kit_driver()->library, name);
    return call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
}
#define CALL(name, ...) made(name, (uintptr_t[MOST]){__VA_ARGS__})
#define P(x) ((uintptr_t)(x))

static uintptr_t out[2];

/* The kernels as a file. */
static const char *file(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/gpupool-kernels-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    EXPECT(f && fputs(kernels_ptx, f) >= 0 && fclose(f) == 0);
    return path;
}

static uintptr_t take(const char *name, CUresult r)
{
    if (r)
        printf("before it %s: %d\n", name, (int)r);
    return out[1];
}
/* Another call first; gives what that one made. */
#define FIRST(name, ...) take(name, CALL(name, P(&out[1]), __VA_ARGS__))

static CUresult load(const char *name)
{
    if (strstr(name, "File") || !strcmp(name, "cuModuleLoad")) {
        const char *path = file();
        CUresult r = CALL(name, P(out), P(path));
        unlink(path);
        return r;
    }
    if (!strcmp(name, "cuModuleGetFunction"))
        return CALL(name, P(out), FIRST("cuModuleLoadData", P(kernels_ptx)), P("gp_fill"));
    if (!strcmp(name, "cuFuncLoad")) {
        uintptr_t module = FIRST("cuModuleLoadData", P(kernels_ptx));
        return CALL(name, FIRST("cuModuleGetFunction", module, P("gp_fill")));
    }
    if (!strcmp(name, "cuLibraryGetModule"))
        return CALL(name, P(out), FIRST("cuLibraryLoadData", P(kernels_ptx)));
    if (!strcmp(name, "cuKernelGetFunction")) {
        uintptr_t library = FIRST("cuLibraryLoadData", P(kernels_ptx));
        return CALL(name, P(out), FIRST("cuLibraryGetKernel", library, P("gp_fill")));
    }
    return CALL(name, P(out), P(kernels_ptx));
}

static CUresult graph(const char *name)
{
    uintptr_t params[4] = {0}, stream = P(kit_stream());
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    if (strstr(name, "Upload") || strstr(name, "Launch"))
        return CALL(name, FIRST("cuGraphInstantiateWithFlags", P(g), 0), stream);
    if (strstr(name, "WithParams"))
        return CALL(name, P(out), P(g), P(params));
    if (strstr(name, "AddMemAllocNode")) {
        /* CUDA_MEM_ALLOC_NODE_PARAMS: of a pool's properties only that the memory is a device's. */
        uintptr_t node[16] = {1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, BYTES};
        return CALL(name, P(out), P(g), 0, 0, P(node));
    }
    return CALL(name, P(out), P(g));
}

static CUresult range(const char *name)
{
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!strcmp(name, "cuMemCreate"))
        return CALL(name, P(out), BYTES, P(&prop));
    uintptr_t at = FIRST("cuMemAddressReserve", BYTES), memory = FIRST("cuMemCreate", BYTES, P(&prop));
    if (!strcmp(name, "cuMemMap"))
        return CALL(name, at, BYTES, 0, memory);
    CALL("cuMemMap", at, BYTES, 0, memory);
    return CALL(name, at, BYTES, P(&access), 1);
}

static CUresult array(const char *name)
{
    CUDA_ARRAY_DESCRIPTOR flat;
    CUDA_ARRAY3D_DESCRIPTOR deep;
    memset(&flat, 0, sizeof flat);
    memset(&deep, 0, sizeof deep);
    flat.Width = deep.Width = flat.Height = deep.Height = 256;
    flat.Format = deep.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    flat.NumChannels = deep.NumChannels = 1;
    return CALL(name, P(out), strstr(name, "cuArrayCreate") ? P(&flat) : P(&deep), 1);
}

static CUresult context(const char *name)
{
    CUdevResource resource;
    if (strstr(name, "Green")) {
        CHECK_CU(CALL("cuDeviceGetDevResource", 0, P(&resource), CU_DEV_RESOURCE_TYPE_SM));
        return CALL(name, P(out), FIRST("cuDevResourceGenerateDesc", P(&resource), 1), 0, CU_GREEN_CTX_DEFAULT_STREAM);
    }
    if (strstr(name, "Peer")) {
        CUcontext other;
        CHECK_CU(DRV(cuDevicePrimaryCtxRetain)(&other, 1));
        return CALL(name, P(other));
    }
    return CALL(name, P(out)); /* no flags, device 0, whatever the form */
}

static CUresult call(const char *name)
{
    static char own[8192] __attribute__((aligned(4096)));
    uintptr_t description[32] = {0};
    cudaMemPool_t pool;
    if (!strncmp(name, "cuModule", 8) || !strncmp(name, "cuLibrary", 9) || !strncmp(name, "cuKernel", 8) ||
        !strcmp(name, "cuFuncLoad"))
        return load(name);
    if (!strncmp(name, "cuGraph", 7))
        return graph(name);
    if (strstr(name, "Array") && !strstr(name, "External"))
        return array(name);
    if (!strcmp(name, "cuMemCreate") || !strcmp(name, "cuMemMap") || !strcmp(name, "cuMemSetAccess"))
        return range(name);
    if (strstr(name, "HostRegister"))
        return CALL(name, P(own), sizeof own);
    if (strstr(name, "External"))
        return CALL(name, P(out), P(description), P(description));
    if (strstr(name, "FromPoolAsync")) {
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        return CALL(name, P(out), BYTES, P(pool), P(kit_stream()));
    }
    if (strstr(name, "Async"))
        return CALL(name, P(out), BYTES, P(kit_stream()));
    if (strstr(name, "Managed"))
        return CALL(name, P(out), BYTES, CU_MEM_ATTACH_GLOBAL);
    if (!strcmp(name, "cuCtxSetLimit"))
        return CALL(name, CU_LIMIT_STACK_SIZE, 2048);
    if (strstr(name, "Ctx"))
        return context(name);
    return CALL(name, P(out));
}

int main(int argc, char **argv)
{
    EXPECT(argc > 1);
    /* The runtime would retain the primary context, and for that call none must be there before. */
    if (strcmp(argv[1], "cuDevicePrimaryCtxRetain")) {
        CHECK(cudaSetDevice(0));
    } else {
        CHECK_CU(DRV(cuInit)(0));
        CHECK_CU(CALL("cuCtxCreate_v2", P(out)));
    }
    CUdeviceptr p;
    CHECK_CU(DRV(cuMemAlloc)(&p, 64 * MIB));
    CHECK_CU(DRV(cuMemFree)(p));
    CHECK_CU(DRV(cuCtxSynchronize)());
    printf("%s: %d\n", argv[1], (int)call(argv[1]));
    return 0;
}
