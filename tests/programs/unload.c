// build: driver
// options: -Wl,--as-needed
/* Libraries come and go: plugins that carry the runtime inside, and the shared runtime, opened,
 * used, closed with blocks still allocated, and opened again. What one left behind another one frees
 * with the native answer; the process ends well.
 *
 *   unload plugin | runtime | exit     exit: closed by nobody, but by an exit handler */
#define KIT_DRIVER_ONLY
#include "kit.h"

enum { ROUNDS = 6, COUNT = 24, BYTES = 70000 };

typedef struct {
    void *library;
    int (*set_device)(int);
    int (*allocate)(void **, size_t);
    int (*release)(void *);
} runtime;

static int plugin_allocate(void **out, size_t bytes);
static void *(*allocate_of_plugin)(size_t);
static char plugin_path[4096];

static int plugin_allocate(void **out, size_t bytes)
{
    *out = allocate_of_plugin(bytes);
    return *out == NULL;
}

static int no_device(int device) { return device; }

static runtime open_plugin(void)
{
    runtime r;
    r.library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    if (!r.library)
        kit_fail(__FILE__, __LINE__, plugin_path, dlerror());
    *(void **)&allocate_of_plugin = kit_symbol(r.library, "plugin_allocate");
    *(void **)&r.release = kit_symbol(r.library, "plugin_release");
    r.allocate = plugin_allocate;
    r.set_device = no_device;
    return r;
}

static runtime open_runtime(void)
{
    runtime r;
    r.library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!r.library)
        kit_fail(__FILE__, __LINE__, "libcudart.so.13", dlerror());
    *(void **)&r.set_device = kit_symbol(r.library, "cudaSetDevice");
    *(void **)&r.allocate = kit_symbol(r.library, "cudaMalloc");
    *(void **)&r.release = kit_symbol(r.library, "cudaFree");
    return r;
}

static runtime last;
static void *left[COUNT];

static void close_at_exit(void)
{
    for (int i = 0; i < COUNT; i++)
        (void)last.release(left[i]);
    dlclose(last.library);
    printf("closed by an exit handler\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "plugin";
    ssize_t n = readlink("/proc/self/exe", plugin_path, sizeof plugin_path - 1);
    EXPECT(n > 0);
    plugin_path[n] = 0;
    char *slash = strrchr(plugin_path, '/');
    EXPECT(slash != NULL);
    snprintf(slash + 1, sizeof plugin_path - (size_t)(slash + 1 - plugin_path), "libplugin_library.so");
    int of_runtime = !strcmp(how, "runtime"), codes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        runtime r = of_runtime ? open_runtime() : open_plugin();
        EXPECT_EQ(r.set_device(0), 0);
        void *mine[COUNT];
        for (int i = 0; i < COUNT; i++) {
            EXPECT_EQ(r.allocate(&mine[i], BYTES), 0);
            if (left[i])
                codes += r.release(left[i]) != 0;
            left[i] = NULL;
        }
        for (int i = 0; i < COUNT; i++)
            if (i % 2)
                EXPECT_EQ(r.release(mine[i]), 0);
            else
                left[i] = mine[i]; /* nobody frees it before this library is gone */
        last = r;
        if (strcmp(how, "exit") != 0)
            EXPECT_EQ(dlclose(r.library), 0);
    }
    printf("frees of what a closed library had left: %d failed\n", codes);
    if (!strcmp(how, "exit"))
        EXPECT_EQ(atexit(close_at_exit), 0);
    printf("main ends: %s\n", how);
    fflush(stdout);
    return 0;
}
