/* The oracle's copies, small things on flat memory, and optimizers. */
#include "test/oracle/ref_internal.h"

#include <math.h>
#include <string.h>

enum status ref_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                       struct error *error)
{
    (void)backend;
    (void)error;
    const size_t count = ref_count(to);
    if (dtype == DTYPE_F32) {
        const float *value = from;
        double *out = to->data;
        for (size_t i = 0; i < count; i++)
            out[i] = (double)value[i];
    } else {
        memcpy(to->data, from, count * dtype_bytes(dtype));
    }
    return STATUS_OK;
}

enum status ref_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                         struct error *error)
{
    (void)backend;
    (void)error;
    const size_t count = ref_count(from);
    if (dtype == DTYPE_F32) {
        const double *value = from->data;
        float *out = to;
        for (size_t i = 0; i < count; i++)
            out[i] = (float)value[i];
    } else {
        memcpy(to, from->data, count * dtype_bytes(dtype));
    }
    return STATUS_OK;
}

enum status ref_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error)
{
    (void)backend;
    (void)error;
    double *to = tensor->data;
    const size_t count = ref_count(tensor);
    for (size_t i = 0; i < count; i++)
        to[i] = value;
    return STATUS_OK;
}

enum status ref_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                           struct error *error)
{
    (void)backend;
    (void)error;
    double *sum = to->data;
    const double *addend = from->data;
    const size_t count = ref_count(to);
    for (size_t i = 0; i < count; i++)
        sum[i] += addend[i];
    return STATUS_OK;
}

enum status ref_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error)
{
    (void)backend;
    (void)error;
    double *value = tensor->data;
    const size_t count = ref_count(tensor);
    for (size_t i = 0; i < count; i++)
        value[i] *= factor;
    return STATUS_OK;
}

enum status ref_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                           struct error *error)
{
    (void)backend;
    (void)error;
    const double *value = tensor->data;
    const size_t count = ref_count(tensor);
    *sum = 0;
    for (size_t i = 0; i < count; i++)
        *sum += value[i] * value[i];
    return STATUS_OK;
}

enum status ref_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                 struct error *error)
{
    (void)backend;
    (void)error;
    const double *value = tensor->data;
    const size_t count = ref_count(tensor);
    *index = SIZE_MAX;
    for (size_t i = 0; i < count && *index == SIZE_MAX; i++)
        if (!isfinite(value[i]))
            *index = i;
    return STATUS_OK;
}

enum status ref_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                    struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                    struct error *error)
{
    (void)backend;
    (void)error;
    double *p = parameters->data, *v = ref_doubles(momentum);
    const double *g = gradient->data;
    const size_t count = ref_count(parameters);
    for (size_t i = 0; i < count; i++) {
        double velocity = g[i];
        if (v != NULL)
            velocity = v[i] = step == 1 ? g[i] : settings->momentum * v[i] + g[i];
        p[i] -= settings->lr * velocity;
    }
    return STATUS_OK;
}

enum status ref_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                     struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                     struct tensor *second, struct error *error)
{
    (void)backend;
    (void)error;
    double *p = parameters->data, *m = first->data, *v = second->data;
    const double *g = gradient->data;
    const double b1 = settings->beta1, b2 = settings->beta2;
    const bool corrected = !settings->uncorrected;
    const double correction1 = corrected ? 1 - pow(b1, (double)step) : 1,
                 correction2 = corrected ? 1 - pow(b2, (double)step) : 1;
    const size_t count = ref_count(parameters);
    for (size_t i = 0; i < count; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] -= settings->lr / correction1 * m[i] / (sqrt(v[i]) / sqrt(correction2) + settings->epsilon);
    }
    return STATUS_OK;
}

enum status ref_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error)
{
    (void)backend;
    (void)error;
    const double *const *gradients = (const double *const *)round->gradients;
    const double *p = round->parameters, *v = round->velocity;
    double *to = round->parameters_out, *velocity_to = round->velocity_out;
    for (size_t i = 0; i < round->count; i++) {
        double velocity = 0;
        for (uint32_t k = 0; k < round->contributions; k++) {
            velocity += gradients[k][i];
            if (!isfinite(gradients[k][i]) && k < round->not_finite)
                round->not_finite = k;
        }
        velocity /= round->contributions;
        if (velocity_to != NULL)
            velocity = velocity_to[i] = round->first ? velocity : round->sgd.momentum * v[i] + velocity;
        to[i] = p[i] - round->sgd.lr * velocity;
        if (!isfinite(to[i]) && round->contributions < round->not_finite)
            round->not_finite = round->contributions;
    }
    return STATUS_OK;
}
