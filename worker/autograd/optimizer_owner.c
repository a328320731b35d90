/* A local optimizer, as an object of class "optimizer": made, described and ended. Its rounds are in
 * optimizer_round.c, its arithmetic in optimizer_step.c. A role's thread runs this, in handlers. The
 * description comes from another worker, and is checked here. */
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
            if (local->members[i].object->entry->holder == local)
                local->members[i].object->entry->holder = NULL;
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
    if (message_flat(message, 0, WIRE_U64) != NEW_WORDS || count == 0 ||
        message_flat(message, 2, WIRE_U32) != count)
        return error_set(error, STATUS_INVALID, "this is no description of an optimizer");
    if (count > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u parameters, expected 1..%d", count,
                         DIST_PARAMETERS_MAX);
    if (participants == 0 || participants > DIST_PARTICIPANTS_MAX)
        return error_set(error, STATUS_INVALID, "an optimizer of %u participants, expected 1..%d",
                         participants, DIST_PARTICIPANTS_MAX);
    return STATUS_OK;
}

static enum status local_check_words(const struct local *local, struct error *error)
{
    const uint64_t *words = local->words;
    if (words[NEW_KIND] > OPTIMIZER_ADAM || words[NEW_ASYNC] > 1 ||
        words[NEW_POSITION] >= words[NEW_OWNERS] || words[NEW_OWNERS] > words[NEW_TOTAL] ||
        words[NEW_TOTAL] > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID, "this is no description of an optimizer");
    for (uint32_t i = 0; i < local->count; i++)
        if (local->indices[i] >= words[NEW_TOTAL] || (i > 0 && local->indices[i] <= local->indices[i - 1]))
            return error_set(error, STATUS_INVALID,
                             "number %u of an optimizer's %u parameters is not in order", local->indices[i],
                             (uint32_t)words[NEW_TOTAL]);
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

/* A participant that is gone will not ask for a step, and a round of all would wait for it. */
static enum status local_check_participants(const struct local *local, struct error *error)
{
    for (uint32_t i = 0; i < local->participant_count && local->words[NEW_ASYNC] == 0; i++)
        if (!rpc_reaches(local->owner->rpc, local->participants[i].worker))
            return error_set(error, STATUS_PEER_DIED,
                             "worker %u, which is to take part in every step, is gone",
                             local->participants[i].worker);
    return STATUS_OK;
}

/* The memory, except the optimizers'; and the words, indices and participants of the message. */
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
    memcpy(local->words, message->data[0], sizeof local->words);
    memcpy(local->indices, message->data[2], count * sizeof *local->indices);
    for (uint32_t i = 0; i < participants; i++) {
        uint32_t worker;
        memcpy(&worker, (const char *)message->data[3] + i * sizeof worker, sizeof worker);
        local->participants[i].worker = (uint16_t)(worker <= UINT16_MAX ? worker : UINT16_MAX);
    }
    *out = local;
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

/* `async` may change parameters that other contexts have still to walk. So they need versions: one for each
 * participant, and the next one. */
static enum status local_check_versions(const struct local *local, const struct owned *owned,
                                        struct error *error)
{
    const char *name = owned->entries[0].parameter->name;
    if (local->words[NEW_ASYNC] == 0)
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
    const struct optimizer_settings settings = settings_of(local->words);
    struct group *group = &local->groups[local->group_count];
    group->owned = owned;
    status = optimizer_new(&group->optimizer, &settings, owned->params, error);
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
    const struct local *holder = member->object->entry->holder;
    if (holder != NULL)
        return error_set(error, STATUS_INVALID, "parameter %s %s", member->object->entry->parameter->name,
                         holder == local ? "is given twice" : "has an optimizer already");
    member->object->entry->holder = local;
    status = local_find_group(local, member->object->owned, &member->group, error);
    if (status == STATUS_OK)
        member->group->members++;
    return status;
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
    status = local_check_words(local, error);
    if (status == STATUS_OK)
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

static void answer_info(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct local *local = object;
    struct rpc_message reply = {0};
    (void)message;
    message_add(&reply, WIRE_U64, local->words, NEW_WORDS);
    message_add(&reply, WIRE_U32, local->indices, local->count);
    rpc_reply(request, &reply);
}

static enum status local_find_moment(const struct local *local, uint64_t position, uint64_t which,
                                     const struct local_entry **member, struct gradients **moment,
                                     struct error *error)
{
    if (position >= local->count)
        return error_set(error, STATUS_INVALID, "number %llu of %u parameters", (unsigned long long)position,
                         local->count);
    *member = &local->members[position];
    *moment =
        which <= DIST_MOMENT_SECOND ? optimizer_moment((*member)->group->optimizer, (uint32_t)which) : NULL;
    if (*moment == NULL)
        return error_set(error, STATUS_INVALID, "the optimizer of parameter %s has no moment number %llu",
                         (*member)->object->entry->parameter->name, (unsigned long long)which);
    return STATUS_OK;
}

enum status local_moment_get(const struct local *local, uint64_t position, uint64_t which, float *values,
                             size_t count, struct error *error)
{
    const struct local_entry *member = NULL;
    struct gradients *moment = NULL;
    enum status status = local_find_moment(local, position, which, &member, &moment, error);
    if (status != STATUS_OK)
        return status;
    const struct parameter *parameter = member->object->entry->parameter;
    const size_t elements = owned_parameter_elements(member->object);
    if (count != elements)
        return error_set(error, STATUS_INVALID, "a moment of parameter %s has %zu values, got %zu",
                         parameter->name, elements, count);
    return gradients_read(moment, parameter, DTYPE_F32, values, error);
}

static void answer_moment_get(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const uint64_t position = message->args[2], which = message->args[3];
    const struct local_entry *member = NULL;
    struct gradients *moment = NULL;
    struct error error = {0};
    float *values;
    enum status status = local_find_moment(object, position, which, &member, &moment, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    status = owned_parameter_values(member->object, &values, &error);
    if (status == STATUS_OK)
        status = gradients_read(moment, member->object->entry->parameter, DTYPE_F32, values, &error);
    owned_parameter_reply(member->object, request, values, status, &error);
}

static void answer_moment_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct local_entry *member = NULL;
    struct gradients *moment = NULL;
    struct error error = {0};
    float *values = NULL;
    enum status status =
        local_find_moment(object, message->args[2], message->args[3], &member, &moment, &error);
    if (status == STATUS_OK)
        status = owned_parameter_take(member->object, message, &values, &error);
    if (status == STATUS_OK)
        status = gradients_write(moment, member->object->entry->parameter, DTYPE_F32, values, &error);
    free(values);
    request_finish(request, status, &error);
}

static void answer_steps_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct local *local = object;
    for (uint32_t g = 0; g < local->group_count; g++)
        optimizer_steps_set(local->groups[g].optimizer, message->args[2]);
    rpc_reply(request, &(struct rpc_message){0});
}

/* A participant without a reference asks for no step any more. */
static void local_released(void *object, uint16_t worker)
{
    local_worker_left(object, worker, STATUS_SHUTDOWN);
}

static rref_function *const functions[LOCAL_FUNCTIONS] = {
    [LOCAL_INFO] = answer_info,
    [LOCAL_NORM] = local_norm,
    [LOCAL_STEP] = local_step,
    [LOCAL_MOMENT_GET] = answer_moment_get,
    [LOCAL_MOMENT_SET] = answer_moment_set,
    [LOCAL_STEPS_SET] = answer_steps_set,
};

const struct rref_class dist_optimizer_class = {
    .name = "optimizer",
    .destroy = local_destroy,
    .released = local_released,
    .functions = functions,
    .function_count = LOCAL_FUNCTIONS,
};
