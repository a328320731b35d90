/* A policy on the CPU without a backend: one flat array of parameters, a network's kernel over the rows, the
 * steps of REINFORCE and of PPO, one Adam (898 floats for CartPole).
 *
 * Rows are learned from in chunks. Each chunk's gradient is summed by itself, and the chunks' sums are added
 * in their order: the same bits whatever thread computes a chunk. */
#include "worker/model/policy_flat.h"

#include "kernels/base/team.h"
#include "kernels/norm.h"
#include "worker/environment/environment_spec.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the gradient of all rows: REINFORCE ---- */

/* Consecutive chunks that the team computes, each gradient into memory of its own. The gradients are then
 * added in the chunks' order, as one thread adds them. */
struct wave {
    struct policy_flat *policy;
    const struct policy_rows *rows;
    const float *coefficient;
    uint32_t first, chunks; // its first row
    double loss[POLICY_WAVE_CHUNKS];
};

static void wave_compute(void *context, uint32_t chunk)
{
    struct wave *wave = context;
    struct policy_flat *policy = wave->policy;
    const uint32_t first = wave->first + chunk * POLICY_CHUNK_ROWS;
    const struct policy_rows rows = policy_chunk(wave->rows, first);
    float *gradient = policy->wave + chunk * policy->count;
    memset(gradient, 0, policy->count * sizeof *gradient);
    wave->loss[chunk] = policy->ops->gradient(policy->network, &rows, wave->coefficient + first, gradient);
}

enum { WAVE_PIECE = 256 }; // parameters that one thread adds

struct wave_sum {
    const struct policy_flat *policy;
    uint32_t chunks;
    bool adds;
};

