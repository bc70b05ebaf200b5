// build: shared static
/* An inference server in miniature. Requests of varying size arrive; each runs on one of a few
 * streams through some layers, every one of which takes its activations and its scratch memory
 * from cudaMalloc and gives them back with cudaFree as soon as its kernels are launched, the
 * way programs do that were written before stream-ordered allocation.
 *
 * Usage: demo [REQUESTS]. Prints a checksum of all results, the same on every run, to stdout,
 * and the time that the requests took to stderr. */
#include "kit.h"

enum {
    STREAMS = 4,
    LAYERS = 3,
    LARGEST = 256 << 10,  /* bytes of a request */
    SCRATCH = 2 << 20,    /* bytes of scratch for a layer, at least */
    TOUCHED = 16 << 10,   /* of which the kernels write this much */
    WEIGHTS = 16 << 20,
};

typedef struct {
    cudaStream_t stream;
    size_t bytes; /* of the request that runs here; 0: none */
    void *input, *output;
    unsigned char *host_in, *host_out;
} lane;

static kit_kernels kernels;
static uint64_t *wrong_words; /* on the device */
static uint64_t random_state = 20240607;
static uint64_t checksum = UINT64_C(0xcbf29ce484222325);

static void *allocate(size_t bytes)
{
    void *p = NULL;
    CHECK(cudaMalloc(&p, bytes));
    return p;
}

/* One layer: the activations move on, and the last eighth of them changes. */
static void *run_layer(lane *l, void *activations, uint32_t token)
{
    size_t scratch_bytes = SCRATCH + (size_t)(kit_random(&random_state) % 8) * (512 << 10);
    size_t changed = l->bytes / 8 & ~(size_t)3;
    void *scratch = allocate(scratch_bytes);
    void *next = allocate(l->bytes);
    kit_fill(&kernels, l->stream, scratch, TOUCHED, token, 0);
    kit_copy(&kernels, l->stream, next, activations, l->bytes, 0);
    kit_fill(&kernels, l->stream, (char *)next + l->bytes - changed, changed, token, 0);
    kit_check(&kernels, l->stream, scratch, TOUCHED, token, wrong_words, 0);
    CHECK(cudaFree(scratch));
    return next;
}

static void start(lane *l, uint32_t request)
{
    l->bytes = 4096 + kit_random_size(&random_state, LARGEST - 4096) / 16 * 16;
    for (size_t i = 0; i < l->bytes; i += 8) {
        uint64_t word = kit_random(&random_state);
        memcpy(l->host_in + i, &word, 8);
    }
    l->input = allocate(l->bytes);
    CHECK(cudaMemcpyAsync(l->input, l->host_in, l->bytes, cudaMemcpyHostToDevice, l->stream));
    void *activations = l->input;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        void *next = run_layer(l, activations, request * LAYERS + layer + 1);
        if (activations != l->input)
            CHECK(cudaFree(activations));
        activations = next;
    }
    l->output = activations;
    CHECK(cudaMemcpyAsync(l->host_out, l->output, l->bytes, cudaMemcpyDeviceToHost, l->stream));
}

static void finish(lane *l)
{
    if (l->bytes == 0)
        return;
    CHECK(cudaStreamSynchronize(l->stream));
    CHECK(cudaFree(l->input));
    CHECK(cudaFree(l->output));
    for (size_t i = 0; i < l->bytes; i += 8) {
        uint64_t word;
        memcpy(&word, l->host_out + i, 8);
        checksum = (checksum ^ word) * UINT64_C(0x100000001b3);
    }
    l->bytes = 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    long requests = argc > 1 ? strtol(argv[1], NULL, 10) : 2000;
    uint64_t wrong = 0;
    lane lanes[STREAMS];

    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(NULL));
    kernels = kit_load();
    void *weights = allocate(WEIGHTS);
    wrong_words = (uint64_t *)allocate(sizeof wrong);
    CHECK(cudaMemcpy(wrong_words, &wrong, sizeof wrong, cudaMemcpyHostToDevice));
    kit_fill(&kernels, NULL, weights, WEIGHTS, 0x57, 0);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < STREAMS; i++) {
        memset(&lanes[i], 0, sizeof lanes[i]);
        lanes[i].stream = kit_stream();
        lanes[i].host_in = (unsigned char *)malloc(LARGEST);
        lanes[i].host_out = (unsigned char *)malloc(LARGEST);
        EXPECT(lanes[i].host_in && lanes[i].host_out);
    }

    double began = now();
    for (long i = 0; i < requests; i++) {
        lane *l = &lanes[i % STREAMS];
        finish(l);
        start(l, (uint32_t)i);
    }
    for (long i = 0; i < STREAMS; i++)
        finish(&lanes[(requests + i) % STREAMS]);
    fprintf(stderr, "seconds %.6f\n", now() - began);

    kit_check(&kernels, NULL, weights, WEIGHTS, 0x57, wrong_words, 0);
    CHECK(cudaMemcpy(&wrong, wrong_words, sizeof wrong, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(wrong_words));
    CHECK(cudaFree(weights));
    for (int i = 0; i < STREAMS; i++) {
        CHECK(cudaStreamDestroy(lanes[i].stream));
        free(lanes[i].host_in);
        free(lanes[i].host_out);
    }
    printf("requests %ld\nchecksum %016llx\nwrong words %llu\n", requests, (unsigned long long)checksum,
           (unsigned long long)wrong);
    return wrong != 0;
}
