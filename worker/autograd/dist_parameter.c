/* Parameters of objects anywhere, for a worker with references to them. A role's top level runs this; all of
 * it waits. Values of a parameter that lives on this worker are read where they are. */
#include "worker/autograd/optimizer_internal.h"

#include <string.h>

static enum status check_parameter(const struct rref *parameter, struct error *error)
{
    if (rref_class_of(parameter) == &dist_parameter_class)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "expected a reference to a parameter of worker %u",
                     rref_owner(parameter));
}

/* ---- references ---- */

/* Accepts every granted reference, also after a failure: a reference that is not accepted would never be
 * given back. After a failure all are released. */
static enum status accept_all(struct dist *dist, uint16_t owner, const struct rpc_message *value,
                              uint32_t count, struct rref *out[], struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t number;
        memcpy(&number, (const char *)value->data[0] + i * sizeof number, sizeof number);
        enum status each = rref_accept(dist_rrefs(dist), owner, number, dist_parameter_class.name,
                                       &out[accepted], status == STATUS_OK ? error : NULL);
        accepted += each == STATUS_OK;
        status = status == STATUS_OK ? each : status;
    }
    for (uint32_t i = 0; i < accepted && status != STATUS_OK; i++)
        rref_release(out[i]);
    return status;
}

enum status dist_parameters(struct dist *dist, struct rref *object, struct rref *out[DIST_PARAMETERS_MAX],
                            uint32_t *count, struct error *error)
{
    enum status status = rref_ready(object, error);
    if (status == STATUS_AGAIN)
        return error_set(error, STATUS_BUSY, "the object whose parameters are asked for is not ready");
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

/* ---- looking ---- */

static bool read_info(const struct rpc_message *value, struct dist_parameter_info *info)
{
    const uint32_t length = message_flat(value, 0, WIRE_U8), rank = message_flat(value, 1, WIRE_U32);
    *info = (struct dist_parameter_info){.shape = {.rank = rank}};
    if (length == 0 || length >= DIST_NAME_BYTES || rank > SHAPE_RANK_MAX ||
        value->tensor_count != 1 + (rank > 0))
        return false;
    memcpy(info->name, value->data[0], length);
    if (rank > 0)
        memcpy(info->shape.size, value->data[1], rank * sizeof info->shape.size[0]);
    return shape_elements(&info->shape) > 0;
}

enum status dist_parameter_info(struct dist *dist, struct rref *parameter, struct dist_parameter_info *info,
                                struct error *error)
{
    struct future *future;
    enum status status = check_parameter(parameter, error);
    if (status == STATUS_OK)
        status = object_call(dist, parameter, PARAMETER_INFO, &(struct rpc_message){0}, &future, error);
    if (status != STATUS_OK)
        return status;
    if (!read_info(future_value(future), info))
        status = object_malformed(dist, rref_owner(parameter), error);
    future_release(future);
    return status;
}

/* ---- values ---- */

static enum status parameter_read(struct dist *dist, struct rref *parameter, enum dist_values which,
                                  uint64_t context, float *values, size_t count, struct error *error)
{
    const struct owned_parameter *here = rref_local(parameter);
    const struct rpc_message message = {.args = {[VALUES_WHICH] = which}, .context = context};
    struct future *future;
    enum status status = check_parameter(parameter, error);
    if (status == STATUS_OK && here != NULL)
        status = owned_parameter_check(here, count, error);
    if (status == STATUS_OK && here != NULL)
        return owned_parameter_read(here, which, context, values, error);
    if (status == STATUS_OK)
        status = object_call(dist, parameter, PARAMETER_GET, &message, &future, error);
    if (status != STATUS_OK)
        return status;
    const struct rpc_message *value = future_value(future);
    const uint32_t got = message_flat(value, 0, WIRE_F32);
    if (got == 0)
        status = object_malformed(dist, rref_owner(parameter), error);
    else if (got != count)
        status = error_set(error, STATUS_INVALID, "the parameter has %u values, room for %zu", got, count);
    else
        memcpy(values, value->data[0], count * sizeof *values);
    future_release(future);
    return status;
}

enum status dist_parameter_get(struct dist *dist, struct rref *parameter, enum dist_values which,
                               float *values, size_t count, struct error *error)
{
    return parameter_read(dist, parameter, which, 0, values, count, error);
}

enum status dist_parameter_gradient(struct dist *dist, struct rref *parameter, uint64_t context,
                                    float *values, size_t count, struct error *error)
{
    return parameter_read(dist, parameter, DIST_GRADIENT, context, values, count, error);
}

enum status dist_parameter_set(struct dist *dist, struct rref *parameter, enum dist_values which,
                               const float *values, size_t count, struct error *error)
{
    struct future *future;
    struct rpc_message message = {.args = {[VALUES_WHICH] = which}};
    enum status status = check_parameter(parameter, error);
    if (status == STATUS_OK && (count == 0 || count > SHAPE_ELEMENTS_MAX))
        status = error_set(error, STATUS_INVALID, "expected 1..%d values of a parameter, got %zu",
                           SHAPE_ELEMENTS_MAX, count);
    if (status != STATUS_OK)
        return status;
    message_add(&message, WIRE_F32, values, (uint32_t)count);
    status = object_call(dist, parameter, PARAMETER_SET, &message, &future, error);
    if (status == STATUS_OK)
        future_release(future);
    return status;
}
