/* Opens a backend, and calls the functions of its table for memory and optimizers. What those functions may
 * rely on is asserted here. */
#include "kernels/backend.h"

#include <assert.h>
#include <stdlib.h>

enum status backend_open(struct backend **out, const struct backend_ops *ops,
                         const struct backend_settings *settings, struct error *error)
{
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

enum status backend_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                               const struct tensor *from, struct error *error)
{
    assert(is_pair(backend, to, from) && shape_equal(&to->shape, &from->shape));
    const uint64_t mark = arena_mark(arena);
    enum status status = backend->ops->accumulate(backend, arena, to, from, error);
    if (status != STATUS_OK)
        arena_rollback(arena, mark);
    return status;
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