static void wave_add(void *context, uint32_t piece)
{
    const struct wave_sum *sum = context;
    const struct policy_flat *policy = sum->policy;
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

/* Adds the gradients of the wave's first `chunks` chunks, in their order, to policy->gradient, or puts their
 * sum there. */
static void add_wave(struct policy_flat *policy, uint32_t chunks, bool adds)
{
    struct wave_sum sum = {.policy = policy, .chunks = chunks, .adds = adds};
    team_run(policy->team, (uint32_t)((policy->count + WAVE_PIECE - 1) / WAVE_PIECE), wave_add, &sum);
}

/* As pass_of_thread, by the team. */
static double pass_of_team(struct policy_flat *policy, const struct policy_rows *rows,
                           const float *coefficient, policy_progress *progress, void *context)
{
    struct wave wave = {.policy = policy, .rows = rows, .coefficient = coefficient};
    double loss = 0;
    for (; wave.first < rows->count; wave.first += wave.chunks * POLICY_CHUNK_ROWS) {
        const uint32_t chunks = (rows->count - wave.first + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
        wave.chunks = chunks < POLICY_WAVE_CHUNKS ? chunks : POLICY_WAVE_CHUNKS;
        team_run(policy->team, wave.chunks, wave_compute, &wave);
        add_wave(policy, wave.chunks, true);
        for (uint32_t chunk = 0; chunk < wave.chunks; chunk++)
            loss += wave.loss[chunk];
        if (progress != NULL)
            progress(context);
    }
    return loss;
}

/* L of all rows, chunk by chunk; adds its gradient to policy->gradient. */
static double pass_of_thread(struct policy_flat *policy, const struct policy_rows *rows,
                             const float *coefficient, policy_progress *progress, void *context)
{
    double loss = 0;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        loss += policy->ops->gradient(policy->network, &chunk, coefficient + first, policy->gradient);
        if (progress != NULL)
            progress(context);
    }
    return loss;
}

/* L of all rows; its gradient goes into policy->gradient. */
static double pass_over_rows(struct policy_flat *policy, const struct policy_rows *rows,
                             const float *coefficient, policy_progress *progress, void *context)
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
static const char *first_not_finite(const struct policy_flat *policy, const float *array)
{
    for (uint32_t i = 0; i < policy->parameter_count; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        if (!all_finite(array, count))
            return policy->parameters[i].name;
        array += count;
    }
    return NULL;
}

/* The sentence of a loss that is not finite. Names the first tensor that holds a NaN or an infinity:
 * observations, returns (`coefficient`, which may be NULL), then parameters. */
static enum status explain_loss(const struct policy_flat *policy, const struct policy_rows *rows,
                                const float *coefficient, double loss, struct error *error)
{
    static const char begin[] = "the first tensor that holds a NaN or an infinity is the";
    const float *observations = rows->observations;
    for (uint32_t i = 0; i < rows->count && policy->floats; i++)
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

/* STATUS_INTERNAL names the first parameter whose gradient holds a NaN or an infinity: one in a parameter
 * would stay. */
static enum status check_gradient(const struct policy_flat *policy, struct error *error)
{
    const char *lost = first_not_finite(policy, policy->gradient);
    return lost == NULL
               ? STATUS_OK
               : error_set(error, STATUS_INTERNAL, "the gradient of %s holds a NaN or an infinity", lost);
}

/* ---- the step ---- */

struct flat_step {
    struct policy_flat *policy;
    struct adam_factors factors;
    adam_lanes_update *update;
    float scale; // of the gradient; 1: as it is
};

/* Where parameter number `parameter` begins in the flat arrays. */
static size_t parameter_begin(const struct policy_flat *policy, uint32_t parameter)
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
    struct policy_flat *policy = step->policy;
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
    if (policy->ops->load_parameter != NULL)
        policy->ops->load_parameter(policy->network, parameter);
}

/* Takes Adam's step at learning rate lr, by the gradient times `scale`, which is at most 1. */
static void take_step(struct policy_flat *policy, double lr, float scale)
{
    struct flat_step step = {.policy = policy, .update = adam_choose(), .scale = scale};
    struct adam_settings adam = policy->adam;
    adam.lr = lr;
    adam_factors(&adam, ++policy->steps, &step.factors);
    if (policy->team != NULL)
        team_run(policy->team, policy->parameter_count, step_parameter, &step);
    for (uint32_t i = 0; policy->team == NULL && i < policy->parameter_count; i++)
        step_parameter(&step, i);
    if (policy->ops->load_parameter == NULL)
        policy->ops->load(policy->network);
}

static enum status flat_learn(void *self, const struct policy_rows *rows, const float *coefficient,
                              uint32_t episode, double *loss, policy_progress *progress, void *context,
                              struct error *error)
{
    struct policy_flat *policy = self;
    (void)episode;
    const double found = pass_over_rows(policy, rows, coefficient, progress, context);
    if (!isfinite(found))
        return explain_loss(policy, rows, coefficient, found, error);
    const enum status status = check_gradient(policy, error);
    if (status != STATUS_OK)
        return status;
    take_step(policy, policy->adam.lr, 1);
    *loss = found;
    return STATUS_OK;
}

/* ---- PPO ---- */

/* A minibatch, of which each network learns by itself where they share no parameter: no loss of one depends
 * on the other's outputs. */
struct improvement {
    struct policy_flat *policy;
    const struct policy_rows *rows;
    const struct policy_step *step;
    struct surrogate objective;
    struct surrogate_sums networks[2];                 // of each network's chunks so far
    uint32_t first;                                    // the first row of the chunks under way
    struct surrogate_sums wave[POLICY_WAVE_CHUNKS][2]; // of each of these, by network
};

/* One network's part of the chunk, or of networks that share layers the whole; `adds` as dense_gradient has
 * it. */
static void learn_chunk(const struct improvement *m, uint32_t slot, uint32_t network,
                        const struct policy_rows *rows, float *gradient, bool adds,
                        struct surrogate_sums *sums)
{
    struct policy_flat *policy = m->policy;
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS];
    float pull[3][POLICY_CHUNK_ROWS];
    const bool of_policy = network == 0, of_value = network == 1 || policy->networks == 1;
    const struct surrogate_pulls pulls = {.log_probability = of_policy ? pull[0] : NULL,
                                          .entropy = of_policy ? pull[1] : NULL,
                                          .value = of_value ? pull[2] : NULL};
    policy->ops->evaluate(policy->network, slot, rows, of_policy ? log_probability : NULL,
                          of_policy ? entropy : NULL, of_value ? value : NULL);
    if (of_policy)
        surrogate_judge_actions(&m->objective, rows->count, rows->row, log_probability, entropy, &pulls,
                                sums);
    if (of_value)
        surrogate_judge_values(&m->objective, rows->count, rows->row, value, &pulls, sums);
    policy->ops->pull(policy->network, slot, &pulls, gradient, adds);
}

