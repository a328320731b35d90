/* The CPU backend: opening and closing, copies, fills, sums and searches of whole tensors, the optimizers,
 * the tables, and the plug-in's one exported symbol. */
#include "kernels/onednn/onednn.h"

#include "kernels/base/thread.h"
#include "kernels/lanes/isa.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open, close ---- */

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

/* ---- memory: copies, fill, add, searches ---- */

static size_t tensor_elements(const struct tensor *tensor)
{
    return shape_elements(&tensor->shape);
}

/* *out: the tensor's shape in another layout, in scratch. */
static enum status copy_reserve(struct onednn *onednn, const struct tensor *tensor, const void *layout,
                                struct tensor *out, struct error *error)
{
    *out = *tensor;
    out->layout = layout;
    out->bytes = layout_bytes(&tensor->shape, tensor->dtype, layout);
    enum status status = scratch_reserve(&onednn->copies, out->bytes, error);
    out->data = onednn->copies.data;
    return status;
}

static enum status onednn_upload(struct backend *backend, struct tensor *to, enum dtype dtype,
                                 const void *from, struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    struct tensor plain = *to;
    if (to->dtype == DTYPE_I32) {
        memcpy(to->data, from, tensor_elements(to) * sizeof(int32_t));
        return STATUS_OK;
    }
    if (to->layout != NULL && copy_reserve(onednn, to, NULL, &plain, error) != STATUS_OK)
        return STATUS_NO_MEMORY;
    loop_pass(backend, dtype == DTYPE_F64 ? onednn->element->narrow : onednn->element->copy,
              &(struct elements){.to = plain.data, .a = from, .wide = from}, tensor_elements(to));
    return to->layout != NULL ? onednn_reorder(backend, to, &plain, error) : STATUS_OK;
}

static enum status onednn_download(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                   void *to, struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    struct tensor plain = *from;
    enum status status = STATUS_OK;
    if (from->layout != NULL)
        status = copy_reserve(onednn, from, NULL, &plain, error);
    if (from->layout != NULL && dtype == DTYPE_F32)
        plain.data = to;
    if (status == STATUS_OK && from->layout != NULL)
        status = onednn_reorder(backend, &plain, from, error);
    if (status != STATUS_OK)
        return status;
    if (dtype == DTYPE_F64)
        onednn->element->to_double(to, plain.data, tensor_elements(from));
    else if (plain.data != to)
        memcpy(to, plain.data, tensor_elements(from) * sizeof(float));
    return STATUS_OK;
}

enum status onednn_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    struct tensor plain = *tensor;
    const bool padded = value != 0 && loop_elements(tensor) != tensor_elements(tensor);
    if (padded && copy_reserve(onednn, tensor, NULL, &plain, error) != STATUS_OK)
        return STATUS_NO_MEMORY;
    loop_pass(backend, onednn->element->fill, &(struct elements){.to = plain.data, .factor = (float)value},
              loop_elements(&plain));
    return padded ? onednn_reorder(backend, tensor, &plain, error) : STATUS_OK; // the padding stays zero
}

static enum status onednn_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                                     struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    struct tensor other = *from;
    enum status status = STATUS_OK;
    if (from->layout != to->layout)
        status = copy_reserve(onednn, to, to->layout, &other, error);
    if (status == STATUS_OK && from->layout != to->layout)
        status = onednn_reorder(backend, &other, from, error);
    if (status == STATUS_OK)
        loop_pass(backend, onednn->element->accumulate, &(struct elements){.to = to->data, .a = other.data},
                  loop_elements(to));
    return status;
}

static enum status onednn_scale(struct backend *backend, struct tensor *tensor, double factor,
                                struct error *error)
{
    (void)error;
    loop_pass(backend, onednn_of(backend)->element->scale,
              &(struct elements){.to = tensor->data, .factor = (float)factor}, loop_elements(tensor));
    return STATUS_OK;
}

static enum status onednn_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                                     struct error *error)
{
    (void)error;
    onednn_use_threads(onednn_of(backend));
    *sum = loop_sum(onednn_of(backend)->element->square_sum, tensor->data, NULL, loop_elements(tensor));
    return STATUS_OK;
}

enum status onednn_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                    struct error *error)
{
    (void)error;
    const struct onednn *onednn = onednn_of(backend);
    const size_t count = loop_elements(tensor), pieces = loop_pieces(count);
    const float *data = tensor->data;
    size_t first = SIZE_MAX;
    *index = SIZE_MAX;
    onednn_use_threads(onednn);
#pragma omp parallel for schedule(static) reduction(min : first) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t length = loop_piece(count, i);
        const size_t at = onednn->element->first_not_finite(data + i * LOOP_PIECE, length);
        if (at < length && i * LOOP_PIECE + at < first)
            first = i * LOOP_PIECE + at;
    }
    *index = first;
    return STATUS_OK;
}

