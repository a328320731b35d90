/* Max and average pooling, in the layout of the incoming images. */
#include "kernels/onednn/onednn.h"

#include <math.h>

enum { SAVED_FIRST_MAXIMA = 0 };

struct pool {
    dnnl_memory_desc_t x, y;
    dnnl_dims_t kernel, stride, padding;
    dnnl_alg_kind_t kind;
};

static struct pool pool_of(const struct op_call *call)
{
    const struct op_attributes *attributes = &call->attributes;
    struct pool pool = {
        .x = layout_of(call->in[0]),
        .y = layout_canonical(&call->out[0]->shape, DTYPE_F32),
        .kernel = {attributes->kernel[0], attributes->kernel[1]},
        .stride = {attributes->stride[0], attributes->stride[1]},
        .padding = {attributes->padding[0], attributes->padding[1]},
        .kind = call->op == OP_MAX_POOL ? dnnl_pooling_max : dnnl_pooling_avg_include_padding,
    };
    pool.y.format_kind = dnnl_format_kind_any;
    return pool;
}

static dnnl_primitive_desc_t describe_forward(struct builder *builder, const struct op_call *call,
                                              const struct pool *pool)
{
    dnnl_pooling_desc_t operation;
    return builder_describe(builder,
                            dnnl_pooling_forward_desc_init(
                                &operation, call->keep ? dnnl_forward_training : dnnl_forward_inference,
                                pool->kind, &pool->x, &pool->y, pool->stride, pool->kernel, pool->padding,
                                pool->padding),
                            &operation, NULL);
}

static void build_forward(struct builder *builder, const struct op_call *call)
{
    const struct pool pool = pool_of(call);
    builder_step(builder, describe_forward(builder, call, &pool),
                 (const struct binding[]){{DNNL_ARG_SRC, PLACE_IN, 0, NULL},
                                          {DNNL_ARG_DST, PLACE_OUT, 0, NULL},
                                          {DNNL_ARG_WORKSPACE, PLACE_SAVED, SAVED_FIRST_MAXIMA, NULL},
                                          {0}});
}

static void build_backward(struct builder *builder, const struct op_call *call)
{
    const struct pool pool = pool_of(call);
    dnnl_primitive_desc_t forward = describe_forward(builder, call, &pool);
    const dnnl_memory_desc_t *y = builder_query(builder, forward, DNNL_ARG_DST);
    dnnl_pooling_desc_t operation;
    const dnnl_status_t made = dnnl_pooling_backward_desc_init(&operation, pool.kind, &pool.x, y, pool.stride,
                                                               pool.kernel, pool.padding, pool.padding);
    builder_step(builder, builder_describe(builder, made, &operation, forward),
                 (const struct binding[]){{DNNL_ARG_DIFF_DST, PLACE_DOUT, 0, NULL},
                                          {DNNL_ARG_DIFF_SRC, PLACE_DIN, 0, NULL},
                                          {DNNL_ARG_WORKSPACE, PLACE_SAVED, SAVED_FIRST_MAXIMA, NULL},
                                          {0}});
}

/* The library's maximum passes over a NaN, and a loss would not show it: then the whole output is said to be
 * one. */
static enum status keep_nan(struct backend *backend, struct op_call *call, struct error *error)
{
    const float *x = call->in[0]->data;
    const size_t count = loop_elements(call->in[0]);
    size_t i;
    enum status status = onednn_first_not_finite(backend, call->in[0], &i, error);
    while (status == STATUS_OK && i < count && !isnan(x[i]))
        i++;
    if (status == STATUS_OK && i < count)
        status = onednn_fill(backend, call->out[0], (double)NAN, error);
    return status;
}

enum status onednn_pool_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = plan_run(backend, call, PASS_FORWARD, build_forward, error);
    return status == STATUS_OK && call->op == OP_MAX_POOL ? keep_nan(backend, call, error) : status;
}

enum status onednn_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_BACKWARD, build_backward, error);
}
