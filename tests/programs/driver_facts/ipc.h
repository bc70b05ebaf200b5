/* The handles of cuIpcGetMemHandle: what is in them, and where they open. */
#ifndef FACTS_IPC_H
#define FACTS_IPC_H

#include "common.h"

static uint64_t word64(const CUipcMemHandle *h, int at)
{
    uint64_t w;
    memcpy(&w, h->reserved + at, sizeof w);
    return w;
}

static uint32_t word32(const CUipcMemHandle *h, int at)
{
    uint32_t w;
    memcpy(&w, h->reserved + at, sizeof w);
    return w;
}

static CUipcMemHandle handle_of(CUdeviceptr p)
{
    CUipcMemHandle h;
    CHECK_CU(cuIpcGetMemHandle(&h, p));
    return h;
}

/* The handle of [offset, offset + size) in the block of another handle. */
static CUipcMemHandle part_of(CUipcMemHandle h, uint64_t offset, uint64_t size)
{
    uint32_t at = (uint32_t)offset;
    memcpy(h.reserved + 16, &size, sizeof size);
    memcpy(h.reserved + 28, &at, sizeof at);
    return h;
}

static void to_hex(const CUipcMemHandle *h, char *text)
{
    for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)h->reserved[i]);
}

static CUipcMemHandle from_hex(const char *text)
{
    CUipcMemHandle h;
    for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++) {
        unsigned int byte = 0;
        EXPECT_EQ(sscanf(text + 2 * i, "%2x", &byte), 1);
        h.reserved[i] = (char)byte;
    }
    return h;
}

/* Has another process open up to two handles and read a byte at each; 0 if these are what they
 * should be, else the error of the open, or 250 for a wrong byte. */
static int imported(const CUipcMemHandle *a, int byte_a, const CUipcMemHandle *b, int byte_b)
{
    char hex_a[129], hex_b[129], want_a[12], want_b[12];
    to_hex(a, hex_a);
    snprintf(want_a, sizeof want_a, "%d", byte_a);
    const char *arguments[] = {"import", hex_a, want_a, NULL, NULL, NULL};
    if (b) {
        to_hex(b, hex_b);
        snprintf(want_b, sizeof want_b, "%d", byte_b);
        arguments[3] = hex_b;
        arguments[4] = want_b;
    }
    return run_self(arguments);
}

static int import(int count, char **arguments)
{
    CHECK(cudaFree(NULL));
    for (int i = 0; i + 1 < count; i += 2) {
        CUdeviceptr p = 0;
        CUresult r = cuIpcOpenMemHandle(&p, from_hex(arguments[i]),
                                        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (r != CUDA_SUCCESS)
            return (int)r;
        unsigned char byte = 0;
        CHECK_CU(cuMemcpyDtoH(&byte, p, 1));
        if (byte != atoi(arguments[i + 1]))
            return 250;
    }
    return 0;
}

static void ipc_layout(void)
{
    CUdeviceptr a = 0, b = 0, large = 0;
    CHECK_CU(cuMemAlloc(&a, 5000));
    CHECK_CU(cuMemAlloc(&b, 7000));
    CHECK_CU(cuMemAlloc(&large, 5 << 20));
    CHECK_CU(cuMemsetD8(a, 11, 5000));
    CHECK_CU(cuMemsetD8(b, 12, 7000));
    CHECK_CU(cuMemsetD8(large, 13, 5 << 20));
    CHECK(cudaDeviceSynchronize());

    CUipcMemHandle ha = handle_of(a), hb = handle_of(b), hl = handle_of(large);
    fact("ipc bytes 8-15: process id", (long long)word64(&ha, 8), getpid());
    fact("ipc bytes 16-23: size", (long long)word64(&ha, 16), 5000);
    fact("ipc bytes 24-27: pages of the block of a small one", word32(&ha, 24), (2 << 20) / 4096);
    fact("ipc bytes 24-27: pages of the block of a large one", word32(&hl, 24), (5 << 20) / 4096);
    fact("ipc bytes 28-31: offset in a 2 MiB block", word32(&ha, 28), (long long)(a % (2 << 20)));
    fact("ipc bytes 28-31: offset of another", word32(&hb, 28), (long long)(b % (2 << 20)));
    fact("ipc bytes 28-31: offset of a large one", word32(&hl, 28), 0);
    fact("ipc bytes 0-7: the same context", word64(&ha, 0) == word64(&hb, 0), 1);
    CUipcMemHandle inside = handle_of(a + 100);
    fact("ipc handle of an interior pointer", memcmp(&inside, &ha, sizeof ha), 0);

    fact("import of two small ones", imported(&ha, 11, &hb, 12), 0);
    fact("import of a large one", imported(&hl, 13, NULL, 0), 0);

    CHECK_CU(cuMemsetD8(large + (4 << 20), 14, 1 << 20));
    CHECK(cudaDeviceSynchronize());
    CUipcMemHandle sub = part_of(hl, 4 << 20, 1 << 20), head = part_of(hl, 0, 4 << 20);
    fact("import of a part, 4 MiB in", imported(&sub, 14, NULL, 0), 0);
    fact("import of disjoint parts", imported(&head, 13, &sub, 14), 0);
    CUipcMemHandle over = part_of(hl, 3 << 20, 2 << 20);
    fact("import of overlapping parts", imported(&head, 13, &over, 13), 208);
    CHECK_CU(cuMemFree(a));
    CHECK_CU(cuMemFree(b));
    CHECK_CU(cuMemFree(large));
}

#endif
