// build: plugin
/* The plugin of plugin.c: a shared object with the static runtime inside. */
#include "kit.h"

static kit_kernels k;
static int loaded;

static void load(void)
{
    CHECK(cudaSetDevice(0));
    if (!loaded)
        k = kit_load();
    loaded = 1;
}

__attribute__((visibility("default"))) int plugin_rounds(int count, size_t bytes)
{
    load();
    uint64_t *errors = (uint64_t *)kit_pinned(sizeof *errors);
    cudaStream_t s = kit_stream();
    for (int i = 0; i < count; i++) {
        void *p = kit_malloc(bytes);
        kit_fill(&k, s, p, bytes, (uint32_t)i, 0);
        kit_check(&k, s, p, bytes, (uint32_t)i, errors, 0);
        kit_free(p, bytes);
    }
    CHECK(cudaStreamSynchronize(s));
    return (int)*errors;
}

__attribute__((visibility("default"))) void *plugin_allocate(size_t bytes)
{
    void *p = NULL;
    load();
    CHECK(cudaMalloc(&p, bytes));
    return p;
}

__attribute__((visibility("default"))) int plugin_release(void *p) { return (int)cudaFree(p); }
