/* The general policy's kernels on one thread, dense and recurrent, and the networks of SAC and DQN:
 * nanoseconds per row, and the share of a large matrix product's rate.
 *
 *     bench_dense [ISA]        ISA: only that instruction set
 *
 * `act` is the forward of both networks, the draws and their log-probabilities; `learn` is dense_evaluate and
 * dense_gradient of chunks of 256 rows; `load` packs the parameters, once per update. Of SAC's and DQN's
 * networks, `act` is the forward, `learn` the backward with the parameters' gradient, and `pull` the backward
 * to the inputs alone; test/bench/peer/layers_sgemm.py has their products as sgemm computes them. Rounds of
 * sgemm and of all the others alternate, so that a disturbance affects all. Figures are the median and, in
 * brackets, the tenth and the ninetieth percentile. The clock is the thread's CPU time. No time fails.
 *
 * The floor. With w the weights of a network, a row takes 2 w floating-point operations forward, and backward
 * 2 w for the weights' gradient and 2 (w - w_first) for the activations': 17.8 kFLOP to act and 51.4 to learn
 * at 4-64-64-2 with a value network, 283 and 832 at 17-256-256-6. A layer of 64 LSTM units over 4 inputs
 * takes 34.8 kFLOP forward, and backward 34.8 for the weights' gradient and 32.8 for the states': 102.4 to
 * learn. Weights and a chunk's activations (36 KB and 0.4 MB; 0.57 MB and 1.4 MB) lie in the second cache,
 * from which a product takes 8 bytes a cycle: they cost less than the arithmetic. Beside the products, each
 * hidden unit takes a tanh, about 1 ns / 16 lanes * 16 instructions. */
#include "kernels/base/rng.h"
#include "kernels/policy/layers.h"
#include "kernels/policy/recurrent.h"
#include "test/baseline/mlp_onednn.h"
#include "test/kernels/policy/dense_problem.h"
#include "test/kernels/policy/load_parameters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 31, ROUND_NS = 4000000, SGEMM_N = 768 };

static const struct {
    const char *name;
    struct dense_shape shape;
} shapes[] = {
    {"4-64-64-2",
     {.inputs = 4, .layers = 2, .width = {64, 64}, .value = true, .components = 1, .choices = {2}}},
    {"17-256-256-6",
     {.inputs = 17, .layers = 2, .width = {256, 256}, .value = true, .gaussian = true, .components = 6}},
};

static double cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

typedef void work(void *problem);

static void load(void *problem)
{
    const struct dense_problem *p = problem;
    load_dense(p->dense, &p->shape, p->parameters);
}

static void act(void *problem)
{
    dense_problem_act(problem);
}

static void learn(void *problem)
{
    dense_problem_learn(problem);
}

static double time_ns(work *run, void *problem, unsigned times)
{
    const double begin = cpu_ns();
    for (unsigned i = 0; i < times; i++)
        run(problem);
    return (cpu_ns() - begin) / times;
}

/* The number of calls for a round of about ROUND_NS. */
static unsigned calibrate(work *run, void *problem)
{
    time_ns(run, problem, 2);
    const double once = time_ns(run, problem, 3);
    return once > ROUND_NS ? 1 : (unsigned)(ROUND_NS / once) + 1;
}

