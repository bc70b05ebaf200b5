// build: driver
// options: -Wl,--as-needed
/* A plugin that carries the runtime statically is opened with RTLD_DEEPBIND, and nobody else uses
 * CUDA: its calls are served as any other's. The program itself is linked to nothing of CUDA.
 *   deepbind plugin_library | plugin_now [threads]
 * threads: others open and close libraries meanwhile, and look functions up. */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { OTHERS = 3 };

static int stop;

static void *others(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        EXPECT(library && dlsym(library, "cos"));
        dlclose(library);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char path[4096];
    int (*rounds)(int count, size_t bytes);
    pthread_t threads[OTHERS];
    int busy = argc > 2;
    EXPECT(argc > 1);
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    EXPECT(n > 0);
    path[n] = 0;
    char *slash = strrchr(path, '/');
    EXPECT(slash != NULL);
    snprintf(slash + 1, sizeof path - (size_t)(slash + 1 - path), "lib%s.so", argv[1]);
    for (int i = 0; busy && i < OTHERS; i++)
        threads[i] = kit_thread(others, NULL);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library)
        kit_fail(__FILE__, __LINE__, "RTLD_DEEPBIND", dlerror());
    *(void **)&rounds = dlsym(library, "plugin_rounds");
    EXPECT(rounds != NULL);
    printf("wrong words %d\n", rounds(1000, 70000));
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; busy && i < OTHERS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
