/* Everything but operations: copies, fill, add, searches, and the optimizers. */
#include "kernels/base/processors.h"
#include "kernels/onednn/onednn.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static size_t tensor_elements(const struct tensor *tensor)
{
    return shape_elements(&tensor->shape);
}

/* Canonical values of the tensor's own dtype, or of double, as the tensor's dtype at `data`. */
static void convert_in(const struct onednn *onednn, float *data, enum dtype dtype, const void *from,
                       size_t count)
{
    const size_t pieces = loop_pieces(count);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t first = i * LOOP_PIECE, length = loop_piece(count, i);
        if (dtype == DTYPE_F64)
            onednn->element->to_float(data + first, (const double *)from + first, length);
        else
            memcpy(data + first, (const float *)from + first, length * sizeof(float));
    }
}

enum status onednn_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                          struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    onednn_use_threads(onednn);
    if (to->dtype == DTYPE_I32) {
        memcpy(to->data, from, tensor_elements(to) * sizeof(int32_t));
        return STATUS_OK;
    }
    if (to->layout == NULL) {
        convert_in(onednn, to->data, dtype, from, tensor_elements(to));
        return STATUS_OK;
    }
    struct tensor plain = *to;
    plain.layout = NULL;
    plain.bytes = tensor_elements(to) * sizeof(float);
    enum status status = scratch_reserve(&onednn->copies, plain.bytes, error);
    if (status != STATUS_OK)
        return status;
    plain.data = onednn->copies.data;
    convert_in(onednn, plain.data, dtype, from, tensor_elements(to));
    return onednn_reorder(backend, to, &plain, error);
}

enum status onednn_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                            struct error *error)
{
    struct onednn *onednn = onednn_of(backend);
    const size_t count = tensor_elements(from), bytes = count * sizeof(float);
    onednn_use_threads(onednn);
    if (from->dtype == DTYPE_I32) {
        memcpy(to, from->data, count * sizeof(int32_t));
        return STATUS_OK;
    }
    const float *values = from->data;
    if (from->layout != NULL) {
        struct tensor plain = *from;
        enum status status = scratch_reserve(&onednn->copies, bytes, error);
        if (status != STATUS_OK)
            return status;
        plain.layout = NULL;
        plain.bytes = bytes;
        plain.data = dtype == DTYPE_F64 ? onednn->copies.data : to;
        status = onednn_reorder(backend, &plain, from, error);
        if (status != STATUS_OK || dtype != DTYPE_F64)
            return status;
        values = plain.data;
    }
    if (dtype == DTYPE_F64)
        onednn->element->to_double(to, values, count);
    else
        memcpy(to, values, bytes);
    return STATUS_OK;
}

enum status onednn_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error)
{
    const struct onednn *onednn = onednn_of(backend);
    const size_t elements = tensor_elements(tensor);
    onednn_use_threads(onednn);
    struct tensor plain = *tensor;
    const bool padded = value != 0 && loop_elements(tensor) != elements; // the padding stays zero
    if (padded) {
        enum status status = scratch_reserve(&onednn_of(backend)->copies, elements * sizeof(float), error);
        if (status != STATUS_OK)
            return status;
        plain.layout = NULL;
        plain.data = onednn->copies.data;
    }
    const size_t count = loop_elements(&plain), pieces = loop_pieces(count);
    float *data = plain.data;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        onednn->element->fill(data + i * LOOP_PIECE, (float)value, loop_piece(count, i));
    return padded ? onednn_reorder(backend, tensor, &plain, error) : STATUS_OK;
}

enum status onednn_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                              const struct tensor *from, struct error *error)
{
    (void)arena; // scratch of our own serves
    struct onednn *onednn = onednn_of(backend);
    struct tensor other = *from;
    onednn_use_threads(onednn);
    if (from->layout != to->layout) {
        other.layout = to->layout;
        other.bytes = layout_bytes(&to->shape, to->dtype, to->layout);
        enum status status = scratch_reserve(&onednn->copies, other.bytes, error);
        if (status != STATUS_OK)
            return status;
        other.data = onednn->copies.data;
        status = onednn_reorder(backend, &other, from, error);
        if (status != STATUS_OK)
            return status;
    }
    float *sum = to->data;
    const float *add = other.data;
    const size_t count = loop_elements(to), pieces = loop_pieces(count);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        onednn->element->accumulate(sum + i * LOOP_PIECE, add + i * LOOP_PIECE, loop_piece(count, i));
    return STATUS_OK;
}

enum status onednn_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error)
{
    (void)error;
    const struct onednn *onednn = onednn_of(backend);
    const size_t count = loop_elements(tensor), pieces = loop_pieces(count);
    float *data = tensor->data;
    onednn_use_threads(onednn);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        onednn->element->scale(data + i * LOOP_PIECE, (float)factor, loop_piece(count, i));
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

enum status onednn_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                       struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                       struct error *error)
{
    (void)error;
    const struct onednn *onednn = onednn_of(backend);
    const struct element_sgd set = {(float)settings->lr, (float)settings->momentum, step == 1};
    const size_t count = loop_elements(parameters), pieces = loop_pieces(count);
    float *p = parameters->data, *v = momentum == NULL ? NULL : momentum->data;
    const float *g = gradient->data;
    onednn_use_threads(onednn);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t first = i * LOOP_PIECE, length = loop_piece(count, i);
        if (v == NULL)
            onednn->element->sgd_plain(set.lr, p + first, g + first, length);
        else
            onednn->element->sgd(&set, p + first, g + first, v + first, length);
    }
    return STATUS_OK;
}

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
