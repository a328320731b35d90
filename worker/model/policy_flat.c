/* A policy on the CPU without a backend: one flat array of parameters, the network's kernel over the rows,
 * one Adam (898 floats for CartPole). Nothing but kernels/policy and kernels/adam.h computes. */
#include "kernels/base/team.h"
#include "worker/model/policy_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- learning ---- */

struct policy_rows policy_chunk(const struct policy_rows *rows, uint32_t first)
{
    struct policy_rows chunk = *rows;
    const uint32_t left = rows->count - first;
    chunk.count = left < POLICY_CHUNK_ROWS ? left : POLICY_CHUNK_ROWS;
    chunk.row += first;
    return chunk;
}

/* Consecutive chunks that the team computes, each gradient into memory of its own. The gradients are then
 * added in the chunks' order, as one thread adds them. */
struct wave {
    struct policy *policy;
    const struct policy_rows *rows;
    const float *coefficient;
    uint32_t first, chunks; // its first row
    double loss[POLICY_WAVE_CHUNKS];
};

static void wave_compute(void *context, uint32_t chunk)
{
    struct wave *wave = context;
    struct policy *policy = wave->policy;
    const uint32_t first = wave->first + chunk * POLICY_CHUNK_ROWS;
    const struct policy_rows rows = policy_chunk(wave->rows, first);
    float *gradient = policy->wave + chunk * policy->count;
    memset(gradient, 0, policy->count * sizeof *gradient);
    wave->loss[chunk] = policy->flat->gradient(policy, &rows, wave->coefficient + first, gradient);
}

enum { WAVE_PIECE = 256 }; // parameters that one thread adds

struct wave_sum {
    const struct policy *policy;
    uint32_t chunks;
    bool adds;
};

static void wave_add(void *context, uint32_t piece)
{
    const struct wave_sum *sum = context;
    const struct policy *policy = sum->policy;
    const size_t begin = (size_t)piece * WAVE_PIECE, left = policy->count - begin;
    const size_t end = begin + (left < WAVE_PIECE ? left : WAVE_PIECE);
    if (!sum->adds)
        memset(policy->gradient + begin, 0, (end - begin) * sizeof *policy->gradient);
    for (uint32_t chunk = 0; chunk < sum->chunks; chunk++) {
        const float *gradient = policy->wave + chunk * policy->count;
        for (size_t i = begin; i < end; i++)
            policy->gradient[i] += gradient[i];
    }
}

void policy_flat_add_wave(struct policy *policy, uint32_t chunks, bool adds)
{
    struct wave_sum sum = {.policy = policy, .chunks = chunks, .adds = adds};
    team_run(policy->team, (uint32_t)((policy->count + WAVE_PIECE - 1) / WAVE_PIECE), wave_add, &sum);
}

/* As pass_of_thread, by the team. */
static double pass_of_team(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                           policy_progress *progress, void *context)
{
    struct wave wave = {.policy = policy, .rows = rows, .coefficient = coefficient};
    double loss = 0;
    for (; wave.first < rows->count; wave.first += wave.chunks * POLICY_CHUNK_ROWS) {
        const uint32_t chunks = (rows->count - wave.first + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
        wave.chunks = chunks < POLICY_WAVE_CHUNKS ? chunks : POLICY_WAVE_CHUNKS;
        team_run(policy->team, wave.chunks, wave_compute, &wave);
        policy_flat_add_wave(policy, wave.chunks, true);
        for (uint32_t chunk = 0; chunk < wave.chunks; chunk++)
            loss += wave.loss[chunk];
        if (progress != NULL)
            progress(context);
    }
    return loss;
}

/* L of all rows, chunk by chunk; adds its gradient to policy->gradient. */
static double pass_of_thread(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                             policy_progress *progress, void *context)
{
    double loss = 0;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        loss += policy->flat->gradient(policy, &chunk, coefficient + first, policy->gradient);
        if (progress != NULL)
            progress(context);
    }
    return loss;
}

/* L of all rows; its gradient goes into policy->gradient. */
static double pass_over_rows(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                             policy_progress *progress, void *context)
{
    const bool alone = policy->wave == NULL || rows->count < 2 * POLICY_THREAD_ROWS;
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    return (alone ? pass_of_thread : pass_of_team)(policy, rows, coefficient, progress, context);
}

static bool all_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* The name of the first parameter whose share of `array`, which is laid out like the parameters, holds a NaN
 * or an infinity; NULL when there is none. */
