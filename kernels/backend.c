/* Opening a backend, and its memory and optimizers: every call is checked here, so that a backend's table
 * need not check it. */
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

/* Values of dtype `host` on the other side of a copy. */
static enum status check_copy(const char *what, const struct tensor *tensor, enum dtype host,
                              const void *values, struct error *error)
{
    char text[TENSOR_TEXT_BYTES];
    assert(values != NULL);
    enum status status = tensor_check(what, "tensor", tensor, true, error);
    if (status != STATUS_OK)
        return status;
    bool known = host == DTYPE_F32 || host == DTYPE_F64 || host == DTYPE_I32;
    if (known && (host == DTYPE_I32) == (tensor->dtype == DTYPE_I32))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: %s is %s and the host's values are %s", what,
                     tensor_text("tensor", tensor, text), dtype_name(tensor->dtype), dtype_name(host));
}

enum status backend_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                           struct error *error)
{
    enum status status = check_copy("upload", to, dtype, from, error);
    return status == STATUS_OK ? backend->ops->upload(backend, to, dtype, from, error) : status;
}

enum status backend_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                             struct error *error)
{
    enum status status = check_copy("download", from, dtype, to, error);
    return status == STATUS_OK ? backend->ops->download(backend, from, dtype, to, error) : status;
}

/* A tensor of the backend's floating dtype. */
static enum status check_floating(const struct backend *backend, const char *what, const char *role,
                                  const struct tensor *tensor, struct error *error)
{
    char text[TENSOR_TEXT_BYTES];
    enum status status = tensor_check(what, role, tensor, true, error);
    if (status != STATUS_OK || tensor->dtype == backend->ops->dtype)
        return status;
    return error_set(error, STATUS_INVALID, "%s: %s is %s, expected %s", what,
                     tensor_text(role, tensor, text), dtype_name(tensor->dtype),
                     dtype_name(backend->ops->dtype));
}

/* Two of them, equally large: the shapes are equal, or, where `flat`, the numbers of elements. */
static enum status check_pair(const struct backend *backend, const char *what, const char *role,
                              const struct tensor *tensor, const char *other_role, const struct tensor *other,
                              bool flat, struct error *error)
{
    char text[TENSOR_TEXT_BYTES], other_text[TENSOR_TEXT_BYTES];
    enum status status = check_floating(backend, what, role, tensor, error);
    if (status == STATUS_OK)
        status = check_floating(backend, what, other_role, other, error);
    if (status != STATUS_OK)
        return status;
    const struct shape *a = &tensor->shape, *b = &other->shape;
    if (flat ? shape_elements(a) == shape_elements(b) : shape_equal(a, b))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: %s does not fit %s", what,
                     tensor_text(other_role, other, other_text), tensor_text(role, tensor, text));
}

enum status backend_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error)
{
    enum status status = check_floating(backend, "fill", "tensor", tensor, error);
    return status == STATUS_OK ? backend->ops->fill(backend, tensor, value, error) : status;
}

enum status backend_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                               const struct tensor *from, struct error *error)
{
    enum status status = check_pair(backend, "accumulate", "sum", to, "addend", from, false, error);
    if (status != STATUS_OK)
        return status;
    const uint64_t mark = arena_mark(arena);
    status = backend->ops->accumulate(backend, arena, to, from, error);
    if (status != STATUS_OK)
        arena_rollback(arena, mark);
    return status;
}

enum status backend_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error)
{
    enum status status = check_floating(backend, "scale", "tensor", tensor, error);
    return status == STATUS_OK ? backend->ops->scale(backend, tensor, factor, error) : status;
}

enum status backend_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                               struct error *error)
{
    enum status status = check_floating(backend, "sum of squares", "tensor", tensor, error);
    return status == STATUS_OK ? backend->ops->square_sum(backend, tensor, sum, error) : status;
}

