/* Batch norm, in the layout of the incoming images, with a fused ReLU.
 *
 * The library computes the mean and the biased variance. Both are saved for the backward. The second and the
 * third output are the mean again and the unbiased variance; callers move running statistics by them. */
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <string.h>

enum { SAVED_MEAN, SAVED_VARIANCE, SAVED_POSITIVE /* where ReLU let through */ };

static unsigned norm_flags(const struct op_call *call)
{
    return (unsigned)dnnl_use_scale | (unsigned)dnnl_use_shift |
           (call->attributes.relu ? (unsigned)dnnl_fuse_norm_relu : 0) |
           (call->attributes.training ? 0 : (unsigned)dnnl_use_global_stats);
}

static dnnl_primitive_desc_t describe_forward(struct builder *builder, const struct op_call *call,
                                              const dnnl_memory_desc_t *x)
{
    dnnl_batch_normalization_desc_t operation;
    return builder_describe(builder,
                            dnnl_batch_normalization_forward_desc_init(
                                &operation,
                                call->attributes.training ? dnnl_forward_training : dnnl_forward_inference, x,
                                (float)call->attributes.epsilon, norm_flags(call)),
                            &operation, NULL);
}

/* Where a statistic of the batch goes: saved, else its output, which is allocated in any case. */
static int statistic_slot(struct builder *builder, const struct op_call *call, uint32_t saved,
                          const dnnl_memory_desc_t *c)
{
    const int slot = builder_output(builder, PLACE_OUT, 1 + saved, call->out[1 + saved], c);
    return call->keep ? builder_saved(builder, saved, c) : slot;
}

static int positive_slot(struct builder *builder, const struct op_call *call, dnnl_primitive_desc_t forward)
{
    const dnnl_memory_desc_t *bits = builder_query(builder, forward, dnnl_query_workspace_md);
    return call->keep ? builder_saved(builder, SAVED_POSITIVE, bits) : builder_scratch(builder, bits);
}

static void build_forward(struct builder *builder, const struct op_call *call)
{
    const dnnl_memory_desc_t x = layout_of(call->in[0]);
    const dnnl_memory_desc_t c = layout_canonical(&call->in[1]->shape, DTYPE_F32);
    const bool training = call->attributes.training;
    dnnl_primitive_desc_t forward = describe_forward(builder, call, &x);
    struct binding bindings[8] = {
        {DNNL_ARG_SRC, builder_input(builder, PLACE_IN, 0, call->in[0], &x)},
        {DNNL_ARG_SCALE, builder_input(builder, PLACE_IN, 1, call->in[1], &c)},
        {DNNL_ARG_SHIFT, builder_input(builder, PLACE_IN, 2, call->in[2], &c)},
        {DNNL_ARG_DST, builder_output(builder, PLACE_OUT, 0, call->out[0], &x)},
        {DNNL_ARG_MEAN, training ? statistic_slot(builder, call, SAVED_MEAN, &c)
                                 : builder_input(builder, PLACE_IN, 3, call->in[3], &c)},
        {DNNL_ARG_VARIANCE, training ? statistic_slot(builder, call, SAVED_VARIANCE, &c)
                                     : builder_input(builder, PLACE_IN, 4, call->in[4], &c)}};
    if (training && call->attributes.relu)
        bindings[6] = (struct binding){DNNL_ARG_WORKSPACE, positive_slot(builder, call, forward)};
    builder_step(builder, forward, bindings);
}

/* What the library leaves to do for the second and the third output. */
static void finish_statistics(struct op_call *call)
{
    const uint32_t channels = call->in[1]->shape.size[0];
    const size_t values = shape_elements(&call->in[0]->shape) / channels; /* of each channel */
    const double n = (double)values;
    float *unbiased = call->out[2]->data;
    const float *biased = call->keep ? call->saved[SAVED_VARIANCE].data : unbiased;
    if (call->keep)
        memcpy(call->out[1]->data, call->saved[SAVED_MEAN].data, channels * sizeof(float));
    for (uint32_t c = 0; c < channels; c++)
        unbiased[c] = (float)((double)biased[c] * n / (n - 1));
}

/* The library's ReLU makes zeros of NaNs, and a loss would not show them. What was NaN in a batch is so in
 * its statistics, which are few numbers to look at; then the whole output is said to be NaN. (Inference sees
 * only what is in the running statistics and the parameters.) */
static bool lost_nan(const struct op_call *call)
{
    enum { MEAN = 2 };
    const bool training = call->attributes.training;
    const struct tensor *const read[] = {call->in[1], call->in[2], training ? call->out[1] : call->in[3],
                                         training ? call->out[2] : call->in[4]};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        const float *values = read[i]->data;
        for (uint32_t c = 0; c < read[i]->shape.size[0]; c++)
            if (isnan(values[c]) || (i == MEAN && isinf(values[c])))
                return true;
    }
    return false;
}

enum status onednn_batch_norm_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = plan_run(backend, call, PASS_FORWARD, build_forward, error);
    if (status == STATUS_OK && call->attributes.training)
        finish_statistics(call);
    if (status == STATUS_OK && call->attributes.relu && lost_nan(call))
        status = onednn_fill(backend, call->out[0], (double)NAN, error);
    return status;
}

static void build_backward(struct builder *builder, const struct op_call *call)
{
    const dnnl_memory_desc_t x = layout_of(call->in[0]);
    const dnnl_memory_desc_t c = layout_canonical(&call->in[1]->shape, DTYPE_F32);
    dnnl_primitive_desc_t forward = describe_forward(builder, call, &x);
    dnnl_batch_normalization_desc_t operation;
    dnnl_primitive_desc_t backward = builder_describe(
        builder,
        dnnl_batch_normalization_backward_desc_init(&operation, dnnl_backward, &x, &x,
                                                    (float)call->attributes.epsilon, norm_flags(call)),
        &operation, forward);
    const dnnl_memory_desc_t *const layout[] = {&x, &c, &c};
    int slot[3];
    for (uint32_t i = 0; i < 3; i++)
        slot[i] = call->din[i] == NULL ? builder_scratch(builder, layout[i])
                                       : builder_output(builder, PLACE_DIN, i, call->din[i], layout[i]);
    struct binding bindings[] = {
        {DNNL_ARG_SRC, builder_input(builder, PLACE_IN, 0, call->in[0], &x)},
        {DNNL_ARG_SCALE, builder_input(builder, PLACE_IN, 1, call->in[1], &c)},
        {DNNL_ARG_SHIFT, builder_input(builder, PLACE_IN, 2, call->in[2], &c)},
        {DNNL_ARG_MEAN, builder_saved(builder, SAVED_MEAN, &c)},
        {DNNL_ARG_VARIANCE, builder_saved(builder, SAVED_VARIANCE, &c)},
        {DNNL_ARG_DIFF_DST, builder_input(builder, PLACE_DOUT, 0, call->dout[0], &x)},
        {DNNL_ARG_DIFF_SRC, slot[0]},
        {DNNL_ARG_DIFF_SCALE, slot[1]},
        {DNNL_ARG_DIFF_SHIFT, slot[2]},
        {0, 0},
        {0, 0}};
    if (call->attributes.relu)
        bindings[9] = (struct binding){
            DNNL_ARG_WORKSPACE,
            builder_saved(builder, SAVED_POSITIVE, builder_query(builder, forward, dnnl_query_workspace_md))};
    builder_step(builder, backward, bindings);
}

enum status onednn_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_BACKWARD, build_backward, error);
}
