/* Parameters as objects, on their owner: what callers find and use them by. A role's thread runs it, in
 * handlers that answer at once. */
#include "worker/autograd/dist_optimizer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void answer_parameters(void *context, struct rpc_request *request, const struct rpc_message *message);

static const struct rpc_method methods[] = {
    {.method = METHOD_PARAMETERS, .callers = UINT8_MAX, .handler = answer_parameters},
};

/* ---- the owner ---- */

static void worker_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct dist_owner *owner = context;
    (void)why, (void)text;
    for (struct local *local = owner->locals; local != NULL; local = local->next)
        local_worker_left(local, worker, STATUS_PEER_DIED);
}

enum status dist_owner_new(struct dist_owner **out, struct dist *dist, struct error *error)
{
    struct dist_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an owner of parameters");
    *owner = (struct dist_owner){.dist = dist, .rpc = dist_rpc(dist), .rrefs = dist_rrefs(dist)};
    rpc_add_methods(owner->rpc, methods, sizeof methods / sizeof methods[0], owner);
    rpc_on_left(owner->rpc, worker_left, owner);
    *out = owner;
    return STATUS_OK;
}

void dist_owner_free(struct dist_owner *owner)
{
    assert(owner == NULL || (owner->owned == NULL && owner->locals == NULL));
    free(owner);
}

/* ---- objects that have parameters ---- */

/* The object's class says what it has; `object` is in use, and stays so when the answer is STATUS_OK. */
static enum status owned_new(struct owned **out, struct dist_owner *owner, uint64_t number, void *object,
                             const struct rref_class *class, struct error *error)
{
    const struct dist_class *extension = class->extension;
    struct params *params = extension != NULL && extension->params != NULL ? extension->params(object) : NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; params != NULL && i < params_count(params); i++)
        count += params_at(params, i)->kind == PARAMETER_TRAINED;
    if (count == 0 || count > DIST_PARAMETERS_MAX)
        return error_set(error, STATUS_INVALID,
                         "object %llu of class %s has %u trained parameters, expected 1..%d",
                         rref_short(number), class->name, count, DIST_PARAMETERS_MAX);
    struct owned *owned = calloc(1, sizeof *owned + count * sizeof owned->entries[0]);
    if (owned == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u parameters", count);
    *owned = (struct owned){
        .owner = owner, .next = owner->owned, .number = number, .object = object, .params = params};
    owned->versions = extension->versions != NULL ? extension->versions(object) : NULL;
    for (uint32_t i = 0; i < params_count(params); i++)
        if (params_at(params, i)->kind == PARAMETER_TRAINED)
            owned->entries[owned->count++].parameter = params_at(params, i);
    owner->owned = owned;
    *out = owned;
    return STATUS_OK;
}

/* Its last parameter is gone: nobody of ours needs the object any more. */
static void owned_free(struct owned *owned)
{
    struct owned **link = &owned->owner->owned;
    while (*link != owned)
        link = &(*link)->next;
    *link = owned->next;
    rref_object_done(owned->owner->rrefs, owned->number);
    free(owned);
}

/* What is known of the object already, or made; with one more user, so that it stays. */
static enum status owned_use(struct owned **out, struct dist_owner *owner, uint16_t source, uint64_t number,
                             struct error *error)
{
    void *object;
    const struct rref_class *class;
    enum status status = rref_object_use(owner->rrefs, source, number, &object, &class, error);
    if (status != STATUS_OK)
        return status;
    struct owned *owned = owner->owned;
    while (owned != NULL && owned->number != number)
        owned = owned->next;
    const bool known = owned != NULL;
    if (!known)
        status = owned_new(&owned, owner, number, object, class, error);
    if (known || status != STATUS_OK)
        rref_object_done(owner->rrefs, number);
    if (status != STATUS_OK)
        return status;
    owned->users++;
    *out = owned;
    return STATUS_OK;
}

static void owned_release(struct owned *owned)
{
    if (--owned->users == 0)
        owned_free(owned);
}

/* Contexts that read it, but for the participants': their pieces may not all know yet that they had no part
 * in the loss. */
