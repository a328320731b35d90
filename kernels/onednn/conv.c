/* Linear layers and convolution: operations with a weight and a bias.
 *
 * Linear: x (rows, inputs) weight^T (outputs, inputs) + bias, everything row-major. The library's inner
 * product runs at the speed of its sgemm in all three passes, with one exception. For few rows under a large
 * weight its matrix product, which packs the weight itself, is five times faster (20 rows, 2048 -> 1000:
 * 0.6 ms against 3.2 on two cores).
 *
 * Convolution: every layout is the library's choice; on AVX-512 that is nChw16c for images. Forward and
 * backward-weights agree on a layout of the weights, backward-data wants its transpose by blocks of 16. So a
 * parameter is stored in the forward's layout, and only backward-data repacks it. */
#include "kernels/onednn/onednn.h"

enum { FEW_ROWS = 96, LARGE_WEIGHT = 16384 };

struct weighted {
    dnnl_memory_desc_t x, weight, bias, y; /* a convolution's: any layout, but for the bias */
    bool convolves, biased;
    dnnl_dims_t stride, padding; /* a convolution's */
};

static struct weighted weighted_of(const struct op_call *call)
{
    const struct op_attributes *attributes = &call->attributes;
    struct weighted weighted = {
        .x = layout_canonical(&call->in[0]->shape, DTYPE_F32),
        .weight = layout_canonical(&call->in[1]->shape, DTYPE_F32),
        .y = layout_canonical(&call->out[0]->shape, DTYPE_F32),
        .convolves = call->op == OP_CONV2D,
        .biased = call->in[2] != NULL,
    };
    if (weighted.biased)
        weighted.bias = layout_canonical(&call->in[2]->shape, DTYPE_F32);
    if (!weighted.convolves)
        return weighted;
    weighted.x.format_kind = weighted.weight.format_kind = weighted.y.format_kind = dnnl_format_kind_any;
    for (int i = 0; i < 2; i++) {
        weighted.stride[i] = attributes->stride[i];
        weighted.padding[i] = attributes->padding[i];
    }
    return weighted;
}

/* A convolution in inference too as for training: for one of the two kinds the library often wants other
 * weights, and an evaluation between two steps would repack all of them. */
static dnnl_primitive_desc_t describe_forward(struct builder *builder, const struct op_call *call,
                                              const struct weighted *w)
{
    const dnnl_memory_desc_t *bias = w->biased ? &w->bias : NULL;
    dnnl_convolution_desc_t convolution;
    dnnl_inner_product_desc_t product;
    if (w->convolves)
        return builder_describe(builder,
                                dnnl_convolution_forward_desc_init(
                                    &convolution, dnnl_forward_training, dnnl_convolution_direct, &w->x,
                                    &w->weight, bias, &w->y, w->stride, w->padding, w->padding),
                                &convolution, NULL);
    return builder_describe(builder,
                            dnnl_inner_product_forward_desc_init(
                                &product, call->keep ? dnnl_forward_training : dnnl_forward_inference, &w->x,
                                &w->weight, bias, &w->y),
                            &product, NULL);
}

/* A linear layer as a product of matrices: the weight transposed by its strides, the bias a row. */
static dnnl_primitive_desc_t describe_product(struct builder *builder, const struct weighted *w)
{
    const dnnl_dim_t outputs = w->weight.dims[0], inputs = w->weight.dims[1];
    dnnl_memory_desc_t weight, bias;
    dnnl_matmul_desc_t operation;
    dnnl_status_t made = dnnl_memory_desc_init_by_strides(&weight, 2, (const dnnl_dims_t){inputs, outputs},
                                                          dnnl_f32, (const dnnl_dims_t){1, inputs});
    if (made == dnnl_success)
        made = dnnl_memory_desc_init_by_strides(&bias, 2, (const dnnl_dims_t){1, outputs}, dnnl_f32,
                                                (const dnnl_dims_t){outputs, 1});
    if (made == dnnl_success)
        made = dnnl_matmul_desc_init(&operation, &w->x, &weight, w->biased ? &bias : NULL, &w->y);
    return builder_describe(builder, made, &operation, NULL);
}

