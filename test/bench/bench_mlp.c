/* The policy's kernels beside oneDNN's primitives on one thread, at CartPole's shape: nanoseconds per row.
 *
 *     bench_mlp [policy]        policy: only the rows of the policy's budget (make bench-kernels)
 *
 * `act` draws the masks, runs the forward and samples; oneDNN runs the forward alone, with its masks given as
 * factors. `gradient` is forward and backward. Rounds of ours and of oneDNN alternate, so that a disturbance
 * affects both. Figures are the median and, in brackets, the tenth and the ninetieth percentile. The clock is
 * the thread's CPU time, which a busy machine changes least. oneDNN uses the processor's best instruction
 * set, so it is compared with ours on that set only. No time fails. */
#include "test/baseline/mlp_onednn.h"
#include "test/kernels/policy/mlp_problem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 31, ROUND_NS = 4000000, SGEMM_N = 768 };

static const char *const isas[] = {"avx512", "avx2", "baseline"};
static const struct mlp_shape shape = {4, 128, 2};
static const double dropout = 0.6;

struct bench {
    struct mlp_problem problem;
    const char *isa;
    struct mlp *mlp;
    struct mlp_onednn *onednn;
    float *keep; // (rows, hidden)
};

typedef void work(struct bench *bench);

static void ours_act(struct bench *bench)
{
    mlp_problem_act(&bench->problem, bench->mlp);
}

static void ours_gradient(struct bench *bench)
{
    mlp_problem_learn(&bench->problem, bench->mlp);
}

static void stop_on(enum status status)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_mlp: oneDNN failed\n");
    exit(EXIT_FAILURE);
}

static void onednn_forward(struct bench *bench)
{
    stop_on(mlp_onednn_forward(bench->onednn, bench->problem.batch.observations, bench->keep,
                               bench->problem.probabilities));
}

static void onednn_gradient(struct bench *bench)
{
    double loss;
    struct mlp_problem *p = &bench->problem;
    stop_on(mlp_onednn_gradient(bench->onednn, p->batch.observations, bench->keep, p->batch.actions,
                                p->coefficient, p->gradient, &loss));
}

static double cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

static double time_ns(work *run, struct bench *bench, unsigned times)
{
    double begin = cpu_ns();
    for (unsigned i = 0; i < times; i++)
        run(bench);
    return (cpu_ns() - begin) / times;
}