static uint32_t other_readers(const struct owned *owned, const struct participant *participants,
                              uint32_t count)
{
    const struct dist *dist = owned->owner->dist;
    const uint32_t all = dist_readers(dist, 0, owned->object);
    uint32_t others = all;
    for (uint32_t i = 0; i < count; i++)
        others -= all - dist_readers(dist, participants[i].context, owned->object);
    return others;
}

enum status owned_may_change(const struct owned *owned, const struct participant *participants,
                             uint32_t count, struct error *error)
{
    if (owned->versions != NULL)
        return dist_versions_can_advance(owned->versions)
                   ? STATUS_OK
                   : error_set(error, STATUS_BUSY, "all %u versions of %s are being read",
                               dist_versions_slots(owned->versions), owned->entries[0].parameter->name);
    const uint32_t readers = other_readers(owned, participants, count);
    if (readers == 0)
        return STATUS_OK;
    return error_set(error, STATUS_BUSY,
                     "%u contexts have still to walk what they read of object %llu (%s, …)", readers,
                     rref_short(owned->number), owned->entries[0].parameter->name);
}

/* ---- references to parameters ---- */

static void parameter_destroy(void *object)
{
    struct owned_parameter *parameter = object;
    for (uint32_t i = 0; i < VALUES_COUNT; i++)
        free(parameter->values[i]);
    owned_release(parameter->owned);
    free(parameter);
}

