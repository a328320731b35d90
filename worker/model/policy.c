/* The policy: picks the kind that the configuration asks for, and hands every call to it. Here are what all
 * kinds have: the bounds of an action, and the normalizer of observations. */
#include "kernels/backend.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"
#include "worker/model/q_learning.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stable-Baselines3's VecNormalize.epsilon. */
static const double epsilon = 1e-8;

/* ---- opening ---- */

static const struct policy_kind *kind_of(const struct policy_config *config, bool on_backend)
{
    if (policy_form(config) == POLICY_FORM_Q_CNN)
        return &policy_dqn_tape_kind;
    if (config->learning != POLICY_ON_ROLLOUTS)
        return config->learning == POLICY_DQN ? &policy_dqn_kind : &policy_actor_critic_kind;
    if (!on_backend)
        return &policy_cpu_kind;
    return policy_form(config) == POLICY_FORM_TUTORIAL ? &policy_mlp_gpu_kind : &policy_tape_kind;
}

/* The nearest float32 that is not below, or not above, a bound in double. */
static float bound_inside(double bound, bool above)
{
    const float nearest = (float)bound;
    const bool outside = above ? (double)nearest > bound : (double)nearest < bound;
    return outside ? nextafterf(nearest, above ? -INFINITY : INFINITY) : nearest;
}

static enum status copy_bounds(struct policy *policy, const struct environment_space *action,
                               struct error *error)
{
    if (action->choices != NULL)
        return STATUS_OK;
    policy->low = calloc(2 * (size_t)policy->components, sizeof *policy->low);
    if (policy->low == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the bounds of an action");
    policy->high = policy->low + policy->components;
    for (uint32_t c = 0; c < policy->components; c++) {
        policy->low[c] = bound_inside(action->low[c], false);
        policy->high[c] = bound_inside(action->high[c], true);
    }
    return STATUS_OK;
}

/* Begins with mean 0 and variance 1. */
static enum status open_normalizer(struct policy *policy, double clip, struct error *error)
{
    policy->mean = calloc(3 * (size_t)policy->normalized, sizeof *policy->mean);
    if (policy->mean == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the statistics of %u elements",
                         policy->normalized);
    policy->variance = policy->mean + policy->normalized;
    policy->scale = policy->variance + policy->normalized;
    policy->normalizer =
        (struct dense_normalizer){.mean = policy->mean, .scale = policy->scale, .limit = (float)clip};
    for (uint32_t i = 0; i < policy->normalized; i++)
        policy->variance[i] = policy->scale[i] = 1;
    return STATUS_OK;
}

enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error)
{
    assert(backend != NULL || policy_device(config) != POLICY_ON_BACKEND);
    enum status status = policy_check(config, error);
    if (status != STATUS_OK)
        return status;
    struct policy *policy = calloc(1, sizeof *policy);
    if (policy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    policy->kind = kind_of(config, backend != NULL);
    policy->self = calloc(1, policy->kind->bytes);
    if (policy->self == NULL) {
        free(policy);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    }
    policy->normalized = policy_normalized(config);
    policy->components = policy_components(config);
    policy->batch_rows = config->q.batch_rows;
    policy->state_floats = policy_config_state_floats(config);
    policy->seed = config->seed;
    policy->noise_steps = config->noise_steps;
    policy->stretches = config->learning == POLICY_SAC || config->learning == POLICY_TD3;
    if (policy_form(config) == POLICY_FORM_TUTORIAL)
        policy->dropout_words = mlp_mask_words(&(struct mlp_shape){.hidden = config->width[0]});
    status = copy_bounds(policy, &config->action, error);
    if (status == STATUS_OK && config->normalizes)
        status = open_normalizer(policy, config->clip, error);
    if (status == STATUS_OK)
        status = policy->kind->open(policy->self, config, backend,
                                    config->normalizes ? &policy->normalizer : NULL, error);
    if (status != STATUS_OK) {
        policy_free(policy);
        return status;
    }
    *out = policy;
    return STATUS_OK;
}

void policy_free(struct policy *policy)
{
    if (policy == NULL)
        return;
    policy->kind->close(policy->self);
    free(policy->self);
    free(policy->mean);
    free(policy->low);
    free(policy);
}

uint32_t policy_dropout_words(const struct policy *policy)
{
    return policy->dropout_words;
}

size_t policy_state_floats(const struct policy *policy)
{
    return policy->state_floats;
}

/* ---- acting and learning ---- */

/* Acts or, `estimates`, writes values: chunk by chunk where the kind takes no more. */
static enum status run_rows(struct policy *policy, const struct policy_rows *rows, struct dense_draw *draw,
                            bool estimates, struct error *error)
{
    const struct policy_kind *kind = policy->kind;
    enum status status = STATUS_OK;
    struct policy_rows some;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += some.count) {
        some = kind->takes_chunks ? policy_chunk(rows, first) : *rows;
        status = estimates ? kind->estimate(policy->self, &some, error)
                           : kind->act(policy->self, &some, draw, error);
        if (draw == NULL)
            continue;
        draw->environment += some.count;
        draw->step += some.count;
    }
    return status;
}

