// build: driver
// options: -rdynamic
/* A program may call cuInit as often as it likes: that leaves nothing behind. What registers exit
 * handlers is counted by a definition of the program's own, which every library finds first. */
#define KIT_DRIVER_ONLY
#include "kit.h"

static int registered;

__attribute__((visibility("default"))) int __cxa_atexit(void (*f)(void *), void *argument, void *object);

int __cxa_atexit(void (*f)(void *), void *argument, void *object)
{
    int (*next)(void (*)(void *), void *, void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__cxa_atexit");
    __atomic_fetch_add(&registered, 1, __ATOMIC_RELAXED);
    return next(f, argument, object);
}

static void *again(void *unused)
{
    (void)unused;
    for (int i = 0; i < 1000; i++)
        CHECK_CU(DRV(cuInit)(0));
    return NULL;
}

static void nothing(void) {}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CHECK_CU(cuInit(0));
    int before = registered;
    printf("counted: %d\n", (atexit(nothing), registered == before + 1));
    before = registered;
    for (int i = 0; i < 1000; i++)
        CHECK_CU(cuInit(0));
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        t[i] = kit_thread(again, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    printf("exit handlers left by 5000 calls of cuInit: %d\n", registered - before);
    CHECK_CU(cuDeviceGet(&device, 0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_CU(cuCtxSetCurrent(context));
    CUdeviceptr p;
    CHECK_CU(cuMemAlloc(&p, 4096));
    CHECK_CU(cuMemFree(p));
    return 0;
}