/* One more object for parameter `index`. */
static enum status own_parameter(struct owned *owned, uint32_t index, struct rref **out, struct error *error)
{
    struct owned_parameter *parameter = calloc(1, sizeof *parameter);
    if (parameter == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a reference to a parameter");
    parameter->owned = owned;
    parameter->entry = &owned->entries[index];
    owned->users++;
    enum status status = rref_own(owned->owner->rrefs, &dist_parameter_class, parameter, out, error);
    if (status != STATUS_OK)
        parameter_destroy(parameter);
    return status;
}

/* All of them are made before the first is granted: a grant cannot be taken back. */
static void answer_parameters(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct error error = {0};
    struct owned *owned = NULL;
    struct rref *rrefs[DIST_PARAMETERS_MAX];
    uint64_t numbers[DIST_PARAMETERS_MAX];
    uint32_t made = 0;
    enum status status = owned_use(&owned, context, rpc_request_source(request), message->args[0], &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    while (made < owned->count && status == STATUS_OK) {
        status = own_parameter(owned, made, &rrefs[made], &error);
        made += status == STATUS_OK;
    }
    for (uint32_t i = 0; i < made; i++) {
        if (status == STATUS_OK)
            numbers[i] = rref_grant(rrefs[i], request);
        rref_release(rrefs[i]); // the last user, if it was not granted
    }
    struct rpc_message reply = {0};
    if (status == STATUS_OK) {
        message_add(&reply, WIRE_U64, numbers, made);
        rpc_reply(request, &reply);
    } else {
        rpc_fail(request, status, "%s", error.text);
    }
    owned_release(owned);
}

/* ---- values ---- */

static size_t elements_of(const struct owned_parameter *parameter)
{
    return shape_elements(&parameter->entry->parameter->tensor.shape);
}

enum status owned_parameter_room(struct owned_parameter *parameter, enum owned_values kind, float **values,
                                 struct error *error)
{
    const char *name = parameter->entry->parameter->name;
    const size_t elements = elements_of(parameter), most = WIRE_BODY_BYTES_MAX / sizeof(float);
    if (elements > most)
        return error_set(error, STATUS_INVALID, "%s has %zu values, of which a message carries %zu", name,
                         elements, most);
    if (parameter->values[kind] == NULL)
        parameter->values[kind] = malloc(elements * sizeof(float));
    *values = parameter->values[kind];
    return *values != NULL ? STATUS_OK
                           : error_set(error, STATUS_NO_MEMORY, "no memory for the values of %s", name);
}

void owned_parameter_reply(struct owned_parameter *parameter, enum owned_values kind,
                           struct rpc_request *request)
{
    struct rpc_message reply = {0};
    message_add(&reply, WIRE_F32, parameter->values[kind], (uint32_t)elements_of(parameter));
    rpc_reply(request, &reply);
}

enum status owned_parameter_take(struct owned_parameter *parameter, enum owned_values kind,
                                 const struct rpc_message *message, struct error *error)
{
    const size_t elements = elements_of(parameter);
    const uint32_t count = message_flat(message, 0, WIRE_F32);
    if (message->tensor_count != 1 || count != elements)
        return error_set(error, STATUS_INVALID, "parameter %s has %zu values, got %u",
                         parameter->entry->parameter->name, elements, count);
    float *values;
    enum status status = owned_parameter_room(parameter, kind, &values, error);
    if (status == STATUS_OK)
        memcpy(values, message->data[0], elements * sizeof *values);
    return status;
}

static enum status parameter_value(void *object, struct rpc_message *value, struct error *error)
{
    struct owned_parameter *parameter = object;
    float *values;
    enum status status = owned_parameter_room(parameter, VALUES_PARAMETER, &values, error);
    if (status == STATUS_OK)
        status = params_read(parameter->owned->params, parameter->entry->parameter, DTYPE_F32, values, error);
    if (status == STATUS_OK)
        message_add(value, WIRE_F32, values, (uint32_t)elements_of(parameter));
    return status;
}

/* ---- functions ---- */

static void answer_info(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct owned_parameter *parameter = object;
    const char *name = parameter->entry->parameter->name;
    const struct shape *shape = &parameter->entry->parameter->tensor.shape;
    struct rpc_message reply = {0};
    (void)message;
    const size_t length = strnlen(name, DIST_NAME_BYTES - 1);
    message_add(&reply, WIRE_U8, name, (uint32_t)length);
    if (shape->rank > 0)
        message_add(&reply, WIRE_U32, shape->size, shape->rank);
    rpc_reply(request, &reply);
}

static enum status set(struct owned_parameter *parameter, const struct rpc_message *message,
                       struct error *error)
{
    struct owned *owned = parameter->owned;
    enum status status = owned_may_change(owned, NULL, 0, error);
    if (status == STATUS_OK)
        status = owned_parameter_take(parameter, VALUES_PARAMETER, message, error);
    if (status == STATUS_OK && owned->versions != NULL)
        status = dist_versions_advance(owned->versions, error);
    if (status == STATUS_OK)
        status = params_write(owned->params, parameter->entry->parameter, DTYPE_F32,
                              parameter->values[VALUES_PARAMETER], error);
    return status;
}

static void answer_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct owned_parameter *parameter = object;
    struct error error = {0};
    dist_end_older(parameter->owned->owner->dist, rpc_request_source(request), message->args[OLDEST]);
    enum status status = set(object, message, &error);
    if (status == STATUS_OK)
        rpc_reply(request, &(struct rpc_message){0});
    else
        rpc_fail(request, status, "%s", error.text);
}

static enum status read_gradient(struct owned_parameter *parameter, uint64_t context, struct error *error)
{
    struct gradients *gradients = NULL;
    const struct owned *owned = parameter->owned;
    float *values;
    enum status status = owned_parameter_room(parameter, VALUES_GRADIENT, &values, error);
    if (status != STATUS_OK)
        return status;
    status = dist_gradients(owned->owner->dist, context, owned->object, &gradients, error);
    if (status == STATUS_OK && gradients != NULL)
        return gradients_read(gradients, parameter->entry->parameter, DTYPE_F32, values, error);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    memset(values, 0, elements_of(parameter) * sizeof *values);
    return STATUS_OK;
}

static void answer_gradient(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct error error = {0};
    enum status status = read_gradient(object, message->context, &error);
    if (status == STATUS_OK)
        owned_parameter_reply(object, VALUES_GRADIENT, request);
    else
        rpc_fail(request, status, "%s", error.text);
}

static void answer_optimizer(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    local_new(object, request, message);
}

static rref_function *const functions[PARAMETER_FUNCTIONS] = {
    [PARAMETER_INFO] = answer_info,
    [PARAMETER_SET] = answer_set,
    [PARAMETER_GRADIENT] = answer_gradient,
    [PARAMETER_OPTIMIZER] = answer_optimizer,
};

const struct rref_class dist_parameter_class = {
    .name = "parameter",
    .destroy = parameter_destroy,
    .value = parameter_value,
    .functions = functions,
    .function_count = PARAMETER_FUNCTIONS,
};
