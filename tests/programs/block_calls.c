// build: shared static
/* Calls that take the address of memory of other kinds (managed, mapped, of a memory pool, the host's)
 * are given a block's, one inside it, and one of a block that was freed: they answer as natively, and
 * the block is as it was. What a driver lacks is left out. */
#include "kit.h"

enum { BYTES = 4 << 20, MOST = 6 };

/* Integers and pointers alike travel in registers on x86-64, so that one prototype does for all. */
typedef CUresult (*any)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* What stands for the address, and for a size from it on. */
#define AT ((uintptr_t)-1)
#define SIZE ((uintptr_t)-2)
#define OUT ((uintptr_t)out)

static uintptr_t out[16], graph, stream, location[2] = {1}; /* device 0 */
static const uintptr_t rights[2] = {1, 3}; /* device 0, read and write */

static void ask(const char *name, const char *what, uintptr_t at, size_t size, const uintptr_t *arguments)
{
    any call;
    uintptr_t a[MOST];
    *(void **)&call = dlsym(kit_driver()->library, name);
    if (!call)
        return;
    for (int i = 0; i < MOST; i++)
        a[i] = arguments[i] == AT ? at : arguments[i] == SIZE ? size : arguments[i];
    printf("%s of %s: %d\n", name, what, (int)call(a[0], a[1], a[2], a[3], a[4], a[5]));
}

int main(void)
{
    CHECK(cudaSetDevice(0));
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    graph = (uintptr_t)g;
    stream = (uintptr_t)kit_stream();
    const struct {
        const char *name;
        uintptr_t arguments[MOST];
    } calls[] = {
        {"cuMemAdvise", {AT, SIZE, 1, 0}},
        {"cuMemPrefetchAsync", {AT, SIZE, 0, stream}},
        {"cuMemRangeGetAttribute", {OUT, 4, 1, AT, SIZE}},
        {"cuStreamAttachMemAsync", {stream, AT, SIZE, 1}},
        {"cuMemRetainAllocationHandle", {OUT, AT}},
        {"cuMemGetAccess", {OUT, (uintptr_t)location, AT}},
        {"cuMemSetAccess", {AT, SIZE, (uintptr_t)rights, 1}},
        {"cuMemUnmap", {AT, SIZE}},
        {"cuMemAddressFree", {AT, SIZE}},
        {"cuMemPoolExportPointer", {OUT, AT}},
        {"cuGraphAddMemFreeNode", {OUT, graph, 0, 0, AT}},
        {"cuIpcCloseMemHandle", {AT}},
        {"cuMemFreeHost", {AT}},
        {"cuMemHostGetDevicePointer_v2", {OUT, AT, 0}},
        {"cuMemHostGetFlags", {OUT, AT}},
        {"cuMemHostUnregister", {AT}},
    };
    for (int pass = 0; pass < 2; pass++) {
        char *live = (char *)kit_malloc(BYTES), *gone = (char *)kit_malloc(BYTES);
        kit_free(gone, BYTES);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemset(live, 0x37, BYTES));
        for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
            ask(calls[i].name, "a block", (uintptr_t)live, BYTES, calls[i].arguments);
            ask(calls[i].name, "its inside", (uintptr_t)live + BYTES / 2, BYTES / 2, calls[i].arguments);
            ask(calls[i].name, "a freed block", (uintptr_t)gone, BYTES, calls[i].arguments);
        }
        printf("wrong bytes %zu\n", kit_wrong_bytes(live, BYTES, 0x37));
        kit_free(live, BYTES);
        for (int i = 0; i < 20; i++)
            kit_free(kit_malloc(BYTES), BYTES);
    }
    return 0;
}
