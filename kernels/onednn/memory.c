/* Copies, fills, adds and searches whole tensors, and runs the optimizers. */
#include "kernels/base/thread.h"
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

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

enum status onednn_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                          struct error *error)
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

enum status onednn_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                            struct error *error)
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

enum status onednn_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                              const struct tensor *from, struct error *error)
{
    (void)arena; // scratch of our own serves
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

enum status onednn_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error)
{
    (void)error;
    loop_pass(backend, onednn_of(backend)->element->scale,
              &(struct elements){.to = tensor->data, .factor = (float)factor}, loop_elements(tensor));
    return STATUS_OK;
}

enum status onednn_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
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

enum status onednn_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
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

enum status onednn_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error)
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
enum status onednn_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                       struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                       struct error *error)
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