enum status policy_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct dense_draw draw = {.seed = policy->seed,
                              .episode = episode,
                              .environment = environment,
                              .step = step,
                              .noise_steps = policy->noise_steps};
    return run_rows(policy, rows, &draw, false, error);
}

enum status policy_choose(struct policy *policy, const struct policy_rows *rows, struct error *error)
{
    return run_rows(policy, rows, NULL, false, error);
}

void policy_bound(const struct policy *policy, float *actions, uint32_t count)
{
    const uint32_t components = policy->components;
    for (uint32_t row = 0; row < count && policy->low != NULL; row++)
        for (uint32_t c = 0; c < components; c++) {
            float *action = &actions[(size_t)row * components + c];
            if (policy->stretches)
                *action =
                    (float)((double)policy->low[c] +
                            0.5 * ((double)*action + 1) * ((double)policy->high[c] - (double)policy->low[c]));
            *action = fmaxf(policy->low[c], fminf(policy->high[c], isnan(*action) ? -INFINITY : *action));
        }
}

enum status policy_learn(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error)
{
    return policy->kind->learn(policy->self, rows, coefficient, episode, loss, progress, context, error);
}

enum status policy_estimate(struct policy *policy, const struct policy_rows *rows, struct error *error)
{
    return run_rows(policy, rows, NULL, true, error);
}

double policy_deviation(const struct policy *policy)
{
    return policy->low == NULL ? (double)NAN : policy->kind->deviation(policy->self);
}

bool policy_needs_review(const struct policy *policy)
{
    return policy->kind->review != NULL;
}

enum status policy_review(struct policy *policy, const struct policy_rows *rows, policy_progress *progress,
                          void *context, struct error *error)
{
    return policy->kind->review(policy->self, rows, progress, context, error);
}

enum status policy_improve(struct policy *policy, const struct policy_rows *rows,
                           const struct policy_targets *targets, const struct policy_step *step,
                           struct surrogate_losses *losses, struct error *error)
{
    return policy->kind->improve(policy->self, rows, targets, step, losses, error);
}

/* ---- a replay buffer ---- */

void policy_explore(struct policy *policy, const struct policy_exploration *exploration)
{
    policy->kind->explore(policy->self, exploration);
}

enum status policy_fit(struct policy *policy, const struct policy_transitions *batch, double lr,
                       struct policy_q_losses *losses, struct error *error)
{
    assert(batch->count >= 1 && batch->count <= policy->batch_rows);
    return policy->kind->fit(policy->self, batch, lr, losses, error);
}

enum status policy_follow(struct policy *policy, struct error *error)
{
    return policy->kind->follow(policy->self, error);
}

size_t policy_acting_floats(const struct policy *policy)
{
    return q_acting_floats(policy->self);
}

void policy_keep_acting(const struct policy *policy, float *out)
{
    q_keep_acting(policy->self, out);
}

void policy_load_acting(struct policy *policy, const float *kept)
{
    q_load_acting(policy->self, kept);
}

uint64_t policy_fits(const struct policy *policy)
{
    return policy->kind->fits(policy->self);
}

/* ---- the normalizer ---- */

void policy_normalize(struct policy *policy, const float *mean, const float *variance)
{
    memcpy(policy->mean, mean, policy->normalized * sizeof *mean);
    memcpy(policy->variance, variance, policy->normalized * sizeof *variance);
    for (uint32_t i = 0; i < policy->normalized; i++)
        policy->scale[i] = (float)(1 / sqrt((double)variance[i] + epsilon));
}

