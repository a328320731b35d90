/* The CPU backend's tables, opening and closing, and the plug-in's one exported symbol. */
#include "kernels/onednn/onednn.h"

#include "kernels/base/thread.h"
#include "kernels/lanes/isa.h"

#include <stdio.h>
#include <stdlib.h>

static enum status open_library(struct onednn *onednn, struct error *error)
{
    enum status status = onednn_check(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0), "dnnl_engine_create",
                                      "the CPU", NULL, error);
    if (status == STATUS_OK)
        status = onednn_check(dnnl_stream_create(&onednn->stream, onednn->engine, dnnl_stream_default_flags),
                              "dnnl_stream_create", "the CPU", NULL, error);
    if (status == STATUS_OK)
        status = onednn_check(dnnl_primitive_attr_create(&onednn->attributes), "dnnl_primitive_attr_create",
                              "the CPU", NULL, error);
    if (status == STATUS_OK)
        status = onednn_check(
            dnnl_primitive_attr_set_scratchpad_mode(onednn->attributes, dnnl_scratchpad_mode_user),
            "dnnl_primitive_attr_set_scratchpad_mode", "the CPU", NULL, error);
    return status;
}

static void onednn_free(struct onednn *onednn)
{
    plans_free(onednn);
    layouts_free(onednn);
    dnnl_primitive_attr_destroy(onednn->attributes);
    dnnl_stream_destroy(onednn->stream);
    dnnl_engine_destroy(onednn->engine);
    scratch_free(&onednn->copies);
    scratch_free(&onednn->terms);
    scratch_free(&onednn->pad);
    free(onednn);
}

static const char *instructions(void)
{
    switch ((unsigned)dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
        return "SSE4.1";
    case dnnl_cpu_isa_avx:
        return "AVX";
    case dnnl_cpu_isa_avx2:
    case dnnl_cpu_isa_avx2_vnni:
        return "AVX2";
    default:
        return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_mic ? "AVX-512" : "no vectors";
    }
}

static enum status onednn_open(struct backend *backend, const struct backend_settings *settings,
                               struct error *error)
{
    static const struct element_lanes *const element[ISA_COUNT] = ISA_EACH(&element_lanes);
    static const struct row_lanes *const row[ISA_COUNT] = ISA_EACH(&row_lanes);
    static sgd_round_lanes_update *const update[ISA_COUNT] = ISA_EACH(sgd_round_lanes_update);
    enum isa isa = ISA_BASELINE;
    enum status status = isa_choose(&isa, error);
    if (status != STATUS_OK)
        return status;
    struct onednn *onednn = calloc(1, sizeof *onednn);
    if (onednn == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for oneDNN's backend");
    onednn->element = element[isa];
    onednn->row = row[isa];
    onednn->update = update[isa];
    onednn->threads = settings->threads != 0 ? (int)settings->threads : (int)processors_count();
    onednn_use_threads(onednn);
    status = open_library(onednn, error);
    if (status != STATUS_OK) {
        onednn_free(onednn);
        return status;
    }
    const dnnl_version_t *version = dnnl_version();
    snprintf(backend->text, sizeof backend->text, "oneDNN %d.%d.%d, %s, %d thread%s", version->major,
             version->minor, version->patch, instructions(), onednn->threads,
             onednn->threads == 1 ? "" : "s");
    backend->source = arena_host;
    backend->state = onednn;
    return STATUS_OK;
}

static void onednn_close(struct backend *backend)
{
    onednn_free(onednn_of(backend));
    onednn_end_threads();
    backend->state = NULL;
}

const struct onednn_operation onednn_operations[OP_COUNT] = {
    [OP_LINEAR] = {NULL, NULL, onednn_conv_forward, onednn_conv_backward},
    [OP_CONV2D] = {NULL, NULL, onednn_conv_forward, onednn_conv_backward},
    [OP_BATCH_NORM] = {NULL, NULL, onednn_batch_norm_forward, onednn_batch_norm_backward},
    [OP_MAX_POOL] = {NULL, NULL, onednn_pool_forward, onednn_pool_backward},
    [OP_AVG_POOL] = {NULL, NULL, onednn_pool_forward, onednn_pool_backward},
    [OP_RESHAPE] = {NULL, NULL, onednn_reshape_forward, onednn_reshape_backward},
    [OP_RELU] = {relu_forward, relu_backward, NULL, NULL},
    [OP_ADD] = {add_forward, add_backward, NULL, onednn_add_backward},
    [OP_DROPOUT] = {dropout_forward, dropout_backward, NULL, NULL},
    [OP_LOG_SOFTMAX] = {log_softmax_forward, log_softmax_backward, NULL, NULL},
    [OP_EMBEDDING] = {embedding_forward, embedding_backward, NULL, NULL},
    [OP_LSTM_LAYER] = {recurrent_forward, recurrent_backward, NULL, NULL},
    [OP_MSE] = {mse_forward, mse_backward, NULL, NULL},
    [OP_CROSS_ENTROPY] = {cross_entropy_forward, cross_entropy_backward, NULL, NULL},
    [OP_LOG_PROBABILITY] = {log_probability_forward, log_probability_backward, NULL, NULL},
    [OP_SUM] = {sum_forward, sum_backward, NULL, NULL},
    [OP_TANH] = {tanh_forward, tanh_backward, NULL, NULL},
    [OP_GRU_LAYER] = {recurrent_forward, recurrent_backward, NULL, NULL},
};

static const struct backend_ops onednn_ops = {
    .name = "onednn",
    .dtype = DTYPE_F32,
    .host = true,
    .open = onednn_open,
    .close = onednn_close,
    .forward = {[0 ... OP_COUNT - 1] = onednn_forward},
    .backward = {[0 ... OP_COUNT - 1] = onednn_backward},
    .upload = onednn_upload,
    .download = onednn_download,
    .fill = onednn_fill,
    .accumulate = onednn_accumulate,
    .scale = onednn_scale,
    .square_sum = onednn_square_sum,
    .first_not_finite = onednn_first_not_finite,
    .sgd = onednn_sgd,
    .adam = onednn_adam,
    .sgd_round = onednn_sgd_round,
    .layout_hash = onednn_layout_hash,
};

__attribute__((visibility("default"))) backend_plugin coalesced_backend;

const struct backend_ops *coalesced_backend(uint32_t abi)
{
    return abi == BACKEND_ABI ? &onednn_ops : NULL;
}
