// build: shared static
/* Cross-stream stress: threads that allocate, fill, check and free on several streams each, as
 * fast as they can, freeing straight after the launch or handing the block to another thread
 * that frees it. Every issue of a block has a pattern of its own, so memory that is handed out
 * again while the GPU still works for its last owner shows as wrong words, counted by the GPU
 * in pinned memory. Works that are slow now and then keep the GPU behind the CPU.
 *
 * Prints `blocks N violations M`; exits 1 if M is not 0. */
#include "kit.h"

enum { STREAMS = 4, MAILBOX = 64, MAX_THREADS = 64 };

typedef struct {
    void *p;
    size_t bytes;
} block;

typedef struct {
    pthread_mutex_t lock;
    block blocks[MAILBOX];
    int count;
} mailbox;

static struct {
    long iterations, threads, async_percent, slow_one_in;
    size_t max_size, window, budget;
    uint64_t seed, delay_ns;
} opt = {50000, 8, 0, 48, 64 * MIB, 16 << 10, 512 * MIB, 1, MS};

static mailbox mailboxes[MAX_THREADS];
static kit_kernels kernels;
static uint64_t *errors; /* one counter a thread */
static uint32_t issue_counter;
static size_t handed_over_bytes;

static void free_block(block b)
{
    note_free(b.p, b.bytes);
    CHECK(cudaFree(b.p));
}

static int post(mailbox *m, block b)
{
    int posted = 0;
    pthread_mutex_lock(&m->lock);
    if (m->count < MAILBOX) {
        m->blocks[m->count++] = b;
        posted = 1;
    }
    pthread_mutex_unlock(&m->lock);
    return posted;
}

static int take(mailbox *m, block *b)
{
    int taken = 0;
    pthread_mutex_lock(&m->lock);
    if (m->count) {
        *b = m->blocks[--m->count];
        taken = 1;
    }
    pthread_mutex_unlock(&m->lock);
    return taken;
}

static uint64_t slow_now(uint64_t *rng)
{
    return kit_random(rng) % (uint64_t)opt.slow_one_in ? 0 : kit_random(rng) % opt.delay_ns + opt.delay_ns / 4;
}

/* Writes and later checks one window of the block, on the block's stream. */
static void use_window(cudaStream_t s, char *p, size_t bytes, uint64_t *counter, uint64_t *rng)
{
    /* A different word for each issue; an odd factor keeps them distinct over 2^32 issues. */
    uint32_t value = __atomic_add_fetch(&issue_counter, 1, __ATOMIC_RELAXED) * UINT32_C(2654435761);
    if (kit_random(rng) % 16 == 0) {
        value = (value >> 24) * UINT32_C(0x01010101);
        CHECK(cudaMemsetAsync(p, (int)(value & 255), bytes, s));
    } else {
        kit_fill(&kernels, s, p, bytes, value, slow_now(rng));
    }
    kit_check(&kernels, s, p, bytes, value, counter, slow_now(rng));
}

/* The head, and either the tail or a place between: an early reissue of any part of a big
 * block is seen before long, without writing all of it each time. */
static void use_block(cudaStream_t s, char *p, size_t bytes, uint64_t *counter, uint64_t *rng)
{
    size_t window = opt.window;
    if (bytes <= 2 * window) {
        use_window(s, p, bytes, counter, rng);
        return;
    }
    size_t last = (bytes - window) & ~(size_t)3, at = last;
    if (kit_random(rng) & 1)
        at = window + kit_random(rng) % (last - window + 1);
    use_window(s, p, window, counter, rng);
    use_window(s, p + (at & ~(size_t)3), window, counter, rng);
}

