// build: shared
/* The facts about the driver that the library and the simulated driver rest on, one line each:
 * `PASS name` or `FAIL name: …`. They were measured on an H200 with driver 580.159 and CUDA
 * 13.0; this program runs unchanged on a real driver and on the simulated one, so that neither
 * the facts nor the simulation go stale unseen.
 *
 *   driver_facts [SECTION]  all facts, or those of a section; exits 1 if one fails
 *   driver_facts misuse K   does the kind K of wrong thing that the simulated driver reports
 *   driver_facts probe N…   prints what the driver is, the codes of a few allocations, whether
 *                           cuGetProcAddress finds each name N, and the code of a call at exit */
#include "driver_facts/captures.h"
#include "driver_facts/common.h"
#include "driver_facts/fences.h"
#include "driver_facts/ipc.h"
#include "driver_facts/lookup.h"
#include "driver_facts/memory.h"

/* A page of mapped memory, with access for the device or without. */
static CUdeviceptr mapped_page(int access)
{
    const size_t page = 2 << 20;
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc desc;
    memset(&desc, 0, sizeof desc);
    desc.location = prop.location;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p = 0;
    CHECK_CU(cuMemAddressReserve(&p, page, 0, 0, 0));
    CHECK_CU(cuMemCreate(&handle, page, &prop, 0));
    CHECK_CU(cuMemMap(p, page, 0, handle, 0));
    if (access)
        CHECK_CU(cuMemSetAccess(p, page, &desc, 1));
    return p;
}

/* Wrong on purpose: what a faulty pool would do. Each ends normally, so that a report is what
 * tells. */
static int misuse(const char *kind)
{
    char *segment = NULL;
    CHECK(cudaMalloc((void **)&segment, 8 << 20));
    cudaStream_t stream = kit_stream();
    kernels = kit_load();
    if (strcmp(kind, "none") == 0) {
        /* Handed out again after the work is done: as it should be. */
        note_alloc(segment, 1 << 20);
        kit_fill(&kernels, stream, segment, 1 << 20, 1, MS);
        note_free(segment, 1 << 20);
        CHECK(cudaStreamSynchronize(stream));
        note_alloc(segment + 4096, 1 << 20);
        kit_fill(&kernels, stream, segment + 4096, 1 << 20, 2, 0);
        note_free(segment + 4096, 1 << 20);
    } else if (strcmp(kind, "early-reissue") == 0) {
        note_alloc(segment, 1 << 20);
        gate g = gate_in(stream);
        kit_fill(&kernels, stream, segment, 1 << 20, 1, 0);
        note_free(segment, 1 << 20);
        note_alloc(segment + 4096, 512);
        gate_open(g);
    } else if (strcmp(kind, "still-owned") == 0) {
        note_alloc(segment, 1 << 20);
        note_alloc(segment + 512, 512);
    } else if (strcmp(kind, "use-after-free") == 0) {
        note_alloc(segment, 1 << 20);
        note_free(segment, 1 << 20);
        kit_fill(&kernels, stream, segment, 4096, 1, 0);
    } else if (strcmp(kind, "past-the-block") == 0) {
        note_alloc(segment, 1000);
        note_alloc(segment + 1024, 1000);
        kit_fill(&kernels, stream, segment, 1028, 1, 0);
    } else if (strcmp(kind, "freed-while-owned") == 0) {
        note_alloc(segment + 512, 1000);
        CHECK(cudaFree(segment));
    } else if (strcmp(kind, "unmapped-in-use") == 0) {
        CUdeviceptr p = mapped_page(1);
        gate g = gate_in(stream);
        CHECK_CU(cuMemsetD8Async(p, 1, 4096, (CUstream)stream));
        CHECK_CU(cuMemUnmap(p, 2 << 20));
        gate_open(g);
        CHECK(cudaDeviceSynchronize());
        gate_drop(g);
    } else if (strcmp(kind, "no-access") == 0) {
        kit_fill(&kernels, stream, (void *)(uintptr_t)mapped_page(0), 4096, 1, 0);
        EXPECT(cudaDeviceSynchronize() != cudaSuccess);
        return 0;
    } else if (strcmp(kind, "double-free") == 0) {
        CHECK(cudaFree(segment));
        EXPECT_EQ(cudaFree(segment), 1);
    } else if (strcmp(kind, "invalid-access") == 0) {
        CHECK(cudaFree(segment));
        kit_fill(&kernels, stream, segment, 4096, 1, 0);
        EXPECT_EQ(cudaDeviceSynchronize(), 700);
        return 0;
    } else if (strcmp(kind, "forked-child") == 0) {
        pid_t child = fork();
        if (child == 0) {
            size_t a, b;
            _exit(cudaMemGetInfo(&a, &b) == 3 ? 0 : 1);
        }
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    } else {
        EXPECT(!"a kind of misuse");
    }
    CHECK(cudaDeviceSynchronize());
    return 0;
}

