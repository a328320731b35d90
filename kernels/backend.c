/* Finds, loads and opens backends, and calls the functions of their tables for memory and optimizers. What
 * those functions may rely on is asserted here. Also the backend that only stores.
 *
 * A worker loads its backend once, at its start, on its main thread. */
#include "kernels/backend.h"

#include "kernels/base/program_files.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status backend_open(struct backend **out, const struct backend_ops *ops,
                         const struct backend_settings *settings, struct error *error)
{
    assert(ops != NULL);
    struct backend *backend = calloc(1, sizeof *backend);
    if (backend == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the %s backend", ops->name);
    backend->ops = ops;
    enum status status = ops->open(backend, settings, error);
    if (status != STATUS_OK) {
        free(backend);
        return status;
    }
    *out = backend;
    return STATUS_OK;
}

void backend_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    backend->ops->close(backend);
    free(backend);
}

/* ---- plug-ins ---- */

static enum status load_table(const struct backend_ops **out, const char *path, struct error *error)
{
    void (*function)(void);
    struct error why;
    if (plugin_load(&function, path, BACKEND_PLUGIN_SYMBOL, &why) != STATUS_OK)
        return error_set(error, why.status, "%s %s", path, why.text);
    *out = ((backend_plugin *)function)(BACKEND_ABI);
    return *out != NULL
               ? STATUS_OK
               : error_set(error, STATUS_UNAVAILABLE,
                           "%s is of another version: expected one for interface %d", path, BACKEND_ABI);
}

static enum status find_table(const struct backend_ops **out, const char *name, struct error *error)
{
    char path[PATH_MAX], file[NAME_MAX];
    assert(strchr(name, '/') == NULL);
    snprintf(file, sizeof file, "libcoalesced-%s.so", name);
    const enum status status = program_find(path, PROGRAM_PLUGIN, file, error);
    return status == STATUS_OK ? load_table(out, path, error) : status;
}

enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error)
{
    const struct backend_ops *ops = NULL;
    const enum status status = find_table(&ops, name, error);
    return status == STATUS_OK ? backend_open(out, ops, settings, error) : status;
}

bool backend_finds_gpu(void)
{
    const struct backend_ops *ops = NULL;
    struct error why;
    if (find_table(&ops, "cuda", &why) != STATUS_OK || ops == NULL)
        return false;
    return ops->find == NULL || ops->find();
}

enum status backend_load_device(struct backend **out, enum device device,
                                const struct backend_settings *settings, struct error *why,
                                struct error *error)
{
    struct error reason = {0};
    if (device != DEVICE_CPU) {
        if (backend_load(out, "cuda", settings, &reason) == STATUS_OK)
            return STATUS_OK;
        if (device == DEVICE_GPU)
            return error_set(error, STATUS_UNAVAILABLE, "no GPU can be used: %s", reason.text);
        error_set(why, STATUS_UNAVAILABLE, "no GPU can be used: %s", reason.text);
    }
    return backend_load(out, "onednn", settings, error);
}

/* ---- memory and small things ---- */

enum status backend_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                           struct error *error)
{
    assert(to->data != NULL && (dtype == DTYPE_I32) == (to->dtype == DTYPE_I32));
    return backend->ops->upload(backend, to, dtype, from, error);
}

enum status backend_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                             struct error *error)
{
    assert(from->data != NULL && (dtype == DTYPE_I32) == (from->dtype == DTYPE_I32));
    return backend->ops->download(backend, from, dtype, to, error);
}

enum status backend_download_later(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                   void *to, struct error *error)
{
    if (backend->ops->download_later == NULL)
        return backend_download(backend, from, dtype, to, error);
    assert(from->data != NULL && (dtype == DTYPE_I32) == (from->dtype == DTYPE_I32));
    return backend->ops->download_later(backend, from, dtype, to, error);
}

enum status backend_wait(struct backend *backend, struct error *error)
{
    return backend->ops->wait != NULL ? backend->ops->wait(backend, error) : STATUS_OK;
}

enum status backend_pin(struct backend *backend, const void *memory, size_t bytes, struct error *error)
{
    return backend->ops->pin != NULL ? backend->ops->pin(backend, memory, bytes, error) : STATUS_OK;
}

