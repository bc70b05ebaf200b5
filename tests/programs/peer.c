// build: shared static
/* Copies with offsets, and work across devices. With one device only the first part runs.
 * `peer grace` adds what a native free does not promise: a block of one device that a kernel of
 * another device still writes is not handed out again. */
#include "kit.h"

enum { BYTES = 1 << 20 };

static void copy_3d_with_offsets(void)
{
    struct cudaPitchedPtr from, to;
    struct cudaExtent whole = make_cudaExtent(256, 32, 8), part = make_cudaExtent(64, 8, 4);
    cudaStream_t s = kit_stream();
    size_t bytes = 256 * 32 * 8;
    unsigned char *host = (unsigned char *)malloc(bytes), *back = (unsigned char *)malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 7 + (i >> 8));
    CHECK(cudaMalloc3D(&from, whole));
    CHECK(cudaMalloc3D(&to, whole));
    printf("pitch %zu, same for both %d\n", from.pitch, from.pitch == to.pitch);
    CHECK(cudaMemset2D(to.ptr, to.pitch, 0, 256, 32 * 8));
    CHECK(cudaDeviceSynchronize()); /* the copies are on a stream that does not wait for it */
    struct cudaMemcpy3DParms up;
    memset(&up, 0, sizeof up);
    up.srcPtr = make_cudaPitchedPtr(host, 256, 256, 32);
    up.dstPtr = from;
    up.extent = whole;
    up.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3DAsync(&up, s));
    struct cudaMemcpy3DParms across;
    memset(&across, 0, sizeof across);
    across.srcPtr = from;
    across.srcPos = make_cudaPos(32, 5, 2);
    across.dstPtr = to;
    across.dstPos = make_cudaPos(16, 3, 1);
    across.extent = part;
    across.kind = cudaMemcpyDeviceToDevice;
    CHECK(cudaMemcpy3DAsync(&across, s));
    struct cudaMemcpy3DParms down;
    memset(&down, 0, sizeof down);
    down.srcPtr = to;
    down.dstPtr = make_cudaPitchedPtr(back, 256, 256, 32);
    down.extent = whole;
    down.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3DAsync(&down, s));
    CHECK(cudaStreamSynchronize(s));
    size_t wrong = 0;
    for (size_t z = 0; z < 8; z++)
        for (size_t y = 0; y < 32; y++)
            for (size_t x = 0; x < 256; x++) {
                int inside = x >= 16 && x < 80 && y >= 3 && y < 11 && z >= 1 && z < 5;
                unsigned char want = 0;
                if (inside)
                    want = host[((z - 1 + 2) * 32 + (y - 3 + 5)) * 256 + (x - 16 + 32)];
                wrong += back[(z * 32 + y) * 256 + x] != want;
            }
    printf("3D copy with offsets: wrong bytes %zu\n", wrong);
    EXPECT_EQ(wrong, 0);
    CHECK(cudaFree(from.ptr));
    CHECK(cudaFree(to.ptr));
    free(host);
    free(back);
}

static int device_of(void *p)
{
    struct cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, p));
    return a.device;
}

/* Allocate on 0, go to 1, free there, allocate: the new block is on 1. */
static void free_on_the_other_device(void)
{
    for (int i = 0; i < 5; i++) {
        void *p = NULL, *q = NULL;
        CHECK(cudaSetDevice(0));
        CHECK(cudaMalloc(&p, BYTES));
        EXPECT_EQ(device_of(p), 0);
        CHECK(cudaSetDevice(1));
        CHECK(cudaFree(p));
        CHECK(cudaMalloc(&q, BYTES));
        EXPECT_EQ(device_of(q), 1);
        CHECK(cudaSetDevice(0));
        CHECK(cudaFree(q));
    }
    printf("blocks are on the current device\n");
}

static void peer_copies(const char *scenario)
{
    void *on0, *on1;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&on0, BYTES));
    CHECK(cudaMemset(on0, 0x3C, BYTES));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&on1, BYTES));
    CHECK(cudaMemset(on1, 0, BYTES));
    CHECK(cudaMemcpyPeer((char *)on1 + 4096, 1, (char *)on0 + 512, 0, 65536));
    CHECK(cudaDeviceSynchronize());
    size_t wrong = kit_wrong_bytes((char *)on1 + 4096, 65536, 0x3C) + kit_wrong_bytes(on1, 4096, 0);
    CHECK(cudaMemcpy(on1, on0, BYTES, cudaMemcpyDefault));
    CHECK(cudaDeviceSynchronize());
    wrong += kit_wrong_bytes(on1, BYTES, 0x3C);
    printf("%s: wrong bytes %zu\n", scenario, wrong);
    EXPECT_EQ(wrong, 0);
    CHECK(cudaFree(on0));
    CHECK(cudaFree(on1));
}

/* Device 1 reads and, slowly, writes memory of device 0. */
static void kernels_across(int grace)
{
    uint64_t *errors = (uint64_t *)kit_pinned(sizeof *errors);
    void *p = NULL, *q = NULL;
    CHECK(cudaSetDevice(1));
    kit_kernels k1 = kit_load();
    cudaStream_t s1 = kit_stream();
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&p, BYTES));
    CHECK(cudaMemset(p, 0x3C, BYTES));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(1));
    kit_check(&k1, s1, p, BYTES, 0x3C3C3C3C, errors, 0);
    CHECK(cudaStreamSynchronize(s1));
    printf("kernel of device 1 on memory of device 0: wrong words %llu\n", (unsigned long long)*errors);
    EXPECT_EQ(*errors, 0);
    if (grace) {
        kit_fill(&k1, s1, p, BYTES, 0x11111111, 200 * MS);
        CHECK(cudaSetDevice(0));
        CHECK(cudaFree(p));
        p = NULL;
        CHECK(cudaMalloc(&q, BYTES));
        CHECK(cudaMemset(q, 0x22, BYTES));
        CHECK(cudaSetDevice(1));
        CHECK(cudaStreamSynchronize(s1));
        CHECK(cudaSetDevice(0));
        CHECK(cudaDeviceSynchronize());
        printf("freed under a kernel of device 1: wrong bytes %zu\n", kit_wrong_bytes(q, BYTES, 0x22));
        EXPECT_EQ(kit_wrong_bytes(q, BYTES, 0x22), 0);
        CHECK(cudaFree(q));
    } else {
        CHECK(cudaFree(p));
    }
}

int main(int argc, char **argv)
{
    int devices = 0, can01 = 0, can10 = 0;
    CHECK(cudaSetDevice(0));
    copy_3d_with_offsets();
    CHECK(cudaGetDeviceCount(&devices));
    if (devices < 2) {
        printf("one device: the rest is left out\n");
        return 0;
    }
    free_on_the_other_device();
    peer_copies("peer copies without access");
    CHECK(cudaDeviceCanAccessPeer(&can01, 0, 1));
    CHECK(cudaDeviceCanAccessPeer(&can10, 1, 0));
    if (!can01 || !can10) {
        printf("no peer access: the rest is left out\n");
        return 0;
    }
    void *before = NULL;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&before, BYTES)); /* from before access was enabled */
    CHECK(cudaDeviceEnablePeerAccess(1, 0));
    CHECK(cudaSetDevice(1));
    CHECK(cudaDeviceEnablePeerAccess(0, 0));
    peer_copies("peer copies with access");
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(before));
    kernels_across(argc > 1 && !strcmp(argv[1], "grace"));
    return 0;
}
