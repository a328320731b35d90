/* Optimizers: a trained slab moved in place by a gradient slab, with the moments that this needs.
 *
 * The formulas are kernels/kernels.h's (sgd) and kernels/adam.h's; the backend computes them, element by
 * element, so that neither layout nor the number of threads changes a bit. Belongs to whoever holds the
 * params. */
#ifndef KERNELS_PARAMS_OPTIM_H
#define KERNELS_PARAMS_OPTIM_H

#include "kernels/params/gradients.h"

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM };

struct optimizer_settings {
    enum optimizer_kind kind;
    struct sgd_settings sgd;
    struct adam_settings adam;
};

struct optimizer;

/* STATUS_INVALID names the setting out of range: lr > 0 and finite, momentum in [0, 1), betas in [0, 1),
 * epsilon > 0. Moments begin at zero. Freed before the params. */
enum status optimizer_new(struct optimizer **out, const struct optimizer_settings *settings,
                          struct params *params, struct error *error);
void optimizer_free(struct optimizer *optimizer);

/* One step against the gradient (completed here), on slabs in one piece (params_place). Whether it is finite
 * is the caller's to see. Allocates nothing. */
enum status optimizer_step(struct optimizer *optimizer, struct gradients *gradients, struct error *error);

/* The lr of the steps from now on. STATUS_INVALID as optimizer_new. */
enum status optimizer_lr_set(struct optimizer *optimizer, double lr, struct error *error);

/* ---- state: what a run that goes on elsewhere has to have ---- */

/* The number of steps taken so far: a kind's first step may differ from the others, and Adam's corrections
 * follow the count. */
void optimizer_steps_set(struct optimizer *optimizer, uint64_t steps);

/* 0: SGD's momentum, or Adam's first moment; 1: Adam's second. To be read and written as gradients are
 * (gradients_read, gradients_write). NULL: the optimizer has none such. */
struct gradients *optimizer_moment(struct optimizer *optimizer, uint32_t index);

#endif
