// build: shared static
/* Exports blocks to another process, which is started without any preloaded library. Either the
 * importer reads exactly the exported bytes, or the export is refused with an error: never a
 * wrong address.
 *
 * Prints `export BYTES: shared` or `export BYTES: refused` for each; exits 1 if an importer sees
 * anything else than the exported block. */
#include "kit.h"
#include <sys/wait.h>

extern char **environ;

/* Child: reads (handle, bytes, pattern) from stdin, maps, compares, answers on stdout, and
 * holds the mapping until stdin ends. */
static int importer(void)
{
    struct {
        cudaIpcMemHandle_t handle;
        uint64_t bytes, pattern;
    } request;
    CHECK(cudaSetDevice(0));
    while (read(0, &request, sizeof request) == (ssize_t)sizeof request) {
        void *p = NULL;
        char answer = 'r';
        if (cudaIpcOpenMemHandle(&p, request.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
            answer = 'o';
        else if (kit_wrong_bytes(p, request.bytes, (unsigned char)request.pattern))
            answer = 'w';
        if (write(1, &answer, 1) != 1)
            return 1;
        char word;
        if (read(0, &word, 1) != 1) /* the exporter says go on */
            return 1;
        if (p && answer != 'o')
            CHECK(cudaIpcCloseMemHandle(p));
        answer = 'c';
        if (write(1, &answer, 1) != 1)
            return 1;
    }
    return 0;
}

static int to_child[2], from_child[2];

static pid_t start_importer(const char *self)
{
    EXPECT_EQ(pipe(to_child), 0);
    EXPECT_EQ(pipe(from_child), 0);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        char *args[] = {(char *)self, (char *)"import", NULL};
        dup2(to_child[0], 0);
        dup2(from_child[1], 1);
        close(to_child[1]);
        close(from_child[0]);
        unsetenv("LD_PRELOAD");
        execve(self, args, environ);
        _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    return pid;
}

static char ask(const void *message, size_t bytes)
{
    char answer = '?';
    EXPECT_EQ(write(to_child[1], message, bytes), (ssize_t)bytes);
    EXPECT_EQ(read(from_child[0], &answer, 1), 1);
    return answer;
}

static void export_one(char *p, size_t bytes, unsigned char pattern, size_t offset)
{
    struct {
        cudaIpcMemHandle_t handle;
        uint64_t bytes, pattern;
    } request;
    memset(&request, 0, sizeof request);
    request.bytes = bytes;
    request.pattern = pattern;
    cudaError_t code = cudaIpcGetMemHandle(&request.handle, p + offset);
    if (code != cudaSuccess) {
        cudaGetLastError();
        printf("export %zu: refused\n", bytes);
        return;
    }
    char answer = ask(&request, sizeof request);
    if (answer != 'r')
        kit_fail(__FILE__, __LINE__, "the importer", answer == 'w' ? "reads other bytes" : "cannot open the handle");
    printf("export %zu: shared\n", bytes);
    /* While it is mapped: free, allocate the same again and overwrite. What the importer has
     * mapped must not be handed out; a mapped block that is written would show there. */
    CHECK(cudaFree(p));
    void *again[4];
    for (int i = 0; i < 4; i++) {
        CHECK(cudaMalloc(&again[i], bytes));
        CHECK(cudaMemset(again[i], 0xEE, bytes));
    }
    EXPECT_EQ(ask("g", 1), 'c');
    for (int i = 0; i < 4; i++)
        CHECK(cudaFree(again[i]));
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "import"))
        return importer();
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    EXPECT(n > 0);
    self[n] = 0;
    pid_t child = start_importer(self);
    CHECK(cudaSetDevice(0));
    /* Four small neighbours with patterns of their own, then the larger sizes. */
    char *four[4];
    for (int i = 0; i < 4; i++) {
        CHECK(cudaMalloc((void **)&four[i], 65536));
        CHECK(cudaMemset(four[i], 0x41 + i, 65536));
    }
    CHECK(cudaDeviceSynchronize());
    int refused = 0;
    for (int i = 0; i < 4; i++)
        export_one(four[i], 65536, (unsigned char)(0x41 + i), 0);
    size_t sizes[] = {1024, MIB, 64 * MIB};
    for (int i = 0; i < 3; i++) {
        char *p = NULL;
        CHECK(cudaMalloc((void **)&p, sizes[i]));
        CHECK(cudaMemset(p, 0x51 + i, sizes[i]));
        CHECK(cudaDeviceSynchronize());
        export_one(p, sizes[i], (unsigned char)(0x51 + i), i == 1 ? 512 : 0);
    }
    /* Nonsense is refused, with and without a pool. */
    cudaIpcMemHandle_t h;
    int on_stack;
    refused = cudaIpcGetMemHandle(&h, &on_stack) != cudaSuccess;
    refused += cudaIpcGetMemHandle(&h, (void *)(uintptr_t)0xDEADBEEF000) != cudaSuccess;
    cudaGetLastError();
    printf("nonsense refused: %d of 2\n", refused);
    close(to_child[1]);
    int status = 1;
    waitpid(child, &status, 0);
    printf("importer ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
