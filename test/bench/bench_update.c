/* A parameter server's update of ResNet-50 (backend_sgd_round) beside plain copies of as many bytes on as
 * many threads: memcpy, and a copy whose stores bypass the caches, as the update's do.
 *
 *     bench_update [ROUNDS]
 *
 * The bytes of an update are the fewest possible: every contribution, parameter and velocity read once, the
 * new parameters and velocity written once. A copy reads half as many bytes and writes half. The three
 * alternate; figures are the median and, in brackets, the fastest and the slowest round. No time fails. */
#include "test/bench/times.h"
#include "worker/model/resnet.h"

#include <emmintrin.h>
#include <pthread.h>
#include <string.h>

enum { CONTRIBUTIONS = 5, ROUNDS = 15, THREADS_MAX = 2, PIECE = 16384, CLASSES = 30 };
enum { SLABS = CONTRIBUTIONS + 4 }; /* contributions, parameters, velocity, and the new two */

static void must(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_update: %s: %s\n", status_name(status), error->text);
    exit(EXIT_FAILURE);
}

struct bench {
    struct backend *backend;
    size_t elements;
    float *slab[SLABS];
    struct sgd_round round;
    uint32_t threads;
    void (*copy)(float *to, const float *from, size_t count);
};

/* The number of elements in the trained slab of the tutorial's model. */
static size_t model_elements(struct backend *backend)
{
    const struct resnet_config config = {.depth = 50, .channels = 3, .classes = CLASSES, .width = 64};
    struct params *params;
    struct resnet *resnet;
    struct error error = {0};
    must(params_new(&params, backend, &error), &error);
    must(resnet_new(&resnet, &config, params, &error), &error);
    must(params_lay_out(params, &error), &error);
    const size_t elements = params_elements(params);
    resnet_free(resnet);
    params_free(params);
    return elements;
}

static void bench_open(struct bench *bench)
{
    const struct backend_settings settings = {.threads = 1};
    struct error error = {0};
    must(backend_load(&bench->backend, "onednn", &settings, &error), &error);
    bench->elements = model_elements(bench->backend);
    for (int i = 0; i < SLABS; i++) {
        if (posix_memalign((void **)&bench->slab[i], 4096, bench->elements * sizeof(float)) != 0)
            exit(EXIT_FAILURE);
        for (size_t e = 0; e < bench->elements; e++)
            bench->slab[i][e] = (float)(e % 1000) * 1e-3f;
    }
    bench->round = (struct sgd_round){.sgd = {.lr = 0.001, .momentum = 0.9},
                                      .count = bench->elements,
                                      .contributions = CONTRIBUTIONS,
                                      .gradients = (const void *const *)bench->slab,
                                      .parameters = bench->slab[CONTRIBUTIONS],
                                      .velocity = bench->slab[CONTRIBUTIONS + 1],
                                      .parameters_out = bench->slab[CONTRIBUTIONS + 2],
                                      .velocity_out = bench->slab[CONTRIBUTIONS + 3]};
}

static void bench_close(struct bench *bench)
{
    for (int i = 0; i < SLABS; i++)
        free(bench->slab[i]);
    backend_close(bench->backend);
}

static void update(void *context)
{
    struct bench *bench = context;
    struct error error = {0};
    bench->round.threads = bench->threads;
    must(backend_sgd_round(bench->backend, &bench->round, &error), &error);
}

/* ---- copies ---- */

static void copy_plain(float *to, const float *from, size_t count)
{
    memcpy(to, from, count * sizeof *to);
}

static void copy_streaming(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i += 4)
        _mm_stream_ps(to + i, _mm_load_ps(from + i));
    _mm_sfence();
}

struct share {
    struct bench *bench;
    uint32_t number;
};

/* Copies one thread's share of SLABS / 2 slabs: reads half of an update's bytes and writes as many. */
static void *copy_share(void *context)
{
    const struct share *share = context;
    const struct bench *bench = share->bench;
    for (int half = 0; half < SLABS; half++) {
        const size_t pieces = bench->elements / 2 / PIECE;
        const size_t first = pieces * share->number / bench->threads * PIECE,
                     end = pieces * (share->number + 1) / bench->threads * PIECE;
        const size_t at = (size_t)(half % 2) * pieces * PIECE;
        for (size_t e = at + first; e < at + end; e += PIECE)
            bench->copy(bench->slab[SLABS - 1] + e, bench->slab[half / 2] + e, PIECE);
    }
    return NULL;
}

static void copy(void *context)
{
    struct bench *bench = context;
    struct share share[THREADS_MAX];
    pthread_t thread[THREADS_MAX] = {0};
    for (uint32_t i = 0; i < THREADS_MAX; i++)
        share[i] = (struct share){bench, i};
    for (uint32_t i = 1; i < bench->threads; i++)
        if (pthread_create(&thread[i], NULL, copy_share, &share[i]) != 0)
            exit(EXIT_FAILURE);
    copy_share(&share[0]);
    for (uint32_t i = 1; i < bench->threads; i++)
        pthread_join(thread[i], NULL);
}

/* ---- rounds ---- */

static void compare(struct bench *bench, uint32_t rounds)
{
    struct times updates = {0}, plain = {0}, streaming = {0};
    update(bench);
    for (uint32_t i = 0; i < rounds; i++) {
        times_add(&updates, update, bench, 1);
        bench->copy = copy_plain;
        times_add(&plain, copy, bench, 1);
        bench->copy = copy_streaming;
        times_add(&streaming, copy, bench, 1);
    }
    const double megabytes = (double)bench->elements * sizeof(float) * SLABS * 1e-6;
    printf("%u thread%s\n", bench->threads, bench->threads == 1 ? "" : "s");
    const double ours = times_print("update", &updates);
    printf("  %5.1f GB/s\n", megabytes / ours);
    const double theirs = times_print("memcpy", &plain);
    printf("  %5.1f GB/s, the update reaches %.0f %% of it\n", megabytes / theirs, 100 * theirs / ours);
    const double past = times_print("copy past the caches", &streaming);
    printf("  %5.1f GB/s, the update reaches %.0f %% of it\n", megabytes / past, 100 * past / ours);
}

int main(int argc, char **argv)
{
    const long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : ROUNDS;
    struct bench bench = {0};
    if (argc > 2 || rounds < 1 || rounds > TIMES_MAX) {
        fprintf(stderr, "usage: bench_update [ROUNDS]   (1..%d)\n", TIMES_MAX);
        return 64;
    }
    setenv("OMP_WAIT_POLICY", "passive", 0); // a thread that spins takes a processor from the copies
    bench_open(&bench);
    printf("ResNet-50's %zu parameters, %d contributions, %.0f MB an update; %s; median of %ld [fastest "
           "slowest]\n",
           bench.elements, CONTRIBUTIONS, (double)bench.elements * sizeof(float) * SLABS * 1e-6,
           bench.backend->text, rounds);
    for (bench.threads = 1; bench.threads <= THREADS_MAX; bench.threads++)
        compare(&bench, (uint32_t)rounds);
    bench_close(&bench);
    return EXIT_SUCCESS;
}
