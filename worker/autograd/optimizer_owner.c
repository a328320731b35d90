/* A local optimizer, as an object of class "optimizer": made and ended. Its rounds are in
 * optimizer_owner_round.c, its arithmetic in optimizer_owner_step.c. A role's thread runs this, in handlers.
 * The description comes from another worker, and is checked here. */
#include "kernels/params/gradients.h"
#include "worker/autograd/optimizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the end ---- */

static void local_destroy(void *object)
{
    struct local *local = object;
    struct local **link = &local->owner->locals;
    while (*link != NULL && *link != local)
        link = &(*link)->next;
    if (*link != NULL)
        *link = local->next;
    for (uint32_t g = 0; g < local->group_count; g++) {
        optimizer_free(local->groups[g].optimizer);
        gradients_free(local->groups[g].sum);
    }
    for (uint32_t i = 0; i < local->count; i++)
        if (local->members[i].object != NULL) {
            struct owned_entry *entry = local->members[i].object->entry;
            if (entry->group != NULL && entry->group->local == local)
                entry->group = NULL;
            rref_object_done(local->owner->rrefs, local->members[i].number);
        }
    free(local->indices);
    free(local->members);
    free(local->sums);
    free(local->groups);
    free(local->participants);
    free(local);
}

/* ---- making ---- */

static enum status local_check_message(const struct rpc_message *message, struct error *error)
{
    const uint32_t count = message_flat(message, 1, WIRE_U64),
                   participants = message_flat(message, 3, WIRE_U32);
    uint64_t words[NEW_WORDS] = {0};
    if (message_flat(message, 0, WIRE_U64) == NEW_WORDS)
        memcpy(words, message->data[0], sizeof words);
    if (message_flat(message, 0, WIRE_U64) != NEW_WORDS || count == 0 ||
        message_flat(message, 2, WIRE_U32) != count || words[NEW_KIND] > OPTIMIZER_ADAM ||
        words[NEW_ASYNC] > 1)
        return error_set(error, STATUS_INVALID, "this is no description of an optimizer");
    if (count > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u parameters, expected 1..%d", count,
                         DIST_PARAMETERS_MAX);
    if (participants == 0 || participants > DIST_PARTICIPANTS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u participants, expected 1..%d",
                         participants, DIST_PARTICIPANTS_MAX);
    return STATUS_OK;
}

static enum status local_check_participants(const struct local *local, struct error *error)
{
    const uint32_t workers = rpc_workers(local->owner->rpc);
    for (uint32_t i = 0; i < local->participant_count; i++)
        if (local->participants[i].worker >= workers)
            return error_set(error, STATUS_INVALID, "participant %u of an optimizer: there are %u workers",
                             local->participants[i].worker, workers);
    for (uint32_t i = 1; i < local->participant_count; i++)
        if (local->participants[i].worker <= local->participants[i - 1].worker)
            return error_set(
                error, STATUS_INVALID,
                "an optimizer's participants come in ascending order, worker %u after %u does not",
                local->participants[i].worker, local->participants[i - 1].worker);
    return STATUS_OK;
}

static struct optimizer_settings settings_of(const uint64_t words[NEW_WORDS])
{
    const double lr = double_of_word(words[NEW_LR]);
    return (struct optimizer_settings){.kind =
                                           words[NEW_KIND] == OPTIMIZER_ADAM ? OPTIMIZER_ADAM : OPTIMIZER_SGD,
                                       .sgd = {.lr = lr, .momentum = double_of_word(words[NEW_MOMENTUM])},
                                       .adam = {.lr = lr,
                                                .beta1 = double_of_word(words[NEW_BETA1]),
                                                .beta2 = double_of_word(words[NEW_BETA2]),
                                                .epsilon = double_of_word(words[NEW_EPSILON])}};
}

