// build: shared
/* Memory that no pool owns goes through every call as natively: managed, registered and pinned
 * host memory, mapped address ranges, freed by the right call and by wrong ones, while blocks of
 * the pool come and go. */
#include "kit.h"

enum { BYTES = 4 << 20 };

static kit_kernels k;

static void churn(void)
{
    for (int i = 0; i < 50; i++)
        kit_free(kit_malloc(BYTES + (size_t)(i % 5) * 4096), BYTES + (size_t)(i % 5) * 4096);
    CHECK(cudaDeviceSynchronize());
}

static void say(const char *what, int code)
{
    printf("%s: %d", what, code);
    printf(", last error %d\n", (int)cudaGetLastError());
}

static void use(const char *what, void *p)
{
    cudaStream_t s = kit_stream();
    kit_fill(&k, s, p, 65536, 0x77777777, 0);
    CHECK(cudaStreamSynchronize(s));
    size_t wrong = kit_wrong_bytes(p, 65536, 0x77);
    CHECK(cudaStreamDestroy(s));
    printf("%s: wrong bytes %zu\n", what, wrong);
    EXPECT_EQ(wrong, 0);
}

static void managed(void)
{
    void *p = NULL;
    CHECK(cudaMallocManaged(&p, BYTES, cudaMemAttachGlobal));
    churn();
    use("managed", p);
    say("managed freed as host memory", (int)cudaFreeHost(p));
    say("managed interior freed", (int)cudaFree((char *)p + 4096));
    say("managed freed", (int)cudaFree(p));
    say("managed freed again", (int)cudaFree(p));
    CHECK(cudaMallocManaged(&p, BYTES, cudaMemAttachGlobal));
    say("managed freed by the driver", (int)cuMemFree((CUdeviceptr)(uintptr_t)p));
}

static void host(void)
{
    void *p = kit_pinned(BYTES), *own = NULL;
    EXPECT_EQ(posix_memalign(&own, 4096, BYTES), 0);
    churn();
    use("pinned", p);
    say("pinned freed as device memory", (int)cudaFree(p));
    say("pinned freed", (int)cudaFreeHost(p));
    say("pinned freed again", (int)cudaFreeHost(p));
    CHECK(cudaHostRegister(own, BYTES, cudaHostRegisterMapped));
    churn();
    say("registered freed as device memory", (int)cudaFree(own));
    say("registered freed as pinned", (int)cudaFreeHost(own));
    say("unregistered", (int)cudaHostUnregister(own));
    say("unregistered again", (int)cudaHostUnregister(own));
    say("device memory unregistered", (int)cudaHostUnregister((void *)(uintptr_t)0xDEADBEEF000));
    free(own);
}

static void mapped_range(void)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access;
    CUdeviceptr range = 0;
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK_CU(cuMemAddressReserve(&range, BYTES, 0, 0, 0));
    CHECK_CU(cuMemCreate(&handle, BYTES, &prop, 0));
    CHECK_CU(cuMemMap(range, BYTES, 0, handle, 0));
    CHECK_CU(cuMemSetAccess(range, BYTES, &access, 1));
    churn();
    use("mapped range", (void *)(uintptr_t)range);
    say("mapped range freed", (int)cudaFree((void *)(uintptr_t)range));
    CHECK_CU(cuMemUnmap(range, BYTES));
    CHECK_CU(cuMemRelease(handle));
    CHECK_CU(cuMemAddressFree(range, BYTES));
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    k = kit_load();
    for (int pass = 0; pass < 2; pass++) {
        managed();
        host();
        mapped_range();
    }
    return 0;
}
