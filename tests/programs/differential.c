// build: shared static
/* Random CUDA programs: from a seed comes a sequence of calls, and for each a line with all that
 * a program can see of it: results, errors, outputs, attributes, contents. The lines are the same
 * on every run and on every driver, so what differs with a pool is a difference the pool makes.
 *
 *   differential FIRST COUNT [--keep N,N…] [--fault] [--real] [--no-exports] [--flush]
 *
 * runs the programs of COUNT seeds from FIRST on. --keep: only these calls of each program (for
 * making a failing one shorter). --fault: each program ends with a kernel that faults and calls
 * after it, so COUNT has to be 1. --real: for NVIDIA's driver; leaves out what that one does not
 * answer in the same way each time, and all that the documented differences of the library concern,
 * so that the output has to be the very same with it. --no-exports: without legacy handles, which
 * mapped memory has none of. --flush: writes each line at once. */
#include "differential/others.h"

/* How often a call is drawn, for each theme; a seed has one. */
enum { THEMES = 6, MOST_CALLS = 80, LEAST_CALLS = 20 };
static const char *const themes[THEMES] = {"memory", "work", "captures", "contexts", "devices", "questions"};
typedef struct {
    const char *name;
    void (*body)(void);
    unsigned weights[THEMES];
} call;

static const call calls[] = {
    /*                                       mem work capt ctx  dev ask */
    {"alloc", op_alloc,                     {20, 12, 8,   14,  14, 12}},
    {"alloc-host", op_alloc_host,           {6,  5,  2,   3,   3,  6}},
    {"alloc-none", op_alloc_none,           {4,  1,  1,   2,   1,  2}},
    {"free", op_free,                       {16, 9,  6,   9,   10, 6}},
    {"free-wrong", op_free_wrong,           {8,  2,  2,   5,   4,  4}},
    {"fresh", op_fresh,                     {2,  1,  0,   1,   1,  1}},
    {"info", op_info,                       {4,  1,  1,   2,   2,  3}},
    {"last-error", op_last_error,           {4,  2,  2,   3,   3,  3}},
    {"write", op_write,                     {12, 20, 4,   10,  14, 4}},
    {"read", op_read,                       {8,  12, 4,   8,   10, 4}},
    {"copy", op_copy,                       {4,  12, 2,   4,   5,  2}},
    {"pinned", op_pinned,                   {2,  5,  1,   1,   2,  1}},
    {"reuse", op_reuse,                     {5,  7,  2,   3,   4,  1}},
    {"free-waits", op_free_waits,           {1,  1,  0,   0,   1,  0}},
    {"out-of-range", op_out_of_range,       {2,  2,  0,   1,   1,  2}},
    {"check", op_check,                     {1,  3,  0,   1,   2,  0}},
    {"stream", op_stream,                   {3,  9,  3,   5,   5,  1}},
    {"event", op_event,                     {1,  3,  1,   1,   1,  0}},
    {"synchronize", op_synchronize,         {1,  2,  1,   2,   2,  1}},
    {"attributes", op_attributes,           {4,  1,  1,   5,   4,  14}},
    {"host-answers", op_host_answers,       {2,  1,  1,   2,   1,  4}},
    {"range", op_range,                     {4,  1,  1,   5,   3,  10}},
    {"attribute", op_attribute,             {4,  1,  1,   5,   3,  20}},
    {"attributes-of", op_attributes_of,     {2,  1,  1,   3,   2,  10}},
    {"sync-memops", op_sync_memops,         {1,  0,  0,   1,   0,  3}},
    {"sync-memops-new", op_sync_memops_of_new, {1, 1, 0,  1,   0,  3}},
    {"export", op_export,                   {0,  0,  0,   0,   0,  1}},
    {"capture", op_capture,                 {1,  1,  16,  1,   1,  0}},
    {"capture-lost", op_capture_lost,       {0,  0,  2,   0,   0,  0}},
    {"set-device", op_set_device,           {0,  0,  1,   2,   14, 1}},
    {"context-create", op_context_create,   {0,  0,  0,   6,   1,  0}},
    {"context-switch", op_context_switch,   {0,  0,  0,   10,  1,  0}},
    {"context-destroy", op_context_destroy, {0,  0,  0,   4,   1,  0}},
    {"reset", op_reset,                     {0,  0,  0,   1,   1,  0}},
    {"pool", op_pool,                       {3,  2,  1,   1,   1,  1}},
    {"mapped", op_mapped,                   {2,  1,  1,   1,   1,  3}},
    {"array", op_array,                     {1,  1,  0,   1,   1,  0}},
    {"green", op_green,                     {1,  1,  1,   5,   3,  1}},
    {"retain", op_retain,                   {1,  0,  0,   4,   1,  0}},
    {"checkpoint", op_checkpoint,           {1,  1,  0,   1,   1,  0}},
    {"peer", op_peer,                       {0,  0,  0,   0,   6,  0}},
    {"peer-copy", op_peer_copy,             {0,  0,  0,   1,   10, 0}},
};
enum { CALLS = sizeof calls / sizeof *calls };

/* Contexts are changed in one thread only: one that is destroyed must be current in no other. */
static int of_one_thread(const call *c)
{
    return c->body == op_context_create || c->body == op_context_switch || c->body == op_context_destroy ||
           c->body == op_reset;
}

static int kept[MOST_CALLS], keep_some, with_fault, flush_lines, no_exports;

static void run_call(void *argument)
{
    ((const call *)argument)->body();
    say(" peek=%d\n", (int)cudaPeekAtLastError());
    if (flush_lines)
        fflush(stdout);
}

/* ---- the end of a program: everything as it was before ---------------------------------- */