static void *worker(void *argument)
{
    long me = (long)(intptr_t)argument;
    uint64_t rng = (opt.seed + (uint64_t)me) * UINT64_C(0x9E3779B97F4A7C15) | 1;
    cudaStream_t streams[STREAMS];
    int least, greatest;
    CHECK(cudaSetDevice(0));
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreate(&streams[0]));
    CHECK(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithPriority(&streams[2], cudaStreamNonBlocking, greatest));
    streams[3] = cudaStreamPerThread;

    long mine = opt.iterations / opt.threads + (me < opt.iterations % opt.threads);
    for (long i = 0; i < mine; i++) {
        block b = {NULL, kit_random_size(&rng, opt.max_size)}, other;
        cudaStream_t s = streams[kit_random(&rng) % STREAMS];
        int async = (long)(kit_random(&rng) % 100) < opt.async_percent;
        if (kit_random(&rng) % 1024 == 0)
            s = cudaStreamLegacy;
        if (async)
            CHECK(cudaMallocAsync(&b.p, b.bytes, s));
        else
            CHECK(cudaMalloc(&b.p, b.bytes));
        note_alloc(b.p, b.bytes);
        use_block(s, (char *)b.p, b.bytes, &errors[me], &rng);

        if (async && kit_random(&rng) % 8) {
            note_free(b.p, b.bytes);
            CHECK(cudaFreeAsync(b.p, s));
        } else if (async) {
            /* A synchronous free of stream-ordered memory takes it that the work is done. */
            CHECK(cudaStreamSynchronize(s));
            free_block(b);
        } else if (kit_random(&rng) % 2 || __atomic_load_n(&handed_over_bytes, __ATOMIC_RELAXED) > opt.budget ||
                   !post(&mailboxes[kit_random(&rng) % (uint64_t)opt.threads], b)) {
            free_block(b);
        } else {
            __atomic_add_fetch(&handed_over_bytes, b.bytes, __ATOMIC_RELAXED);
        }
        for (int k = 0; k < 2 && take(&mailboxes[me], &other); k++) {
            __atomic_sub_fetch(&handed_over_bytes, other.bytes, __ATOMIC_RELAXED);
            free_block(other);
        }
    }
    for (int i = 0; i < STREAMS; i++)
        CHECK(cudaStreamSynchronize(streams[i]));
    for (int i = 0; i < 3; i++)
        CHECK(cudaStreamDestroy(streams[i]));
    return NULL;
}

static long long number(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (*end == 'k' || *end == 'K')
        v *= 1 << 10;
    else if (*end == 'm' || *end == 'M')
        v *= 1 << 20;
    else if (*end == 'g' || *end == 'G')
        v *= 1 << 30;
    return (long long)v;
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        long long v = number(argv[i + 1]);
        if (!strcmp(argv[i], "--iterations"))
            opt.iterations = (long)v;
        else if (!strcmp(argv[i], "--threads"))
            opt.threads = v > MAX_THREADS ? MAX_THREADS : (long)v;
        else if (!strcmp(argv[i], "--max-size"))
            opt.max_size = (size_t)v;
        else if (!strcmp(argv[i], "--window"))
            opt.window = (size_t)v & ~(size_t)3;
        else if (!strcmp(argv[i], "--budget"))
            opt.budget = (size_t)v;
        else if (!strcmp(argv[i], "--seed"))
            opt.seed = (uint64_t)v;
        else if (!strcmp(argv[i], "--async"))
            opt.async_percent = (long)v;
        else if (!strcmp(argv[i], "--slow-one-in"))
            opt.slow_one_in = (long)v;
        else if (!strcmp(argv[i], "--delay-us"))
            opt.delay_ns = (uint64_t)v * 1000;
        else
            kit_fail(__FILE__, __LINE__, argv[i], "is not an option");
    }
    printf("seed %llu\n", (unsigned long long)opt.seed);
    fflush(stdout);
    CHECK(cudaSetDevice(0));
    kernels = kit_load();
    errors = (uint64_t *)kit_pinned((size_t)opt.threads * sizeof *errors);
    pthread_t threads[MAX_THREADS];
    for (long t = 0; t < opt.threads; t++)
        pthread_mutex_init(&mailboxes[t].lock, NULL);
    for (long t = 0; t < opt.threads; t++)
        threads[t] = kit_thread(worker, (void *)(intptr_t)t);
    for (long t = 0; t < opt.threads; t++)
        pthread_join(threads[t], NULL);
    CHECK(cudaDeviceSynchronize());
    unsigned long long violations = 0;
    for (long t = 0; t < opt.threads; t++) {
        block b;
        violations += __atomic_load_n(&errors[t], __ATOMIC_SEQ_CST);
        while (take(&mailboxes[t], &b))
            free_block(b);
    }
    printf("blocks %ld violations %llu\n", opt.iterations, violations);
    fflush(stdout);
    return violations ? 1 : 0;
}