static const char *first_not_finite(const struct policy *policy, const float *array)
{
    for (uint32_t i = 0; i < policy->parameter_count; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        if (!all_finite(array, count))
            return policy->parameters[i].name;
        array += count;
    }
    return NULL;
}

/* Names the first tensor that holds a NaN or an infinity: observations, returns, then parameters. */
enum status policy_flat_explain(const struct policy *policy, const struct policy_rows *rows,
                                const float *coefficient, double loss, struct error *error)
{
    static const char begin[] = "the first tensor that holds a NaN or an infinity is the";
    const float *observations = rows->observations;
    for (uint32_t i = 0; i < rows->count && !policy->bytes; i++)
        if (!all_finite(observations + (size_t)rows->row[i] * policy->inputs, policy->inputs))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s observations, row %u of %u", loss,
                             begin, i, rows->count);
    for (uint32_t i = 0; i < rows->count && coefficient != NULL; i++)
        if (!isfinite(coefficient[i]))
            return error_set(error, STATUS_INTERNAL, "the loss is %g; %s returns, row %u of %u", loss, begin,
                             i, rows->count);
    const char *parameter = first_not_finite(policy, policy->values);
    if (parameter != NULL)
        return error_set(error, STATUS_INTERNAL, "the loss is %g; %s parameter %s", loss, begin, parameter);
    return error_set(error, STATUS_INTERNAL, "the loss is %g; %s log-probabilities", loss, begin);
}

enum status policy_flat_check_gradient(const struct policy *policy, struct error *error)
{
    const char *lost = first_not_finite(policy, policy->gradient);
    return lost == NULL
               ? STATUS_OK
               : error_set(error, STATUS_INTERNAL, "the gradient of %s holds a NaN or an infinity", lost);
}

/* ---- the step ---- */

struct flat_step {
    struct policy *policy;
    struct adam_factors factors;
    adam_lanes_update *update;
    float scale; // of the gradient; 1: as it is
};

/* Where parameter number `parameter` begins in the flat arrays. */
static size_t parameter_begin(const struct policy *policy, uint32_t parameter)
{
    size_t begin = 0;
    for (uint32_t i = 0; i < parameter; i++)
        begin += shape_elements(&policy->parameters[i].shape);
    return begin;
}

/* Piece by piece, so that Adam finds the scaled gradient in the nearest cache. */
static void step_parameter(void *context, uint32_t parameter)
{
    enum { PIECE = 2048 };
    const struct flat_step *step = context;
    struct policy *policy = step->policy;
    const float scale = step->scale;
    size_t at = parameter_begin(policy, parameter);
    const size_t end = at + shape_elements(&policy->parameters[parameter].shape);
    for (size_t count; at < end; at += count) {
        float *gradient = policy->gradient + at;
        count = end - at < PIECE ? end - at : PIECE;
        if (scale < 1)
            for (size_t i = 0; i < count; i++)
                gradient[i] *= scale;
        step->update(&step->factors, policy->values + at, policy->first + at, policy->second + at, gradient,
                     count);
    }
    if (policy->flat->load_parameter != NULL)
        policy->flat->load_parameter(policy, parameter);
}

void policy_flat_step(struct policy *policy, double lr, float scale)
{
    struct flat_step step = {.policy = policy, .update = adam_choose(), .scale = scale};
    struct adam_settings adam = policy->adam;
    adam.lr = lr;
    adam_factors(&adam, ++policy->steps, &step.factors);
    if (policy->team != NULL)
        team_run(policy->team, policy->parameter_count, step_parameter, &step);
    for (uint32_t i = 0; policy->team == NULL && i < policy->parameter_count; i++)
        step_parameter(&step, i);
    if (policy->flat->load_parameter == NULL)
        policy->flat->load(policy);
}

enum status policy_flat_learn(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                              uint32_t episode, double *loss, policy_progress *progress, void *context,
                              struct error *error)
{
    (void)episode;
    const double found = pass_over_rows(policy, rows, coefficient, progress, context);
    if (!isfinite(found))
        return policy_flat_explain(policy, rows, coefficient, found, error);
    const enum status status = policy_flat_check_gradient(policy, error);
    if (status != STATUS_OK)
        return status;
    policy_flat_step(policy, policy->adam.lr, 1);
    *loss = found;
    return STATUS_OK;
}