/* ---- values ---- */

static enum status values_add(struct params *params, const struct policy_parameter *parameter,
                              enum parameter_kind kind, const char *ending, struct error *error)
{
    const struct init zero = {INIT_CONSTANT, 0};
    struct parameter *entry;
    char name[POLICY_NAME_BYTES + 16];
    snprintf(name, sizeof name, "%.*s%s", POLICY_NAME_BYTES, parameter->name, ending);
    return params_add(params, name, kind, parameter->shape, zero, &entry, error);
}

/* RMSprop's mean of squares is the second moment. Its first one is the gradient, which each step computes
 * anew, so no file has it: a checkpoint has what PyTorch's optimizer has. A target has no moments. */
static enum status add_moments(struct params *moments, const struct policy_parameter *parameter, bool is_rms,
                               struct error *error)
{
    const enum parameter_kind second = parameter->is_target ? PARAMETER_BUFFER : PARAMETER_TRAINED;
    const enum status status =
        values_add(moments, parameter, is_rms ? PARAMETER_BUFFER : second, ".exp_avg", error);
    return status == STATUS_OK
               ? values_add(moments, parameter, second, is_rms ? ".square_avg" : ".exp_avg_sq", error)
               : status;
}

static enum status add_statistic(struct policy_values *values, const struct policy_config *config,
                                 const char *name, double first, struct error *error)
{
    const struct init init = {INIT_CONSTANT, first};
    struct parameter *entry;
    return params_add(values->params, name, PARAMETER_BUFFER, SHAPE1(policy_normalized(config)), init, &entry,
                      error);
}

enum status policy_values_open(struct policy_values *values, const struct policy_config *config,
                               struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    struct policy_parameter parameters[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(parameters, config);
    enum status status = backend_open(&values->backend, &memory_ops, &settings, error);
    if (status == STATUS_OK)
        status = params_new(&values->params, values->backend, error);
    if (status == STATUS_OK)
        status = params_new(&values->moments, values->backend, error);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        const enum parameter_kind kind = parameters[i].is_target ? PARAMETER_BUFFER : PARAMETER_TRAINED;
        status = values_add(values->params, &parameters[i], kind, "", error);
        if (status == STATUS_OK)
            status = add_moments(values->moments, &parameters[i], config->adam.uncorrected, error);
    }
    values->count = count;
    if (status == STATUS_OK && config->normalizes)
        status = add_statistic(values, config, "obs_rms.mean", 0, error);
    if (status == STATUS_OK && config->normalizes)
        status = add_statistic(values, config, "obs_rms.var", 1, error);
    if (status == STATUS_OK)
        status = params_build(values->params, 0, error);
    return status == STATUS_OK ? params_build(values->moments, 0, error) : status;
}

void policy_values_close(struct policy_values *values)
{
    params_free(values->params);
    params_free(values->moments);
    backend_close(values->backend);
    *values = (struct policy_values){0};
}

float *policy_values_at(const struct policy_values *values, uint32_t index, enum policy_array array)
{
    const bool moment = array != POLICY_VALUES;
    const uint32_t entry = moment ? 2 * index + (array == POLICY_SECOND_MOMENT) : index;
    return params_at(moment ? values->moments : values->params, entry)->tensor.data;
}

float *policy_values_statistic(const struct policy_values *values, enum policy_statistic statistic)
{
    return params_at(values->params, values->count + (uint32_t)statistic)->tensor.data;
}

enum status policy_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    const size_t bytes = policy->normalized * sizeof *policy->mean;
    if (policy->mean != NULL) {
        memcpy(policy_values_statistic(values, POLICY_MEAN), policy->mean, bytes);
        memcpy(policy_values_statistic(values, POLICY_VARIANCE), policy->variance, bytes);
    }
    return policy->kind->save(policy->self, values, error);
}

enum status policy_restore(struct policy *policy, const struct policy_values *values, struct error *error)
{
    if (policy->mean != NULL)
        policy_normalize(policy, policy_values_statistic(values, POLICY_MEAN),
                         policy_values_statistic(values, POLICY_VARIANCE));
    return policy->kind->restore(policy->self, values, error);
}