/* How many chunks are learned from before the next call of progress, at most `most`. */
static uint32_t next_chunks(const struct improvement *m, uint32_t most)
{
    const uint32_t left = (m->rows->count - m->first + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
    return left < most ? left : most;
}

static void finish_chunks(struct improvement *m, uint32_t chunks)
{
    m->first += chunks * POLICY_CHUNK_ROWS;
    if (m->step->progress != NULL)
        m->step->progress(m->step->context);
}

/* A network's part of the next POLICY_WAVE_CHUNKS chunks, chunk by chunk. */
static void learn_network(void *context, uint32_t network)
{
    struct improvement *m = context;
    for (uint32_t chunk = 0; chunk < next_chunks(m, POLICY_WAVE_CHUNKS); chunk++) {
        const uint32_t first = m->first + chunk * POLICY_CHUNK_ROWS;
        const struct policy_rows rows = policy_chunk(m->rows, first);
        struct surrogate_sums sums = {0};
        learn_chunk(m, network, network, &rows, m->policy->gradient, first > 0, &sums);
        surrogate_add(&m->networks[network], &sums);
    }
}

/* A network's part of one chunk of the wave. */
static void learn_piece(void *context, uint32_t piece)
{
    struct improvement *m = context;
    const uint32_t networks = m->policy->networks, chunk = piece / networks, network = piece % networks;
    const struct policy_rows rows = policy_chunk(m->rows, m->first + chunk * POLICY_CHUNK_ROWS);
    learn_chunk(m, piece, network, &rows, m->policy->wave + chunk * m->policy->count, false,
                &m->wave[chunk][network]);
}

/* The chunks a wave at a time. */
static void learn_waves(struct improvement *m)
{
    struct policy_flat *policy = m->policy;
    while (m->first < m->rows->count) {
        const uint32_t chunks = next_chunks(m, policy->wave_chunks);
        memset(m->wave, 0, chunks * sizeof *m->wave);
        team_run(policy->team, chunks * policy->networks, learn_piece, m);
        add_wave(policy, chunks, m->first > 0);
        for (uint32_t chunk = 0; chunk < chunks; chunk++)
            for (int network = 0; network < 2; network++)
                surrogate_add(&m->networks[network], &m->wave[chunk][network]);
        finish_chunks(m, chunks);
    }
}

/* Each network by itself. */
static void learn_networks(struct improvement *m)
{
    struct policy_flat *policy = m->policy;
    while (m->first < m->rows->count) {
        if (policy->team != NULL)
            team_run(policy->team, policy->networks, learn_network, m);
        else
            for (uint32_t network = 0; network < policy->networks; network++)
                learn_network(m, network);
        finish_chunks(m, next_chunks(m, POLICY_WAVE_CHUNKS));
    }
}

/* Fills policy->gradient and the minibatch's sums. The same bits whoever computes what: each chunk is summed
 * by itself, and the chunks' sums are added in their order. */
static void learn_minibatch(struct improvement *m)
{
    struct policy_flat *policy = m->policy;
    if (policy->wave_chunks > 0 && m->rows->count > POLICY_CHUNK_ROWS)
        learn_waves(m);
    else
        learn_networks(m);
    for (int network = 0; network < 2; network++)
        surrogate_add(&m->objective.sums, &m->networks[network]);
}

static enum status flat_improve(void *self, const struct policy_rows *rows,
                                const struct policy_targets *targets, const struct policy_step *step,
                                struct surrogate_losses *losses, struct error *error)
{
    struct policy_flat *policy = self;
    struct improvement m = {.policy = policy, .rows = rows, .step = step};
    const enum status status = policy_begin_objective(&m.objective, rows, targets, step, error);
    if (status != STATUS_OK)
        return status;
    learn_minibatch(&m);
    *losses = surrogate_losses(&m.objective);
    if (!isfinite(losses->loss))
        return explain_loss(policy, rows, NULL, losses->loss, error);
    if (losses->kl > step->kl_max)
        return STATUS_OK;
    losses->gradient_norm = norm_of(policy->gradient, policy->count);
    if (!isfinite(losses->gradient_norm))
        return check_gradient(policy, error);
    take_step(policy, step->lr, (float)policy_clip_factor(losses->gradient_norm, step->max_norm));
    losses->stepped = true;
    return STATUS_OK;
}

/* ---- acting ---- */

static enum status flat_act(void *self, const struct policy_rows *rows, uint32_t episode,
                            const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_flat *policy = self;
    (void)error;
    policy->ops->act(policy->network, rows, episode, environment, step);
    return STATUS_OK;
}

static enum status flat_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    const struct policy_flat *policy = self;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        if (!policy->ops->choose(policy->network, &chunk))
            return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    }
    return STATUS_OK;
}

static enum status flat_estimate(void *self, const struct policy_rows *rows, struct error *error)
{
    const struct policy_flat *policy = self;
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        policy->ops->estimate(policy->network, &chunk);
    }
    return STATUS_OK;
}

