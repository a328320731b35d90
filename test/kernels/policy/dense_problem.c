/* Problems for the general policy's kernels. Linked into the tests and the benchmark that ask for it. */
#include "test/kernels/policy/dense_problem.h"

#include "test/kernels/policy/load_parameters.h"
#include "test/kernels/policy/mlp_problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void fill_parameters(struct dense_problem *problem, uint64_t *state)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t parameters = dense_parameters(&problem->shape, list);
    problem->count = list[parameters - 1].offset + list[parameters - 1].count;
    problem->parameters = numbers(state, problem->count, 1);
    problem->exact = zeroed(problem->count, sizeof *problem->exact);
    for (uint32_t p = 0; p < parameters; p++) {
        const float bound = list[p].kind == DENSE_WEIGHT ? 2 / sqrtf((float)list[p].inputs)
                            : list[p].kind == DENSE_BIAS ? 0.2f
                                                         : 0.7f;
        for (size_t e = list[p].offset; e < list[p].offset + list[p].count; e++)
            problem->exact[e] = (double)(problem->parameters[e] *= bound);
    }
}

/* A row's mask, with at least one choice of each component, and an action that it allows. */
static void fill_choices(struct dense_problem *problem, uint32_t row, bool masked, uint64_t *state)
{
    const struct dense_shape *shape = &problem->shape;
    uint8_t *mask = problem->mask + (size_t)row * problem->outputs;
    for (uint32_t c = 0; c < shape->components; mask += shape->choices[c++]) {
        const uint32_t choices = shape->choices[c];
        for (uint32_t a = 0; a < choices; a++)
            mask[a] = !masked || mlp_problem_number(state) < 0;
        const uint32_t first = (uint32_t)((mlp_problem_number(state) + 1) / 2 * (float)choices);
        mask[first] = 1;
        problem->batch.choices[(size_t)row * shape->components + c] = (int32_t)first;
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

static void fill_rows(struct dense_problem *problem, bool masked, uint64_t *state)
{
    const struct dense_shape *shape = &problem->shape;
    const uint32_t rows = problem->rows, stride = coprime_stride(rows);
    problem->observations = numbers(state, (size_t)rows * shape->inputs, 1);
    problem->row = zeroed(rows, sizeof *problem->row);
    problem->environment = zeroed(rows, sizeof *problem->environment);
    problem->step = zeroed(rows, sizeof *problem->step);
    problem->mask = zeroed((size_t)rows * problem->outputs, 1);
    problem->batch = (struct dense_batch){
        .count = rows,
        .row = problem->row,
        .observations = problem->observations,
        .mask = masked ? problem->mask : NULL,
        .choices = zeroed((size_t)rows * shape->components, sizeof(int32_t)),
        .actions = numbers(state, (size_t)rows * shape->components, 2),
    };
    for (uint32_t i = 0; i < rows; i++) {
        problem->row[i] = (uint32_t)((uint64_t)i * stride % rows);
        problem->environment[i] = i % 5;
        problem->step[i] = i / 5;
        if (!shape->gaussian)
            fill_choices(problem, i, masked, state);
    }
}

void dense_problem_init(struct dense_problem *problem, const struct dense_case *one, uint64_t seed)
{
    uint64_t state = seed;
    *problem =
        (struct dense_problem){.shape = one->shape, .rows = one->rows, .outputs = dense_outputs(&one->shape)};
    fill_parameters(problem, &state);
    fill_rows(problem, one->masked, &state);
    problem->draw = (struct dense_draw){.seed = seed * 0x9e3779b97f4a7c15u,
                                        .episode = 3,
                                        .environment = problem->environment,
                                        .step = problem->step,
                                        .noise_steps = 4};
    problem->log_probability = zeroed(one->rows, sizeof(float));
    problem->entropy = zeroed(one->rows, sizeof(float));
    problem->value = zeroed(one->rows, sizeof(float));
    for (int p = 0; p < 3; p++)
        problem->pull[p] = numbers(&state, one->rows, 1);
    problem->gradient = zeroed(problem->count, sizeof(float));
}

void dense_problem_fini(struct dense_problem *problem)
{
    free(problem->parameters);
    free(problem->exact);
    free(problem->row);
    free(problem->observations);
    free(problem->mask);
    free(problem->environment);
    free(problem->step);
    free(problem->batch.choices);
    free(problem->batch.actions);
    free(problem->log_probability);
    free(problem->entropy);
    free(problem->value);
    for (int p = 0; p < 3; p++)
        free(problem->pull[p]);
    free(problem->gradient);
}

static void stop_on(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "%s\n", error->text);
    exit(EXIT_FAILURE);
}

bool dense_problem_load(struct dense_problem *problem, const char *isa)
{
    struct error error = {0};
    if (isa != NULL)
        setenv("COALESCED_ISA", isa, 1);
    else
        unsetenv("COALESCED_ISA");
    enum status status = mlp_check_isa(&error);
    if (status == STATUS_OK)
        status = dense_new(&problem->dense, &problem->shape, &error);
    unsetenv("COALESCED_ISA");
    if (status == STATUS_UNAVAILABLE && isa != NULL)
        return false;
    stop_on(status, &error);
    stop_on(dense_work_new(&problem->work, problem->dense, &error), &error);
    load_dense(problem->dense, &problem->shape, problem->parameters);
    return true;
}

void dense_problem_unload(struct dense_problem *problem)
{
    dense_work_free(problem->work);
    dense_free(problem->dense);
}

const char *const dense_isas[DENSE_ISAS] = {"avx512", "avx2", "baseline"};

bool dense_problem_open(struct dense_problem *problem, const struct dense_case *cases, int number)
{
    dense_problem_init(problem, &cases[number / DENSE_ISAS], (uint64_t)(number / DENSE_ISAS) + 1);
    if (dense_problem_load(problem, dense_isas[number % DENSE_ISAS]))
        return true;
    dense_problem_fini(problem);
    return false;
}

void dense_problem_close(struct dense_problem *problem)
{
    dense_problem_unload(problem);
    dense_problem_fini(problem);
}

size_t dense_problem_actions(const struct dense_problem *problem, const void **at)
{
    const size_t numbers_of_all = (size_t)problem->rows * problem->shape.components;
    *at = problem->shape.gaussian ? (const void *)problem->batch.actions : problem->batch.choices;
    return numbers_of_all * (problem->shape.gaussian ? sizeof(float) : sizeof(int32_t));
}

struct dense_results dense_problem_results(struct dense_problem *problem)
{
    return (struct dense_results){.log_probability = problem->log_probability,
                                  .entropy = problem->entropy,
                                  .value = problem->shape.value ? problem->value : NULL};
}

struct dense_pulls dense_problem_pulls(const struct dense_problem *problem, uint32_t first)
{
    return (struct dense_pulls){.log_probability = problem->pull[0] + first,
                                .entropy = problem->pull[1] + first,
                                .value = problem->shape.value ? problem->pull[2] + first : NULL};
}

struct dense_batch dense_problem_piece(const struct dense_problem *problem, uint32_t first, uint32_t count)
{
    struct dense_batch piece = problem->batch;
    const uint32_t left = piece.count - first;
    piece.row += first;
    piece.count = count < left ? count : left;
    return piece;
}

static float *behind(float *values, uint32_t first)
{
    return values == NULL ? NULL : values + first;
}

void dense_problem_act_rows(const struct dense *dense, struct dense_work *work,
                            const struct dense_batch *batch, const struct dense_draw *draw,
                            const struct dense_results *results)
{
    for (uint32_t first = 0; first < batch->count; first += DENSE_CHUNK_ROWS) {
        struct dense_batch chunk = *batch;
        struct dense_draw own = {0};
        chunk.row += first;
        chunk.count = batch->count - first < DENSE_CHUNK_ROWS ? batch->count - first : DENSE_CHUNK_ROWS;
        if (draw != NULL) {
            own = *draw;
            own.environment += first;
            own.step += first;
        }
        dense_act(dense, work, &chunk, draw != NULL ? &own : NULL,
                  &(struct dense_results){.log_probability = behind(results->log_probability, first),
                                          .value = behind(results->value, first)});
    }
}

void dense_problem_act(struct dense_problem *problem)
{
    const struct dense_results results = dense_problem_results(problem);
    dense_problem_act_rows(problem->dense, problem->work, &problem->batch, &problem->draw, &results);
}

void dense_problem_learn(struct dense_problem *problem)
{
    for (uint32_t first = 0; first < problem->rows; first += DENSE_CHUNK_ROWS) {
        const struct dense_batch chunk = dense_problem_piece(problem, first, DENSE_CHUNK_ROWS);
        const struct dense_pulls pulls = dense_problem_pulls(problem, first);
        const struct dense_results results = {problem->log_probability + first, problem->entropy + first,
                                              problem->shape.value ? problem->value + first : NULL};
        dense_evaluate(problem->dense, problem->work, &chunk, &results);
        dense_gradient(problem->dense, problem->work, &pulls, problem->gradient, first > 0);
    }
}
