// build: shared
/* On which NUMA node pinned memory lies that a thread asks for, thread after thread, one on each
 * node: as natively, also where a pool has memory that a thread of another node had. A machine
 * with one node has little to tell. */
#include "kit.h"
#include <sys/syscall.h>

enum { NODES = 16, BLOCKS = 6 };

static const size_t sizes[BLOCKS] = {4096, 100000, MIB, 3 * MIB, 5 * MIB, 20 * MIB};

/* The first processor of a node, -1 if there is none that this process may use. */
static int processor_of(int node)
{
    char path[64];
    int first = -1;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &first) != 1)
            first = -1;
        fclose(file);
    }
    cpu_set_t allowed;
    if (first >= 0 && (sched_getaffinity(0, sizeof allowed, &allowed) || !CPU_ISSET(first, &allowed)))
        first = -1;
    return first;
}

static int node_of(void *p)
{
    int status = -1;
    if (syscall(SYS_move_pages, 0, 1UL, &p, NULL, &status, 0))
        return -1;
    return status;
}

static void *on_node(void *argument)
{
    int node = (int)(intptr_t)argument;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor_of(node), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK(cudaSetDevice(0));
    void *p[BLOCKS];
    printf("thread on node %d, blocks on", node);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(cudaHostAlloc(&p[i], sizes[i], cudaHostAllocPortable));
        memset(p[i], 1, sizes[i]);
        printf(" %d", node_of(p[i]));
    }
    printf("\n");
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cudaFreeHost(p[i]));
    return NULL;
}

int main(void)
{
    int nodes[NODES], count = 0;
    for (int node = 0; node < NODES; node++)
        if (processor_of(node) >= 0)
            nodes[count++] = node;
    printf("nodes %d\n", count);
    for (int pass = 0; pass < 3 && count > 1; pass++)
        for (int i = 0; i < count; i++)
            pthread_join(kit_thread(on_node, (void *)(intptr_t)nodes[i]), NULL);
    return 0;
}
