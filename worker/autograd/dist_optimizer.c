/* The distributed optimizer where it is called: a reference to each owner's local optimizer, and calls to all
 * of them at once. A role's top level runs this; most functions wait.
 *
 * A parameter's index is its place in the list that the optimizer was made of. `indices` has each owner's
 * parameters in ascending order, one owner after the other. */
#include "worker/autograd/optimizer_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One owner's share of the optimizer. */
struct share {
    struct rref *local;    /* NULL: not made yet */
    struct future *future; /* of the round of calls */
    uint32_t first, count; /* in `indices` */
};

struct dist_optimizer {
    struct dist *dist;
    uint32_t share_count, total;
    struct share shares[DIST_PARAMETERS_MAX];
    uint32_t indices[DIST_PARAMETERS_MAX]; /* (total) */
    double sums[DIST_PARAMETERS_MAX];      /* (total) square sums, by index */
};

static enum status optimizer_alloc(struct dist_optimizer **out, struct dist *dist, struct error *error)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an optimizer");
    (*out)->dist = dist;
    return STATUS_OK;
}

void dist_optimizer_free(struct dist_optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    for (uint32_t p = 0; p < optimizer->share_count; p++)
        rref_release(optimizer->shares[p].local);
    free(optimizer);
}

/* ---- calls to all owners ---- */

static void optimizer_release_futures(struct dist_optimizer *optimizer)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        if (optimizer->shares[p].future != NULL)
            future_release(optimizer->shares[p].future);
        optimizer->shares[p].future = NULL;
    }
}

/* Waits for all futures. `status` is that of the calls that started them. Returns the first failure; after
 * one, all futures are released. */
static enum status optimizer_wait_for_all(struct dist_optimizer *optimizer, enum status status,
                                          struct error *error)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        struct future *future = optimizer->shares[p].future;
        if (future == NULL)
            continue;
        enum status each = rpc_wait(dist_rpc(optimizer->dist), future, status == STATUS_OK ? error : NULL);
        status = status == STATUS_OK ? each : status;
    }
    if (status != STATUS_OK)
        optimizer_release_futures(optimizer);
    return status;
}

/* The same message to every owner, at once. On STATUS_OK every share has a future with a value. */
static enum status optimizer_call_all(struct dist_optimizer *optimizer, uint32_t function,
                                      const struct rpc_message *message, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < optimizer->share_count && status == STATUS_OK; p++) {
        struct share *share = &optimizer->shares[p];
        status = rref_call(share->local, function, message, MONOTIME_NEVER, &share->future, error);
    }
    return optimizer_wait_for_all(optimizer, status, error);
}

static enum status optimizer_malformed(struct dist_optimizer *optimizer, const struct share *share,
                                       struct error *error)
{
    const uint16_t owner = rref_owner(share->local);
    optimizer_release_futures(optimizer);
    return object_malformed(optimizer->dist, owner, error);
}

/* ---- making ---- */

static enum status optimizer_check_list(const struct dist_optimizer_config *config,
                                        struct rref *const parameters[], uint32_t count, struct error *error)
{
    if (count == 0 || count > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u parameters, expected 1..%d", count,
                         DIST_PARAMETERS_MAX);
    if (config->participant_count == 0 || config->participant_count > DIST_PARTICIPANTS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u participants, expected 1..%d",
                         config->participant_count, DIST_PARTICIPANTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        enum status status = rref_ready(parameters[i], error);
        if (status == STATUS_AGAIN)
            return error_set(error, STATUS_BUSY, "reference %u of an optimizer's %u is not ready", i, count);
        if (status != STATUS_OK)
            return status;
        if (rref_class_of(parameters[i]) != &dist_parameter_class)
            return error_set(error, STATUS_INVALID, "reference %u of an optimizer's %u is not to a parameter",
                             i, count);
    }
    return STATUS_OK;
}

/* Owners in the order in which they first appear, each with its parameters in the order of the list. */
static void optimizer_sort_by_owner(struct dist_optimizer *optimizer, struct rref *const parameters[],
                                    uint32_t count)
{
    bool sorted[DIST_PARAMETERS_MAX] = {false};
    for (uint32_t i = 0; i < count; i++) {
        if (sorted[i])
            continue;
        struct share *share = &optimizer->shares[optimizer->share_count++];
        share->first = optimizer->total;
        for (uint32_t j = i; j < count; j++)
            if (rref_owner(parameters[j]) == rref_owner(parameters[i])) {
                optimizer->indices[optimizer->total++] = j;
                sorted[j] = true;
            }
        share->count = optimizer->total - share->first;
    }
}