static double sgemm_ns(void)
{
    static float a[SGEMM_N * SGEMM_N], b[SGEMM_N * SGEMM_N], c[SGEMM_N * SGEMM_N];
    for (size_t i = 0; i < SGEMM_N * SGEMM_N; i++)
        a[i] = b[i] = (float)(i % 7);
    const double begin = cpu_ns();
    if (mlp_onednn_sgemm(SGEMM_N, a, b, c) != STATUS_OK) {
        fprintf(stderr, "bench_dense: oneDNN failed\n");
        exit(EXIT_FAILURE);
    }
    return cpu_ns() - begin;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double median(double ns[ROUNDS])
{
    qsort(ns, ROUNDS, sizeof *ns, compare_doubles);
    return ns[ROUNDS / 2];
}

/* Weights of one network; those of its first layer apart. */
static double weights_of(const struct dense_shape *shape, uint32_t outputs, double *first)
{
    double sum = 0;
    uint32_t inputs = shape->inputs;
    for (uint32_t l = 0; l <= shape->layers; l++) {
        const uint32_t width = l < shape->layers ? shape->width[l] : outputs;
        sum += (double)inputs * width;
        *first += l == 0 ? (double)inputs * width : 0;
        inputs = width;
    }
    return sum;
}

/* Floating-point operations of the products for a row. */
static double flop_of(const struct dense_shape *shape, bool learn)
{
    double first = 0, weights = weights_of(shape, dense_outputs(shape), &first);
    if (shape->value)
        weights += weights_of(shape, 1, &first);
    return learn ? 6 * weights - 2 * first : 2 * weights;
}

/* One row of the table. `flop` of one of `rows`; 0: no rate. */
static void measure(const char *name, const char *isa, const char *what, uint32_t rows, void *problem,
                    work *run, double flop)
{
    double ns[ROUNDS], sgemm[ROUNDS];
    const unsigned times = calibrate(run, problem);
    for (int round = 0; round < ROUNDS; round++) {
        sgemm[round] = sgemm_ns();
        ns[round] = time_ns(run, problem, times) / rows;
    }
    const double peak = 2.0 * SGEMM_N * SGEMM_N * SGEMM_N / median(sgemm), typical = median(ns);
    printf("%-13s %-8s %-6s %5u  %9.1f [%9.1f %9.1f]", name, isa, what, rows, typical, ns[ROUNDS / 10],
           ns[ROUNDS - 1 - ROUNDS / 10]);
    if (flop > 0)
        printf("  %6.1f GFLOP/s, %3.0f %% of sgemm's %.0f", flop / typical, 100 * flop / typical / peak,
               peak);
    printf("\n");
    fflush(stdout);
}

static void measure_shape(size_t s, const char *isa)
{
    static const uint32_t rows[] = {1, 16, 256};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct dense_problem problem;
        const struct dense_case one = {shapes[s].shape, rows[r], false};
        dense_problem_init(&problem, &one, 1);
        for (uint32_t i = 0; i < rows[r]; i++)
            problem.row[i] = i;
        if (dense_problem_load(&problem, isa)) {
            measure(shapes[s].name, isa, "act", rows[r], &problem, act, flop_of(&one.shape, false));
            if (rows[r] == DENSE_CHUNK_ROWS)
                measure(shapes[s].name, isa, "learn", rows[r], &problem, learn, flop_of(&one.shape, true));
            if (rows[r] == 1)
                measure(shapes[s].name, isa, "load", 1, &problem, load, 0);
            dense_problem_unload(&problem);
        }
        dense_problem_fini(&problem);
    }
}

/* ---- recurrent layers ---- */

static const struct {
    const char *name;
    struct recurrent_shape shape;
} cells[] = {{"lstm 4-64", {RECURRENT_LSTM, 4, 64, 1}},
             {"gru 4-64", {RECURRENT_GRU, 4, 64, 1}},
             {"lstm 64-256", {RECURRENT_LSTM, 64, 256, 1}}};

enum { SLOTS = 8, STEPS = 32, RECURRENT_ROWS = SLOTS * STEPS };

struct sequences {
    struct recurrent_shape shape;
    struct recurrent *recurrent;
    struct recurrent_work *work;
    float *parameters, *gradient, *state;
    uint32_t first[STEPS + 1], slot[RECURRENT_ROWS];
    struct recurrent_rows rows;
};

static void step(void *problem)
{
    const struct sequences *p = problem;
    const struct recurrent_rows one = {.steps = 1, .first = p->first, .slot = p->slot};
    recurrent_forward(p->recurrent, p->work, &one, (struct recurrent_range){0, 1}, p->state);
}

