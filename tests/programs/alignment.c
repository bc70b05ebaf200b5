// build: shared static
/* Addresses are aligned at least as natively: 512 bytes, and 2 MiB from 2 MiB on. (The driver can
 * place a request of 1 to 2 MiB in the rest of another one's page: seen on an H200.) With the
 * argument `pool`, which is for runs with the library: 2 MiB for every request over 1 MiB. */
#include "kit.h"

static size_t page_from = 2 * MIB;

static size_t native_alignment(size_t bytes) { return bytes > page_from ? 2 * MIB : 512; }

static void one(size_t bytes)
{
    enum { COUNT = 5 };
    void *p[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = kit_malloc(bytes);
        EXPECT_EQ((uintptr_t)p[i] % native_alignment(bytes), 0);
    }
    for (int i = 0; i < COUNT; i++)
        for (int j = i + 1; j < COUNT; j++) {
            uintptr_t a = (uintptr_t)p[i], b = (uintptr_t)p[j];
            EXPECT(a + bytes <= b || b + bytes <= a);
        }
    for (int i = 0; i < COUNT; i++)
        kit_free(p[i], bytes);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "pool") == 0)
        page_from = MIB;
    size_t count = 0;
    CHECK(cudaSetDevice(0));
    for (int pass = 0; pass < 2; pass++)
        for (size_t size = 1; size <= 64 * MIB; size *= 2)
            for (int delta = -1; delta <= 1; delta++, count++)
                one(size + (size_t)(size > 1 ? delta : delta == 1));
    /* Out of one large hole, small and large requests in turn. */
    uint64_t rng = 7;
    kit_free(kit_malloc(64 * MIB), 64 * MIB);
    void *held[64] = {NULL};
    size_t bytes[64] = {0};
    for (int i = 0; i < 2000; i++, count++) {
        int slot = (int)(kit_random(&rng) % 64);
        if (held[slot])
            kit_free(held[slot], bytes[slot]);
        bytes[slot] = kit_random_size(&rng, 4 * MIB);
        held[slot] = kit_malloc(bytes[slot]);
        EXPECT_EQ((uintptr_t)held[slot] % native_alignment(bytes[slot]), 0);
    }
    for (int i = 0; i < 64; i++)
        if (held[i])
            kit_free(held[i], bytes[i]);
    printf("sizes and sequences with native alignment: %zu\n", count);
    return 0;
}