static void optimizer_describe(const struct dist_optimizer *optimizer,
                               const struct dist_optimizer_config *config, const struct rref *first,
                               uint64_t words[NEW_WORDS])
{
    const struct optimizer_settings *settings = &config->settings;
    const bool adam = settings->kind == OPTIMIZER_ADAM;
    words[NEW_KIND] = settings->kind;
    words[NEW_LR] = word_of_double(adam ? settings->adam.lr : settings->sgd.lr);
    words[NEW_MOMENTUM] = word_of_double(settings->sgd.momentum);
    words[NEW_BETA1] = word_of_double(settings->adam.beta1);
    words[NEW_BETA2] = word_of_double(settings->adam.beta2);
    words[NEW_EPSILON] = word_of_double(settings->adam.epsilon);
    words[NEW_ASYNC] = config->async;
    words[NEW_OWNERS] = optimizer->share_count;
    words[NEW_TOTAL] = optimizer->total;
    words[NEW_FIRST_OWNER] = rref_owner(first);
    words[NEW_FIRST_NUMBER] = rref_object(first);
}

static enum status optimizer_ask_for_local(struct dist_optimizer *optimizer, uint32_t p,
                                           uint64_t words[NEW_WORDS],
                                           const struct dist_optimizer_config *config,
                                           struct rref *const parameters[], struct error *error)
{
    struct share *share = &optimizer->shares[p];
    const uint32_t *indices = &optimizer->indices[share->first];
    uint64_t numbers[DIST_PARAMETERS_MAX];
    uint32_t participants[DIST_PARTICIPANTS_MAX];
    struct rpc_message message = {0};
    for (uint32_t i = 0; i < share->count; i++)
        numbers[i] = rref_object(parameters[indices[i]]);
    for (uint32_t i = 0; i < config->participant_count; i++)
        participants[i] = config->participants[i];
    words[NEW_POSITION] = p;
    message_add(&message, WIRE_U64, words, NEW_WORDS);
    message_add(&message, WIRE_U64, numbers, share->count);
    message_add(&message, WIRE_U32, indices, share->count);
    message_add(&message, WIRE_U32, participants, config->participant_count);
    return rref_call(parameters[indices[0]], PARAMETER_OPTIMIZER, &message, MONOTIME_NEVER, &share->future,
                     error);
}

/* Accepts all references in the owners' answers, also after a failure: releasing them ends the local
 * optimizers. */
static enum status optimizer_accept_locals(struct dist_optimizer *optimizer, struct rref *const parameters[],
                                           enum status status, struct error *error)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        struct share *share = &optimizer->shares[p];
        if (share->future == NULL)
            continue;
        struct error *const tell = status == STATUS_OK ? error : NULL;
        enum status each = rpc_wait(dist_rpc(optimizer->dist), share->future, tell);
        if (each == STATUS_OK)
            each = rref_accept(
                dist_rrefs(optimizer->dist), rref_owner(parameters[optimizer->indices[share->first]]),
                future_value(share->future)->args[0], dist_optimizer_class.name, &share->local, tell);
        status = status == STATUS_OK ? each : status;
    }
    optimizer_release_futures(optimizer);
    return status;
}

enum status dist_optimizer_new(struct dist_optimizer **out, struct dist *dist,
                               const struct dist_optimizer_config *config, struct rref *const parameters[],
                               uint32_t count, struct error *error)
{
    struct dist_optimizer *optimizer = NULL;
    uint64_t words[NEW_WORDS];
    enum status status = optimizer_check_list(config, parameters, count, error);
    if (status == STATUS_OK)
        status = optimizer_alloc(&optimizer, dist, error);
    if (status != STATUS_OK)
        return status;
    optimizer_sort_by_owner(optimizer, parameters, count);
    optimizer_describe(optimizer, config, parameters[0], words);
    for (uint32_t p = 0; p < optimizer->share_count && status == STATUS_OK; p++)
        status = optimizer_ask_for_local(optimizer, p, words, config, parameters, error);
    status = optimizer_accept_locals(optimizer, parameters, status, error);
    if (status != STATUS_OK) {
        dist_optimizer_free(optimizer);
        return status;
    }
    *out = optimizer;
    return STATUS_OK;
}

/* ---- sharing ---- */

enum status dist_optimizer_share(struct dist_optimizer *optimizer, uint16_t worker, uint64_t tag,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < optimizer->share_count && status == STATUS_OK; p++)
        status = rref_share(optimizer->shares[p].local, worker, tag, &optimizer->shares[p].future, error);
    status = optimizer_wait_for_all(optimizer, status, error);
    optimizer_release_futures(optimizer);
    return status;
}

