/* A chain's parts. Failures stick while it is made. */
#include "test/baseline/chain_onednn.h"

#include "kernels/base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

static void try(struct chain *chain, dnnl_status_t status)
{
    if (chain->status == dnnl_success)
        chain->status = status;
}

dnnl_memory_desc_t chain_layout(int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t desc = {0};
    dnnl_memory_desc_init_by_tag(&desc, rank, dims, dnnl_f32, tag);
    return desc;
}

int chain_tensor_at(struct chain *chain, const dnnl_memory_desc_t *desc, void *data, int buffer)
{
    assert(chain->tensors < CHAIN_TENSORS_MAX);
    struct chain_tensor *tensor = &chain->tensor[chain->tensors];
    tensor->desc = *desc;
    tensor->buffer = buffer;
    try(chain, dnnl_memory_create(&tensor->memory, desc, chain->engine, data));
    return (int)chain->tensors++;
}

/* Memory as the backend has it. */
static float *zeros(size_t bytes)
{
    float *block = arena_host.take(NULL, bytes);
    return block == NULL ? NULL : memset(block, 0, bytes);
}

static void give(float *block, size_t bytes)
{
    if (block != NULL)
        arena_host.give(NULL, block, bytes);
}

/* The smallest free buffer that is large enough, else a new one. */
static int buffer_take(struct chain *chain, size_t bytes)
{
    int best = -1;
    for (int i = 0; i < (int)chain->buffers; i++)
        if (chain->buffer[i].free && chain->buffer[i].bytes >= bytes &&
            (best == -1 || chain->buffer[i].bytes < chain->buffer[best].bytes))
            best = i;
    if (best == -1) {
        assert(chain->buffers < CHAIN_BUFFERS_MAX);
        best = (int)chain->buffers++;
        chain->buffer[best].bytes = (bytes + 63) & ~(size_t)63;
        chain->buffer[best].data = zeros(chain->buffer[best].bytes);
        if (chain->buffer[best].data == NULL)
            try(chain, dnnl_out_of_memory);
    }
    chain->buffer[best].free = false;
    return best;
}

int chain_tensor(struct chain *chain, const dnnl_memory_desc_t *desc)
{
    const size_t bytes = dnnl_memory_desc_get_size(desc);
    const int buffer = buffer_take(chain, bytes == 0 ? 64 : bytes);
    return chain_tensor_at(chain, desc, chain->buffer[buffer].data, buffer);
}

void chain_done(struct chain *chain, int tensor)
{
    if (chain->tensor[tensor].buffer >= 0)
        chain->buffer[chain->tensor[tensor].buffer].free = true;
}

/* A parameter, filled with small numbers or with `value`, and (dparameter) its gradient. */
int chain_parameter(struct chain *chain, const dnnl_memory_desc_t *desc, double spread, double value,
                    int *dparameter)
{
    struct chain_slab *slab = &chain->slab;
    const size_t count = dnnl_memory_desc_get_size(desc) / sizeof(float), at = slab->used;
    if (at + count > slab->count) {
        try(chain, dnnl_out_of_memory);
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        slab->parameters[at + i] = (float)(value + spread * ((double)(i * 2654435761u % 1000) / 500 - 1));
    slab->used += (count + 15) / 16 * 16;
    *dparameter = chain_tensor_at(chain, desc, slab->gradients + at, -1);
    return chain_tensor_at(chain, desc, slab->parameters + at, -1);
}

/* ---- steps ---- */

void chain_step(struct chain *chain, enum chain_kind kind, dnnl_primitive_desc_t descriptor,
                const struct chain_binding *bindings)
{
    if (chain->status != dnnl_success)
        return;
    assert(chain->steps < CHAIN_STEPS_MAX);
    struct chain_step *step = &chain->step[chain->steps++];
    step->kind = kind;
    try(chain, dnnl_primitive_create(&step->primitive, descriptor));
    for (; bindings->argument != 0; bindings++)
        step->arguments[step->count++] =
            (dnnl_exec_arg_t){bindings->argument, chain->tensor[bindings->tensor].memory};
}

dnnl_primitive_desc_t chain_describe(struct chain *chain, dnnl_status_t made, const void *operation,
                                     bool relu, dnnl_primitive_desc_t hint)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t behind = NULL;
    dnnl_primitive_desc_t descriptor = NULL;
    try(chain, made);
    try(chain, dnnl_primitive_attr_create(&attributes));
    try(chain, dnnl_post_ops_create(&behind));
    if (relu && chain->status == dnnl_success) {
        try(chain, dnnl_post_ops_append_eltwise(behind, 1, dnnl_eltwise_relu, 0, 0));
        try(chain, dnnl_primitive_attr_set_post_ops(attributes, behind));
    }
    if (chain->status == dnnl_success)
        try(chain, dnnl_primitive_desc_create(&descriptor, operation, attributes, chain->engine, hint));
    dnnl_post_ops_destroy(behind);
    dnnl_primitive_attr_destroy(attributes);
    assert(chain->descriptors < CHAIN_DESCRIPTORS_MAX);
    return chain->descriptor[chain->descriptors++] = descriptor;
}

