// build: driver
// options: -Wl,--as-needed
/* The driver is opened in a namespace of its own (dlmopen), where nothing is preloaded: the program
 * runs natively. The program itself is linked to nothing of CUDA. */
#define KIT_DRIVER_ONLY
#include "kit.h"

static void *library;

static void *look_up(const char *name)
{
    void *found = dlsym(library, name);
    EXPECT(found != NULL);
    return found;
}

int main(void)
{
    CUresult (*init)(unsigned);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*current)(CUcontext);
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*release)(CUdeviceptr);
    CUcontext context;
    CUdeviceptr p;
    library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!library)
        return printf("it cannot be opened there\n"), 0;
    *(void **)&init = look_up("cuInit");
    *(void **)&retain = look_up("cuDevicePrimaryCtxRetain");
    *(void **)&current = look_up("cuCtxSetCurrent");
    *(void **)&allocate = look_up("cuMemAlloc_v2");
    *(void **)&release = look_up("cuMemFree_v2");
    printf("init %d\n", (int)init(0));
    printf("retain %d\n", (int)retain(&context, 0));
    printf("current %d\n", (int)current(context));
    int failed = 0;
    for (int i = 0; i < 200; i++) {
        failed += allocate(&p, 70000) != CUDA_SUCCESS;
        failed += release(p) != CUDA_SUCCESS;
    }
    printf("failed %d, freed twice %d\n", failed, (int)release(p));
    return 0;
}