/* The words of a share's answer. False: it has another form. */
static bool share_read_words(const struct share *share, uint64_t words[NEW_WORDS])
{
    const struct rpc_message *value = future_value(share->future);
    if (message_flat(value, 0, WIRE_U64) != NEW_WORDS || message_flat(value, 1, WIRE_U32) == 0)
        return false;
    memcpy(words, value->data[0], NEW_WORDS * sizeof words[0]);
    return words[NEW_TOTAL] <= DIST_PARAMETERS_MAX;
}

/* Sorts the shares, and reads their indices. False: they are not the shares of one optimizer, each once. */
static bool optimizer_order_shares(struct dist_optimizer *optimizer)
{
    struct share sorted[DIST_PARAMETERS_MAX] = {{0}};
    bool taken[DIST_PARAMETERS_MAX] = {false};
    uint64_t all[NEW_WORDS] = {0}, words[NEW_WORDS];
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        if (!share_read_words(&optimizer->shares[p], words))
            return false;
        const uint64_t position = words[NEW_POSITION];
        words[NEW_POSITION] = 0;
        if (p == 0)
            memcpy(all, words, sizeof all);
        if (memcmp(all, words, sizeof all) != 0 || words[NEW_OWNERS] != optimizer->share_count ||
            position >= optimizer->share_count || sorted[position].local != NULL)
            return false;
        sorted[position] = optimizer->shares[p];
    }
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        struct share *share = &sorted[p];
        const struct rpc_message *value = future_value(share->future);
        share->first = optimizer->total;
        share->count = message_flat(value, 1, WIRE_U32);
        if (share->count > all[NEW_TOTAL] - optimizer->total)
            return false;
        memcpy(&optimizer->indices[share->first], value->data[1],
               share->count * sizeof optimizer->indices[0]);
        optimizer->total += share->count;
    }
    memcpy(optimizer->shares, sorted, optimizer->share_count * sizeof sorted[0]);
    for (uint32_t i = 0; i < optimizer->total; i++) {
        const uint32_t index = optimizer->indices[i];
        if (index >= optimizer->total || taken[index])
            return false;
        taken[index] = true;
    }
    return optimizer->total == all[NEW_TOTAL];
}

enum status dist_optimizer_join(struct dist_optimizer **out, struct dist *dist, struct rref *const locals[],
                                uint32_t count, struct error *error)
{
    struct dist_optimizer *optimizer = NULL;
    bool good = count > 0 && count <= DIST_PARAMETERS_MAX;
    for (uint32_t i = 0; i < count && good; i++)
        good = rref_class_of(locals[i]) == &dist_optimizer_class;
    if (!good)
        return error_set(error, STATUS_INVALID, "expected 1..%d references to optimizers, got %u",
                         DIST_PARAMETERS_MAX, count);
    enum status status = optimizer_alloc(&optimizer, dist, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < count; i++)
        optimizer->shares[optimizer->share_count++].local = rref_copy(locals[i]);
    status = optimizer_call_all(optimizer, LOCAL_INFO, &(struct rpc_message){0}, error);
    if (status == STATUS_OK && !optimizer_order_shares(optimizer))
        status = error_set(error, STATUS_INVALID,
                           "%u references to optimizers, which are not the shares of one, each once", count);
    optimizer_release_futures(optimizer);
    if (status != STATUS_OK) {
        dist_optimizer_free(optimizer);
        return status;
    }
    *out = optimizer;
    return STATUS_OK;
}

/* ---- a step ---- */

/* All parameters' square sums into `sums`, by their index. */
static enum status optimizer_read_sums(struct dist_optimizer *optimizer, struct error *error)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        const struct share *share = &optimizer->shares[p];
        const struct rpc_message *value = future_value(share->future);
        if (message_flat(value, 0, WIRE_U64) != share->count)
            return optimizer_malformed(optimizer, share, error);
        for (uint32_t i = 0; i < share->count; i++)
            memcpy(&optimizer->sums[optimizer->indices[share->first + i]],
                   (const char *)value->data[0] + i * sizeof(double), sizeof(double));
    }
    optimizer_release_futures(optimizer);
    return STATUS_OK;
}

