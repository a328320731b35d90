/* Objects with parameters on their owner, and the values of a single parameter. A role's thread runs this. */
#include "worker/autograd/optimizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- objects with parameters ---- */

/* On STATUS_OK the use of `object` is kept. */
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
                         (unsigned long long)number, class->name, count, DIST_PARAMETERS_MAX);
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

static void owned_free(struct owned *owned)
{
    struct owned **link = &owned->owner->owned;
    while (*link != owned)
        link = &(*link)->next;
    *link = owned->next;
    rref_object_done(owned->owner->rrefs, owned->number);
    free(owned);
}

enum status owned_use(struct owned **out, struct dist_owner *owner, uint16_t source, uint64_t number,
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

void owned_release(struct owned *owned)
{
    if (--owned->users == 0)
        owned_free(owned);
}

enum status owned_may_change(const struct owned *owned, struct error *error)
{
    if (owned->versions == NULL || dist_versions_can_advance(owned->versions))
        return STATUS_OK;
    return error_set(error, STATUS_BUSY, "all %u versions of %s are being read",
                     dist_versions_slots(owned->versions), owned->entries[0].parameter->name);
}

/* ---- values ---- */

size_t owned_parameter_elements(const struct owned_parameter *parameter)
{
    return shape_elements(&parameter->entry->parameter->tensor.shape);
}

static enum status check_count(const struct owned_parameter *parameter, size_t count, struct error *error)
{
    const size_t elements = owned_parameter_elements(parameter);
    return count == elements ? STATUS_OK
                             : error_set(error, STATUS_INVALID, "parameter %s has %zu values, got %zu",
                                         parameter->entry->parameter->name, elements, count);
}

enum status owned_parameter_get(const struct owned_parameter *parameter, float *values, size_t count,
                                struct error *error)
{
    enum status status = check_count(parameter, count, error);
    if (status != STATUS_OK)
        return status;
    return params_read(parameter->owned->params, parameter->entry->parameter, DTYPE_F32, values, error);
}

enum status owned_parameter_set(const struct owned_parameter *parameter, const float *values, size_t count,
                                struct error *error)
{
    struct owned *owned = parameter->owned;
    enum status status = check_count(parameter, count, error);
    if (status == STATUS_OK)
        status = owned_may_change(owned, error);
    if (status == STATUS_OK && owned->versions != NULL)
        status = dist_versions_advance(owned->versions, error);
    if (status == STATUS_OK)
        status = params_write(owned->params, parameter->entry->parameter, DTYPE_F32, values, error);
    return status;
}

enum status owned_parameter_gradient(const struct owned_parameter *parameter, uint64_t context, float *values,
                                     size_t count, struct error *error)
{
    struct gradients *gradients = NULL;
    const struct owned *owned = parameter->owned;
    enum status status = check_count(parameter, count, error);
    if (status != STATUS_OK)
        return status;
    status = dist_gradients(owned->owner->dist, context, owned->object, &gradients, error);
    if (status == STATUS_OK && gradients != NULL)
        return gradients_read(gradients, parameter->entry->parameter, DTYPE_F32, values, error);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    memset(values, 0, count * sizeof *values);
    return STATUS_OK;
}

/* ---- values in messages ---- */

enum status owned_parameter_values(const struct owned_parameter *parameter, float **values,
                                   struct error *error)
{
    const char *name = parameter->entry->parameter->name;
    const size_t elements = owned_parameter_elements(parameter), most = WIRE_BODY_BYTES_MAX / sizeof(float);
    *values = NULL;
    if (elements > most)
        return error_set(error, STATUS_INVALID, "%s has %zu values, of which a message carries %zu", name,
                         elements, most);
    *values = malloc(elements * sizeof(float));
    return *values != NULL ? STATUS_OK
                           : error_set(error, STATUS_NO_MEMORY, "no memory for the values of %s", name);
}

enum status owned_parameter_take(const struct owned_parameter *parameter, const struct rpc_message *message,
                                 float **values, struct error *error)
{
    const uint32_t count = message->tensor_count == 1 ? message_flat(message, 0, WIRE_F32) : 0;
    *values = NULL;
    enum status status = check_count(parameter, count, error);
    if (status == STATUS_OK)
        status = owned_parameter_values(parameter, values, error);
    if (status == STATUS_OK)
        memcpy(*values, message->data[0], count * sizeof **values);
    return status;
}

void owned_parameter_reply(const struct owned_parameter *parameter, struct rpc_request *request,
                           float *values, enum status status, const struct error *error)
{
    const uint16_t self = rpc_worker(parameter->owned->owner->rpc);
    struct rpc_message reply = {0};
    if (status == STATUS_OK && rpc_request_source(request) == self) {
        rpc_fail(request, STATUS_INVALID,
                 "worker %u owns parameter %s: it reads values in place, without a request", self,
                 parameter->entry->parameter->name);
    } else if (status == STATUS_OK) {
        message_add(&reply, WIRE_F32, values, (uint32_t)owned_parameter_elements(parameter));
        rpc_reply(request, &reply);
    } else {
        rpc_fail(request, status, "%s", error->text);
    }
    free(values);
}
