// build: driver
/* Contexts made and ended by every function there is, primary ones reset and released by every one,
 * and streams destroyed while they are captured: what was allocated before is gone afterwards, and
 * allocation goes on. A function that the driver lacks, or that fails, is said and left out. */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { BYTES = 1 << 20, BLOCKS = 4 };

static void *look_up(const char *name) { return dlsym(kit_driver()->library, name); }

static void traffic(void)
{
    for (int i = 0; i < 20; i++) {
        CUdeviceptr p;
        CHECK_CU(cuMemAlloc(&p, BYTES));
        CHECK_CU(cuMemFree(p));
    }
}

/* One block stays allocated. */
static CUdeviceptr use(void)
{
    CUdeviceptr p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        CHECK_CU(cuMemAlloc(&p[i], BYTES));
    for (int i = 1; i < BLOCKS; i++)
        CHECK_CU(cuMemFree(p[i]));
    traffic();
    return p[0];
}

static int create(const char *name, CUcontext *out)
{
    CUresult (*three)(CUcontext *, unsigned, CUdevice);
    CUresult (*four)(CUcontext *, void *, unsigned, CUdevice);
    CUresult (*five)(CUcontext *, void *, int, unsigned, CUdevice);
    CUresult (*display)(CUcontext *, unsigned, CUdevice, unsigned, void *);
    void *f = look_up(name);
    /* Of these two only the simulated driver makes contexts without a display. */
    if (!f || (!kit_driver()->note_alloc && (strstr(name, "VDPAU") || strstr(name, "GL"))))
        return -1;
    if (strstr(name, "VDPAU")) {
        *(void **)&display = f;
        return (int)display(out, 0, 0, 0, NULL);
    }
    if (strstr(name, "_v3")) {
        *(void **)&five = f;
        return (int)five(out, NULL, 0, 0, 0);
    }
    if (strstr(name, "_v4")) {
        *(void **)&four = f;
        return (int)four(out, NULL, 0, 0);
    }
    *(void **)&three = f;
    return (int)three(out, 0, 0);
}

static void created(const char *make, const char *end)
{
    CUcontext c = NULL;
    CUresult (*ended)(CUcontext);
    *(void **)&ended = look_up(end);
    int made = ended ? create(make, &c) : -1;
    printf("%s %s: made %d", make, end, made);
    if (made == 0) {
        CUdeviceptr p = use();
        printf(", ended %d", (int)ended(c));
        printf(", freed after it %d", (int)cuMemFree(p));
    }
    printf("\n");
    CHECK_CU(cuCtxSetCurrent(NULL));
}

static void primary(const char *name)
{
    CUcontext c;
    CUresult (*end)(CUdevice);
    *(void **)&end = look_up(name);
    if (!end) {
        printf("no %s\n", name);
        return;
    }
    CHECK_CU(cuDevicePrimaryCtxRetain(&c, 0));
    CHECK_CU(cuCtxSetCurrent(c));
    CUdeviceptr p = use();
    printf("%s: %d", name, (int)end(0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&c, 0));
    CHECK_CU(cuCtxSetCurrent(c));
    printf(", freed after it %d\n", (int)cuMemFree(p));
    traffic();
    CHECK_CU(cuDevicePrimaryCtxRelease(0));
    CHECK_CU(cuCtxSetCurrent(NULL));
}

/* If the capture were taken for open for ever, nothing would come back. */
static void stream(const char *name)
{
    CUcontext c;
    CUstream s;
    CUresult (*end)(CUstream);
    *(void **)&end = look_up(name);
    CHECK_CU(cuDevicePrimaryCtxRetain(&c, 0));
    CHECK_CU(cuCtxSetCurrent(c));
    CHECK_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CHECK_CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf("%s: %d", name, (int)end(s));
    size_t free_bytes, total;
    int failed = 0;
    CHECK_CU(cuMemGetInfo(&free_bytes, &total));
    for (int i = 0; i < 40; i++) {
        CUdeviceptr p;
        CUresult r = cuMemAlloc(&p, free_bytes / 5);
        failed += r != CUDA_SUCCESS;
        if (r == CUDA_SUCCESS)
            CHECK_CU(cuMemFree(p));
    }
    printf(", failed afterwards %d\n", failed);
    CHECK_CU(cuDevicePrimaryCtxRelease(0));
    CHECK_CU(cuCtxSetCurrent(NULL));
}

int main(void)
{
    static const char *const makers[] = {"cuCtxCreate",    "cuCtxCreate_v2",   "cuCtxCreate_v3",   "cuCtxCreate_v4",
                                         "cuGLCtxCreate",  "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"};
    static const char *const enders[] = {"cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"};
    static const char *const primaries[] = {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2",
                                            "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"};
    CHECK_CU(cuInit(0));
    for (unsigned i = 0; i < sizeof makers / sizeof *makers; i++)
        for (unsigned j = 0; j < sizeof enders / sizeof *enders; j++)
            created(makers[i], enders[j]);
    for (unsigned i = 0; i < sizeof primaries / sizeof *primaries; i++)
        primary(primaries[i]);
    stream("cuStreamDestroy");
    stream("cuStreamDestroy_v2");
    return 0;
}
