// build: plugin
/* Opened by forwarding.c: looks functions up as interposing libraries do. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

/* RTLD_NEXT is taken from this library's place in its own search order. */
__attribute__((visibility("default"))) pid_t getppid(void)
{
    static __thread int inside;
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "getppid");
    if (!next || next == getppid || inside)
        abort();
    inside = 1;
    pid_t parent = next();
    inside = 0;
    return parent;
}

__attribute__((visibility("default"))) int forwarding_depth(void)
{
    pid_t (*own)(void) = NULL, (*next)(void) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "getppid");
    *(void **)&own = dlsym(RTLD_DEFAULT, "getppid");
    return (next != NULL) + 2 * (own != NULL) + 4 * (own != NULL && own() > 0);
}
