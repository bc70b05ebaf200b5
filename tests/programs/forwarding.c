// build: shared
/* Other libraries' look-ups mean what they mean natively: dlsym with RTLD_NEXT goes on from the
 * library that asks (two of them forward the same function in turn), by handle it finds that
 * library's own, and dlerror answers as before. */
#include "kit.h"

/* The program's own definition: forwards to the next one, the real one. */
static int forwarded;

pid_t getppid(void)
{
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "getppid");
    EXPECT(next != NULL && next != getppid);
    forwarded++;
    return next();
}

int main(void)
{
    pid_t plain = (pid_t)strtol("0", NULL, 10);
    FILE *status = fopen("/proc/self/stat", "r");
    int own = 0, parent = 0;
    EXPECT(status && fscanf(status, "%d %*s %*c %d", &own, &parent) == 2);
    fclose(status);
    plain = getppid();
    printf("forwarded by the program: right %d, calls %d\n", plain == parent, forwarded);

    /* Two libraries that define one name, and forward it: the chain has both and ends. */
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    EXPECT(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/') + 1, "libforwarding_library.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        kit_fail(__FILE__, __LINE__, "dlopen", dlerror());
    int (*depth)(void);
    *(void **)&depth = dlsym(library, "forwarding_depth");
    EXPECT(depth != NULL);
    printf("library's own view: %d\n", depth());

    void *missing = dlsym(library, "no_such_symbol");
    const char *why = dlerror();
    printf("missing: found %d, dlerror names it %d", missing != NULL, why && strstr(why, "no_such_symbol") != NULL);
    printf(", and is then empty %d\n", dlerror() == NULL);
    missing = dlsym(RTLD_NEXT, "no_such_symbol");
    why = dlerror();
    printf("missing next: found %d, dlerror names it %d\n", missing != NULL,
           why && strstr(why, "no_such_symbol") != NULL);

    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    EXPECT(libc != NULL);
    printf("by handle and by default: own %d, libc's %d\n", dlsym(RTLD_DEFAULT, "main") == NULL,
           dlsym(libc, "getppid") != (void *)getppid);

    /* CUDA names by handle are the handle's own. */
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(cuda != NULL);
    Dl_info where;
    EXPECT(dladdr(dlsym(cuda, "cuInit"), &where) != 0);
    printf("cuInit by handle lies in libcuda: %d\n", strstr(where.dli_fname, "libcuda.so") != NULL);
    EXPECT(dladdr(dlsym(cuda, "cuMemAlloc_v2"), &where) != 0);
    printf("cuMemAlloc_v2 by handle lies in libcuda: %d\n", strstr(where.dli_fname, "libcuda.so") != NULL);
    void *p = NULL;
    CHECK(cudaMalloc(&p, 1000));
    CHECK(cudaFree(p));
    return 0;
}
