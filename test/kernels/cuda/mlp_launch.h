/* The tutorial's policy as a captured launch, for tests and benchmarks: a problem's rows go in and its
 * actions come out. */
#ifndef TEST_KERNELS_CUDA_MLP_LAUNCH_H
#define TEST_KERNELS_CUDA_MLP_LAUNCH_H

#include "kernels/backend.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/values.h"

#include <stdlib.h>
#include <string.h>

struct mlp_launch {
    struct policy_launch_settings settings;
    struct policy_launch *launch;
    float *observations; // (rows_max, inputs), by place
    int32_t *keys;       // (rows_max, 3)
    int32_t *actions;    // (rows_max)
};

/* The problem's parameters, into the tensors that the launch reads. */
static inline enum status mlp_launch_load(struct mlp_launch *l, struct backend *gpu,
                                          const struct mlp_problem *problem, struct error *error)
{
    const float *from = problem->parameters;
    enum status status = STATUS_OK;
    for (int i = 0; i < 4 && status == STATUS_OK; i++) {
        struct policy_launch_layer *layer = &l->settings.layer[i / 2];
        struct tensor *to = i % 2 == 0 ? &layer->weight : &layer->bias;
        status = backend_upload(gpu, to, DTYPE_F32, from, error);
        from += shape_elements(&to->shape);
    }
    return status;
}

static inline enum status mlp_launch_open(struct mlp_launch *l, struct backend *gpu, struct arena *arena,
                                          const struct mlp_problem *problem, uint32_t rows_max, bool fixed,
                                          struct error *error)
{
    const struct mlp_shape shape = problem->shape;
    const struct shape weights[2] = {SHAPE2(shape.hidden, shape.inputs), SHAPE2(shape.actions, shape.hidden)};
    enum status status = STATUS_OK;
    *l = (struct mlp_launch){
        .settings = {.inputs = shape.inputs,
                     .layers = 2,
                     .layer = {{.activation = OP_RELU, .dropout = problem->dropout},
                               {.from = 1, .activation = OP_LINEAR, .result = POLICY_LAUNCH_ACTIONS}},
                     .seed = problem->seed,
                     .rows_max = rows_max,
                     .fixed = fixed},
        .observations = values_memory(rows_max, shape.inputs * sizeof(float)),
        .keys = values_memory(rows_max, 3 * sizeof(int32_t)),
        .actions = values_memory(rows_max, sizeof(int32_t))};
    for (int i = 0; i < 2 && status == STATUS_OK; i++) {
        struct policy_launch_layer *layer = &l->settings.layer[i];
        status = tensor_new(&layer->weight, arena, weights[i], DTYPE_F32, "weight", error);
        if (status == STATUS_OK)
            status = tensor_new(&layer->bias, arena, SHAPE1(weights[i].size[0]), DTYPE_F32, "bias", error);
    }
    if (status == STATUS_OK)
        status = mlp_launch_load(l, gpu, problem, error);
    return status == STATUS_OK ? gpu->ops->launch_new(gpu, &l->settings, &l->launch, error) : status;
}

static inline void mlp_launch_close(struct mlp_launch *l, struct backend *gpu)
{
    gpu->ops->launch_free(gpu, l->launch);
    free(l->observations);
    free(l->keys);
    free(l->actions);
}

/* Row i of the problem's batch to a place. */
static inline void mlp_launch_put(struct mlp_launch *l, const struct mlp_problem *problem, uint32_t i,
                                  uint32_t place)
{
    const uint32_t inputs = l->settings.inputs;
    const uint32_t key[3] = {problem->environment[i], problem->step[i], problem->episode};
    memcpy(l->observations + (size_t)place * inputs,
           problem->batch.observations + (size_t)problem->row[i] * inputs, inputs * sizeof(float));
    memcpy(l->keys + (size_t)place * 3, key, sizeof key);
}

static inline enum status mlp_launch_run(struct mlp_launch *l, struct backend *gpu, uint32_t rows,
                                         struct error *error)
{
    return gpu->ops->launch_run(gpu, l->launch, rows, l->observations, l->keys, (void *[]){l->actions},
                                error);
}

/* The first `count` rows of the batch act. */
static inline enum status mlp_launch_act(struct mlp_launch *l, struct backend *gpu,
                                         const struct mlp_problem *problem, uint32_t count,
                                         struct error *error)
{
    for (uint32_t i = 0; i < count; i++)
        mlp_launch_put(l, problem, i, i);
    const enum status status = mlp_launch_run(l, gpu, count, error);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        problem->batch.actions[problem->row[i]] = l->actions[i];
    return status;
}

#endif
