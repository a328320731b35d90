/* A local optimizer's arithmetic: gathers gradients, takes the norm or the step. A role's thread runs it.
 *
 * With one participant and all parameters of an object, the context's own gradients are used and nothing is
 * copied. Otherwise gradients are added up, in the order of the participants, in a slab of the optimizer's
 * own. The object's other parameters have zeros there, and a gradient of zero does not move a parameter
 * without moments. All failures with a cause outside this file come before the first parameter changes. */
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "worker/autograd/optimizer_internal.h"

#include <math.h>

/* ---- gathering ---- */

/* A context's gradients for the group's object. NULL: they are zero. */
static enum status group_find_gradients(const struct group *group, uint64_t context, struct gradients **out,
                                        struct error *error)
{
    *out = NULL;
    enum status status = dist_gradients(group->owned->owner->dist, context, group->owned->object, out, error);
    if (status == STATUS_NOT_FOUND) {
        *out = NULL;
        return STATUS_OK;
    }
    return status == STATUS_OK && *out != NULL ? gradients_complete(*out, error) : status;
}

/* Adds a context's gradients of the optimizer's parameters to the group's sum. */
static enum status group_add_context(struct local *local, struct group *group, uint64_t context,
                                     struct error *error)
{
    struct gradients *from = NULL;
    enum status status = group_find_gradients(group, context, &from, error);
    for (uint32_t i = 0; i < local->count && from != NULL && status == STATUS_OK; i++)
        if (local->members[i].group == group)
            status = gradients_add(group->sum, from, local->members[i].object->entry->parameter, error);
    return status;
}

static enum status group_gather(struct local *local, struct group *group,
                                const struct participant *participants, uint32_t count, struct error *error)
{
    enum status status = STATUS_OK;
    if (count == 1 && group->members == group->owned->count) {
        status = group_find_gradients(group, participants[0].context, &group->used, error);
        if (status != STATUS_OK || group->used != NULL)
            return status;
    }
    if (group->sum == NULL)
        status = gradients_new(&group->sum, group->owned->params, error);
    if (status != STATUS_OK)
        return status;
    gradients_begin(group->sum);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        status = group_add_context(local, group, participants[i].context, error);
    if (status == STATUS_OK)
        status = gradients_complete(group->sum, error);
    group->used = group->sum;
    return status;
}

static enum status local_gather(struct local *local, const struct participant *participants, uint32_t count,
                                struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = group_gather(local, &local->groups[g], participants, count, error);
    return status;
}

static enum status local_check_finite(struct local *local, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < local->count && status == STATUS_OK; i++)
        status = gradients_check_entry(local->members[i].group->used,
                                       local->members[i].object->entry->parameter, error);
    return status;
}

/* ---- the norm ---- */

/* Squares of finite float32s do not overflow a double, so a sum that is not finite has a gradient that is
 * not. */
enum status local_take_norm(struct local *local, const struct participant *participants, uint32_t count,
                            struct error *error)
{
    bool finite = true;
    const enum profile_kind before = profile_enter(PROFILE_UPDATE);
    enum status status = local_gather(local, participants, count, error);
    for (uint32_t i = 0; i < local->count && status == STATUS_OK; i++) {
        const struct local_entry *member = &local->members[i];
        double sum = 0;
        status = gradients_square_sum(member->group->used, member->object->entry->parameter, &sum, error);
        local->sums[i] = word_of_double(sum);
        finite = finite && isfinite(sum);
    }
    profile_leave(before);
    return status == STATUS_OK && !finite ? local_check_finite(local, error) : status;
}

/* ---- the step ---- */

static enum status local_check_numbers(const struct local *local, const struct participant *participants,
                                       uint32_t count, struct error *error)
{
    const uint64_t *words = participants[0].words;
    const double max_norm = double_of_word(words[STEP_MAX_NORM]), norm = double_of_word(words[STEP_NORM]);
    enum status status = STATUS_OK;
    if (!(max_norm >= 0) || !isfinite(max_norm))
        return error_set(error, STATUS_INVALID, "expected a finite max_norm >= 0, got %g", max_norm);
    if (max_norm > 0 && (!(norm >= 0) || !isfinite(norm)))
        return error_set(error, STATUS_INVALID, "expected a finite norm >= 0, got %g", norm);
    for (uint32_t i = 0; i < count && max_norm > 0; i++)
        if (participants[i].normed != participants[i].context)
            return error_set(error, STATUS_INVALID,
                             "worker %u steps by a norm, which context %llx has not been asked for",
                             participants[i].worker, (unsigned long long)participants[i].context);
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = optimizer_lr_set(local->groups[g].optimizer, double_of_word(words[STEP_LR]), error);
    return status;
}

static enum status local_check_versions(const struct local *local, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = owned_may_change(local->groups[g].owned, error);
    return status;
}

static enum status group_clip(struct group *group, double max_norm, double norm, struct error *error)
{
    const double factor = max_norm / (norm + 1e-6);
    if (max_norm == 0 || factor >= 1)
        return STATUS_OK;
    return backend_scale(params_backend(group->owned->params), gradients_slab(group->used), factor, error);
}

static enum status group_step(struct group *group, const uint64_t words[STEP_WORDS], struct error *error)
{
    enum status status =
        group_clip(group, double_of_word(words[STEP_MAX_NORM]), double_of_word(words[STEP_NORM]), error);
    if (status == STATUS_OK && group->owned->versions != NULL)
        status = dist_versions_advance(group->owned->versions, error);
    return status == STATUS_OK ? optimizer_step(group->optimizer, group->used, error) : status;
}

/* After the norm of the same contexts, the gradients are known to be finite, and a sum of several is in
 * `sum`. */
enum status local_take_step(struct local *local, const struct participant *participants, uint32_t count,
                            struct error *error)
{
    const uint64_t *words = participants[0].words;
    const bool clips = double_of_word(words[STEP_MAX_NORM]) > 0;
    const enum profile_kind before = profile_enter(PROFILE_UPDATE);
    enum status status = local_check_numbers(local, participants, count, error);
    if (status == STATUS_OK)
        status = local_check_versions(local, error);
    if (status == STATUS_OK && !(clips && count > 1))
        status = local_gather(local, participants, count, error);
    if (status == STATUS_OK && !clips)
        status = local_check_finite(local, error);
    for (uint32_t g = 0; g < local->group_count && status == STATUS_OK; g++)
        status = group_step(&local->groups[g], words, error);
    profile_leave(before);
    return status;
}
