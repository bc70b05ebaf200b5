// build: shared static
/* Stress of pinned memory with copies in flight: threads that ask for it, write it with the CPU
 * at once, have the GPU read or write it on several streams, and free it straight after the
 * launch, or hand it to another thread that frees it. Memory that is handed out again while the
 * GPU still reads it shows as wrong words on the device; while the GPU still writes it, as
 * wrong bytes for the CPU. Copies use the whole block or begin inside it; kernels read and
 * write it directly.
 *
 * Prints `blocks N violations M`; exits 1 if M is not 0. */
#include "kit.h"

enum { STREAMS = 3, MAILBOX = 32, MAX_THREADS = 64 };

static struct {
    long iterations, threads;
    size_t max_size;
    uint64_t seed, delay_ns;
} opt = {4000, 4, 2 * MIB, 1, 400 * 1000};

typedef struct {
    char *p;
    size_t bytes;
} block;

static struct {
    pthread_mutex_t lock;
    block blocks[MAILBOX];
    int count;
} mailbox = {PTHREAD_MUTEX_INITIALIZER, {{NULL, 0}}, 0};

static kit_kernels kernels;
static uint64_t *errors; /* one counter a thread, of the GPU's */
static unsigned long long wrong_for_the_cpu;
static uint32_t issue_counter;

static void free_block(block b)
{
    note_free(b.p, b.bytes);
    CHECK(cudaFreeHost(b.p));
}

/* Frees it, or leaves it to whoever comes next; then perhaps frees one of another thread. */
static void hand_over(block b, uint64_t *rng)
{
    block other = {NULL, 0};
    pthread_mutex_lock(&mailbox.lock);
    if (kit_random(rng) % 2 && mailbox.count < MAILBOX) {
        mailbox.blocks[mailbox.count++] = b;
        b.p = NULL;
    }
    if (kit_random(rng) % 2 && mailbox.count)
        other = mailbox.blocks[--mailbox.count];
    pthread_mutex_unlock(&mailbox.lock);
    if (b.p)
        free_block(b);
    if (other.p)
        free_block(other);
}

static uint64_t slow_now(uint64_t *rng) { return kit_random(rng) % 8 ? 0 : kit_random(rng) % opt.delay_ns + opt.delay_ns / 4; }

static block get(uint64_t *rng)
{
    static const unsigned flags[] = {cudaHostAllocDefault, cudaHostAllocPortable,
                                     cudaHostAllocMapped | cudaHostAllocPortable, cudaHostAllocWriteCombined};
    size_t bytes = (kit_random_size(rng, opt.max_size) + 63) & ~(size_t)63;
    void *p = NULL;
    /* Write-combined memory is slow to read: seldom. */
    unsigned which = (unsigned)(kit_random(rng) % 16);
    CHECK(cudaHostAlloc(&p, bytes, flags[which == 15 ? 3 : which % 3]));
    note_alloc(p, bytes);
    return (block){(char *)p, bytes};
}

static void fill(char *p, size_t bytes, uint32_t value)
{
    for (size_t i = 0; i < bytes / 4; i++)
        ((volatile uint32_t *)p)[i] = value;
}

