/* How programs reach the driver's functions. */
#ifndef FACTS_LOOKUP_H
#define FACTS_LOOKUP_H

#include "common.h"

typedef CUresult (*get_proc)(const char *, void **, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *);

static void *asked(get_proc get, const char *name, int version, cuuint64_t flags)
{
    void *fn = NULL;
    CUdriverProcAddressQueryResult status;
    return get(name, &fn, version, flags, &status) == CUDA_SUCCESS ? fn : NULL;
}

static void lookups(void)
{
    static const struct {
        const char *name, *symbol;
        int version;
        cuuint64_t flags;
    } names[] = {
        {"cuMemAlloc", "cuMemAlloc_v2", 3020, 0},
        {"cuMemAlloc", "cuMemAlloc_v2", 13000, 2},
        {"cuMemFree", "cuMemFree_v2", 3020, 0},
        {"cuMemGetInfo", "cuMemGetInfo_v2", 3020, 0},
        {"cuMemFreeHost", "cuMemFreeHost", 2000, 0},
        {"cuMemAllocAsync", "cuMemAllocAsync", 11020, 0},
        {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", 11020, 2},
        {"cuMemFreeAsync", "cuMemFreeAsync_ptsz", 11020, 2},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020, 0},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", 7000, 2},
        {"cuEventRecord", "cuEventRecord_ptsz", 7000, 2},
        {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010, 0},
        {"cuCtxRecordEvent", "cuCtxRecordEvent", 12050, 0},
        {"cuCtxGetId", "cuCtxGetId", 12000, 0},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    get_proc first;
    *(void **)&first = dlsym(library, "cuGetProcAddress_v2");
    EXPECT(first != NULL);
    void *again = asked(first, "cuGetProcAddress", 12000, 0);
    fact("cuGetProcAddress through itself, 12000", again == *(void **)&first, 1);
    fact("cuGetProcAddress through itself, 11030",
         asked(first, "cuGetProcAddress", 11030, 0) == dlsym(library, "cuGetProcAddress"), 1);
    get_proc second;
    *(void **)&second = again;
    int differ = 0, misaligned = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *by_name = dlsym(library, names[i].symbol);
        void *by_call = asked(second, names[i].name, names[i].version, names[i].flags);
        if (!by_name || by_name != by_call) {
            printf("# %s: dlsym %p, cuGetProcAddress %p\n", names[i].symbol, by_name, by_call);
            differ++;
        }
        misaligned += ((uintptr_t)by_name & 15) != 0;
    }
    fact("functions whose addresses differ between dlsym and cuGetProcAddress", differ, 0);
    fact("entry points not on 16 bytes", misaligned, 0);
    fact("a name that does not exist", asked(second, "cuNoSuchFunction", 13000, 0) == NULL, 1);

    /* push %rbp; mov %rsp,%rbp; push %r12: at least eight bytes of plain instructions. */
    static const unsigned char start[] = {0x55, 0x48, 0x89, 0xe5, 0x41, 0x54};
    fact("cuMemAlloc_v2 begins with plain instructions (driver 580)",
         memcmp(dlsym(library, "cuMemAlloc_v2"), start, sizeof start), 0);
}

#endif
