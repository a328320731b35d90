/* Problems for the policy's kernels. Linked into the tests and the benchmark that ask for it. */
#include "test/kernels/policy/mlp_problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

float mlp_problem_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*state >> 40) - (1 << 23)) * 0x1p-23f;
}

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count == 0 ? 1 : count, size);
    if (memory == NULL) {
        fprintf(stderr, "no memory for a test's problem\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static float *numbers(uint64_t *state, size_t count, float bound)
{
    float *values = zeroed(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = bound * mlp_problem_number(state);
    return values;
}

static void fill_parameters(struct mlp_problem *problem, uint64_t *state)
{
    const struct mlp_shape *shape = &problem->shape;
    const size_t first_layer = (size_t)shape->hidden * (shape->inputs + 1);
    const float bound1 = 1 / sqrtf((float)shape->inputs), bound2 = 1 / sqrtf((float)shape->hidden);
    problem->count = first_layer + (size_t)shape->actions * (shape->hidden + 1);
    problem->parameters = numbers(state, problem->count, 1);
    problem->exact = zeroed(problem->count, sizeof *problem->exact);
    for (size_t i = 0; i < problem->count; i++) {
        problem->parameters[i] *= i < first_layer ? bound1 : bound2;
        problem->exact[i] = (double)problem->parameters[i];
    }
}

/* A stride that shares no factor with `rows`, so that i * stride mod rows visits every row. */
static uint32_t coprime_stride(uint32_t rows)
{
    for (uint32_t stride = rows / 2 + 1;; stride++) {
        uint32_t a = rows, b = stride;
        while (b != 0) {
            uint32_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return stride;
    }
}

void mlp_problem_init(struct mlp_problem *problem, struct mlp_shape shape, double dropout, uint32_t rows,
                      uint64_t seed)
{
    uint64_t state = seed;
    *problem = (struct mlp_problem){
        .shape = shape, .dropout = dropout, .seed = seed * 0x9e3779b97f4a7c15u, .episode = 3, .rows = rows};
    fill_parameters(problem, &state);
    problem->row = zeroed(rows, sizeof *problem->row);
    problem->environment = zeroed(rows, sizeof *problem->environment);
    problem->step = zeroed(rows, sizeof *problem->step);
    for (uint32_t i = 0, stride = coprime_stride(rows); i < rows; i++) {
        problem->row[i] = (uint32_t)((uint64_t)i * stride % rows);
        problem->environment[i] = i % 5;
        problem->step[i] = i / 5;
    }
    problem->batch =
        (struct mlp_batch){.count = rows,
                           .row = problem->row,
                           .observations = numbers(&state, (size_t)rows * shape.inputs, 1),
                           .masks = zeroed((size_t)rows * mlp_mask_words(&shape), sizeof(uint16_t)),
                           .actions = zeroed(rows, sizeof(int32_t))};
    problem->coefficient = numbers(&state, rows, 2);
    problem->probabilities = zeroed((size_t)rows * shape.actions, sizeof(float));
    problem->gradient = zeroed(problem->count, sizeof(float));
}

void mlp_problem_fini(struct mlp_problem *problem)
{
    free(problem->parameters);
    free(problem->exact);
    free(problem->row);
    free(problem->environment);
    free(problem->step);
    free((void *)(uintptr_t)problem->batch.observations);
    free(problem->batch.masks);
    free(problem->batch.actions);
    free(problem->coefficient);
    free(problem->probabilities);
    free(problem->gradient);
}

struct mlp *mlp_problem_load(const struct mlp_problem *problem, const char *isa)
{
    struct mlp *mlp = NULL;
    struct error error = {0};
    if (isa != NULL)
        setenv("COALESCED_ISA", isa, 1);
    else
        unsetenv("COALESCED_ISA");
    enum status status = mlp_check_isa(&error);
    if (status == STATUS_OK)
        status = mlp_new(&mlp, &problem->shape, problem->dropout, &error);
    unsetenv("COALESCED_ISA");
    if (status == STATUS_UNAVAILABLE && isa != NULL)
        return NULL;
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(EXIT_FAILURE);
    }
    mlp_load(mlp, problem->parameters);
    return mlp;
}

const char *const mlp_isas[MLP_ISAS] = {"avx512", "avx2", "baseline"};

bool mlp_case_open(const struct mlp_case *cases, int number, uint64_t seed, struct mlp_problem *problem,
                   struct mlp **mlp)
{
    const struct mlp_case *one = &cases[number / MLP_ISAS];
    mlp_problem_init(problem, one->shape, one->dropout, one->rows, seed + (uint64_t)number / MLP_ISAS);
    *mlp = mlp_problem_load(problem, mlp_isas[number % MLP_ISAS]);
    if (*mlp == NULL)
        mlp_problem_fini(problem);
    return *mlp != NULL;
}

void mlp_case_close(struct mlp_problem *problem, struct mlp *mlp)
{
    mlp_free(mlp);
    mlp_problem_fini(problem);
}

void mlp_problem_act(struct mlp_problem *problem, const struct mlp *mlp)
{
    mlp_act(mlp, &problem->batch, problem->seed, problem->episode, problem->environment, problem->step,
            problem->probabilities);
}

double mlp_problem_learn(struct mlp_problem *problem, const struct mlp *mlp)
{
    double loss = 0;
    memset(problem->gradient, 0, problem->count * sizeof *problem->gradient);
    for (uint32_t first = 0; first < problem->rows; first += MLP_CHUNK_ROWS) {
        struct mlp_batch chunk = problem->batch;
        uint32_t left = problem->rows - first;
        chunk.count = left < MLP_CHUNK_ROWS ? left : MLP_CHUNK_ROWS;
        chunk.row += first;
        loss += mlp_gradient(mlp, &chunk, problem->coefficient + first, problem->gradient);
    }
    return loss;
}
