// build: shared static
// options: -rdynamic
/* Programs with one fault each, for GPUPOOL_GUARD, and ones without. The first line names what
 * the fault is done to: `victim ADDRESS SIZE`. `clean` and `threads` have no fault.
 *
 * The functions that allocate and free are not inlined and not static: the report of a finding
 * names them. */
#include "kit.h"

#define KEEP __attribute__((noinline, noclone))

KEEP void *allocate_victim(size_t bytes)
{
    void *p = kit_malloc(bytes);
    printf("victim %p %zu\n", p, bytes);
    fflush(stdout);
    return p;
}

KEEP void free_victim(void *p, size_t bytes)
{
    kit_free(p, bytes);
    fflush(stdout);
}

static kit_kernels k;
static cudaStream_t s;

/* A kernel that writes `bytes` bytes from `at` on, done when this returns. */
static void write_bytes(void *at, size_t bytes, unsigned char value)
{
    kit_fill(&k, s, at, bytes, value * 0x01010101u, 0);
    CHECK(cudaStreamSynchronize(s));
}

/* One byte too many, by a kernel. */
static void overrun_byte(void)
{
    char *p = allocate_victim(1000);
    write_bytes(p, 1001, 0xAB);
    free_victim(p, 1000);
}

/* Submitted before the free and still to run when that is called. */
static void overrun_late(void)
{
    char *p = allocate_victim(70000);
    kit_fill(&k, s, p, 70004, 0xABABABABu, 20 * MS);
    free_victim(p, 70000);
}

/* By cudaMemset. Natively that is refused. */
static void overrun_memset(void)
{
    char *p = allocate_victim((3 << 20) - 100);
    cudaMemset(p + (3 << 20) - 100, 0x11, 24);
    CHECK(cudaDeviceSynchronize());
    cudaGetLastError();
    free_victim(p, (3 << 20) - 100);
}

/* On into the block behind. */
static void overrun_next(void)
{
    enum { BLOCKS = 8, BYTES = 4096 };
    char *p[BLOCKS], *first = NULL, *second = NULL;
    for (int i = 0; i < BLOCKS; i++)
        p[i] = kit_malloc(BYTES);
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < BLOCKS; j++)
            if (p[j] > p[i] && (!first || p[j] - p[i] < second - first))
                first = p[i], second = p[j];
    printf("victim %p %d\n", (void *)first, BYTES);
    printf("next %p\n", (void *)second);
    fflush(stdout);
    write_bytes(first, (size_t)(second - first) + 64, 0x5C);
    for (int i = 0; i < BLOCKS; i++)
        free_victim(p[i], BYTES);
}

/* In front of a block: into the zone of the one before, or where there never was a block. */
static void underrun(void)
{
    char *before = kit_malloc(2000), *p = allocate_victim(2000);
    write_bytes(p - 4, 4, 0x77);
    free_victim(p, 2000);
    kit_free(before, 2000);
}

/* A kernel launched after the free, found when the memory is handed out again. */
static void after_free_reissue(void)
{
    char *p = allocate_victim(3 * MIB);
    write_bytes(p, 3 * MIB, 0x22);
    free_victim(p, 3 * MIB);
    write_bytes(p + 128, 64, 0x33);
    for (int i = 0; i < 100; i++) {
        void *again = kit_malloc(3 * MIB);
        int same = again == p;
        kit_free(again, 3 * MIB);
        if (same)
            break;
    }
}

/* The same, found at the free of another block. */
static void after_free_later(void)
{
    char *other = kit_malloc(1 << 20), *p = allocate_victim(5000);
    free_victim(p, 5000);
    write_bytes(p + 1, 1, 0x33);
    for (int i = 0; i < 64; i++)
        kit_free(kit_malloc(300), 300);
    kit_free(other, 1 << 20);
}

/* The same, found when the program resets the device. */
static void after_free_reset(void)
{
    char *p = allocate_victim(5000);
    free_victim(p, 5000);
    write_bytes(p + 4999, 1, 0x33);
    CHECK(cudaDeviceReset());
}

/* The same, found when the memory goes back to the driver, because a larger request makes the pool
 * grow. Then the driver's own allocation may get the addresses: what is written there is no fault. */
static void after_free_given_back(void)
{
    enum { ROWS = 40 };
    char *p = allocate_victim(32 * MIB), *foreign = NULL;
    size_t pitch = 0;
    free_victim(p, 32 * MIB);
    write_bytes(p + 77, 3, 0x33);
    void *larger = kit_malloc(48 * MIB);
    /* The first of its shape: the driver's. */
    CHECK(cudaMallocPitch((void **)&foreign, &pitch, MIB / 2, ROWS));
    write_bytes(foreign, pitch * ROWS, 0x66);
    for (int i = 0; i < 300; i++)
        kit_free(kit_malloc(700), 700);
    CHECK(cudaFree(foreign));
    kit_free(larger, 48 * MIB);
}