/* Whether a tensor has memory and the backend's floating dtype. */
static bool is_floating(const struct backend *backend, const struct tensor *tensor)
{
    return tensor->data != NULL && tensor->dtype == backend->ops->dtype;
}

/* Two such tensors with equally many elements. */
static bool is_pair(const struct backend *backend, const struct tensor *a, const struct tensor *b)
{
    return is_floating(backend, a) && is_floating(backend, b) &&
           shape_elements(&a->shape) == shape_elements(&b->shape);
}

enum status backend_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error)
{
    assert(is_floating(backend, tensor));
    return backend->ops->fill(backend, tensor, value, error);
}

enum status backend_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                               struct error *error)
{
    assert(is_pair(backend, to, from) && shape_equal(&to->shape, &from->shape));
    return backend->ops->accumulate(backend, to, from, error);
}

enum status backend_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error)
{
    assert(is_floating(backend, tensor));
    return backend->ops->scale(backend, tensor, factor, error);
}

enum status backend_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                               struct error *error)
{
    assert(is_floating(backend, tensor));
    return backend->ops->square_sum(backend, tensor, sum, error);
}

enum status backend_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                     struct error *error)
{
    assert(is_floating(backend, tensor));
    return backend->ops->first_not_finite(backend, tensor, index, error);
}

/* ---- optimizers ---- */

enum status backend_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                        struct error *error)
{
    assert(step >= 1 && is_pair(backend, parameters, gradient));
    assert((settings->momentum != 0) == (momentum != NULL));
    assert(momentum == NULL || is_pair(backend, parameters, momentum));
    return backend->ops->sgd(backend, settings, step, parameters, gradient, momentum, error);
}

enum status backend_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                         struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                         struct tensor *second, struct error *error)
{
    assert(step >= 1 && is_pair(backend, parameters, gradient));
    assert(is_pair(backend, parameters, first) && is_pair(backend, parameters, second));
    return backend->ops->adam(backend, settings, step, parameters, gradient, first, second, error);
}

enum status backend_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error)
{
    const bool moves = round->sgd.momentum != 0;
    assert(backend->ops->sgd_round != NULL && round->contributions > 0);
    assert(moves == (round->velocity_out != NULL) && (!moves || round->first || round->velocity != NULL));
    round->not_finite = UINT32_MAX;
    return backend->ops->sgd_round(backend, round, error);
}

/* ---- the backend that only stores: copies between host arrays and tensors of float32 ---- */

static enum status memory_open(struct backend *backend, const struct backend_settings *settings,
                               struct error *error)
{
    (void)settings;
    (void)error;
    backend->source = arena_host;
    snprintf(backend->text, sizeof backend->text, "host memory");
    return STATUS_OK;
}

static void memory_close(struct backend *backend)
{
    (void)backend;
}

static enum status memory_upload(struct backend *backend, struct tensor *to, enum dtype dtype,
                                 const void *from, struct error *error)
{
    (void)backend;
    (void)error;
    const size_t count = shape_elements(&to->shape);
    float *out = to->data;
    if (dtype == DTYPE_F32)
        memcpy(out, from, count * sizeof *out);
    else
        for (size_t i = 0; i < count; i++)
            out[i] = (float)((const double *)from)[i];
    return STATUS_OK;
}

static enum status memory_download(struct backend *backend, const struct tensor *from, enum dtype dtype,
                                   void *to, struct error *error)
{
    (void)backend;
    (void)error;
    const size_t count = shape_elements(&from->shape);
    const float *in = from->data;
    if (dtype == DTYPE_F32)
        memcpy(to, in, count * sizeof *in);
    else
        for (size_t i = 0; i < count; i++)
            ((double *)to)[i] = (double)in[i];
    return STATUS_OK;
}

static enum status memory_fill(struct backend *backend, struct tensor *tensor, double value,
                               struct error *error)
{
    (void)backend;
    (void)error;
    float *to = tensor->data;
    const size_t count = shape_elements(&tensor->shape);
    for (size_t i = 0; i < count; i++)
        to[i] = (float)value;
    return STATUS_OK;
}

const struct backend_ops memory_ops = {.name = "memory",
                                       .dtype = DTYPE_F32,
                                       .host = true,
                                       .open = memory_open,
                                       .close = memory_close,
                                       .upload = memory_upload,
                                       .download = memory_download,
                                       .fill = memory_fill};
