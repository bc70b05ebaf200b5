/* What the facts share: reporting, a gate that a kernel waits at, threads, and running this
 * program again for what needs a process of its own. */
#ifndef FACTS_COMMON_H
#define FACTS_COMMON_H

#include "kit.h"

#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static int facts_failed;

/* One line for each fact. `got` and `want` are compared as numbers. */
static void fact(const char *name, long long got, long long want)
{
    if (got == want) {
        printf("PASS %s\n", name);
    } else {
        printf("FAIL %s: got %lld, should be %lld\n", name, got, want);
        facts_failed++;
    }
    fflush(stdout);
}

/* The code of a runtime call, with the thread's last error taken away again. */
static long long code_of(cudaError_t error)
{
    cudaGetLastError();
    return error;
}

/* ---- gates ---------------------------------------------------------------------------- */

static kit_kernels kernels;

/* A word of pinned memory that a kernel waits for. While it is shut, whatever comes after the
 * kernel in its stream is pending: no clock is needed to tell what waits for what. */
typedef struct {
    volatile uint32_t *word;
} gate;

static gate gate_in(cudaStream_t stream)
{
    gate g = {(volatile uint32_t *)kit_pinned(64)};
    kit_wait(&kernels, stream, g.word, 1);
    return g;
}

static void gate_open(gate g) { __atomic_store_n(g.word, 1, __ATOMIC_SEQ_CST); }

/* Only once the kernel is done. */
static void gate_drop(gate g) { CHECK(cudaFreeHost((void *)g.word)); }

/* Long enough for anything that does not wait to have happened. Facts that say "is pending"
 * must hold for ever while the gate is shut, so a short look cannot make them fail. */
enum { LOOK_MS = 30 };

/* ---- threads -------------------------------------------------------------------------- */

typedef struct {
    long long (*body)(void *);
    void *argument;
    long long result;
    volatile int done;
    pthread_t thread;
} call;

static void *call_body(void *p)
{
    call *c = (call *)p;
    c->result = c->body(c->argument);
    kit_set(&c->done);
    return NULL;
}

/* Runs a body in a thread of its own; `call_end` waits for it. */
static void call_start(call *c, long long (*body)(void *), void *argument)
{
    memset(c, 0, sizeof *c);
    c->body = body;
    c->argument = argument;
    c->thread = kit_thread(call_body, c);
}

static long long call_end(call *c)
{
    pthread_join(c->thread, NULL);
    return c->result;
}

static long long in_thread(long long (*body)(void *), void *argument)
{
    call c;
    call_start(&c, body, argument);
    return call_end(&c);
}

/* ---- processes ------------------------------------------------------------------------ */

/* Runs this program again; gives its exit code, or 128 and a signal's number. */
static int run_self(const char *const *arguments)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    EXPECT(n > 0);
    self[n] = 0;
    char *argv[8] = {self};
    for (int i = 0; arguments[i] && i < 6; i++)
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    fflush(stdout);
    pid_t child;
    EXPECT_EQ(posix_spawn(&child, self, NULL, NULL, argv, environ), 0);
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        EXPECT(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void facts_of(const char *section)
{
    const char *arguments[] = {section, NULL};
    int status = run_self(arguments);
    if (status != 0)
        facts_failed++;
    /* 1 says that facts failed, which have been printed, or that a call was refused. */
    if (status > 1)
        printf("FAIL section %s: ended with %d\n", section, status);
}

#endif