/* Never freed, found when the program resets the device. */
static void never_freed(void)
{
    char *p = allocate_victim(5000);
    write_bytes(p, 5002, 0x33);
    CHECK(cudaDeviceReset());
}

/* Freed in stream order. */
static void overrun_async(void)
{
    char *p = allocate_victim(1 << 16);
    write_bytes(p, (1 << 16) + 8, 0x99);
    note_free(p, 1 << 16);
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamSynchronize(s));
}

/* Behind the end of a pitched block. The driver serves the first of a shape, and so the pitch. */
static void overrun_pitched(void)
{
    char *p = NULL;
    size_t pitch = 0;
    for (int i = 0; i < 3; i++) {
        CHECK(cudaMallocPitch((void **)&p, &pitch, 100, 30));
        if (i < 2)
            CHECK(cudaFree(p));
    }
    printf("victim %p %zu\n", (void *)p, pitch * 30);
    fflush(stdout);
    write_bytes(p, pitch * 30 + 3, 0x44);
    CHECK(cudaFree(p));
}

/* ---- no fault, or one in each thread ---------------------------------------------------- */

enum { THREADS = 8 };
static int faulty;

static void churn(uint64_t seed, int rounds, cudaStream_t mine, uint64_t *errors)
{
    enum { HELD = 6 };
    struct {
        void *p;
        size_t bytes;
        uint32_t value;
    } held[HELD] = {0};
    for (int i = 0; i < rounds; i++) {
        int at = (int)(kit_random(&seed) % HELD);
        if (held[at].p) {
            kit_check(&k, mine, held[at].p, held[at].bytes, held[at].value, errors, 0);
            kit_free(held[at].p, held[at].bytes);
        }
        held[at].bytes = kit_random_size(&seed, 2 * MIB);
        held[at].value = (uint32_t)kit_random(&seed);
        held[at].p = kit_malloc(held[at].bytes);
        kit_fill(&k, mine, held[at].p, held[at].bytes, held[at].value, 0);
    }
    for (int i = 0; i < HELD; i++)
        kit_free(held[i].p, held[i].bytes);
    CHECK(cudaStreamSynchronize(mine));
}

static uint64_t *errors_of_all;

static void *thread(void *number)
{
    size_t own = 3000 + (size_t)(uintptr_t)number;
    cudaStream_t mine = kit_stream();
    CHECK(cudaSetDevice(0));
    void *p = kit_malloc(own);
    churn(7 + own, 25, mine, errors_of_all);
    kit_fill(&k, mine, p, own + (faulty ? 1 : 0), 0x01020304u, 0);
    kit_free(p, own);
    churn(99 + own, 25, mine, errors_of_all);
    return NULL;
}

static void threads(void)
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        t[i] = kit_thread(thread, (void *)(uintptr_t)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    printf("wrong words: %llu\n", (unsigned long long)*errors_of_all);
    EXPECT_EQ(*errors_of_all, 0);
}

static void threads_overrun(void)
{
    faulty = 1;
    threads();
}

static void clean(void)
{
    churn(5, 200, s, errors_of_all);
    /* The very last byte of every size around the steps of the pool. */
    for (size_t bytes = 1; bytes <= 1100; bytes += 73) {
        void *p = kit_malloc(bytes);
        CHECK(cudaMemset(p, 0x55, bytes));
        EXPECT_EQ(kit_wrong_bytes(p, bytes, 0x55), 0);
        kit_free(p, bytes);
    }
    printf("wrong words: %llu\n", (unsigned long long)*errors_of_all);
    EXPECT_EQ(*errors_of_all, 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } faults[] = {
        {"overrun-byte", overrun_byte},
        {"overrun-late", overrun_late},
        {"overrun-memset", overrun_memset},
        {"overrun-next", overrun_next},
        {"underrun", underrun},
        {"after-free-reissue", after_free_reissue},
        {"after-free-later", after_free_later},
        {"after-free-reset", after_free_reset},
        {"after-free-given-back", after_free_given_back},
        {"never-freed", never_freed},
        {"overrun-async", overrun_async},
        {"overrun-pitched", overrun_pitched},
        {"threads", threads},
        {"threads-overrun", threads_overrun},
        {"clean", clean},
    };
    CHECK(cudaSetDevice(0));
    k = kit_load();
    s = kit_stream();
    errors_of_all = (uint64_t *)kit_pinned(sizeof *errors_of_all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (argc > 1 && !strcmp(argv[1], faults[i].name)) {
            faults[i].run();
            return 0;
        }
    fprintf(stderr, "which fault?\n");
    return 2;
}
