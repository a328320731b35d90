/* The participant's side of the distributed optimizer: parameters of objects anywhere, and one optimizer with
 * a share on each owner. A role's top level runs this; most functions wait.
 *
 * A step calls all owners at once. A parameter's index is its place in the list that the optimizer was made
 * of. */
#include "worker/autograd/dist_message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An owner has answered in a form that no owner of ours answers in: ends its session. STATUS_INVALID. */
static enum status object_malformed(struct dist *dist, uint16_t owner, struct error *error)
{
    rpc_reject_worker(dist_rpc(dist), owner, "an answer about parameters of another form than agreed");
    return error_set(error, STATUS_INVALID, "worker %u answers about parameters in another form than agreed",
                     owner);
}

/* ---- parameters: references ---- */

static enum status check_parameter(const struct rref *parameter, struct error *error)
{
    if (rref_class_of(parameter) == &dist_parameter_class)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "expected a reference to a parameter of worker %u",
                     rref_owner(parameter));
}

/* Accepts every granted reference, also after a failure: a reference that is not accepted would never be
 * given back. After a failure all are released. */
static enum status accept_all(struct dist *dist, uint16_t owner, const struct rpc_message *value,
                              uint32_t count, struct rref *out[], struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t number;
        memcpy(&number, (const char *)value->data[0] + i * sizeof number, sizeof number);
        enum status each = rref_accept(dist_rrefs(dist), owner, number, &dist_parameter_class, &out[i],
                                       status == STATUS_OK ? error : NULL);
        status = status == STATUS_OK ? each : status;
    }
    for (uint32_t i = 0; i < count && status != STATUS_OK; i++)
        rref_release(out[i]);
    return status;
}

enum status dist_parameters(struct dist *dist, struct rref *object, struct rref *out[DIST_PARAMETERS_MAX],
                            uint32_t *count, struct error *error)
{
    enum status status = rref_check_ready(object, error);
    if (status != STATUS_OK)
        return status;
    const uint16_t owner = rref_owner(object);
    const struct rpc_message message = {.args = {rref_object(object)}};
    struct future *future;
    status = rpc_call(dist_rpc(dist), owner, METHOD_PARAMETERS, &message, MONOTIME_NEVER, &future, error);
    if (status != STATUS_OK)
        return status;
    *count = message_flat(future_value(future), 0, WIRE_U64);
    status = *count == 0 || *count > DIST_PARAMETERS_MAX
                 ? object_malformed(dist, owner, error)
                 : accept_all(dist, owner, future_value(future), *count, out, error);
    future_release(future);
    return status;
}

/* ---- parameters: values ---- */

enum status dist_parameter_get(struct dist *dist, struct rref *parameter, enum dist_values which,
                               float *values, size_t count, struct error *error)
{
    const struct rpc_message message = {.args = {[VALUES_WHICH] = which}};
    struct future *future;
    enum status status = check_parameter(parameter, error);
    if (status == STATUS_OK && rref_local(parameter) != NULL)
        return parameter_read(rref_local(parameter), which, values, count, error);
    if (status != STATUS_OK)
        return status;
    const uint16_t owner = rref_owner(parameter); // a callback may release the handle while this waits
    status = rref_ask(parameter, PARAMETER_GET, &message, &future, error);
    if (status != STATUS_OK)
        return status;
    const struct rpc_message *value = future_value(future);
    const uint32_t got = message_flat(value, 0, WIRE_F32);
    if (got == 0)
        status = object_malformed(dist, owner, error);
    else if (got != count)
        status = error_set(error, STATUS_INVALID, "the parameter has %u values, room for %zu", got, count);
    else
        memcpy(values, value->data[0], count * sizeof *values);
    future_release(future);
    return status;
}

enum status dist_parameter_set(struct rref *parameter, enum dist_values which, const float *values,
                               size_t count, struct error *error)
{
    struct rpc_message message = {.args = {[VALUES_WHICH] = which}};
    enum status status = check_parameter(parameter, error);
    if (status == STATUS_OK && (count == 0 || count > SHAPE_ELEMENTS_MAX))
        status = error_set(error, STATUS_INVALID, "expected 1..%d values of a parameter, got %zu",
                           SHAPE_ELEMENTS_MAX, count);
    if (status != STATUS_OK)
        return status;
    message_add(&message, WIRE_F32, values, (uint32_t)count);
    return rref_ask(parameter, PARAMETER_SET, &message, NULL, error);
}

