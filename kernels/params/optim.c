/* Optimizers. A step is one call of the backend over the whole slab. Gaps between entries are zeros in every
 * slab, and stay zero. */
#include "kernels/params/optim.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct optimizer {
    struct optimizer_settings settings;
    struct params *params;
    uint64_t steps;
    struct gradients *first, *second; // the moments; NULL where the kind has none
};

static enum status check_sgd(const struct sgd_settings *settings, struct error *error)
{
    if (!(settings->lr > 0) || !isfinite(settings->lr))
        return error_set(error, STATUS_INVALID, "sgd: expected a finite lr > 0, got %g", settings->lr);
    if (!(settings->momentum >= 0 && settings->momentum < 1))
        return error_set(error, STATUS_INVALID, "sgd: expected 0 <= momentum < 1, got %g",
                         settings->momentum);
    return STATUS_OK;
}

static enum status optimizer_check(const struct optimizer_settings *settings, struct error *error)
{
    return settings->kind == OPTIMIZER_ADAM ? adam_check(&settings->adam, error)
                                            : check_sgd(&settings->sgd, error);
}

/* The backend writes moments without gradients_take, so a moment counts as complete from the first step. */
static enum status new_moment(struct gradients **moment, struct params *params, struct error *error)
{
    enum status status = gradients_new(moment, params, error);
    return status == STATUS_OK ? gradients_complete(*moment, error) : status;
}

enum status optimizer_new(struct optimizer **out, const struct optimizer_settings *settings,
                          struct params *params, struct error *error)
{
    const bool adam = settings->kind == OPTIMIZER_ADAM;
    enum status status = optimizer_check(settings, error);
    if (status != STATUS_OK)
        return status;
    struct optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (optimizer == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the optimizer");
    optimizer->settings = *settings;
    optimizer->params = params;
    if (adam || settings->sgd.momentum > 0)
        status = new_moment(&optimizer->first, params, error);
    if (adam && status == STATUS_OK)
        status = new_moment(&optimizer->second, params, error);
    if (status != STATUS_OK) {
        optimizer_free(optimizer);
        return status;
    }
    *out = optimizer;
    return STATUS_OK;
}

void optimizer_free(struct optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    gradients_free(optimizer->first);
    gradients_free(optimizer->second);
    free(optimizer);
}

enum status optimizer_step(struct optimizer *optimizer, struct gradients *gradients, struct error *error)
{
    const struct optimizer_settings *settings = &optimizer->settings;
    struct backend *backend = params_backend(optimizer->params);
    struct tensor slab = *params_slab(optimizer->params);
    struct tensor *first = optimizer->first != NULL ? gradients_slab(optimizer->first) : NULL;
    assert(slab.data != NULL || slab.bytes == 0); // in one piece
    enum status status = gradients_complete(gradients, error);
    if (status != STATUS_OK || slab.data == NULL)
        return status;
    const uint64_t step = optimizer->steps + 1;
    if (settings->kind == OPTIMIZER_ADAM)
        status = backend_adam(backend, &settings->adam, step, &slab, gradients_slab(gradients), first,
                              gradients_slab(optimizer->second), error);
    else
        status = backend_sgd(backend, &settings->sgd, step, &slab, gradients_slab(gradients), first, error);
    if (status == STATUS_OK)
        optimizer->steps = step;
    return status;
}

enum status optimizer_lr_set(struct optimizer *optimizer, double lr, struct error *error)
{
    struct optimizer_settings settings = optimizer->settings;
    settings.sgd.lr = settings.adam.lr = lr;
    enum status status = optimizer_check(&settings, error);
    if (status == STATUS_OK)
        optimizer->settings = settings;
    return status;
}

/* ---- state ---- */

uint64_t optimizer_steps(const struct optimizer *optimizer)
{
    return optimizer->steps;
}

void optimizer_steps_set(struct optimizer *optimizer, uint64_t steps)
{
    optimizer->steps = steps;
}

struct gradients *optimizer_moment(struct optimizer *optimizer, uint32_t index)
{
    return index == 0 ? optimizer->first : index == 1 ? optimizer->second : NULL;
}
