/* Convolution. Every layout is the library's choice; on AVX-512 that is nChw16c for images.
 *
 * Weights: forward and backward-weights agree on a layout, backward-data wants its transpose by blocks of 16.
 * So a parameter is stored in the forward's layout, and only backward-data repacks it. */
#include "kernels/onednn/onednn.h"

struct conv {
    dnnl_memory_desc_t x, weight, y; /* any layout */
    dnnl_memory_desc_t bias;
    bool biased;
    dnnl_dims_t stride, padding;
};

static dnnl_memory_desc_t any_layout(const struct shape *shape)
{
    dnnl_memory_desc_t desc = layout_canonical(shape, DTYPE_F32);
    desc.format_kind = dnnl_format_kind_any;
    return desc;
}

static struct conv conv_of(const struct op_call *call)
{
    const struct op_attributes *attributes = &call->attributes;
    struct conv conv = {
        .x = any_layout(&call->in[0]->shape),
        .weight = any_layout(&call->in[1]->shape),
        .y = any_layout(&call->out[0]->shape),
        .stride = {attributes->stride[0], attributes->stride[1]},
        .padding = {attributes->padding[0], attributes->padding[1]},
        .biased = call->in[2] != NULL,
    };
    if (conv.biased)
        conv.bias = layout_canonical(&call->in[2]->shape, DTYPE_F32);
    return conv;
}

/* In inference too as for training: for one of the two kinds the library often wants other weights, and an
 * evaluation between two steps would repack all of them. */
static dnnl_primitive_desc_t describe_forward(struct builder *builder, const struct conv *conv)
{
    dnnl_convolution_desc_t operation;
    return builder_describe(
        builder,
        dnnl_convolution_forward_desc_init(&operation, dnnl_forward_training, dnnl_convolution_direct,
                                           &conv->x, &conv->weight, conv->biased ? &conv->bias : NULL,
                                           &conv->y, conv->stride, conv->padding, conv->padding),
        &operation, NULL);
}

static void build_forward(struct builder *builder, const struct op_call *call)
{
    const struct conv conv = conv_of(call);
    dnnl_primitive_desc_t forward = describe_forward(builder, &conv);
    const dnnl_memory_desc_t *weight = builder_query(builder, forward, dnnl_query_weights_md);
    struct binding bindings[5] = {
        {DNNL_ARG_SRC, builder_input(builder, PLACE_IN, 0, call->in[0],
                                     builder_query(builder, forward, dnnl_query_src_md))},
        {DNNL_ARG_WEIGHTS, builder_input(builder, PLACE_IN, 1, call->in[1], weight)},
        {DNNL_ARG_DST, builder_output(builder, PLACE_OUT, 0, call->out[0],
                                      builder_query(builder, forward, dnnl_query_dst_md))}};
    if (conv.biased)
        bindings[3] =
            (struct binding){DNNL_ARG_BIAS, builder_input(builder, PLACE_IN, 2, call->in[2], &conv.bias)};
    builder_step(builder, forward, bindings);
    builder_want(builder, 1, weight);
}

enum status onednn_conv2d_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_FORWARD, build_forward, error);
}

static void build_backward_data(struct builder *builder, const struct op_call *call, const struct conv *conv,
                                dnnl_primitive_desc_t forward)
{
    dnnl_convolution_desc_t operation;
    dnnl_primitive_desc_t backward = builder_describe(
        builder,
        dnnl_convolution_backward_data_desc_init(&operation, dnnl_convolution_direct, &conv->x, &conv->weight,
                                                 &conv->y, conv->stride, conv->padding, conv->padding),
        &operation, forward);
    const struct binding bindings[] = {
        {DNNL_ARG_DIFF_DST, builder_input(builder, PLACE_DOUT, 0, call->dout[0],
                                          builder_query(builder, backward, dnnl_query_diff_dst_md))},
        {DNNL_ARG_WEIGHTS, builder_input(builder, PLACE_IN, 1, call->in[1],
                                         builder_query(builder, backward, dnnl_query_weights_md))},
        {DNNL_ARG_DIFF_SRC, builder_output(builder, PLACE_DIN, 0, call->din[0],
                                           builder_query(builder, backward, dnnl_query_diff_src_md))},
        {0, 0}};
    builder_step(builder, backward, bindings);
}

static void build_backward_weights(struct builder *builder, const struct op_call *call,
                                   const struct conv *conv, dnnl_primitive_desc_t forward)
{
    const bool bias = conv->biased && call->din[2] != NULL;
    dnnl_convolution_desc_t operation;
    dnnl_primitive_desc_t backward =
        builder_describe(builder,
                         dnnl_convolution_backward_weights_desc_init(
                             &operation, dnnl_convolution_direct, &conv->x, &conv->weight,
                             bias ? &conv->bias : NULL, &conv->y, conv->stride, conv->padding, conv->padding),
                         &operation, forward);
    const dnnl_memory_desc_t *weight = builder_query(builder, backward, dnnl_query_diff_weights_md);
    struct binding bindings[5] = {
        {DNNL_ARG_DIFF_DST, builder_input(builder, PLACE_DOUT, 0, call->dout[0],
                                          builder_query(builder, backward, dnnl_query_diff_dst_md))},
        {DNNL_ARG_SRC, builder_input(builder, PLACE_IN, 0, call->in[0],
                                     builder_query(builder, backward, dnnl_query_src_md))},
        {DNNL_ARG_DIFF_WEIGHTS, call->din[1] == NULL
                                    ? builder_scratch(builder, weight)
                                    : builder_output(builder, PLACE_DIN, 1, call->din[1], weight)}};
    if (bias)
        bindings[3] = (struct binding){DNNL_ARG_DIFF_BIAS,
                                       builder_output(builder, PLACE_DIN, 2, call->din[2], &conv->bias)};
    builder_step(builder, backward, bindings);
}

static void build_backward(struct builder *builder, const struct op_call *call)
{
    const struct conv conv = conv_of(call);
    dnnl_primitive_desc_t forward = describe_forward(builder, &conv);
    if (call->din[0] != NULL)
        build_backward_data(builder, call, &conv, forward);
    if (call->din[1] != NULL || (conv.biased && call->din[2] != NULL))
        build_backward_weights(builder, call, &conv, forward);
}

enum status onednn_conv2d_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_BACKWARD, build_backward, error);
}