double policy_flat_deviation(const struct policy *policy)
{
    const size_t count = shape_elements(&policy->parameters[0].shape);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += exp((double)policy->values[i]);
    return sum / (double)count;
}

/* ---- saving and restoring ---- */

/* Copies an array of every parameter, between the policy's flat array `flat` and *values. */
static void copy_array(const struct policy *policy, float *flat, const struct policy_values *values,
                       enum policy_array array, bool into_values)
{
    for (uint32_t i = 0; i < policy->parameter_count; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        float *copy = policy_values_at(values, i, array);
        memcpy(into_values ? copy : flat, into_values ? flat : copy, count * sizeof *flat);
        flat += count;
    }
}

static void copy_arrays(const struct policy *policy, const struct policy_values *values, bool into_values)
{
    copy_array(policy, policy->values, values, POLICY_VALUES, into_values);
    copy_array(policy, policy->first, values, POLICY_FIRST_MOMENT, into_values);
    copy_array(policy, policy->second, values, POLICY_SECOND_MOMENT, into_values);
}

enum status policy_flat_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    (void)error;
    copy_arrays(policy, values, true);
    policy_normalizer_save(policy, values);
    values->steps = policy->steps;
    return STATUS_OK;
}

enum status policy_flat_restore(struct policy *policy, const struct policy_values *values,
                                struct error *error)
{
    (void)error;
    copy_arrays(policy, values, false);
    policy_normalizer_restore(policy, values);
    policy->steps = values->steps;
    policy->flat->load(policy);
    return STATUS_OK;
}

/* ---- opening ---- */

/* Of a policy with values: the pieces of a minibatch are its networks, chunk after chunk, as long as there
 * are no more threads than networks; else a wave of chunks of each. */
static uint32_t plan_wave(struct policy *policy, const struct policy_config *config)
{
    const uint32_t rows =
        config->minibatch_rows < config->rows_max ? config->minibatch_rows : config->rows_max;
    const uint32_t chunks = (rows + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
    const uint32_t pieces = chunks * policy->networks;
    const uint32_t threads = config->threads < pieces ? config->threads : pieces;
    if (threads > policy->networks) {
        const uint32_t wave = 2 * (threads + policy->networks - 1) / policy->networks;
        policy->wave_chunks = wave < POLICY_WAVE_CHUNKS ? wave : POLICY_WAVE_CHUNKS;
    }
    return threads;
}

/* No more threads than there is work for. */
static enum status open_team(struct policy *policy, const struct policy_config *config, struct error *error)
{
    const uint32_t most = config->rows_max / POLICY_THREAD_ROWS;
    uint32_t threads = config->threads < most ? config->threads : most;
    if (config->has_value)
        threads = plan_wave(policy, config);
    else if (threads > 1 && policy->flat->any_thread)
        policy->wave_chunks = POLICY_WAVE_CHUNKS;
    else
        threads = 1;
    if (policy->wave_chunks > 0) {
        policy->wave = calloc(policy->wave_chunks * policy->count, sizeof *policy->wave);
        if (policy->wave == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for the gradients of %u threads", threads);
    }
    return threads < 2 ? STATUS_OK : team_new(&policy->team, threads, error);
}

enum status policy_flat_open(struct policy *policy, const struct policy_config *config,
                             const struct policy_flat *flat, struct error *error)
{
    size_t count = 0;
    const enum status status = adam_check(&config->adam, error);
    if (status != STATUS_OK)
        return status;
    policy->parameter_count = policy_parameters(policy->parameters, config);
    for (uint32_t i = 0; i < policy->parameter_count; i++)
        count += shape_elements(&policy->parameters[i].shape);
    assert(count > 0);
    policy->values = calloc(4 * count, sizeof *policy->values);
    if (policy->values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", count);
    policy->flat = flat;
    policy->adam = config->adam;
    policy->networks = config->has_value && !config->shared_value ? 2 : 1;
    policy->count = count;
    policy->gradient = policy->values + count;
    policy->first = policy->values + 2 * count;
    policy->second = policy->values + 3 * count;
    if (config->has_value && surrogate_new(&policy->surrogate, error) != STATUS_OK)
        return error->status;
    return open_team(policy, config, error);
}

void policy_flat_close(struct policy *policy)
{
    team_free(policy->team);
    surrogate_free(policy->surrogate);
    free(policy->wave);
    free(policy->values);
}