dnnl_memory_desc_t chain_query(const struct chain *chain, dnnl_primitive_desc_t descriptor, dnnl_query_t what)
{
    dnnl_memory_desc_t desc = {0};
    const dnnl_memory_desc_t *answer =
        chain->status == dnnl_success ? dnnl_primitive_desc_query_md(descriptor, what, 0) : NULL;
    return answer == NULL ? desc : *answer;
}

/* The tensor in that layout: itself, or a copy that a step makes. */
int chain_in_layout(struct chain *chain, int tensor, const dnnl_memory_desc_t *want)
{
    dnnl_primitive_desc_t descriptor = NULL;
    if (chain->status != dnnl_success || dnnl_memory_desc_equal(&chain->tensor[tensor].desc, want))
        return tensor;
    const int copy = chain_tensor(chain, want);
    try(chain, dnnl_reorder_primitive_desc_create(&descriptor, &chain->tensor[tensor].desc, chain->engine,
                                                  want, chain->engine, NULL));
    chain->descriptor[chain->descriptors++] = descriptor;
    chain_step(chain, CHAIN_OTHER, descriptor,
               (const struct chain_binding[]){{DNNL_ARG_FROM, tensor}, {DNNL_ARG_TO, copy}, {0, 0}});
    return copy;
}

/* a + b, with ReLU or not, into `to`, which may be a or b. */
void chain_sum(struct chain *chain, int a, int b, int to, bool relu)
{
    dnnl_binary_desc_t operation;
    const dnnl_memory_desc_t *desc = &chain->tensor[a].desc;
    dnnl_primitive_desc_t descriptor = chain_describe(
        chain, dnnl_binary_desc_init(&operation, dnnl_binary_add, desc, desc, desc), &operation, relu, NULL);
    chain_step(
        chain, CHAIN_OTHER, descriptor,
        (const struct chain_binding[]){{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, to}, {0, 0}});
}

/* ---- opening, running, closing ---- */

static dnnl_status_t make_slab(struct chain_slab *slab, size_t count)
{
    float **const parts[] = {&slab->parameters, &slab->gradients};
    slab->count = count;
    for (int i = 0; i < 2; i++) {
        *parts[i] = zeros(count * sizeof(float));
        if (*parts[i] == NULL)
            return dnnl_out_of_memory;
    }
    return dnnl_success;
}

void chain_open(struct chain *chain, size_t parameters)
{
    try(chain, dnnl_engine_create(&chain->engine, dnnl_cpu, 0));
    try(chain, dnnl_stream_create(&chain->stream, chain->engine, dnnl_stream_default_flags));
    try(chain, make_slab(&chain->slab, parameters));
}

void chain_close(struct chain *chain)
{
    for (uint32_t i = 0; i < chain->steps; i++)
        dnnl_primitive_destroy(chain->step[i].primitive);
    for (uint32_t i = 0; i < chain->descriptors; i++)
        dnnl_primitive_desc_destroy(chain->descriptor[i]);
    for (uint32_t i = 0; i < chain->tensors; i++)
        dnnl_memory_destroy(chain->tensor[i].memory);
    for (uint32_t i = 0; i < chain->buffers; i++)
        give(chain->buffer[i].data, chain->buffer[i].bytes);
    dnnl_stream_destroy(chain->stream);
    dnnl_engine_destroy(chain->engine);
    give(chain->slab.parameters, chain->slab.count * sizeof(float));
    give(chain->slab.gradients, chain->slab.count * sizeof(float));
}

dnnl_status_t chain_run(const struct chain *chain, unsigned kinds)
{
    dnnl_status_t status = dnnl_success;
    for (uint32_t i = 0; i < chain->steps && status == dnnl_success; i++) {
        const struct chain_step *step = &chain->step[i];
        if ((step->kind & kinds) != 0)
            status = dnnl_primitive_execute(step->primitive, chain->stream, step->count, step->arguments);
    }
    return status == dnnl_success ? dnnl_stream_wait(chain->stream) : status;
}

void chain_update(struct chain *chain)
{
    const size_t count = chain->slab.used;
    float *parameters = chain->slab.parameters;
    const float *gradients = chain->slab.gradients;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++)
        parameters[i] -= 1e-4F * gradients[i];
}