static void *worker(void *argument)
{
    long me = (long)(intptr_t)argument;
    uint64_t rng = (opt.seed + (uint64_t)me) * UINT64_C(0x9E3779B97F4A7C15) | 1;
    cudaStream_t streams[STREAMS];
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreate(&streams[0]));
    CHECK(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
    streams[2] = cudaStreamPerThread;
    char *device[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        device[i] = (char *)kit_malloc(opt.max_size);

    long mine = opt.iterations / opt.threads + (me < opt.iterations % opt.threads);
    for (long i = 0; i < mine; i++) {
        block b = get(&rng);
        int which = (int)(kit_random(&rng) % STREAMS);
        cudaStream_t s = streams[which];
        /* A different word for each issue; an odd factor keeps them distinct. */
        uint32_t value = __atomic_add_fetch(&issue_counter, 1, __ATOMIC_RELAXED) * UINT32_C(2654435761);
        size_t inside = b.bytes > 4096 ? (size_t)(kit_random(&rng) % 64) * 64 : 0, bytes = b.bytes - inside;
        char *p = b.p + inside;
        fill(b.p, b.bytes, value);
        switch (kit_random(&rng) % 4) {
        case 0: /* read by a copy */
        case 1:
            kit_spin(&kernels, s, slow_now(&rng));
            CHECK(cudaMemcpyAsync(device[which], p, bytes, cudaMemcpyHostToDevice, s));
            kit_check(&kernels, s, device[which], bytes, value, &errors[me], 0);
            break;
        case 2: /* read by a kernel */
            kit_check(&kernels, s, p, bytes, value, &errors[me], slow_now(&rng));
            break;
        default: /* written by a copy or a kernel: the next owner must not see that */
            kit_fill(&kernels, s, device[which], bytes, ~value, slow_now(&rng));
            if (kit_random(&rng) % 2)
                CHECK(cudaMemcpyAsync(p, device[which], bytes, cudaMemcpyDeviceToHost, s));
            else
                kit_fill(&kernels, s, p, bytes, ~value, slow_now(&rng));
        }
        hand_over(b, &rng);
        /* And one that the GPU never sees: what late writes would hit. */
        if (kit_random(&rng) % 4 == 0) {
            block quiet = get(&rng);
            unsigned long long wrong = 0;
            fill(quiet.p, quiet.bytes, value);
            sched_yield();
            for (size_t n = 0; n < quiet.bytes / 4; n += 16)
                wrong += ((volatile uint32_t *)quiet.p)[n] != value;
            __atomic_add_fetch(&wrong_for_the_cpu, wrong, __ATOMIC_RELAXED);
            free_block(quiet);
        }
    }
    for (int i = 0; i < STREAMS; i++)
        CHECK(cudaStreamSynchronize(streams[i]));
    for (int i = 0; i < STREAMS; i++)
        kit_free(device[i], opt.max_size);
    for (int i = 0; i < 2; i++)
        CHECK(cudaStreamDestroy(streams[i]));
    return NULL;
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        long long v = atoll(argv[i + 1]);
        if (!strcmp(argv[i], "--iterations"))
            opt.iterations = (long)v;
        else if (!strcmp(argv[i], "--threads"))
            opt.threads = v > MAX_THREADS ? MAX_THREADS : (long)v;
        else if (!strcmp(argv[i], "--max-kib"))
            opt.max_size = (size_t)v << 10;
        else if (!strcmp(argv[i], "--seed"))
            opt.seed = (uint64_t)v;
        else if (!strcmp(argv[i], "--delay-us"))
            opt.delay_ns = (uint64_t)v * 1000;
        else
            kit_fail(__FILE__, __LINE__, argv[i], "is not an option");
    }
    CHECK(cudaSetDevice(0));
    kernels = kit_load();
    errors = (uint64_t *)kit_pinned((size_t)opt.threads * sizeof *errors);
    note_alloc(errors, (size_t)opt.threads * sizeof *errors);
    pthread_t threads[MAX_THREADS];
    for (long t = 0; t < opt.threads; t++)
        threads[t] = kit_thread(worker, (void *)(intptr_t)t);
    for (long t = 0; t < opt.threads; t++)
        pthread_join(threads[t], NULL);
    CHECK(cudaDeviceSynchronize());
    unsigned long long violations = wrong_for_the_cpu;
    for (long t = 0; t < opt.threads; t++)
        violations += __atomic_load_n(&errors[t], __ATOMIC_SEQ_CST);
    while (mailbox.count)
        free_block(mailbox.blocks[--mailbox.count]);
    printf("blocks %ld violations %llu\n", opt.iterations, violations);
    fflush(stdout);
    return violations ? 1 : 0;
}