/* ---- optimizers ---- */

static enum status onednn_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                               struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                               struct tensor *second, struct error *error)
{
    (void)error;
    const size_t count = loop_elements(parameters), pieces = loop_pieces(count);
    float *p = parameters->data, *m = first->data, *v = second->data;
    const float *g = gradient->data;
    onednn_use_threads(onednn_of(backend));
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t at = i * LOOP_PIECE;
        adam_update(settings, step, p + at, m + at, v + at, g + at, loop_piece(count, i));
    }
    return STATUS_OK;
}

static enum status onednn_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error)
{
    (void)error;
    sgd_round_lanes_update *const update = onednn_of(backend)->update;
    const struct sgd_round_lanes arrays = {.lr = (float)round->sgd.lr,
                                           .momentum = (float)round->sgd.momentum,
                                           .first = round->first,
                                           .contributions = round->contributions,
                                           .gradients = (const float *const *)round->gradients,
                                           .parameters = round->parameters,
                                           .velocity = round->velocity,
                                           .parameters_out = round->parameters_out,
                                           .velocity_out = round->velocity_out};
    const int threads = round->threads != 0 ? (int)round->threads : (int)processors_count();
    const size_t pieces = loop_pieces(round->count);
    uint32_t strange = UINT32_MAX;
    (void)threads; // in a build without OpenMP
#pragma omp parallel for schedule(static) reduction(min : strange) num_threads(threads) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const uint32_t found = update(&arrays, i * LOOP_PIECE, loop_piece(round->count, i));
        strange = found < strange ? found : strange;
    }
    round->not_finite = strange;
    return STATUS_OK;
}

/* A round of one contribution, in place. */
static enum status onednn_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                              struct tensor *parameters, const struct tensor *gradient,
                              struct tensor *momentum, struct error *error)
{
    const void *const gradients[] = {gradient->data};
    void *velocity = momentum == NULL ? NULL : momentum->data;
    struct sgd_round round = {.sgd = *settings,
                              .first = step == 1,
                              .count = loop_elements(parameters),
                              .contributions = 1,
                              .gradients = gradients,
                              .parameters = parameters->data,
                              .velocity = velocity,
                              .parameters_out = parameters->data,
                              .velocity_out = velocity,
                              .threads = (uint32_t)onednn_of(backend)->threads};
    return onednn_sgd_round(backend, &round, error);
}

/* ---- the tables ---- */

const struct onednn_operation onednn_operations[OP_COUNT] = {
    [OP_LINEAR] = {NULL, NULL, onednn_conv_forward, onednn_conv_backward},
    [OP_CONV2D] = {NULL, NULL, onednn_conv_forward, onednn_conv_backward},
    [OP_BATCH_NORM] = {NULL, NULL, onednn_batch_norm_forward, onednn_batch_norm_backward},
    [OP_MAX_POOL] = {NULL, NULL, onednn_pool_forward, onednn_pool_backward},
    [OP_AVG_POOL] = {NULL, NULL, onednn_pool_forward, onednn_pool_backward},
    [OP_RESHAPE] = {NULL, NULL, onednn_reshape_forward, onednn_reshape_backward},
    [OP_RELU] = {pass_forward, pass_backward, NULL, NULL},
    [OP_ADD] = {pass_forward, pass_backward, NULL, onednn_add_backward},
    [OP_DROPOUT] = {dropout_forward, dropout_backward, NULL, NULL},
    [OP_LOG_SOFTMAX] = {log_softmax_forward, log_softmax_backward, NULL, NULL},
    [OP_EMBEDDING] = {embedding_forward, embedding_backward, NULL, NULL},
    [OP_LSTM_LAYER] = {recurrent_forward, recurrent_backward, NULL, NULL},
    [OP_MSE] = {mse_forward, mse_backward, NULL, NULL},
    [OP_CROSS_ENTROPY] = {cross_entropy_forward, cross_entropy_backward, NULL, NULL},
    [OP_LOG_PROBABILITY] = {log_probability_forward, log_probability_backward, NULL, NULL},
    [OP_SUM] = {sum_forward, sum_backward, NULL, NULL},
    [OP_TANH] = {pass_forward, pass_backward, NULL, NULL},
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