static void through_time(void *problem)
{
    const struct sequences *p = problem;
    const struct recurrent_range all = {0, STEPS};
    recurrent_forward(p->recurrent, p->work, &p->rows, all, p->state);
    recurrent_backward(p->recurrent, p->work, &p->rows, all, p->gradient, false);
}

static void load_sequences(void *problem)
{
    const struct sequences *p = problem;
    load_recurrent(p->recurrent, &p->shape, p->parameters);
}

static float *draw(size_t count, double bound)
{
    float *numbers = calloc(count, sizeof *numbers);
    if (numbers == NULL)
        exit(EXIT_FAILURE);
    for (size_t i = 0; i < count; i++)
        numbers[i] = rng_initial_uniform(1, 0, (uint32_t)i, bound);
    return numbers;
}

static void fill(struct dense_matrix to, uint32_t columns)
{
    float *from = draw((size_t)RECURRENT_ROWS * columns, 1);
    for (uint32_t r = 0; r < RECURRENT_ROWS; r++)
        memcpy(to.at + r * to.stride, from + (size_t)r * columns, columns * sizeof *from);
    free(from);
}

/* Eight sequences of 32 steps: a rollout of CartPole's job. */
static void measure_cell(size_t c, const char *isa)
{
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    struct sequences p = {.shape = cells[c].shape};
    struct error error;
    const uint32_t last = recurrent_parameters(&p.shape, list) - 1;
    const size_t count = list[last].offset + list[last].count;
    const double input = list[0].count, state = list[1].count, flop = 2 * (input + state);
    p.parameters = draw(count, 0.125);
    p.gradient = draw(count, 0);
    p.state = draw(SLOTS * recurrent_state_floats(&p.shape), 1);
    for (uint32_t i = 0; i < RECURRENT_ROWS; i++)
        p.slot[i] = i % SLOTS;
    for (uint32_t s = 0; s <= STEPS; s++)
        p.first[s] = s * SLOTS;
    p.rows = (struct recurrent_rows){.steps = STEPS, .first = p.first, .slot = p.slot};
    setenv("COALESCED_ISA", isa, 1);
    if (recurrent_new(&p.recurrent, &p.shape, &error) == STATUS_OK &&
        recurrent_work_new(&p.work, p.recurrent, RECURRENT_ROWS, SLOTS, &error) == STATUS_OK) {
        load_sequences(&p);
        fill(recurrent_inputs(p.work), p.shape.inputs);
        fill(recurrent_pulls(p.work), p.shape.hidden);
        measure(cells[c].name, isa, "act", SLOTS, &p, step, flop);
        measure(cells[c].name, isa, "learn", RECURRENT_ROWS, &p, through_time, 2 * flop + 2 * state);
        measure(cells[c].name, isa, "load", 1, &p, load_sequences, 0);
    }
    recurrent_work_free(p.work);
    recurrent_free(p.recurrent);
    free(p.parameters);
    free(p.gradient);
    free(p.state);
}

/* ---- chains of layers ---- */

static const struct {
    const char *name;
    struct layers_shape shape;
    uint32_t rows;
} chains[] = {
    {"23-256-256-1",
     {.inputs = 23, .outputs = 1, .layers = 2, .width = {256, 256}, .activation = DENSE_RELU},
     256},
    {"17-256-256-12",
     {.inputs = 17, .outputs = 12, .layers = 2, .width = {256, 256}, .activation = DENSE_RELU},
     256},
    {"4-64-64-2", {.inputs = 4, .outputs = 2, .layers = 2, .width = {64, 64}, .activation = DENSE_RELU}, 64},
};

struct chain {
    uint32_t rows;
    struct layers *layers;
    struct layers_work *work;
    float *parameters, *gradient;
    struct dense_matrix x, pull, to;
};