static void clean(void *unused)
{
    (void)unused;
    CUcontext popped;
    int wrong = 0;
    settle_all();
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &blocks[i];
        if (b->kind)
            wrong |= b->kind == HOST ? (int)DRV(cuMemFreeHost)(b->p) : (int)DRV(cuMemFree)((CUdeviceptr)(uintptr_t)b->p);
        memset(b, 0, sizeof *b);
    }
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].alive)
            wrong |= cudaStreamDestroy(streams[i].handle);
    memset(streams, 0, sizeof streams);
    for (int c = CREATED; c < CONTEXTS; c++)
        if (contexts[c].alive)
            destroy_context(c);
    while (here() >= 0 && DRV(cuCtxPopCurrent)(&popped) == CUDA_SUCCESS)
        ;
    for (int d = 0; d < devices; d++) {
        cudaMemPool_t pool;
        wrong |= cudaSetDevice(d);
        wrong |= cudaFree(NULL);
        if (peers[d])
            wrong |= cudaDeviceDisablePeerAccess(1 - d);
        peers[d] = 0;
        wrong |= cudaDeviceSynchronize();
        wrong |= cudaDeviceGetDefaultMemPool(&pool, d) || cudaMemPoolTrimTo(pool, 0);
    }
    stale_count = 0;
    releases++;
    deferred = 0;
    say("clean wrong=%d\n", wrong);
}

/* ---- a kernel that faults, and after ------------------------------------------------------ */

static void fault(void *unused)
{
    (void)unused;
    int c = enter();
    say("fault context=%d\n", c >= 0);
    if (c < 0)
        return;
    settle_all();
    void *p = NULL, *args[1] = {NULL};
    say("before malloc=%d\n", (int)cudaMalloc(&p, 1 << 16));
    say("launch=%d\n", (int)kit_launch(contexts[c].kernels.fault, 1, 1, cudaStreamPerThread, args));
    say("synchronize=%d\n", (int)cudaStreamSynchronize(cudaStreamPerThread));
    for (int i = 0; i < 40; i++) {
        void *q = NULL;
        size_t available, total;
        switch (roll(5)) {
        case 0: say("faulted malloc=%d\n", (int)cudaMalloc(&q, any_size())); break;
        case 1: say("faulted free=%d\n", (int)cudaFree(p)); p = NULL; break;
        case 2: say("after synchronize=%d\n", (int)cudaDeviceSynchronize()); break;
        case 3: say("after info=%d\n", (int)cudaMemGetInfo(&available, &total)); break;
        default: say("after memset=%d\n", (int)cudaMemset(q, 0, 1)); break;
        }
    }
}

/* ---- programs ----------------------------------------------------------------------------- */

static unsigned weight(const call *c, unsigned theme)
{
    return no_exports && c->body == op_export ? 0 : c->weights[theme];
}

static const call *draw(unsigned theme)
{
    unsigned sum = 0;
    for (int i = 0; i < CALLS; i++)
        sum += weight(&calls[i], theme);
    unsigned at = roll(sum);
    for (int i = 0; i < CALLS; i++) {
        if (at < weight(&calls[i], theme))
            return &calls[i];
        at -= weight(&calls[i], theme);
    }
    return &calls[0];
}

static void run_program(uint64_t seed)
{
    dice = mixed(seed) | 1;
    unsigned theme = roll(THEMES), count = LEAST_CALLS + roll(MOST_CALLS - LEAST_CALLS);
    say("program %llu %s calls=%u\n", (unsigned long long)seed, themes[theme], count);
    for (unsigned i = 0; i < count; i++) {
        dice = mixed(seed * 128 + i + 1) | 1;
        const call *c = draw(theme);
        int thread = of_one_thread(c) || roll(4) ? 0 : 1 + (int)roll(THREADS - 1);
        if (keep_some && !kept[i])
            continue;
        /* A name and the dice are all that a call depends on, beside what is in the slots. */
        say("%02u %s.%d", i, c->name, thread);
        in_thread(thread, run_call, (void *)(uintptr_t)c);
    }
    dice = mixed(seed) | 1;
    in_thread(0, with_fault ? fault : clean, NULL);
    end_threads();
    say("end %llu\n", (unsigned long long)seed);
}

static void keep(const char *list)
{
    keep_some = 1;
    while (*list) {
        char *end;
        unsigned long n = strtoul(list, &end, 10);
        if (end == list)
            break;
        if (n < MOST_CALLS)
            kept[n] = 1;
        list = *end == ',' ? end + 1 : end;
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return fprintf(stderr, "usage: differential FIRST COUNT [--keep N,N…] [--fault] [--real] [--no-exports] [--flush]\n"), 2;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--fault") == 0)
            with_fault = 1;
        else if (strcmp(argv[i], "--real") == 0)
            real_driver = 1;
        else if (strcmp(argv[i], "--no-exports") == 0)
            no_exports = 1;
        else if (strcmp(argv[i], "--flush") == 0)
            flush_lines = 1;
        else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
            keep(argv[++i]);
        else
            return fprintf(stderr, "unknown: %s\n", argv[i]), 2;
    }
    CHECK_CU(DRV(cuInit)(0));
    CHECK_CU(DRV(cuDeviceGetCount)(&devices));
    if (devices > CREATED)
        devices = CREATED;
#define MORE_LOOKUP(f) *(void **)&more.p_##f = kit_symbol(kit_driver()->library, KIT_TEXT(f));
    MORE_FUNCTIONS(MORE_LOOKUP)
    for (int i = 0; i < THREADS; i++) {
        pthread_mutex_init(&workers[i].lock, NULL);
        pthread_cond_init(&workers[i].changed, NULL);
    }
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    for (uint64_t i = 0; i < count; i++)
        run_program(first + i);
    say("all %llu programs\n", (unsigned long long)count);
    return 0;
}
