// build: shared static
/* Pitched memory: the driver's own pitch, whole rows usable, and freed like any other block. */
#include "kit.h"

static kit_kernels k;
static uint64_t *errors;

static void one(size_t width, size_t height)
{
    void *p = NULL;
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&p, &pitch, width, height));
    note_alloc(p, pitch * height);
    printf("%zu x %zu: pitch %zu, aligned %d\n", width, height, pitch, (uintptr_t)p % 512 == 0);
    cudaStream_t s = kit_stream();
    kit_fill(&k, s, p, pitch * height, 0x5EED5EED, 0);
    kit_check(&k, s, p, pitch * height, 0x5EED5EED, errors, MS);
    note_free(p, pitch * height);
    CHECK(cudaFree(p));
    CHECK(cudaStreamDestroy(s));

    CUdeviceptr d = 0;
    size_t pitches[3];
    unsigned element[] = {4, 8, 16};
    for (int i = 0; i < 3; i++) {
        CHECK_CU(DRV(cuMemAllocPitch)(&d, &pitches[i], width, height, element[i]));
        CHECK_CU(DRV(cuMemFree)(d));
    }
    printf(" driver pitches %zu %zu %zu, bad element size %d\n", pitches[0], pitches[1], pitches[2],
           (int)DRV(cuMemAllocPitch)(&d, &pitches[0], width, height, 5));

    struct cudaPitchedPtr q;
    CHECK(cudaMalloc3D(&q, make_cudaExtent(width, height, 3)));
    printf(" 3D pitch %zu xsize %zu ysize %zu\n", q.pitch, q.xsize, q.ysize);
    CHECK(cudaMemset2D(q.ptr, q.pitch, 0x12, width, height * 3));
    CHECK(cudaFree(q.ptr));
}

int main(void)
{
    size_t widths[] = {1, 511, 512, 513, 1000, 4096, 100000}, heights[] = {1, 7, 300};
    CHECK(cudaSetDevice(0));
    k = kit_load();
    errors = (uint64_t *)kit_pinned(sizeof *errors);
    for (int pass = 0; pass < 2; pass++)
        for (int w = 0; w < 7; w++)
            for (int h = 0; h < 3; h++)
                one(widths[w], heights[h]);
    CHECK(cudaDeviceSynchronize());
    printf("wrong words: %llu\n", (unsigned long long)*errors);
    return *errors != 0;
}