static void chain_load(void *problem)
{
    const struct chain *p = problem;
    layers_load(p->layers, p->parameters);
}

static void chain_forward(void *problem)
{
    const struct chain *p = problem;
    layers_forward(p->layers, p->work, p->rows, p->x);
}

static void chain_learn(void *problem)
{
    const struct chain *p = problem;
    layers_backward(p->layers, p->work, p->pull, p->gradient, false, (struct dense_matrix){0});
}

static void chain_pull(void *problem)
{
    const struct chain *p = problem;
    layers_backward(p->layers, p->work, p->pull, NULL, false, p->to);
}

static struct dense_matrix draw_matrix(uint32_t rows, uint32_t columns)
{
    const size_t stride = ((columns + 15) / 16 | 1) * 16;
    return (struct dense_matrix){draw(rows * stride, 1), stride};
}

static void measure_chain(size_t c, const char *isa)
{
    struct layers_shape shape = chains[c].shape;
    const struct layers_place first = layers_place(&shape, 0);
    const size_t count = layers_parameters(&shape);
    struct chain p = {.rows = chains[c].rows};
    struct error error;
    double weights = 0;
    for (uint32_t l = 0; l <= shape.layers; l++)
        weights += (double)layers_place(&shape, l).inputs * layers_place(&shape, l).outputs;
    shape.pulls_inputs = true;
    p.parameters = draw(count, 0.125);
    p.gradient = draw(count, 0);
    p.x = draw_matrix(p.rows, shape.inputs);
    p.pull = draw_matrix(p.rows, shape.outputs);
    p.to = draw_matrix(p.rows, shape.inputs);
    setenv("COALESCED_ISA", isa, 1);
    if (layers_new(&p.layers, &shape, &error) == STATUS_OK &&
        layers_work_new(&p.work, p.layers, &error) == STATUS_OK) {
        measure(chains[c].name, isa, "load", 1, &p, chain_load, 0);
        measure(chains[c].name, isa, "act", p.rows, &p, chain_forward, 2 * weights);
        measure(chains[c].name, isa, "learn", p.rows, &p, chain_learn,
                4 * weights - 2 * (double)first.inputs * first.outputs);
        measure(chains[c].name, isa, "pull", p.rows, &p, chain_pull, 2 * weights);
    }
    layers_work_free(p.work);
    layers_free(p.layers);
    free(p.parameters);
    free(p.gradient);
    free(p.x.at);
    free(p.pull.at);
    free(p.to.at);
}

/* oneDNN computes on this thread alone once a chain of it is made. */
static void keep_to_one_thread(void)
{
    struct mlp_onednn *chain = NULL;
    struct error error;
    if (mlp_onednn_new(&chain, &(struct mlp_shape){4, 16, 2}, 1, &error) != STATUS_OK) {
        fprintf(stderr, "bench_dense: %s\n", error.text);
        exit(EXIT_FAILURE);
    }
    mlp_onednn_free(chain);
}

int main(int argc, char **argv)
{
    keep_to_one_thread();
    printf("policies of dense layers, tanh, with a value network; one thread; sgemm: oneDNN %s\n"
           "shape         set      what    rows  ns per row\n",
           mlp_onednn_version());
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; i < DENSE_ISAS; i++)
            if (argc < 2 || strcmp(argv[1], dense_isas[i]) == 0)
                measure_shape(s, dense_isas[i]);
    for (size_t c = 0; c < sizeof cells / sizeof *cells; c++)
        for (int i = 0; i < DENSE_ISAS; i++)
            if (argc < 2 || strcmp(argv[1], dense_isas[i]) == 0)
                measure_cell(c, dense_isas[i]);
    for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
        for (int i = 0; i < DENSE_ISAS; i++)
            if (argc < 2 || strcmp(argv[1], dense_isas[i]) == 0)
                measure_chain(c, dense_isas[i]);
    return EXIT_SUCCESS;
}