static void build_forward(struct builder *builder, const struct op_call *call)
{
    struct weighted w = weighted_of(call);
    const bool product =
        !w.convolves && w.x.dims[0] <= FEW_ROWS && w.weight.dims[0] * w.weight.dims[1] >= LARGE_WEIGHT;
    dnnl_primitive_desc_t forward =
        product ? describe_product(builder, &w) : describe_forward(builder, call, &w);
    builder_step(builder, forward,
                 (const struct binding[]){{DNNL_ARG_SRC, PLACE_IN, 0, NULL},
                                          {DNNL_ARG_WEIGHTS, PLACE_IN, 1, product ? &w.weight : NULL},
                                          {DNNL_ARG_DST, PLACE_OUT, 0, NULL},
                                          {DNNL_ARG_BIAS, PLACE_IN, 2, NULL},
                                          {0}});
    if (w.convolves)
        builder_want(builder, 1, builder_query(builder, forward, DNNL_ARG_WEIGHTS));
}

static void build_backward_data(struct builder *builder, const struct weighted *w,
                                dnnl_primitive_desc_t forward)
{
    dnnl_convolution_desc_t convolution;
    dnnl_inner_product_desc_t product;
    const dnnl_status_t made =
        w->convolves
            ? dnnl_convolution_backward_data_desc_init(&convolution, dnnl_convolution_direct, &w->x,
                                                       &w->weight, &w->y, w->stride, w->padding, w->padding)
            : dnnl_inner_product_backward_data_desc_init(&product, &w->x, &w->weight, &w->y);
    builder_step(builder,
                 builder_describe(builder, made, w->convolves ? (void *)&convolution : &product, forward),
                 (const struct binding[]){{DNNL_ARG_DIFF_DST, PLACE_DOUT, 0, NULL},
                                          {DNNL_ARG_WEIGHTS, PLACE_IN, 1, NULL},
                                          {DNNL_ARG_DIFF_SRC, PLACE_DIN, 0, NULL},
                                          {0}});
}

static void build_backward_weights(struct builder *builder, const struct op_call *call,
                                   const struct weighted *w, dnnl_primitive_desc_t forward)
{
    const dnnl_memory_desc_t *bias = w->biased && call->din[2] != NULL ? &w->bias : NULL;
    dnnl_convolution_desc_t convolution;
    dnnl_inner_product_desc_t product;
    const dnnl_status_t made =
        w->convolves
            ? dnnl_convolution_backward_weights_desc_init(&convolution, dnnl_convolution_direct, &w->x,
                                                          &w->weight, bias, &w->y, w->stride, w->padding,
                                                          w->padding)
            : dnnl_inner_product_backward_weights_desc_init(&product, &w->x, &w->weight, bias, &w->y);
    builder_step(builder,
                 builder_describe(builder, made, w->convolves ? (void *)&convolution : &product, forward),
                 (const struct binding[]){{DNNL_ARG_DIFF_DST, PLACE_DOUT, 0, NULL},
                                          {DNNL_ARG_SRC, PLACE_IN, 0, NULL},
                                          {DNNL_ARG_DIFF_WEIGHTS, PLACE_DIN, 1, NULL},
                                          {DNNL_ARG_DIFF_BIAS, PLACE_DIN, 2, NULL},
                                          {0}});
}

static void build_backward(struct builder *builder, const struct op_call *call)
{
    const struct weighted w = weighted_of(call);
    dnnl_primitive_desc_t forward = describe_forward(builder, call, &w);
    if (call->din[0] != NULL)
        build_backward_data(builder, &w, forward);
    if (call->din[1] != NULL || (w.biased && call->din[2] != NULL))
        build_backward_weights(builder, call, &w, forward);
}

enum status onednn_conv_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_FORWARD, build_forward, error);
}

enum status onednn_conv_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_BACKWARD, build_backward, error);
}