/* The mean of exp(log_std), which is the first parameter where there is one. */
static double flat_deviation(const void *self)
{
    const struct policy_flat *policy = self;
    const size_t count = shape_elements(&policy->parameters[0].shape);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += exp((double)policy->values[i]);
    return sum / (double)count;
}

/* ---- saving and restoring ---- */

/* Copies an array of every parameter, between the policy's flat array `flat` and *values. */
static void copy_array(const struct policy_flat *policy, float *flat, const struct policy_values *values,
                       enum policy_array array, bool into_values)
{
    for (uint32_t i = 0; i < policy->parameter_count; i++) {
        const size_t count = shape_elements(&policy->parameters[i].shape);
        float *copy = policy_values_at(values, i, array);
        memcpy(into_values ? copy : flat, into_values ? flat : copy, count * sizeof *flat);
        flat += count;
    }
}

static void copy_arrays(const struct policy_flat *policy, const struct policy_values *values,
                        bool into_values)
{
    copy_array(policy, policy->values, values, POLICY_VALUES, into_values);
    copy_array(policy, policy->first, values, POLICY_FIRST_MOMENT, into_values);
    copy_array(policy, policy->second, values, POLICY_SECOND_MOMENT, into_values);
}

static enum status flat_save(void *self, struct policy_values *values, struct error *error)
{
    const struct policy_flat *policy = self;
    (void)error;
    copy_arrays(policy, values, true);
    values->steps = policy->steps;
    return STATUS_OK;
}

static enum status flat_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct policy_flat *policy = self;
    (void)error;
    copy_arrays(policy, values, false);
    policy->steps = values->steps;
    policy->ops->load(policy->network);
    return STATUS_OK;
}

/* ---- opening ---- */

/* Of a policy with values: the pieces of a minibatch are its networks, chunk after chunk, as long as there
 * are no more threads than networks; else a wave of chunks of each. */
static uint32_t plan_wave(struct policy_flat *policy, const struct policy_config *config)
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
static enum status open_team(struct policy_flat *policy, const struct policy_config *config,
                             struct error *error)
{
    const uint32_t most = config->rows_max / POLICY_THREAD_ROWS;
    uint32_t threads = config->threads < most ? config->threads : most;
    if (config->has_value)
        threads = plan_wave(policy, config);
    else if (threads > 1 && policy->ops->any_thread)
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

static enum status flat_open(void **self, const struct policy_config *config, struct backend *backend,
                             const struct dense_normalizer *normalizer, struct error *error)
{
    struct policy_flat *policy = *self = calloc(1, sizeof *policy);
    enum status status = adam_check(&config->adam, error);
    (void)backend;
    if (policy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    if (status != STATUS_OK)
        return status;
    policy->ops = policy_form(config) == POLICY_FORM_TUTORIAL ? &policy_mlp_network : &policy_dense_network;
    policy->floats = config->observation.dtype == ENVIRONMENT_F32;
    policy->inputs = (uint32_t)environment_space_elements(&config->observation);
    policy->adam = config->adam;
    policy->networks = config->has_value && !config->shared_value ? 2 : 1;
    policy->parameter_count = policy_parameters(policy->parameters, config);
    policy->count = parameter_begin(policy, policy->parameter_count);
    assert(policy->count > 0);
    policy->values = calloc(4 * policy->count, sizeof *policy->values);
    if (policy->values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", policy->count);
    policy->gradient = policy->values + policy->count;
    policy->first = policy->values + 2 * policy->count;
    policy->second = policy->values + 3 * policy->count;
    status = open_team(policy, config, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t slots = policy->networks * (policy->wave_chunks > 0 ? policy->wave_chunks : 1);
    return policy->ops->open(&policy->network, config, normalizer, policy->values, slots, error);
}

static void flat_free(void *self)
{
    struct policy_flat *policy = self;
    team_free(policy->team);
    if (policy->network != NULL)
        policy->ops->free(policy->network);
    free(policy->wave);
    free(policy->values);
    free(policy);
}

const struct policy_kind policy_flat_kind = {.open = flat_open,
                                             .free = flat_free,
                                             .act = flat_act,
                                             .choose = flat_choose,
                                             .learn = flat_learn,
                                             .deviation = flat_deviation,
                                             .estimate = flat_estimate,
                                             .improve = flat_improve,
                                             .save = flat_save,
                                             .restore = flat_restore};
