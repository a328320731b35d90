/* The layouts of parameters, and the fingerprint by which two processes see that they mean the same slab. */
#include "kernels/params/params_internal.h"

#include "kernels/base/fnv.h"

#include <assert.h>
#include <string.h>

void params_adopt(struct params *params)
{
    if (params->backend->ops->layout_hash == NULL)
        return;
    for (uint32_t i = 0; i < params->count; i++) {
        struct tensor *tensor = &params->entries[i]->tensor;
        if (params->entries[i]->kind != PARAMETER_TRAINED || tensor->wanted == NULL)
            continue;
        tensor->layout = tensor->wanted;
        tensor->wanted = NULL;
        for (struct gradients *each = params->parallels; each != NULL; each = each->next)
            each->entries[i].layout = tensor->layout;
    }
}

uint64_t params_fingerprint(const struct params *params)
{
    const struct backend_ops *ops = params->backend->ops;
    uint64_t hash = FNV1A_BEGIN;
    assert(params->laid_out);
    for (uint32_t i = 0; i < params->count; i++) {
        const struct parameter *parameter = params->entries[i];
        const struct tensor *tensor = &parameter->tensor;
        hash = fnv1a(hash, parameter->name, strlen(parameter->name) + 1);
        hash = fnv1a_number(hash, parameter->kind, 4);
        hash = fnv1a_number(hash, tensor->shape.rank, 4);
        for (uint32_t d = 0; d < tensor->shape.rank; d++)
            hash = fnv1a_number(hash, tensor->shape.size[d], 4);
        hash = fnv1a_number(hash, tensor->layout == NULL ? 0 : ops->layout_hash(tensor->layout), 8);
    }
    return hash;
}