static void last_call(void)
{
    printf("at exit: %lld\n", code_of(cudaDeviceSynchronize()));
    fflush(stdout);
}

static int probe(int count, char **names)
{
    /* Before the driver is initialised, so that this runs after its own exit handlers. */
    atexit(last_call);
    int devices = 0, version = 0;
    size_t free_bytes = 0, total = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaDriverGetVersion(&version));
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    printf("devices %d\nversion %d\nmemory %zu\n", devices, version, total);
    void *p[4] = {NULL};
    for (int i = 0; i < 4; i++)
        printf("allocation %d: %lld\n", i + 1, code_of(cudaMalloc(&p[i], 16 << 20)));
    for (int i = 0; i < 4; i++)
        CHECK(cudaFree(p[i]));
    for (int i = 0; i < count; i++) {
        void *fn = NULL;
        enum cudaDriverEntryPointQueryResult status;
        CHECK(cudaGetDriverEntryPoint(names[i], &fn, cudaEnableDefault, &status));
        printf("%s: %s\n", names[i], fn ? "found" : "missing");
    }
    return 0;
}

/* Each runs in a process of its own, so that one that ends badly hides no other. */
static const struct {
    const char *name;
    void (*facts)(void);
} sections[] = {
    {"lookups", lookups},
    {"errors", errors_of_device_memory},
    {"second-free", errors_of_a_second_free},
    {"crosses", crosses},
    {"pitched-and-pinned", pitched_and_pinned},
    {"addresses", addresses},
    {"pages", pages},
    {"threads", threads_without_context},
    {"contexts", several_contexts},
    {"fences", fences},
    {"barriers", barriers},
    {"frees", frees},
    {"unmapping", unmapping},
    {"green-contexts", green_contexts},
    {"capture-table", capture_table},
    {"captures", other_captures},
    {"ipc", ipc_layout},
    {"fault", after_fault},
    {"reset", after_reset},
    {"reset-event", event_of_reset_context},
};
enum { SECTIONS = sizeof sections / sizeof *sections };

int main(int argc, char **argv)
{
    /* Something that waits for ever is a failure. */
    alarm(100);
    if (argc < 2) {
        for (int i = 0; i < SECTIONS; i++)
            facts_of(sections[i].name);
        return facts_failed ? 1 : 0;
    }
    if (strcmp(argv[1], "misuse") == 0 && argc > 2)
        return misuse(argv[2]);
    if (strcmp(argv[1], "probe") == 0)
        return probe(argc - 2, argv + 2);
    if (strcmp(argv[1], "import") == 0)
        return import(argc - 2, argv + 2);
    alarm(30);
    for (int i = 0; i < SECTIONS; i++) {
        if (strcmp(argv[1], sections[i].name) == 0) {
            CHECK(cudaFree(NULL));
            kernels = kit_load();
            sections[i].facts();
            return facts_failed ? 1 : 0;
        }
    }
    fprintf(stderr, "no section %s\n", argv[1]);
    return 2;
}
