/* The oracle's table, and what its operations share. */
#include "test/oracle/ref_internal.h"

#include <stdio.h>

enum status ref_make(const struct op_call *call, struct tensor *tensor, struct error *error)
{
    if (tensor->data != NULL)
        return STATUS_OK;
    return tensor_new(tensor, call->arena, tensor->shape, tensor->dtype, tensor->name, error);
}

enum status ref_make_gradients(const struct op_call *call, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < OP_INPUTS_MAX && status == STATUS_OK; i++)
        if (call->din[i] != NULL)
            status = ref_make(call, call->din[i], error);
    return status;
}

double *ref_scratch(const struct op_call *call, size_t count, struct error *error)
{
    double *block = arena_take(call->arena, count * sizeof *block);
    if (block == NULL)
        error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu values between", op_rule(call->op)->name,
                  count);
    return block;
}

void ref_zero(double *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = 0;
}

void ref_apply_relu(const struct op_call *call, struct tensor *y)
{
    double *value = y->data;
    const size_t count = ref_count(y);
    for (size_t i = 0; call->attributes.relu && i < count; i++)
        value[i] = value[i] <= 0 ? 0 : value[i];
}

enum status ref_begin_backward(const struct op_call *call, double **gradient, void **scratch,
                               struct error *error)
{
    const double *y = call->out[0]->data;
    double *dy = call->dout[0]->data;
    const size_t count = ref_count(call->out[0]);
    *scratch = NULL;
    *gradient = dy;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || !call->attributes.relu)
        return status;
    double *gated = ref_scratch(call, count, error);
    if (gated == NULL)
        return STATUS_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        gated[i] = y[i] > 0 ? dy[i] : 0;
    *scratch = gated;
    *gradient = gated;
    return STATUS_OK;
}

static enum status ref_open(struct backend *backend, const struct backend_settings *settings,
                            struct error *error)
{
    (void)settings;
    (void)error;
    backend->source = arena_host;
    snprintf(backend->text, sizeof backend->text, "plain C in double, 1 thread");
    return STATUS_OK;
}

static void ref_close(struct backend *backend)
{
    (void)backend;
}

const struct backend_ops ref_ops = {
    .name = "ref",
    .dtype = DTYPE_F64,
    .host = true,
    .open = ref_open,
    .close = ref_close,
    .forward =
        {
            [OP_LINEAR] = ref_linear_forward,
            [OP_CONV2D] = ref_conv2d_forward,
            [OP_BATCH_NORM] = ref_batch_norm_forward,
            [OP_MAX_POOL] = ref_max_pool_forward,
            [OP_AVG_POOL] = ref_avg_pool_forward,
            [OP_RELU] = ref_relu_forward,
            [OP_ADD] = ref_add_forward,
            [OP_RESHAPE] = ref_reshape_forward,
            [OP_DROPOUT] = ref_dropout_forward,
            [OP_LOG_SOFTMAX] = ref_log_softmax_forward,
            [OP_EMBEDDING] = ref_embedding_forward,
            [OP_LSTM_LAYER] = ref_lstm_forward,
            [OP_MSE] = ref_mse_forward,
            [OP_CROSS_ENTROPY] = ref_cross_entropy_forward,
            [OP_LOG_PROBABILITY] = ref_log_probability_forward,
            [OP_SUM] = ref_sum_forward,
            [OP_TANH] = ref_tanh_forward,
            [OP_GRU_LAYER] = ref_gru_forward,
        },
    .backward =
        {
            [OP_LINEAR] = ref_linear_backward,
            [OP_CONV2D] = ref_conv2d_backward,
            [OP_BATCH_NORM] = ref_batch_norm_backward,
            [OP_MAX_POOL] = ref_max_pool_backward,
            [OP_AVG_POOL] = ref_avg_pool_backward,
            [OP_RELU] = ref_relu_backward,
            [OP_ADD] = ref_add_backward,
            [OP_RESHAPE] = ref_reshape_backward,
            [OP_DROPOUT] = ref_dropout_backward,
            [OP_LOG_SOFTMAX] = ref_log_softmax_backward,
            [OP_EMBEDDING] = ref_embedding_backward,
            [OP_LSTM_LAYER] = ref_lstm_backward,
            [OP_MSE] = ref_mse_backward,
            [OP_CROSS_ENTROPY] = ref_cross_entropy_backward,
            [OP_LOG_PROBABILITY] = ref_log_probability_backward,
            [OP_SUM] = ref_sum_backward,
            [OP_TANH] = ref_tanh_backward,
            [OP_GRU_LAYER] = ref_gru_backward,
        },
    .upload = ref_upload,
    .download = ref_download,
    .fill = ref_fill,
    .accumulate = ref_accumulate,
    .scale = ref_scale,
    .square_sum = ref_square_sum,
    .first_not_finite = ref_first_not_finite,
    .sgd = ref_sgd,
    .adam = ref_adam,
    .sgd_round = ref_sgd_round,
};