/* The number of calls for a round of about ROUND_NS. */
static unsigned calibrate(work *run, struct bench *bench)
{
    time_ns(run, bench, 2);
    double once = time_ns(run, bench, 3);
    return once > ROUND_NS ? 1 : (unsigned)(ROUND_NS / once) + 1;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double print_spread(double ns[ROUNDS], double divisor)
{
    qsort(ns, ROUNDS, sizeof *ns, compare_doubles);
    printf("  %8.1f [%8.1f %8.1f]", ns[ROUNDS / 2] / divisor, ns[ROUNDS / 10] / divisor,
           ns[ROUNDS - 1 - ROUNDS / 10] / divisor);
    return ns[ROUNDS / 2];
}

/* One row of the table: alternates `ours` with `theirs`, unless that is NULL. */
static void compare(const char *name, struct bench *bench, work *ours, work *theirs)
{
    double ours_ns[ROUNDS], theirs_ns[ROUNDS] = {0};
    const double rows = bench->problem.rows;
    unsigned ours_times = calibrate(ours, bench),
             theirs_times = theirs == NULL ? 0 : calibrate(theirs, bench);
    for (int round = 0; round < ROUNDS; round++) {
        ours_ns[round] = time_ns(ours, bench, ours_times);
        if (theirs != NULL)
            theirs_ns[round] = time_ns(theirs, bench, theirs_times);
    }
    printf("%-9s %-8s %6u", name, bench->isa, bench->problem.rows);
    double median = print_spread(ours_ns, rows);
    if (theirs != NULL)
        printf("  %6.1fx", print_spread(theirs_ns, rows) / median);
    printf("\n");
    fflush(stdout);
}

static void open_bench(struct bench *bench, uint32_t rows, const char *isa)
{
    struct error error = {0};
    mlp_problem_init(&bench->problem, shape, dropout, rows, 1);
    for (uint32_t i = 0; i < rows; i++)
        bench->problem.row[i] = i;
    bench->isa = isa != NULL ? isa : "best";
    bench->mlp = mlp_problem_load(&bench->problem, isa);
    mlp_problem_act(&bench->problem, bench->mlp);
    bench->keep = malloc((size_t)rows * shape.hidden * sizeof(float));
    if (bench->keep == NULL)
        stop_on(STATUS_NO_MEMORY);
    const uint32_t words = mlp_mask_words(&shape);
    for (size_t unit = 0; unit < (size_t)rows * shape.hidden; unit++) {
        size_t row = unit / shape.hidden, j = unit % shape.hidden;
        bool kept = bench->problem.batch.masks[row * words + j / 16] >> j % 16 & 1;
        bench->keep[unit] = kept ? (float)(1 / (1 - dropout)) : 0;
    }
    stop_on(mlp_onednn_new(&bench->onednn, &shape, rows, &error));
    stop_on(mlp_onednn_load(bench->onednn, bench->problem.parameters));
}

static void close_bench(struct bench *bench)
{
    mlp_onednn_free(bench->onednn);
    mlp_free(bench->mlp);
    free(bench->keep);
    mlp_problem_fini(&bench->problem);
}

static bool has_isa(const char *isa)
{
    struct mlp_problem problem;
    mlp_problem_init(&problem, shape, dropout, 1, 1);
    struct mlp *mlp = mlp_problem_load(&problem, isa);
    bool has = mlp != NULL;
    mlp_free(mlp);
    mlp_problem_fini(&problem);
    return has;
}

/* One product of two large matrices: the core's rate. */
static double sgemm_ns(void)
{
    static float a[SGEMM_N * SGEMM_N], b[SGEMM_N * SGEMM_N], c[SGEMM_N * SGEMM_N];
    for (size_t i = 0; i < SGEMM_N * SGEMM_N; i++)
        a[i] = b[i] = (float)(i % 7);
    const double begin = cpu_ns();
    stop_on(mlp_onednn_sgemm(SGEMM_N, a, b, c));
    return cpu_ns() - begin;
}

/* Times of the rounds, sorted: nanoseconds per row, and of one product. */
struct shares {
    double sgemm[ROUNDS], gradient[ROUNDS];
};

/* A large product's rate, and the share of it that the gradient of `rows` rows reaches. FLOP of a row: two
 * for each weight forward, and backward two for W1's gradient and four for W2's and the units'. */
static void print_share_of_sgemm(uint32_t rows)
{
    struct bench bench;
    struct shares ns;
    open_bench(&bench, rows, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        ns.sgemm[round] = sgemm_ns();
        ns.gradient[round] = time_ns(ours_gradient, &bench, 16384 / rows) / rows;
    }
    qsort(ns.sgemm, ROUNDS, sizeof *ns.sgemm, compare_doubles);
    qsort(ns.gradient, ROUNDS, sizeof *ns.gradient, compare_doubles);
    double w1 = shape.inputs * shape.hidden, w2 = shape.hidden * shape.actions;
    double peak = 2.0 * SGEMM_N * SGEMM_N * SGEMM_N / ns.sgemm[ROUNDS / 2];
    double gradient = (4 * w1 + 6 * w2) / ns.gradient[ROUNDS / 2];
    printf("%5u rows, GFLOP/s: sgemm %.0f, %s gradient %.0f (%.0f %%)\n", rows, peak, bench.isa, gradient,
           100 * gradient / peak);
    close_bench(&bench);
}

/* Small batches from observations to actions. */
static void print_policy(void)
{
    static const uint32_t rows[] = {1, 10, 64, 1024};
    printf("policy %u -> %u -> %u, dropout %g, one thread\nns per row\n", shape.inputs, shape.hidden,
           shape.actions, dropout);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct bench bench;
        open_bench(&bench, rows[r], NULL);
        compare("act", &bench, ours_act, NULL);
        close_bench(&bench);
    }
    print_share_of_sgemm(1024);
}

/* All rows of the table for one instruction set, with oneDNN if it is the processor's best set. */
static void bench_isa(const char *isa, bool is_best)
{
    static const uint32_t act_rows[] = {1, 10, 64, 1024, 16384}, gradient_rows[] = {500, 5000};
    struct bench bench;
    for (size_t r = 0; r < sizeof act_rows / sizeof *act_rows; r++) {
        open_bench(&bench, act_rows[r], isa);
        compare("act", &bench, ours_act, is_best ? onednn_forward : NULL);
        close_bench(&bench);
    }
    for (size_t r = 0; r < sizeof gradient_rows / sizeof *gradient_rows; r++) {
        open_bench(&bench, gradient_rows[r], isa);
        compare("gradient", &bench, ours_gradient, is_best ? onednn_gradient : NULL);
        close_bench(&bench);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "policy") == 0) {
        print_policy();
        return EXIT_SUCCESS;
    }
    printf("policy %u -> %u -> %u, dropout %g, one thread; baseline: oneDNN %s\n", shape.inputs, shape.hidden,
           shape.actions, dropout, mlp_onednn_version());
    printf("ns per row                        ours                              oneDNN              "
           "oneDNN/ours\n");
    for (int i = 0, sets = 0; i < 3; i++)
        if (has_isa(isas[i]))
            bench_isa(isas[i], sets++ == 0);
    print_share_of_sgemm(1024);
    print_share_of_sgemm(16384);
    return EXIT_SUCCESS;
}
