/* The rate of each operation in test/kernels/op_cases.c at the models' shapes, forward and backward, as a
 * percentage of the machine's rate.
 *
 *     bench_kernels [PLUGIN [THREADS]]        (default: onednn, all processors)
 *
 * The machine's rate is, for operations that multiply, a large sgemm of the same library on the same threads;
 * for the others, by the bytes that they must move, a memcpy on all threads larger than any cache (both
 * directions counted), which an operation that fits a cache can exceed. Tensors are as in a model's step:
 * activations in the layout that a convolution leaves, weights in the layout that the forward wanted, memory
 * planned, no gradient of images. Each round runs the whole table, so that a disturbance affects all rows
 * alike. Printed are the median and, in brackets, the tenth and the ninetieth percentile. No time fails. */
#include "test/baseline/mlp_onednn.h"
#include "test/kernels/op_run.h"
#include "test/values.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS = 11,
    SPELL_NS = 4000000,
    SGEMM_N = 1024,
    COPY_BYTES = 128 << 20,
    THREADS_MAX = 256,
    CASES_MAX = 96
};

static struct backend *backend;
static uint32_t threads;

/* One pass of one row: times of the rounds, per call. */
struct pass {
    double flops, bytes;
    double ns[ROUNDS];
    unsigned times; // calls a round
};

struct bench {
    const struct op_case *op_case;
    struct op_stage stage;
    struct arena *fixed, *step; // inputs and output gradients; what a forward and a backward make
    uint64_t before_backward;   // mark of `step`
    bool has_backward;
    struct pass forward, backward;
};

static void stop_on(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_kernels: %s\n", error->text);
    exit(EXIT_FAILURE);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ---- preparing a row ---- */

static void upload(struct bench *bench, struct values values, struct tensor *to)
{
    struct error error = {0};
    stop_on(values_upload(&values, backend, bench->fixed, "input", to, &error), &error);
    values_free(&values);
}

/* An activation in the layout that the preceding convolution leaves. */
static void activation(struct bench *bench, struct shape shape, struct tensor *to)
{
    const uint32_t *size = shape.size, few = 8;
    struct tensor x, weight;
    struct error error = {0};
    upload(bench, values_drawn(SHAPE4(size[0], few, size[2], size[3]), 1), &x);
    upload(bench, values_drawn(SHAPE4(size[1], few, 1, 1), 2), &weight);
    struct op_call call = {.op = OP_CONV2D,
                           .attributes = {.stride = {1, 1}},
                           .arena = bench->fixed,
                           .in = {&x, &weight},
                           .out = {to}};
    stop_on(op_forward(backend, &call, &error), &error);
}

static bool is_activation(const struct shape *shape)
{
    return shape->rank == 4 && shape->size[1] >= 16;
}

static void run_forward(struct bench *bench)
{
    struct error error = {0};
    arena_reset(bench->step);
    memset(bench->stage.out, 0, sizeof bench->stage.out);
    stop_on(op_forward(backend, &bench->stage.call, &error), &error);
}

static void run_backward(struct bench *bench)
{
    struct error error = {0};
    arena_rollback(bench->step, bench->before_backward);
    memset(bench->stage.din, 0, sizeof bench->stage.din);
    stop_on(op_backward(backend, &bench->stage.call, &error), &error);
}

/* Parameters go where the forward wanted them. */
static void reorder_inputs(struct bench *bench)
{
    struct error error = {0};
    run_forward(bench);
    for (uint32_t i = 1; i < OP_INPUTS_MAX; i++) {
        struct tensor *in = &bench->stage.in[i];
        if (in->wanted == NULL)
            continue;
        struct values values = values_new(in->shape, DTYPE_F64);
        stop_on(backend_download(backend, in, DTYPE_F64, values.real, &error), &error);
        in->layout = in->wanted;
        stop_on(backend_upload(backend, in, DTYPE_F64, values.real, &error), &error);
        values_free(&values);
    }
    run_forward(bench);
}

static void ready_backward(struct bench *bench)
{
    struct op_stage *stage = &bench->stage;
    uint32_t wanted = op_case_gradient(bench->op_case);
    if (bench->op_case->op == OP_CONV2D && !is_activation(&stage->in[0].shape))
        wanted &= ~1u;
    if (wanted == 0)
        return;
    stage->call.dout[0] = &stage->dout[0];
    if (is_activation(&stage->out[0].shape))
        activation(bench, stage->out[0].shape, &stage->dout[0]);
    else
        upload(bench, values_drawn(stage->out[0].shape, 3), &stage->dout[0]);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        if ((wanted >> i & 1) != 0)
            stage->call.din[i] = &stage->din[i];
    bench->has_backward = true;
    bench->backward.flops = op_flops(&stage->call, true);
    bench->backward.bytes = op_bytes(&stage->call, true);
}

/* ---- time ---- */

/* Waits for the GPU's queue by downloading a result. */
static void wait_for_backend(struct bench *bench)
{
    struct error error = {0};
    int32_t word;
    double real;
    const struct tensor *out = &bench->stage.out[0];
    if (backend->ops->host)
        return;
    struct tensor first = {.shape = SHAPE1(1), .dtype = out->dtype, .data = out->data, .bytes = 4};
    void *to = out->dtype == DTYPE_I32 ? (void *)&word : (void *)&real;
    stop_on(backend_download(backend, &first, out->dtype == DTYPE_I32 ? DTYPE_I32 : DTYPE_F64, to, &error),
            &error);
}

typedef void work(struct bench *bench);

static double time_ns(struct bench *bench, work *run, unsigned times)
{
    const double begin = now_ns();
    for (unsigned i = 0; i < times; i++)
        run(bench);
    wait_for_backend(bench);
    return (now_ns() - begin) / times;
}

static void calibrate(struct bench *bench, work *run, struct pass *pass)
{
    time_ns(bench, run, 1);
    const double once = time_ns(bench, run, 2);
    pass->times = once > SPELL_NS ? 1 : (unsigned)(SPELL_NS / once) + 1;
}

/* The rounds' last forward remains for the backwards. */
static void after_forwards(struct bench *bench)
{
    bench->before_backward = arena_mark(bench->step);
}

static void ready_inputs(struct bench *bench)
{
    const struct op_case *op_case = bench->op_case;
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++) {
        if (bench->stage.call.in[i] == NULL)
            continue;
        if ((i == 0 || op_case->op == OP_ADD) && is_activation(&op_case->in[i]))
            activation(bench, op_case->in[i], &bench->stage.in[i]);
        else
            upload(bench, op_case_input(op_case, i), &bench->stage.in[i]);
    }
}

static struct arena *new_arena(void)
{
    struct arena *arena = NULL;
    struct error error = {0};
    stop_on(arena_new(&arena, &backend->source, &error), &error);
    arena_poison(arena, false);
    return arena;
}

static void bench_open(struct bench *bench, const struct op_case *op_case)
{
    *bench = (struct bench){.op_case = op_case, .fixed = new_arena(), .step = new_arena()};
    op_stage_init(&bench->stage, op_case, bench->step);
    ready_inputs(bench);
    reorder_inputs(bench);
    bench->forward.flops = op_flops(&bench->stage.call, false);
    bench->forward.bytes = op_bytes(&bench->stage.call, false);
    calibrate(bench, run_forward, &bench->forward);
    ready_backward(bench);
    after_forwards(bench);
    if (bench->has_backward)
        calibrate(bench, run_backward, &bench->backward);
}

static void bench_close(struct bench *bench)
{
    arena_free(bench->fixed);
    arena_free(bench->step);
}

static void bench_round(struct bench *bench, int round)
{
    bench->forward.ns[round] = time_ns(bench, run_forward, bench->forward.times);
    after_forwards(bench);
    if (bench->has_backward)
        bench->backward.ns[round] = time_ns(bench, run_backward, bench->backward.times);
}

/* ---- the machine's rates ---- */

static struct peaks {
    float *a, *b, *c; // (SGEMM_N, SGEMM_N)
    char *from, *to;  // (COPY_BYTES)
    double sgemm_ns[ROUNDS], copy_ns[ROUNDS];
} peaks;

static void *copy_share(void *argument)
{
    const size_t share = COPY_BYTES / threads, begin = *(const uint32_t *)argument * share;
    memcpy(peaks.to + begin, peaks.from + begin, share);
    return NULL;
}

static void copy_all(void)
{
    pthread_t thread[THREADS_MAX];
    uint32_t number[THREADS_MAX];
    for (uint32_t t = 0; t < threads; t++) {
        number[t] = t;
        if (pthread_create(&thread[t], NULL, copy_share, &number[t]) != 0)
            stop_on(STATUS_NO_MEMORY, &(struct error){.text = "no thread for the copy"});
    }
    for (uint32_t t = 0; t < threads; t++)
        pthread_join(thread[t], NULL);
}

static void peaks_open(void)
{
    const size_t count = (size_t)SGEMM_N * SGEMM_N;
    peaks.a = values_memory(count, sizeof *peaks.a);
    peaks.b = values_memory(count, sizeof *peaks.b);
    peaks.c = values_memory(count, sizeof *peaks.c);
    peaks.from = values_memory(COPY_BYTES, 1);
    peaks.to = values_memory(COPY_BYTES, 1);
    memset(peaks.from, 1, COPY_BYTES); // real pages, not the shared page of zeros
    for (size_t i = 0; i < count; i++)
        peaks.a[i] = peaks.b[i] = (float)(i % 7);
    copy_all();
}

static void peaks_close(void)
{
    free(peaks.a);
    free(peaks.b);
    free(peaks.c);
    free(peaks.from);
    free(peaks.to);
}

static void peaks_round(int round)
{
    double begin = now_ns();
    if (mlp_onednn_sgemm(SGEMM_N, peaks.a, peaks.b, peaks.c) != STATUS_OK)
        stop_on(STATUS_INTERNAL, &(struct error){.text = "oneDNN's sgemm failed"});
    peaks.sgemm_ns[round] = now_ns() - begin;
    begin = now_ns();
    copy_all();
    peaks.copy_ns[round] = now_ns() - begin;
}

/* ---- the table ---- */

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double sorted_median(double ns[ROUNDS])
{
    qsort(ns, ROUNDS, sizeof *ns, compare_doubles);
    return ns[ROUNDS / 2];
}

static void print_pass(struct pass *pass, double sgemm, double copy)
{
    const double ns = sorted_median(pass->ns);
    const bool multiplies = pass->flops > 0;
    const double rate = (multiplies ? pass->flops : pass->bytes) / ns;
    printf(" %9.1f [%9.1f %9.1f] %7.1f %-7s %4.0f %%", ns / 1000, pass->ns[ROUNDS / 10] / 1000,
           pass->ns[ROUNDS - 1 - ROUNDS / 10] / 1000, rate, multiplies ? "GFLOP/s" : "GB/s",
           100 * rate / (multiplies ? sgemm : copy));
}

static void print_row(struct bench *bench, double sgemm, double copy)
{
    char text[OP_CASE_TEXT_BYTES];
    printf("%s\n  forward ", op_case_text(bench->op_case, text));
    print_pass(&bench->forward, sgemm, copy);
    if (bench->has_backward) {
        printf("\n  backward");
        print_pass(&bench->backward, sgemm, copy);
    }
    printf("\n");
}

static void print_machine(void)
{
    char model[128] = "unknown processor";
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %127[^\n]", model) == 1)
            break;
    if (file != NULL)
        fclose(file);
    printf("machine  %s, %ld processors\nbackend  %s\n", model, sysconf(_SC_NPROCESSORS_ONLN), backend->text);
}

static void print_table(struct bench *benches, size_t count)
{
    const double sgemm = 2.0 * SGEMM_N * SGEMM_N * SGEMM_N / sorted_median(peaks.sgemm_ns);
    const double copy = 2.0 * COPY_BYTES / sorted_median(peaks.copy_ns);
    print_machine();
    printf("peaks    sgemm of %d: %.1f GFLOP/s; copy of %d MiB: %.1f GB/s, read and written; %u thread%s\n",
           SGEMM_N, sgemm, COPY_BYTES >> 20, copy, threads, threads == 1 ? "" : "s");
    printf("            us, median [tenth, ninetieth percentile]       rate         of the peak\n");
    for (size_t i = 0; i < count; i++)
        print_row(&benches[i], sgemm, copy);
}

static void open_backend(int count, char **arguments)
{
    struct error error = {0};
    const char *name = count > 1 ? arguments[1] : "onednn";
    long wanted = count > 2 ? strtol(arguments[2], NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN);
    threads = wanted < 1 ? 1 : wanted > THREADS_MAX ? THREADS_MAX : (uint32_t)wanted;
    stop_on(backend_load(&backend, name, &(struct backend_settings){.threads = threads}, &error), &error);
}

int main(int argc, char **argv)
{
    static struct bench benches[CASES_MAX];
    size_t count = 0;
    open_backend(argc, argv);
    peaks_open();
    for (size_t i = 0; i < op_cases_count && count < CASES_MAX; i++)
        if ((op_cases[i].use & OP_CASE_TIME) != 0)
            bench_open(&benches[count++], &op_cases[i]);
    for (int round = 0; round < ROUNDS; round++) {
        peaks_round(round);
        for (size_t i = 0; i < count; i++)
            bench_round(&benches[i], round);
    }
    print_table(benches, count);
    for (size_t i = 0; i < count; i++)
        bench_close(&benches[i]);
    peaks_close();
    backend_close(backend);
    return EXIT_SUCCESS;
}
