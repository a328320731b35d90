/* Objects with parameters on their owner, and the values of a single parameter. A role's thread runs this. */
#include "kernels/params/gradients.h"
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

enum status owned_parameter_check(const struct owned_parameter *parameter, size_t count, struct error *error)
{
    const size_t elements = owned_parameter_elements(parameter);
    return count == elements ? STATUS_OK
                             : error_set(error, STATUS_INVALID, "parameter %s has %zu values, got %zu",
                                         parameter->entry->parameter->name, elements, count);
}

static enum status owned_find_moment(const struct owned_parameter *parameter, uint64_t which,
                                     struct gradients **out, struct error *error)
{
    const struct group *group = parameter->entry->group;
    const bool known = which == DIST_MOMENT_FIRST || which == DIST_MOMENT_SECOND;
    *out = known && group != NULL ? optimizer_moment(group->optimizer, which == DIST_MOMENT_FIRST ? 0 : 1)
                                  : NULL;
    return *out != NULL ? STATUS_OK
                        : error_set(error, STATUS_INVALID, "parameter %s has no %s here",
                                    parameter->entry->parameter->name,
                                    which == DIST_MOMENT_FIRST    ? "first moment"
                                    : which == DIST_MOMENT_SECOND ? "second moment"
                                                                  : "such values");
}

static enum status owned_read_gradient(const struct owned_parameter *parameter, uint64_t context,
                                       float *values, struct error *error)
{
    struct gradients *gradients = NULL;
    const struct owned *owned = parameter->owned;
    enum status status = dist_gradients(owned->owner->dist, context, owned->object, &gradients, error);
    if (status == STATUS_OK && gradients != NULL)
        return gradients_read(gradients, parameter->entry->parameter, DTYPE_F32, values, error);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    memset(values, 0, owned_parameter_elements(parameter) * sizeof *values);
    return STATUS_OK;
}

enum status owned_parameter_read(const struct owned_parameter *parameter, uint64_t which, uint64_t context,
                                 float *values, struct error *error)
{
    const struct parameter *entry = parameter->entry->parameter;
    struct gradients *moment;
    if (which == DIST_VALUES)
        return params_read(parameter->owned->params, entry, DTYPE_F32, values, error);
    if (which == DIST_GRADIENT)
        return owned_read_gradient(parameter, context, values, error);
    enum status status = owned_find_moment(parameter, which, &moment, error);
    return status == STATUS_OK ? gradients_read(moment, entry, DTYPE_F32, values, error) : status;
}

enum status owned_parameter_write(const struct owned_parameter *parameter, uint64_t which,
                                  const float *values, struct error *error)
{
    struct owned *owned = parameter->owned;
    struct parameter *entry = parameter->entry->parameter;
    struct gradients *moment;
    enum status status = STATUS_OK;
    if (which != DIST_VALUES) {
        status = owned_find_moment(parameter, which, &moment, error);
        return status == STATUS_OK ? gradients_write(moment, entry, DTYPE_F32, values, error) : status;
    }
    if (owned->versions != NULL)
        status = dist_versions_advance(owned->versions, error);
    return status == STATUS_OK ? params_write(owned->params, entry, DTYPE_F32, values, error) : status;
}
