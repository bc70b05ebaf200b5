/* What a program linked against glibc 2.28 does not find in the shared libraries there.
 *
 * glibc before 2.33 keeps these functions in libc_nonshared.a, as thin wrappers of exported,
 * versioned ones; glibc 2.33 and later still export those for old programs. Everything here is
 * hidden: it serves libgpupool.so alone.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* The versions of `struct stat` and of `dev_t` that x86-64 has always had. */
enum { STAT_VERSION = 1, MKNOD_VERSION = 0 };

extern int __xstat64(int, const char *, struct stat64 *);
extern int __lxstat64(int, const char *, struct stat64 *);
extern int __fxstat64(int, int, struct stat64 *);
extern int __fxstatat64(int, int, const char *, struct stat64 *, int);
extern int __xmknod(int, const char *, mode_t, dev_t *);
extern int __xmknodat(int, int, const char *, mode_t, dev_t *);
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
extern int __cxa_atexit(void (*)(void *), void *, void *);
extern int __cxa_at_quick_exit(void (*)(void *), void *);
extern void *__dso_handle HIDDEN;

HIDDEN int stat64(const char *path, struct stat64 *out) { return __xstat64(STAT_VERSION, path, out); }
HIDDEN int lstat64(const char *path, struct stat64 *out) { return __lxstat64(STAT_VERSION, path, out); }
HIDDEN int fstat64(int fd, struct stat64 *out) { return __fxstat64(STAT_VERSION, fd, out); }
HIDDEN int fstatat64(int dir, const char *path, struct stat64 *out, int flags) {
    return __fxstatat64(STAT_VERSION, dir, path, out, flags);
}

/* On x86-64 `struct stat` and `struct stat64` are one layout. */
HIDDEN int stat(const char *path, struct stat *out) { return stat64(path, (struct stat64 *)out); }
HIDDEN int lstat(const char *path, struct stat *out) { return lstat64(path, (struct stat64 *)out); }
HIDDEN int fstat(int fd, struct stat *out) { return fstat64(fd, (struct stat64 *)out); }
HIDDEN int fstatat(int dir, const char *path, struct stat *out, int flags) {
    return fstatat64(dir, path, (struct stat64 *)out, flags);
}

HIDDEN int mknod(const char *path, mode_t mode, dev_t dev) {
    return __xmknod(MKNOD_VERSION, path, mode, &dev);
}
HIDDEN int mknodat(int dir, const char *path, mode_t mode, dev_t dev) {
    return __xmknodat(MKNOD_VERSION, dir, path, mode, &dev);
}

/* The third argument ties the handlers to this library, so that they run, or go, with it. */
HIDDEN int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return __register_atfork(prepare, parent, child, &__dso_handle);
}
HIDDEN int atexit(void (*handler)(void)) {
    return __cxa_atexit((void (*)(void *))handler, NULL, &__dso_handle);
}
HIDDEN int at_quick_exit(void (*handler)(void)) {
    return __cxa_at_quick_exit((void (*)(void *))handler, &__dso_handle);
}

/* Exported from glibc 2.30 on. */
HIDDEN pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }
