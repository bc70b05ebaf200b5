// build: driver
// options: -Wl,--as-needed
/* A program linked to nothing of CUDA, which looks the driver up at run time in every way there
 * is: dlsym by handle, cuGetProcAddress, and cuGetProcAddress
 * fetched through itself, as NVIDIA's runtime does. All ways lead to the same functions. */
#define KIT_DRIVER_ONLY
#include "kit.h"

typedef CUresult (*get_proc)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
typedef CUresult (*alloc_function)(CUdeviceptr *, size_t);
typedef CUresult (*free_function)(CUdeviceptr);
typedef CUresult (*range_function)(CUdeviceptr *, size_t *, CUdeviceptr);

enum { ROUNDS = 500, BYTES = 300000 };

static void *through(get_proc get, const char *name, int version, cuuint64_t flags)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    CHECK_CU(get(name, &found, version, flags, &status));
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT(found != NULL);
    return found;
}

static void rounds(const char *way, alloc_function allocate, free_function release, range_function range)
{
    int wrong = 0;
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr p = 0, base = 0;
        size_t bytes = BYTES + (size_t)(i % 3) * 512 + 1, size = 0;
        CHECK_CU(allocate(&p, bytes));
        CHECK_CU(range(&base, &size, p + 1000));
        wrong += base != p || size != bytes;
        CHECK_CU(release(p));
    }
    printf("%s: rounds %d, wrong ranges %d\n", way, ROUNDS, wrong);
    EXPECT_EQ(wrong, 0);
}

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != NULL);
    CUdevice device;
    CUcontext context;
    CHECK_CU(DRV(cuInit)(0));
    CHECK_CU(DRV(cuDeviceGet)(&device, 0));
    CHECK_CU(DRV(cuDevicePrimaryCtxRetain)(&context, device));
    CHECK_CU(DRV(cuCtxSetCurrent)(context));

    alloc_function a;
    free_function f;
    range_function r;
    *(void **)&a = kit_symbol(library, "cuMemAlloc_v2");
    *(void **)&f = kit_symbol(library, "cuMemFree_v2");
    *(void **)&r = kit_symbol(library, "cuMemGetAddressRange_v2");
    rounds("dlsym by handle", a, f, r);

    get_proc first, again;
    alloc_function a2;
    free_function f2;
    range_function r2;
    *(void **)&first = kit_symbol(library, "cuGetProcAddress_v2");
    *(void **)&a2 = through(first, "cuMemAlloc", 3020, 0);
    *(void **)&f2 = through(first, "cuMemFree", 3020, 0);
    *(void **)&r2 = through(first, "cuMemGetAddressRange", 3020, 0);
    rounds("cuGetProcAddress", a2, f2, r2);
    printf("same addresses by dlsym and cuGetProcAddress: %d\n", a == a2 && f == f2 && r == r2);

    *(void **)&again = through(first, "cuGetProcAddress", 12000, 0);
    *(void **)&a2 = through(again, "cuMemAlloc", 3020, 2);
    *(void **)&f2 = through(again, "cuMemFree", 3020, 2);
    *(void **)&r2 = through(again, "cuMemGetAddressRange", 3020, 2);
    rounds("cuGetProcAddress through itself", a2, f2, r2);
    rounds("allocated one way, freed another", a, f2, r2);

    void *found = (void *)1;
    CUdriverProcAddressQueryResult status;
    CUresult code = first("cuNoSuchFunction", &found, 12000, 0, &status);
    printf("unknown name: code %d status %d found %d\n", (int)code, (int)status, found != NULL);
    printf("unknown by dlsym: %d\n", dlsym(library, "cuNoSuchFunction") != NULL);
    dlerror();
    return 0;
}
