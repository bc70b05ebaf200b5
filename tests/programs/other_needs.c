// build: shared
/* A pool holds memory that nobody uses when the program makes a call that needs device memory and
 * is no allocation.
 *   other_needs FUNCTION
 * Prints what the driver's function answers. */
#include "kit.h"

static CUresult call(const char *name)
{
    void *address = kit_symbol(kit_driver()->library, name);
    CUresult (*limit)(int, size_t);
    CUresult (*load)(CUmodule *, const void *);
    CUresult (*load_ex)(CUmodule *, const void *, unsigned, void *, void **);
    CUresult (*stream)(CUstream *, unsigned);
    CUresult (*stream_priority)(CUstream *, unsigned, int);
    CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*upload)(CUgraphExec, CUstream);
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    CUmodule module;
    CUstream s;
    CUcontext context;
    if (!strcmp(name, "cuCtxSetLimit")) {
        *(void **)&limit = address;
        return limit(0, 2048);
    }
    if (!strcmp(name, "cuModuleLoadData") || !strcmp(name, "cuModuleLoadFatBinary")) {
        *(void **)&load = address;
        return load(&module, kernels_ptx);
    }
    if (!strcmp(name, "cuModuleLoadDataEx")) {
        *(void **)&load_ex = address;
        return load_ex(&module, kernels_ptx, 0, NULL, NULL);
    }
    if (!strcmp(name, "cuStreamCreate")) {
        *(void **)&stream = address;
        return stream(&s, 0);
    }
    if (!strcmp(name, "cuStreamCreateWithPriority")) {
        *(void **)&stream_priority = address;
        return stream_priority(&s, 0, 0);
    }
    if (!strcmp(name, "cuGraphInstantiateWithFlags") || !strcmp(name, "cuGraphUpload")) {
        cudaGraph_t graph;
        CUgraphExec executable;
        CHECK(cudaGraphCreate(&graph, 0));
        *(void **)&instantiate = kit_symbol(kit_driver()->library, "cuGraphInstantiateWithFlags");
        CUresult made = instantiate(&executable, (CUgraph)graph, 0);
        if (made || strcmp(name, "cuGraphUpload"))
            return made;
        *(void **)&upload = address;
        return upload(executable, (CUstream)kit_stream());
    }
    *(void **)&create = address;
    return create(&context, 0, 0);
}

int main(int argc, char **argv)
{
    CHECK(cudaSetDevice(0));
    kit_free(kit_malloc(64 * MIB), 64 * MIB);
    CHECK(cudaDeviceSynchronize());
    printf("%s: %d\n", argv[1], argc > 1 ? (int)call(argv[1]) : -1);
    return 0;
}
