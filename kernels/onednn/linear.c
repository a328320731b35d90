/* Linear layers: x (rows, inputs) weight^T (outputs, inputs) + bias, everything row-major.
 *
 * The library's inner product runs at the speed of its sgemm in all three passes, with one exception. For few
 * rows under a large weight its matrix product, which packs the weight itself, is five times faster (20 rows,
 * 2048 -> 1000: 0.6 ms against 3.2 on two cores). */
#include "kernels/onednn/onednn.h"

enum { FEW_ROWS = 96, LARGE_WEIGHT = 16384 };

struct linear {
    dnnl_memory_desc_t x, weight, bias, y;
    bool biased;
};

static struct linear linear_of(const struct op_call *call)
{
    struct linear linear = {
        .x = layout_canonical(&call->in[0]->shape, DTYPE_F32),
        .weight = layout_canonical(&call->in[1]->shape, DTYPE_F32),
        .y = layout_canonical(&call->out[0]->shape, DTYPE_F32),
        .biased = call->in[2] != NULL,
    };
    if (linear.biased)
        linear.bias = layout_canonical(&call->in[2]->shape, DTYPE_F32);
    return linear;
}

static dnnl_primitive_desc_t describe_inner_product(struct builder *builder, const struct op_call *call,
                                                    const struct linear *linear)
{
    dnnl_inner_product_desc_t operation;
    return builder_describe(builder,
                            dnnl_inner_product_forward_desc_init(
                                &operation, call->keep ? dnnl_forward_training : dnnl_forward_inference,
                                &linear->x, &linear->weight, linear->biased ? &linear->bias : NULL,
                                &linear->y),
                            &operation, NULL);
}

/* The same as a product of matrices: the weight transposed by its strides, the bias a row. */
static dnnl_primitive_desc_t describe_product(struct builder *builder, const struct linear *linear)
{
    const dnnl_dim_t outputs = linear->weight.dims[0], inputs = linear->weight.dims[1];
    dnnl_memory_desc_t weight, bias;
    dnnl_matmul_desc_t operation;
    dnnl_status_t made = dnnl_memory_desc_init_by_strides(&weight, 2, (const dnnl_dims_t){inputs, outputs},
                                                          dnnl_f32, (const dnnl_dims_t){1, inputs});
    if (made == dnnl_success)
        made = dnnl_memory_desc_init_by_strides(&bias, 2, (const dnnl_dims_t){1, outputs}, dnnl_f32,
                                                (const dnnl_dims_t){outputs, 1});
    if (made == dnnl_success)
        made =
            dnnl_matmul_desc_init(&operation, &linear->x, &weight, linear->biased ? &bias : NULL, &linear->y);
    return builder_describe(builder, made, &operation, NULL);
}

static void build_forward(struct builder *builder, const struct op_call *call)
{
    const struct linear linear = linear_of(call);
    const bool product =
        linear.x.dims[0] <= FEW_ROWS && linear.weight.dims[0] * linear.weight.dims[1] >= LARGE_WEIGHT;
    dnnl_primitive_desc_t forward =
        product ? describe_product(builder, &linear) : describe_inner_product(builder, call, &linear);
    struct binding bindings[5] = {
        {DNNL_ARG_SRC, builder_input(builder, PLACE_IN, 0, call->in[0], &linear.x)},
        {DNNL_ARG_WEIGHTS, builder_input(builder, PLACE_IN, 1, call->in[1], &linear.weight)},
        {DNNL_ARG_DST, builder_output(builder, PLACE_OUT, 0, call->out[0], &linear.y)}};
    if (linear.biased)
        bindings[3] =
            (struct binding){DNNL_ARG_BIAS, builder_input(builder, PLACE_IN, 2, call->in[2], &linear.bias)};
    builder_step(builder, forward, bindings);
}

enum status onednn_linear_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_FORWARD, build_forward, error);
}

static void build_backward_data(struct builder *builder, const struct op_call *call,
                                const struct linear *linear, dnnl_primitive_desc_t forward, int dy)
{
    dnnl_inner_product_desc_t operation;
    dnnl_primitive_desc_t backward = builder_describe(
        builder,
        dnnl_inner_product_backward_data_desc_init(&operation, &linear->x, &linear->weight, &linear->y),
        &operation, forward);
    const struct binding bindings[] = {
        {DNNL_ARG_DIFF_DST, dy},
        {DNNL_ARG_WEIGHTS, builder_input(builder, PLACE_IN, 1, call->in[1], &linear->weight)},
        {DNNL_ARG_DIFF_SRC, builder_output(builder, PLACE_DIN, 0, call->din[0], &linear->x)},
        {0, 0}};
    builder_step(builder, backward, bindings);
}

static void build_backward_weights(struct builder *builder, const struct op_call *call,
                                   const struct linear *linear, dnnl_primitive_desc_t forward, int dy)
{
    const bool bias = linear->biased && call->din[2] != NULL;
    dnnl_inner_product_desc_t operation;
    dnnl_primitive_desc_t backward = builder_describe(
        builder,
        dnnl_inner_product_backward_weights_desc_init(&operation, &linear->x, &linear->weight,
                                                      bias ? &linear->bias : NULL, &linear->y),
        &operation, forward);
    struct binding bindings[5] = {
        {DNNL_ARG_DIFF_DST, dy},
        {DNNL_ARG_SRC, builder_input(builder, PLACE_IN, 0, call->in[0], &linear->x)},
        {DNNL_ARG_DIFF_WEIGHTS, call->din[1] == NULL
                                    ? builder_scratch(builder, &linear->weight)
                                    : builder_output(builder, PLACE_DIN, 1, call->din[1], &linear->weight)}};
    if (bias)
        bindings[3] = (struct binding){DNNL_ARG_DIFF_BIAS,
                                       builder_output(builder, PLACE_DIN, 2, call->din[2], &linear->bias)};
    builder_step(builder, backward, bindings);
}

static void build_backward(struct builder *builder, const struct op_call *call)
{
    const struct linear linear = linear_of(call);
    dnnl_primitive_desc_t forward = describe_inner_product(builder, call, &linear);
    int dy = builder_input(builder, PLACE_DOUT, 0, call->dout[0], &linear.y);
    if (call->din[0] != NULL)
        build_backward_data(builder, call, &linear, forward, dy);
    if (call->din[1] != NULL || (linear.biased && call->din[2] != NULL))
        build_backward_weights(builder, call, &linear, forward, dy);
}

enum status onednn_linear_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_BACKWARD, build_backward, error);
}