/* ---- the optimizer ---- */

/* One owner's share of the optimizer. */
struct share {
    uint16_t owner;
    struct rref *local;    /* NULL: not made yet */
    struct future *future; /* of the round of calls */
};

struct dist_optimizer {
    struct dist *dist;
    uint32_t share_count;
    struct share shares[DIST_PARAMETERS_MAX];
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

/* ---- the optimizer: calls to all owners ---- */

static void optimizer_release_futures(struct dist_optimizer *optimizer)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        future_release(optimizer->shares[p].future);
        optimizer->shares[p].future = NULL;
    }
}

/* The same message to every owner, at once. On STATUS_OK every share has a future with a value, otherwise
 * none has a future. */
static enum status optimizer_call_all(struct dist_optimizer *optimizer, uint32_t function,
                                      const struct rpc_message *message, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < optimizer->share_count && status == STATUS_OK; p++) {
        struct share *share = &optimizer->shares[p];
        status = rref_call(share->local, function, message, MONOTIME_NEVER, &share->future, error);
    }
    for (uint32_t p = 0; p < optimizer->share_count && optimizer->shares[p].future != NULL; p++) {
        const enum status each = rpc_wait(dist_rpc(optimizer->dist), optimizer->shares[p].future,
                                          status == STATUS_OK ? error : NULL);
        status = status == STATUS_OK ? each : status;
    }
    if (status != STATUS_OK)
        optimizer_release_futures(optimizer);
    return status;
}

static enum status optimizer_malformed(struct dist_optimizer *optimizer, const struct share *share,
                                       struct error *error)
{
    optimizer_release_futures(optimizer);
    return object_malformed(optimizer->dist, share->owner, error);
}

/* ---- the optimizer: making ---- */

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

static struct optimizer_words optimizer_describe(const struct dist_optimizer_config *config)
{
    const struct optimizer_settings *settings = &config->settings;
    return (struct optimizer_words){.kind = settings->kind,
                                    .lr = settings->kind == OPTIMIZER_ADAM ? settings->adam.lr
                                                                           : settings->sgd.lr,
                                    .momentum = settings->sgd.momentum,
                                    .beta1 = settings->adam.beta1,
                                    .beta2 = settings->adam.beta2,
                                    .epsilon = settings->adam.epsilon,
                                    .async = config->async};
}

/* Asks the owner of parameters[first], by that one, for a local optimizer of all its parameters in the list.
 */
static enum status optimizer_ask_for_local(struct dist_optimizer *optimizer, uint32_t first,
                                           const struct dist_optimizer_config *config,
                                           struct rref *const parameters[], uint32_t count,
                                           struct error *error)
{
    struct share *share = &optimizer->shares[optimizer->share_count++];
    const uint16_t owner = share->owner = rref_owner(parameters[first]);
    const struct optimizer_words words = optimizer_describe(config);
    uint64_t numbers[DIST_PARAMETERS_MAX];
    uint32_t indices[DIST_PARAMETERS_MAX], participants[DIST_PARTICIPANTS_MAX], members = 0;
    struct rpc_message message = {0};
    for (uint32_t i = first; i < count; i++)
        if (rref_owner(parameters[i]) == owner) {
            numbers[members] = rref_object(parameters[i]);
            indices[members++] = i;
        }
    for (uint32_t i = 0; i < config->participant_count; i++)
        participants[i] = config->participants[i];
    message_add(&message, WIRE_U64, &words, OPTIMIZER_WORDS);
    message_add(&message, WIRE_U64, numbers, members);
    message_add(&message, WIRE_U32, indices, members);
    message_add(&message, WIRE_U32, participants, config->participant_count);
    return rref_call(parameters[first], PARAMETER_OPTIMIZER, &message, MONOTIME_NEVER, &share->future, error);
}

static bool optimizer_owner_is_new(struct rref *const parameters[], uint32_t index)
{
    uint32_t i = 0;
    while (i < index && rref_owner(parameters[i]) != rref_owner(parameters[index]))
        i++;
    return i == index;
}

/* Accepts all references in the owners' answers, also after a failure: releasing them ends the local
 * optimizers. */
