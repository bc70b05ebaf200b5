// build: driver
/* Contexts that are made and destroyed, work in them under way, while other threads allocate and
 * free in the primary one all the time: a fence covers every context of the process, and the driver
 * must not be asked about an event of one that is just being ended (NVIDIA's crashed). */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { ROUNDS = 60, THREADS = 3, BYTES = 256 << 10 };

static CUcontext primary;
static kit_kernels k;
static volatile int stop;

static void *churn(void *errors)
{
    CUstream s;
    uint32_t round = 0;
    CHECK_CU(cuCtxSetCurrent(primary));
    CHECK_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        CUdeviceptr p;
        CHECK_CU(cuMemAlloc(&p, BYTES));
        kit_fill(&k, s, (void *)(uintptr_t)p, BYTES, ++round, 0);
        kit_check(&k, s, (void *)(uintptr_t)p, BYTES, round, (uint64_t *)errors, 0);
        CHECK_CU(cuMemFree(p));
        if (round % 200 == 0) /* not further ahead than that */
            CHECK_CU(cuStreamSynchronize(s));
    }
    CHECK_CU(cuStreamSynchronize(s));
    CHECK_CU(cuStreamDestroy(s));
    return NULL;
}

int main(void)
{
    CUdevice device;
    /* By its older name: the newest form takes a structure that older drivers do not know. */
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    void *errors = NULL;
    pthread_t t[THREADS];
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDeviceGet(&device, 0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK_CU(cuCtxSetCurrent(primary));
    *(void **)&create = kit_symbol(kit_driver()->library, "cuCtxCreate_v2");
    k = kit_load();
    CHECK_CU(cuMemHostAlloc(&errors, sizeof(uint64_t), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(errors, 0, sizeof(uint64_t));
    for (int i = 0; i < THREADS; i++)
        t[i] = kit_thread(churn, errors);
    for (int round = 0; round < ROUNDS; round++) {
        CUcontext c;
        CUdeviceptr p[4];
        CHECK_CU(create(&c, 0, device));
        kit_kernels own = kit_load(); /* kernels belong to the context */
        for (int i = 0; i < 4; i++) {
            CHECK_CU(cuMemAlloc(&p[i], BYTES));
            kit_fill(&own, NULL, (void *)(uintptr_t)p[i], BYTES, 7, MS / 4);
        }
        for (int i = 0; i < 4; i += 2)
            CHECK_CU(cuMemFree(p[i]));
        kit_sleep_ms(2 + (unsigned)round % 5); /* fences cover it from now on */
        CHECK_CU(cuCtxDestroy(c));
    }
    kit_set(&stop);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    printf("contexts ended: %d, wrong words elsewhere: %llu\n", ROUNDS, *(unsigned long long *)errors);
    return *(uint64_t *)errors != 0;
}
