// build: plugin
/* To be preloaded: counts allocations and frees as other tools do that watch a program, in both ways
 * there are.
 *
 *   by name      functions of the driver's and the runtime's names, which forward to the next one
 *   at entry     its constructor makes the driver's entry points jump here, as libraries do that
 *                register memory with a network card. Only if libcuda is loaded by then
 *
 * Writes the counts to the file COUNT_FILE when the process ends. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SHOWN __attribute__((visibility("default")))

typedef int (*alloc_function)(void *, size_t);
typedef int (*free_function)(uintptr_t);

static long by_name[4]; /* cuMemAlloc, cuMemFree, cudaMalloc, cudaFree */
static long at_entry[2];
static void *displaced[2];

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
static void count(long *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

SHOWN int cuMemAlloc_v2(void *out, size_t bytes)
{
    count(&by_name[0]);
    return ((alloc_function)next("cuMemAlloc_v2"))(out, bytes);
}

SHOWN int cuMemFree_v2(uintptr_t p)
{
    count(&by_name[1]);
    return ((free_function)next("cuMemFree_v2"))(p);
}

SHOWN int cudaMalloc(void *out, size_t bytes)
{
    count(&by_name[2]);
    return ((alloc_function)next("cudaMalloc"))(out, bytes);
}

SHOWN int cudaFree(uintptr_t p)
{
    count(&by_name[3]);
    return ((free_function)next("cudaFree"))(p);
}

static int alloc_at_entry(void *out, size_t bytes)
{
    count(&at_entry[0]);
    return ((alloc_function)displaced[0])(out, bytes);
}

static int free_at_entry(uintptr_t p)
{
    count(&at_entry[1]);
    return ((free_function)displaced[1])(p);
}

static void put_jump(unsigned char *at, const void *target)
{
    at[0] = 0xff; /* jmp *0(%rip) */
    at[1] = 0x25;
    memset(at + 2, 0, 4);
    memcpy(at + 6, &target, sizeof target);
}

/* The first instructions that begin `code`, as many as five bytes take, where they are plain ones:
 * push %rbp; mov %rsp,%rbp; push %r12, as in NVIDIA's driver 580 and in the simulated one. */
static size_t plain_start(const unsigned char *code)
{
    static const unsigned char known[] = {0x55, 0x48, 0x89, 0xe5, 0x41, 0x54};
    return memcmp(code, known, sizeof known) == 0 ? sizeof known : 0;
}

/* The C library's own dlsym, past those of other preloaded libraries: a look-up must not be what makes
 * one of them act first. */
static void *look_up(void *library, const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real ? real(library, name) : NULL;
}

/* Makes `name` jump to `hook`; what it did before is at `*before`. */
static void patch(void *library, const char *name, void *hook, void **before)
{
    unsigned char *code = (unsigned char *)look_up(library, name);
    if (!code)
        return;
    /* Room near the code, for a jump of five bytes. */
    unsigned char *room = MAP_FAILED;
    for (uintptr_t at = (uintptr_t)code & ~(uintptr_t)0xffff, step = 1; room == MAP_FAILED && step < 8000; step++)
        room = (unsigned char *)mmap((void *)(at - step * 0x10000), 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (room == MAP_FAILED)
        return;
    size_t n = plain_start(code);
    if (n) {
        memcpy(room, code, n);
        put_jump(room + n, code + n);
    } else if (code[0] == 0xe9) { /* somebody was here before: go on to where that leads */
        int32_t distance;
        memcpy(&distance, code + 1, sizeof distance);
        put_jump(room, code + 5 + distance);
    } else {
        return;
    }
    *before = room;
    put_jump(room + 64, hook);
    uintptr_t page = (uintptr_t)code & ~(uintptr_t)4095;
    size_t length = (uintptr_t)code + 16 - page;
    if (mprotect((void *)page, length, PROT_READ | PROT_WRITE | PROT_EXEC))
        return;
    int32_t distance = (int32_t)(room + 64 - (code + 5));
    code[0] = 0xe9;
    memcpy(code + 1, &distance, sizeof distance);
    mprotect((void *)page, length, PROT_READ | PROT_EXEC);
}

static __attribute__((constructor)) void start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return;
    patch(library, "cuMemAlloc_v2", (void *)alloc_at_entry, &displaced[0]);
    patch(library, "cuMemFree_v2", (void *)free_at_entry, &displaced[1]);
}

static __attribute__((destructor)) void end(void)
{
    const char *path = getenv("COUNT_FILE");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f)
        return;
    fprintf(f, "%ld %ld %ld %ld %ld %ld\n", by_name[0], by_name[1], by_name[2], by_name[3], at_entry[0], at_entry[1]);
    fclose(f);
}