static enum status optimizer_accept_locals(struct dist_optimizer *optimizer, enum status status,
                                           struct error *error)
{
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        struct share *share = &optimizer->shares[p];
        if (share->future == NULL)
            continue;
        struct error *const tell = status == STATUS_OK ? error : NULL;
        enum status each = rpc_wait(dist_rpc(optimizer->dist), share->future, tell);
        if (each == STATUS_OK)
            each =
                rref_accept(dist_rrefs(optimizer->dist), share->owner, future_value(share->future)->args[0],
                            &dist_optimizer_class, &share->local, tell);
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
    enum status status = optimizer_check_list(config, parameters, count, error);
    if (status == STATUS_OK)
        status = optimizer_alloc(&optimizer, dist, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        if (optimizer_owner_is_new(parameters, i))
            status = optimizer_ask_for_local(optimizer, i, config, parameters, count, error);
    status = optimizer_accept_locals(optimizer, status, error);
    if (status != STATUS_OK) {
        dist_optimizer_free(optimizer);
        return status;
    }
    *out = optimizer;
    return STATUS_OK;
}

/* ---- the optimizer: sharing ---- */

enum status dist_optimizer_share(struct dist_optimizer *optimizer, uint16_t worker, uint64_t tag,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < optimizer->share_count && status == STATUS_OK; p++)
        status = rref_give(optimizer->shares[p].local, worker, tag, error);
    return status;
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
        optimizer->shares[optimizer->share_count++] =
            (struct share){.owner = rref_owner(locals[i]), .local = rref_copy(locals[i])};
    *out = optimizer;
    return STATUS_OK;
}

/* ---- the optimizer: a step ---- */

/* Adds up all parameters' square sums in the order of their indices, which are 0, 1, … each once. */
static enum status optimizer_add_sums(struct dist_optimizer *optimizer, double *sum, struct error *error)
{
    double sums[DIST_PARAMETERS_MAX];
    bool taken[DIST_PARAMETERS_MAX] = {false};
    uint32_t total = 0;
    for (uint32_t p = 0; p < optimizer->share_count; p++) {
        const struct share *share = &optimizer->shares[p];
        const struct rpc_message *value = future_value(share->future);
        const uint32_t count = message_flat(value, 0, WIRE_U64);
        if (count == 0 || message_flat(value, 1, WIRE_U32) != count)
            return optimizer_malformed(optimizer, share, error);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t index;
            memcpy(&index, (const char *)value->data[1] + i * sizeof index, sizeof index);
            if (index >= DIST_PARAMETERS_MAX || taken[index])
                return optimizer_malformed(optimizer, share, error);
            memcpy(&sums[index], (const char *)value->data[0] + i * sizeof sums[0], sizeof sums[0]);
            taken[index] = true;
            total++;
        }
    }
    optimizer_release_futures(optimizer);
    *sum = 0;
    for (uint32_t i = 0; i < total; i++) {
        if (!taken[i])
            return error_set(error, STATUS_INVALID, "%u references to optimizers are not all of one",
                             optimizer->share_count);
        *sum += sums[i];
    }
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
        status = optimizer_add_sums(optimizer, &sum, error);
    *norm = sqrt(sum);
    return status;
}

enum status dist_optimizer_step(struct dist_optimizer *optimizer, struct dist_context *context,
                                struct dist_step *step, struct error *error)
{
    enum status status = STATUS_OK;
    step->norm = (double)NAN;
    step->was_last = false;
    if (step->max_norm > 0)
        status = optimizer_take_norm(optimizer, context, &step->norm, error);
    if (status != STATUS_OK)
        return status;
    const struct step_words words = {.lr = step->lr,
                                     .max_norm = step->max_norm,
                                     .norm = step->max_norm > 0 ? step->norm : 0,
                                     .last = step->last};
    struct rpc_message message = {.context = dist_context_id(context)};
    message_add(&message, WIRE_U64, &words, STEP_WORDS);
    status = optimizer_call_all(optimizer, LOCAL_STEP, &message, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t p = 0; p < optimizer->share_count; p++)
        step->was_last = step->was_last || future_value(optimizer->shares[p].future)->args[0] != 0;
    optimizer_release_futures(optimizer);
    return STATUS_OK;
}

enum status dist_optimizer_steps_set(struct dist_optimizer *optimizer, uint64_t steps, struct error *error)
{
    enum status status =
        optimizer_call_all(optimizer, LOCAL_STEPS_SET, &(struct rpc_message){.args = {0, 0, steps}}, error);
    optimizer_release_futures(optimizer);
    return status;
}
