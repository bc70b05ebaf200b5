// build: driver
// options: -Wl,--as-needed
/* Plugins that carry the runtime statically, opened RTLD_LOCAL and RTLD_DEEPBIND: each allocates through its own copy of the runtime, and what one allocates
 * another can free. The program itself is linked to nothing of CUDA. */
#define KIT_DRIVER_ONLY
#include "kit.h"

typedef struct {
    int (*rounds)(int count, size_t bytes);
    void *(*allocate)(size_t bytes);
    int (*release)(void *p);
} plugin;

/* Plugins lie beside the program. A copy of the file is a second plugin with its own runtime. */
static void path_of(const char *name, char *out, size_t room)
{
    ssize_t n = readlink("/proc/self/exe", out, room - 1);
    EXPECT(n > 0);
    out[n] = 0;
    char *slash = strrchr(out, '/');
    EXPECT(slash != NULL);
    snprintf(slash + 1, room - (size_t)(slash + 1 - out), "%s", name);
}

static plugin take(void *library, const char *how)
{
    plugin p;
    if (!library)
        kit_fail(__FILE__, __LINE__, how, dlerror());
    *(void **)&p.rounds = dlsym(library, "plugin_rounds");
    *(void **)&p.allocate = dlsym(library, "plugin_allocate");
    *(void **)&p.release = dlsym(library, "plugin_release");
    EXPECT(p.rounds && p.allocate && p.release);
    return p;
}

int main(void)
{
    char path[4096], copy[4096], command[9000];
    path_of("libplugin_library.so", path, sizeof path);
    snprintf(copy, sizeof copy, "/tmp/gpupool-plugin-%d.so", (int)getpid());
    snprintf(command, sizeof command, "cp '%s' '%s'", path, copy);
    EXPECT_EQ(system(command), 0);
    plugin local = take(dlopen(path, RTLD_NOW | RTLD_LOCAL), "RTLD_LOCAL");
    printf("RTLD_LOCAL: wrong words %d\n", local.rounds(1000, 70000));
    plugin deep = take(dlopen(copy, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), "RTLD_DEEPBIND");
    unlink(copy);
    printf("RTLD_DEEPBIND: wrong words %d\n", deep.rounds(1000, 70000));
    int codes = 0;
    for (int i = 0; i < 200; i++) {
        codes += deep.release(local.allocate(50000));
        codes += local.release(deep.allocate(50000));
    }
    printf("freed by the other plugin: codes sum %d\n", codes);
    return codes != 0;
}
