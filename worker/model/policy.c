/* The policy: picks the network that the configuration asks for, and hands every call to it. */
#include "worker/environment/environment_spec.h"
#include "worker/model/policy_config.h"
#include "worker/model/policy_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* ---- opening ---- */

static const struct policy_kind *kind_of(const struct policy_config *config, bool gpu)
{
    if (policy_form(config) == POLICY_FORM_TUTORIAL)
        return gpu ? &policy_gpu_kind : &policy_mlp_kind;
    return policy_form(config) == POLICY_FORM_CNN ? &policy_images_kind : &policy_dense_kind;
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

enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error)
{
    assert(backend != NULL || policy_device(config) != POLICY_ON_BACKEND);
    enum status status = policy_check(config, backend != NULL, error);
    if (status != STATUS_OK)
        return status;
    struct policy *policy = calloc(1, sizeof *policy);
    if (policy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    policy->kind = kind_of(config, backend != NULL);
    policy->inputs = (uint32_t)environment_space_elements(&config->observation);
    policy->bytes = config->observation.dtype == ENVIRONMENT_U8;
    policy->seed = config->seed;
    policy->components = policy_components(config);
    status = copy_bounds(policy, &config->action, error);
    if (status == STATUS_OK)
        status = policy_normalizer_open(policy, config, error);
    if (status == STATUS_OK)
        status = policy->kind->open(policy, config, backend, error);
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
    policy->kind->free(policy);
    policy_normalizer_close(policy);
    free(policy->low);
    free(policy);
}

uint32_t policy_dropout_words(const struct policy *policy)
{
    return policy->dropout_words;
}

/* ---- acting and learning ---- */

enum status policy_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error)
{
    return policy->kind->act(policy, rows, episode, environment, step, error);
}

enum status policy_choose(struct policy *policy, const struct policy_rows *rows, struct error *error)
{
    return policy->kind->choose(policy, rows, error);
}

void policy_bound(const struct policy *policy, float *actions, uint32_t count)
{
    const uint32_t components = policy->components;
    for (uint32_t row = 0; row < count && policy->low != NULL; row++)
        for (uint32_t c = 0; c < components; c++) {
            float *action = &actions[(size_t)row * components + c];
            *action = fmaxf(policy->low[c], fminf(policy->high[c], isnan(*action) ? -INFINITY : *action));
        }
}

enum status policy_learn(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error)
{
    return policy->kind->learn(policy, rows, coefficient, episode, loss, progress, context, error);
}

enum status policy_estimate(struct policy *policy, const struct policy_rows *rows, struct error *error)
{
    return policy->kind->estimate(policy, rows, error);
}

double policy_deviation(const struct policy *policy)
{
    return policy->low == NULL ? (double)NAN : policy->kind->deviation(policy);
}

bool policy_needs_review(const struct policy *policy)
{
    return policy->kind->review != NULL;
}

enum status policy_review(struct policy *policy, const struct policy_rows *rows, policy_progress *progress,
                          void *context, struct error *error)
{
    return policy->kind->review(policy, rows, progress, context, error);
}

enum status policy_improve(struct policy *policy, const struct policy_rows *rows,
                           const struct policy_targets *targets, const struct policy_step *step,
                           struct policy_losses *losses, struct error *error)
{
    return policy->kind->improve(policy, rows, targets, step, losses, error);
}

/* ---- values ---- */

enum status policy_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    return policy->kind->save(policy, values, error);
}

enum status policy_restore(struct policy *policy, const struct policy_values *values, struct error *error)
{
    return policy->kind->restore(policy, values, error);
}
