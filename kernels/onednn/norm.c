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

static void build_forward(struct builder *builder, const struct op_call *call)
{
    const dnnl_memory_desc_t x = layout_of(call->in[0]);
    const bool training = call->attributes.training;
    const enum place statistics = training ? PLACE_OUT : PLACE_IN,
                     positive = call->keep ? PLACE_SAVED : PLACE_SCRATCH;
    builder_step(builder, describe_forward(builder, call, &x),
                 (const struct binding[]){{DNNL_ARG_SRC, PLACE_IN, 0, NULL},
                                          {DNNL_ARG_SCALE, PLACE_IN, 1, NULL},
                                          {DNNL_ARG_SHIFT, PLACE_IN, 2, NULL},
                                          {DNNL_ARG_DST, PLACE_OUT, 0, NULL},
                                          {DNNL_ARG_MEAN, statistics, training ? 1 : 3, NULL},
                                          {DNNL_ARG_VARIANCE, statistics, training ? 2 : 4, NULL},
                                          {DNNL_ARG_WORKSPACE, positive, SAVED_POSITIVE, NULL},
                                          {0}});
}

/* What the library leaves to do for the second and the third output, the batch's mean and biased variance. */
static enum status finish_statistics(struct op_call *call, struct error *error)
{
    const uint32_t channels = call->in[1]->shape.size[0];
    const size_t values = shape_elements(&call->in[0]->shape) / channels; /* of each channel */
    const double n = (double)values;
    float *variance = call->out[2]->data;
    for (uint32_t saved = SAVED_MEAN; call->keep && saved <= SAVED_VARIANCE; saved++) {
        if (onednn_take(call, &call->saved[saved], NULL, channels * sizeof(float), error) != STATUS_OK)
            return STATUS_NO_MEMORY;
        memcpy(call->saved[saved].data, call->out[1 + saved]->data, channels * sizeof(float));
    }
    for (uint32_t c = 0; c < channels; c++)
        variance[c] = (float)((double)variance[c] * n / (n - 1));
    return STATUS_OK;
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
        status = finish_statistics(call, error);
    if (status == STATUS_OK && call->attributes.relu && lost_nan(call))
        status = onednn_fill(backend, call->out[0], (double)NAN, error);
    return status;
}

static void build_backward(struct builder *builder, const struct op_call *call)
{
    const dnnl_memory_desc_t x = layout_of(call->in[0]);
    dnnl_primitive_desc_t forward = describe_forward(builder, call, &x);
    dnnl_batch_normalization_desc_t operation;
    const dnnl_status_t made = dnnl_batch_normalization_backward_desc_init(
        &operation, dnnl_backward, &x, &x, (float)call->attributes.epsilon, norm_flags(call));
    builder_step(builder, builder_describe(builder, made, &operation, forward),
                 (const struct binding[]){{DNNL_ARG_SRC, PLACE_IN, 0, NULL},
                                          {DNNL_ARG_SCALE, PLACE_IN, 1, NULL},
                                          {DNNL_ARG_SHIFT, PLACE_IN, 2, NULL},
                                          {DNNL_ARG_MEAN, PLACE_SAVED, SAVED_MEAN, NULL},
                                          {DNNL_ARG_VARIANCE, PLACE_SAVED, SAVED_VARIANCE, NULL},
                                          {DNNL_ARG_DIFF_DST, PLACE_DOUT, 0, NULL},
                                          {DNNL_ARG_DIFF_SRC, PLACE_DIN, 0, NULL},
                                          {DNNL_ARG_DIFF_SCALE, PLACE_DIN, 1, NULL},
                                          {DNNL_ARG_DIFF_SHIFT, PLACE_DIN, 2, NULL},
                                          {DNNL_ARG_WORKSPACE, PLACE_SAVED, SAVED_POSITIVE, NULL},
                                          {0}});
}

enum status onednn_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return plan_run(backend, call, PASS_BACKWARD, build_backward, error);
}