enum status backend_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                     struct error *error)
{
    enum status status = check_floating(backend, "search for a NaN", "tensor", tensor, error);
    return status == STATUS_OK ? backend->ops->first_not_finite(backend, tensor, index, error) : status;
}

/* The state that an optimizer keeps beside the parameters, and the gradient. */
static enum status check_optimizer(const struct backend *backend, const char *what, uint64_t step,
                                   const struct tensor *parameters, const struct tensor *const other[],
                                   const char *const role[], int count, struct error *error)
{
    assert(step >= 1);
    for (int i = 0; i < count; i++) {
        enum status status =
            check_pair(backend, what, "parameters", parameters, role[i], other[i], true, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status backend_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                        struct error *error)
{
    static const char *const role[] = {"gradient", "momentum"};
    const struct tensor *const other[] = {gradient, momentum};
    if ((settings->momentum != 0) != (momentum != NULL))
        return error_set(error, STATUS_INVALID, "sgd: a momentum of %g %s", settings->momentum,
                         momentum != NULL ? "takes no tensor for it" : "needs a tensor for it");
    enum status status =
        check_optimizer(backend, "sgd", step, parameters, other, role, momentum != NULL ? 2 : 1, error);
    if (status != STATUS_OK)
        return status;
    return backend->ops->sgd(backend, settings, step, parameters, gradient, momentum, error);
}

enum status backend_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                         struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                         struct tensor *second, struct error *error)
{
    static const char *const role[] = {"gradient", "first moment", "second moment"};
    const struct tensor *const other[] = {gradient, first, second};
    enum status status = check_optimizer(backend, "adam", step, parameters, other, role, 3, error);
    if (status != STATUS_OK)
        return status;
    return backend->ops->adam(backend, settings, step, parameters, gradient, first, second, error);
}

/* Whether [a, a + bytes) and [b, b + bytes) have a byte in common. */
static bool overlap(const void *a, const void *b, size_t bytes)
{
    const uintptr_t from = (uintptr_t)a, to = (uintptr_t)b;
    return a != NULL && b != NULL && from < to + bytes && to < from + bytes;
}

static bool aligned(const void *memory)
{
    return (uintptr_t)memory % 64 == 0;
}

/* What a round promises of its memory, which is the caller's own. */
static bool is_sound(const struct backend *backend, const struct sgd_round *round)
{
    const size_t bytes = round->count * dtype_bytes(backend->ops->dtype);
    const void *const velocity = round->first ? NULL : round->velocity;
    const void *const written[] = {round->parameters_out, round->velocity_out};
    bool sound = round->parameters != NULL && written[0] != NULL && aligned(round->parameters) &&
                 aligned(velocity) && !overlap(written[0], written[1], bytes);
    for (int w = 0; w < 2; w++) {
        sound = sound && aligned(written[w]) && !overlap(written[w], round->parameters, bytes) &&
                !overlap(written[w], velocity, bytes);
        for (uint32_t k = 0; k < round->contributions; k++)
            sound = sound && round->gradients[k] != NULL && aligned(round->gradients[k]) &&
                    !overlap(written[w], round->gradients[k], bytes);
    }
    return sound;
}

enum status backend_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error)
{
    const bool moves = round->sgd.momentum != 0, reads = moves && !round->first;
    if (backend->ops->sgd_round == NULL)
        return error_set(error, STATUS_INVALID, "the %s backend has no pass for a server's round",
                         backend->ops->name);
    if (round->contributions == 0)
        return error_set(error, STATUS_INVALID, "a server's round: expected at least 1 contribution, got 0");
    if (moves != (round->velocity_out != NULL) || reads != (round->velocity != NULL && !round->first))
        return error_set(error, STATUS_INVALID, "a server's round: a momentum of %g %s", round->sgd.momentum,
                         moves ? "needs a velocity" : "takes no velocity");
    assert(is_sound(backend, round));
    round->not_finite = UINT32_MAX;
    return backend->ops->sgd_round(backend, round, error);
}