/* The memory, except the optimizers'; and the settings, indices and participants of the message. */
static enum status local_alloc(struct local **out, struct dist_owner *owner,
                               const struct rpc_message *message, struct error *error)
{
    const uint32_t count = message_flat(message, 1, WIRE_U64),
                   participants = message_flat(message, 3, WIRE_U32);
    struct local *local = calloc(1, sizeof *local);
    if (local == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an optimizer");
    local->owner = owner;
    local->indices = calloc(count, sizeof *local->indices);
    local->members = calloc(count, sizeof *local->members);
    local->sums = calloc(count, sizeof *local->sums);
    local->groups = calloc(count, sizeof *local->groups);
    local->participants = calloc(participants, sizeof *local->participants);
    if (local->indices == NULL || local->members == NULL || local->sums == NULL || local->groups == NULL ||
        local->participants == NULL) {
        local_destroy(local);
        return error_set(error, STATUS_NO_MEMORY, "no memory for an optimizer of %u parameters", count);
    }
    local->count = count;
    local->participant_count = participants;
    uint64_t words[NEW_WORDS];
    memcpy(words, message->data[0], sizeof words);
    local->settings = settings_of(words);
    local->async = words[NEW_ASYNC] == 1;
    memcpy(local->indices, message->data[2], count * sizeof *local->indices);
    for (uint32_t i = 0; i < participants; i++) {
        uint32_t worker;
        memcpy(&worker, (const char *)message->data[3] + i * sizeof worker, sizeof worker);
        local->participants[i].worker = (uint16_t)(worker <= UINT16_MAX ? worker : UINT16_MAX);
    }
    *out = local;
    return STATUS_OK;
}

/* `async` may change parameters that other contexts have still to walk. So they need versions: one for each
 * participant, and the next one. */
static enum status local_check_versions(const struct local *local, const struct owned *owned,
                                        struct error *error)
{
    const char *name = owned->entries[0].parameter->name;
    if (!local->async)
        return STATUS_OK;
    const struct backend_ops *ops = params_backend(owned->params)->ops;
    if (!ops->host)
        return error_set(error, STATUS_UNAVAILABLE,
                         "parameter %s: a round that is async needs versions, which memory of %s has not",
                         name, ops->name);
    const uint32_t slots = owned->versions != NULL ? dist_versions_slots(owned->versions) : 1;
    if (slots <= local->participant_count)
        return error_set(error, STATUS_INVALID,
                         "parameter %s: a round that is async with %u participants needs %u versions of it, "
                         "its object has %u",
                         name, local->participant_count, local->participant_count + 1, slots);
    return STATUS_OK;
}

static enum status local_find_group(struct local *local, struct owned *owned, struct group **out,
                                    struct error *error)
{
    for (uint32_t g = 0; g < local->group_count; g++)
        if (local->groups[g].owned == owned) {
            *out = &local->groups[g];
            return STATUS_OK;
        }
    enum status status = local_check_versions(local, owned, error);
    if (status != STATUS_OK)
        return status;
    struct group *group = &local->groups[local->group_count];
    group->local = local;
    group->owned = owned;
    status = optimizer_new(&group->optimizer, &local->settings, owned->params, error);
    if (status != STATUS_OK)
        return status;
    local->group_count++;
    *out = group;
    return STATUS_OK;
}

/* Makes object `number` member i. STATUS_INVALID: it is no parameter, or has an optimizer. */
static enum status local_add_member(struct local *local, uint32_t i, uint16_t source, uint64_t number,
                                    struct error *error)
{
    void *object;
    const struct rref_class *class;
    enum status status = rref_object_use(local->owner->rrefs, source, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    if (class != &dist_parameter_class) {
        rref_object_done(local->owner->rrefs, number);
        return error_set(error, STATUS_INVALID, "object %llu is of class %s, expected a parameter",
                         (unsigned long long)number, class->name);
    }
    struct local_entry *member = &local->members[i];
    member->object = object;
    member->number = number;
    struct owned_entry *entry = member->object->entry;
    if (entry->group != NULL)
        return error_set(error, STATUS_INVALID, "parameter %s %s", entry->parameter->name,
                         entry->group->local == local ? "is given twice" : "has an optimizer already");
    status = local_find_group(local, member->object->owned, &member->group, error);
    if (status != STATUS_OK)
        return status;
    entry->group = member->group;
    member->group->members++;
    return STATUS_OK;
}

static enum status local_make(struct local **out, struct dist_owner *owner, uint16_t source,
                              const struct rpc_message *message, struct error *error)
{
    struct local *local = NULL;
    enum status status = local_check_message(message, error);
    if (status == STATUS_OK)
        status = local_alloc(&local, owner, message, error);
    if (status != STATUS_OK)
        return status;
    status = local_check_participants(local, error);
    for (uint32_t i = 0; i < local->count && status == STATUS_OK; i++) {
        uint64_t number;
        memcpy(&number, (const char *)message->data[1] + i * sizeof number, sizeof number);
        status = local_add_member(local, i, source, number, error);
    }
    if (status != STATUS_OK) {
        local_destroy(local);
        return status;
    }
    local->next = owner->locals;
    owner->locals = local;
    *out = local;
    return STATUS_OK;
}

void local_new(struct owned_parameter *first, struct rpc_request *request, const struct rpc_message *message)
{
    struct dist_owner *owner = first->owned->owner;
    struct error error = {0};
    struct local *local = NULL;
    struct rpc_message reply = {0};
    enum status status = local_make(&local, owner, rpc_request_source(request), message, &error);
    if (status == STATUS_OK) {
        status = rref_grant(owner->rrefs, &dist_optimizer_class, local, request, &reply.args[0], &error);
        if (status != STATUS_OK)
            local_destroy(local);
    }
    if (status == STATUS_OK)
        rpc_reply(request, &reply);
    else
        rpc_fail(request, status, "%s", error.text);
}

/* ---- functions of class "optimizer" ---- */

static void answer_steps_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct local *local = object;
    for (uint32_t g = 0; g < local->group_count; g++)
        optimizer_steps_set(local->groups[g].optimizer, message->args[2]);
    rpc_reply(request, NULL);
}

/* A participant without a reference asks for no step any more. */
static void local_released(void *object, uint16_t worker)
{
    local_worker_left(object, worker, STATUS_SHUTDOWN);
}

static rref_function *const functions[LOCAL_FUNCTIONS] = {
    [LOCAL_NORM] = local_norm,
    [LOCAL_STEP] = local_step,
    [LOCAL_STEPS_SET] = answer_steps_set,
};

const struct rref_class dist_optimizer_class = {
    .name = "optimizer",
    .destroy = local_destroy,
    .released = local_released,
    .functions = functions,
    .function_count = LOCAL_FUNCTIONS,
};