/* The norm of the gradient over all owners. STATUS_INTERNAL: it is not finite. */
static enum status optimizer_take_norm(struct dist_optimizer *optimizer, const struct dist_context *context,
                                       double *norm, struct error *error)
{
    const struct rpc_message message = {.context = dist_context_id(context)};
    double sum = 0;
    enum status status = optimizer_call_all(optimizer, LOCAL_NORM, &message, error);
    if (status == STATUS_OK)
        status = optimizer_read_sums(optimizer, error);
    for (uint32_t i = 0; i < optimizer->total && status == STATUS_OK; i++)
        sum += optimizer->sums[i];
    *norm = sqrt(sum);
    return status;
}

enum status dist_optimizer_step(struct dist_optimizer *optimizer, struct dist_context *context,
                                struct dist_step *step, struct error *error)
{
    enum status status = STATUS_OK;
    step->norm = (double)NAN;
    step->was_last = false;
    if (!(step->max_norm >= 0) || !isfinite(step->max_norm))
        return error_set(error, STATUS_INVALID, "expected a finite max_norm >= 0, got %g", step->max_norm);
    if (!(step->lr > 0) || !isfinite(step->lr))
        return error_set(error, STATUS_INVALID, "expected a finite lr > 0, got %g", step->lr);
    if (step->max_norm > 0)
        status = optimizer_take_norm(optimizer, context, &step->norm, error);
    if (status != STATUS_OK)
        return status;
    const double norm = step->max_norm > 0 ? step->norm : 0;
    const uint64_t words[STEP_WORDS] = {[STEP_LR] = word_of_double(step->lr),
                                        [STEP_MAX_NORM] = word_of_double(step->max_norm),
                                        [STEP_NORM] = word_of_double(norm),
                                        [STEP_LAST] = step->last};
    struct rpc_message message = {.context = dist_context_id(context)};
    message_add(&message, WIRE_U64, words, STEP_WORDS);
    status = optimizer_call_all(optimizer, LOCAL_STEP, &message, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t p = 0; p < optimizer->share_count; p++)
        step->was_last = step->was_last || future_value(optimizer->shares[p].future)->args[0] != 0;
    optimizer_release_futures(optimizer);
    return STATUS_OK;
}

/* ---- state ---- */

/* The share with parameter `index`, and the parameter's position there. */
static enum status optimizer_find_share(const struct dist_optimizer *optimizer, uint32_t index,
                                        const struct share **out, uint32_t *position, struct error *error)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++)
        for (uint32_t i = 0; i < optimizer->shares[p].count; i++)
            if (optimizer->indices[optimizer->shares[p].first + i] == index) {
                *out = &optimizer->shares[p];
                *position = i;
                return STATUS_OK;
            }
    return error_set(error, STATUS_INVALID, "parameter %u of an optimizer that has %u", index,
                     optimizer->total);
}

enum status dist_optimizer_moment_get(struct dist_optimizer *optimizer, uint32_t index,
                                      enum dist_moment moment, float *values, size_t count,
                                      struct error *error)
{
    const struct share *share = NULL;
    uint32_t position = 0;
    enum status status = optimizer_find_share(optimizer, index, &share, &position, error);
    if (status != STATUS_OK)
        return status;
    const struct local *here = rref_local(share->local);
    if (here != NULL)
        return local_moment_get(here, position, moment, values, count, error);
    const struct rpc_message message = {.args = {0, 0, position, moment}};
    return object_values(optimizer->dist, share->local, LOCAL_MOMENT_GET, &message, values, count, error);
}

enum status dist_optimizer_moment_set(struct dist_optimizer *optimizer, uint32_t index,
                                      enum dist_moment moment, const float *values, size_t count,
                                      struct error *error)
{
    const struct share *share = NULL;
    uint32_t position = 0;
    struct future *future;
    if (count == 0 || count > SHAPE_ELEMENTS_MAX)
        return error_set(error, STATUS_INVALID, "expected 1..%d values of a moment, got %zu",
                         SHAPE_ELEMENTS_MAX, count);
    enum status status = optimizer_find_share(optimizer, index, &share, &position, error);
    if (status != STATUS_OK)
        return status;
    struct rpc_message message = {.args = {0, 0, position, moment}};
    message_add(&message, WIRE_F32, values, (uint32_t)count);
    status = object_call(optimizer->dist, share->local, LOCAL_MOMENT_SET, &message, &future, error);
    if (status == STATUS_OK)
        future_release(future);
    return status;
}

enum status dist_optimizer_steps_set(struct dist_optimizer *optimizer, uint64_t steps, struct error *error)
{
    enum status status =
        optimizer_call_all(optimizer, LOCAL_STEPS_SET, &(struct rpc_message){.args = {0, 0, steps}}, error);
    optimizer_release_futures(optimizer);
    return status;
}
