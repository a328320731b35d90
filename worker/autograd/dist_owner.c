/* A worker with parameters: METHOD_PARAMETERS, objects of class "parameter", deaths. A role's thread runs
 * this, in handlers that answer at once. */
#include "worker/autograd/optimizer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void answer_parameters(void *context, struct rpc_request *request, const struct rpc_message *message);

static const struct rpc_method methods[] = {
    {.method = METHOD_PARAMETERS, .callers = UINT8_MAX, .handler = answer_parameters},
};

/* ---- the owner ---- */

static void owner_worker_left(void *context, uint16_t worker, enum status why, const char *text)
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
    rpc_on_left(owner->rpc, owner_worker_left, owner);
    *out = owner;
    return STATUS_OK;
}

void dist_owner_free(struct dist_owner *owner)
{
    assert(owner == NULL || (owner->owned == NULL && owner->locals == NULL));
    free(owner);
}

/* ---- references to parameters ---- */

static void parameter_destroy(void *object)
{
    struct owned_parameter *parameter = object;
    owned_release(parameter->owned);
    free(parameter);
}

/* A new object for parameter `index`, which the caller of `request` uses. */
static enum status own_parameter(struct owned *owned, uint32_t index, const struct rpc_request *request,
                                 uint64_t *number, struct error *error)
{
    struct owned_parameter *parameter = calloc(1, sizeof *parameter);
    if (parameter == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a reference to a parameter");
    parameter->owned = owned;
    parameter->entry = &owned->entries[index];
    owned->users++;
    enum status status =
        rref_grant(owned->owner->rrefs, &dist_parameter_class, parameter, request, number, error);
    if (status != STATUS_OK)
        parameter_destroy(parameter);
    return status;
}

static void answer_parameters(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct error error = {0};
    struct owned *owned = NULL;
    struct rpc_message reply = {0};
    uint64_t numbers[DIST_PARAMETERS_MAX];
    uint32_t made = 0;
    enum status status = owned_use(&owned, context, rpc_request_source(request), message->args[0], &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    while (made < owned->count && status == STATUS_OK) {
        status = own_parameter(owned, made, request, &numbers[made], &error);
        made += status == STATUS_OK;
    }
    if (status == STATUS_OK) {
        message_add(&reply, WIRE_U64, numbers, made);
        rpc_reply(request, &reply);
    } else {
        while (made > 0)
            rref_revoke(owned->owner->rrefs, numbers[--made], request);
        rpc_fail(request, status, "%s", error.text);
    }
    owned_release(owned);
}

/* ---- functions of class "parameter" ---- */

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

/* A reply to this worker itself would lend `values` (rpc.h), so dist_parameter.c reads values of this
 * worker's parameters in place. */
static void answer_get(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct owned_parameter *parameter = object;
    const size_t elements = owned_parameter_elements(parameter);
    struct error error = {0};
    struct rpc_message reply = {0};
    float *values = malloc(elements * sizeof *values);
    enum status status =
        values != NULL
            ? owned_parameter_read(parameter, message->args[VALUES_WHICH], message->context, values, &error)
            : error_set(&error, STATUS_NO_MEMORY, "no memory for %zu values", elements);
    if (status == STATUS_OK) {
        message_add(&reply, WIRE_F32, values, (uint32_t)elements);
        rpc_reply(request, &reply);
    } else {
        rpc_fail(request, status, "%s", error.text);
    }
    free(values);
}

/* The values are copied, as they may lie at any address in the message. */
static void answer_set(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    const struct owned_parameter *parameter = object;
    const size_t elements = owned_parameter_elements(parameter);
    const uint32_t count = message->tensor_count == 1 ? message_flat(message, 0, WIRE_F32) : 0;
    struct error error = {0};
    float *values = malloc(elements * sizeof *values);
    enum status status = owned_parameter_check(parameter, count, &error);
    if (status == STATUS_OK && values == NULL)
        status = error_set(&error, STATUS_NO_MEMORY, "no memory for %zu values", elements);
    if (status == STATUS_OK) {
        memcpy(values, message->data[0], elements * sizeof *values);
        status = owned_parameter_write(parameter, message->args[VALUES_WHICH], values, &error);
    }
    free(values);
    if (status == STATUS_OK)
        rpc_reply(request, NULL);
    else
        rpc_fail(request, status, "%s", error.text);
}

static void answer_optimizer(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    local_new(object, request, message);
}

static rref_function *const functions[PARAMETER_FUNCTIONS] = {
    [PARAMETER_INFO] = answer_info,
    [PARAMETER_GET] = answer_get,
    [PARAMETER_SET] = answer_set,
    [PARAMETER_OPTIMIZER] = answer_optimizer,
};

const struct rref_class dist_parameter_class = {
    .name = "parameter",
    .destroy = parameter_destroy,
    .functions = functions,
    .function_count = PARAMETER_FUNCTIONS,
};
