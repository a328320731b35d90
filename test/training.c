/* Trains a model and compares it with a record. */
#include "test/training.h"

#include "kernels/params/gradients.h"
#include "test/kernels/params/reorder.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/ref.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void training_ok(enum status status, const struct error *error)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), error->text);
}

static void *training_memory(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Only a GPU may be missing, never the CPU plug-in. The two math threads sleep while they wait for each
 * other: on a busy machine spinning takes twice as long. */
struct backend *training_backend(int number)
{
    static const char *const names[TRAINING_BACKENDS] = {"onednn", "cuda", "ref"};
    const struct backend_settings settings = {.threads = 2};
    const char *only = getenv("TEST_BACKEND");
    struct backend *backend = NULL;
    struct error error = {0};
    setenv("OMP_WAIT_POLICY", "passive", 0);
    if (only != NULL && strcmp(names[number], only) != 0)
        return NULL;
    enum status status = number == TRAINING_PLUGINS
                             ? backend_open(&backend, &ref_ops, &settings, &error)
                             : backend_load(&backend, names[number], &settings, &error);
    if (number == 1 && only == NULL && status == STATUS_UNAVAILABLE) {
        printf("not run on a GPU: %s\n", error.text);
        return NULL;
    }
    training_ok(status, &error);
    return backend;
}

/* ---- begin and end ---- */

void training_init(struct training *training, struct backend *backend, uint32_t count)
{
    struct error error = {0};
    ck_assert_uint_le(count, TRAINING_PARAMS_MAX);
    *training = (struct training){.backend = backend, .params_count = count};
    for (uint32_t i = 0; i < count; i++)
        training_ok(params_new(&training->params[i], backend, &error), &error);
}

void training_build(struct training *training, const struct optimizer_settings *settings)
{
    struct error error = {0};
    for (uint32_t i = 0; i < training->params_count; i++) {
        struct params *params = training->params[i];
        training_ok(params_build(params, 1, &error), &error);
        training_ok(gradients_new(&training->gradients[i], params, &error), &error);
        training_ok(optimizer_new(&training->optimizer[i], settings, params, &error), &error);
    }
}

void training_take(struct training *training, uint32_t which, uint32_t first, uint32_t end)
{
    struct params *params = training->params[which];
    for (uint32_t i = first; i < end && i < params_count(params); i++) {
        struct parameter *parameter = params_at(params, i);
        if (parameter->kind != PARAMETER_TRAINED)
            continue;
        ck_assert_uint_lt(training->count, TRAINING_PARAMETERS_MAX);
        training->before[training->count] =
            training_memory(shape_elements(&parameter->tensor.shape), sizeof(double));
        training->parameter[training->count++] = parameter;
    }
}

void training_fini(struct training *training)
{
    for (uint32_t i = 0; i < training->count; i++)
        free(training->before[i]);
    for (uint32_t i = 0; i < training->params_count; i++) {
        optimizer_free(training->optimizer[i]);
        gradients_free(training->gradients[i]);
        params_free(training->params[i]);
    }
}

/* ---- numbers ---- */

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

float training_resnet_scale(const struct parameter *parameter, const char *last, bool *constant)
{
    const struct shape *shape = &parameter->tensor.shape;
    if (shape->rank > 1)
        return sqrtf(6.0f / ((float)shape_elements(shape) / (float)shape->size[0]));
    if (ends_with(parameter->name, "bias"))
        return 3;
    *constant = true;
    return ends_with(parameter->name, last) ? 0.1f : 1.0f;
}

float *training_numbers(uint64_t *state, size_t count, float scale)
{
    float *values = training_memory(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = mlp_problem_number(state) * scale;
    return values;
}

int32_t *training_indices(uint64_t *state, size_t count, uint32_t limit)
{
    int32_t *values = training_memory(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (int32_t)(((double)mlp_problem_number(state) + 1) / 2 * limit);
    return values;
}

void training_draw(struct training *training, uint64_t *state, training_scale *scale)
{
    struct error error = {0};
    for (uint32_t i = 0; i < training->count; i++) {
        struct parameter *parameter = training->parameter[i];
        const size_t count = shape_elements(&parameter->tensor.shape);
        bool constant = false;
        const float factor = scale(parameter, &constant);
        float *values;
        if (constant) {
            values = training_memory(count, sizeof *values);
            for (size_t k = 0; k < count; k++)
                values[k] = factor;
        } else {
            values = training_numbers(state, count, factor);
        }
        training_ok(params_write(parameter->params, parameter, DTYPE_F32, values, &error), &error);
        free(values);
    }
}

/* ---- against the record ---- */

static uint32_t params_of(const struct training *training, const struct parameter *parameter)
{
    uint32_t i = 0;
    while (training->params[i] != parameter->params)
        i++;
    return i;
}

/* Compares the gradients, and keeps the parameters' values for compare_changes. */
static void compare_gradients(struct training *training, struct golden *golden, uint32_t step)
{
    struct error error = {0};
    for (uint32_t i = 0; i < training->count; i++) {
        const struct parameter *parameter = training->parameter[i];
        const size_t count = shape_elements(&parameter->tensor.shape);
        struct gradients *gradients = training->gradients[params_of(training, parameter)];
        training_ok(gradients_read(gradients, parameter, DTYPE_F64, training->before[i], &error), &error);
        golden_check(golden, step, GOLDEN_GRADIENT, parameter->name, training->before[i], count);
        training_ok(params_read(parameter->params, parameter, DTYPE_F64, training->before[i], &error),
                    &error);
    }
}

static void compare_changes(struct training *training, struct golden *golden, uint32_t step)
{
    struct error error = {0};
    for (uint32_t i = 0; i < training->count; i++) {
        const struct parameter *parameter = training->parameter[i];
        const size_t count = shape_elements(&parameter->tensor.shape);
        double *change = training_memory(count, sizeof *change);
        training_ok(params_read(parameter->params, parameter, DTYPE_F64, change, &error), &error);
        for (size_t k = 0; k < count; k++)
            change[k] -= training->before[i][k];
        golden_check(golden, step, GOLDEN_UPDATE, parameter->name, change, count);
        free(change);
    }
}

void training_step(struct training *training, struct golden *golden, uint32_t step, bool update)
{
    struct error error = {0};
    compare_gradients(training, golden, step);
    for (uint32_t i = 0; i < training->params_count; i++) {
        if (update)
            training_ok(optimizer_step(training->optimizer[i], training->gradients[i], &error), &error);
        struct gradients *const parallels[] = {training->gradients[i],
                                               optimizer_moment(training->optimizer[i], 0),
                                               optimizer_moment(training->optimizer[i], 1)};
        reorder_params(training->params[i], parallels, 3);
    }
    compare_changes(training, golden, step);
}

void training_expect_unmoved(const struct training *training, const struct golden *golden, uint32_t steps)
{
    ck_assert_uint_eq(golden_violations(golden, 1, GOLDEN_OUTPUT), 0);
    ck_assert_uint_eq(golden_violations(golden, 1, GOLDEN_LOSS), 0);
    ck_assert_uint_eq(golden_violations(golden, 1, GOLDEN_GRADIENT), 0);
    for (uint32_t step = 1; step <= steps; step++) {
        ck_assert_uint_eq(golden_violations(golden, step, GOLDEN_LOSS), step > 1);
        ck_assert_uint_ge(golden_violations(golden, step, GOLDEN_UPDATE), training->count);
    }
}

void training_statistics(struct training *training, struct golden *golden, uint32_t step)
{
    struct params *params = training->params[0];
    struct error error = {0};
    for (uint32_t i = 0; i < params_count(params); i++) {
        const struct parameter *parameter = params_at(params, i);
        if (parameter->kind != PARAMETER_BUFFER)
            continue;
        const size_t count = shape_elements(&parameter->tensor.shape);
        double *values = training_memory(count, sizeof *values);
        training_ok(params_read(params, parameter, DTYPE_F64, values, &error), &error);
        golden_check(golden, step, GOLDEN_STATISTIC, parameter->name, values, count);
        free(values);
    }
}

void training_output(struct tape *tape, struct golden *golden, uint32_t step, const char *name,
                     const struct variable *output)
{
    struct error error = {0};
    training_ok(tape_status(tape, &error), &error);
    const size_t count = shape_elements(&variable_tensor(output)->shape);
    double *values = training_memory(count, sizeof *values);
    training_ok(tape_read(tape, output, DTYPE_F64, values), &error);
    golden_check(golden, step, GOLDEN_OUTPUT, name, values, count);
    free(values);
}
