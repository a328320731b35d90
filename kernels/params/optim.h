/* Optimizers: each moves a trained slab in place by a gradient slab, and keeps its moments.
 *
 * The formulas are in kernels/backend.h (sgd) and kernels/adam.h. The backend computes them element by
 * element, so that neither layout nor the number of threads changes a bit. A policy on the CPU without a
 * backend steps by kernels/lanes/adam_lanes.h instead. Belongs to the thread that holds the params. */
#ifndef KERNELS_PARAMS_OPTIM_H
#define KERNELS_PARAMS_OPTIM_H

#include "kernels/params/gradients.h"
#include "kernels/params/params.h"

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM };

struct optimizer_settings {
    enum optimizer_kind kind;
    struct sgd_settings sgd;
    struct adam_settings adam;
};

struct optimizer;

/* Moments begin at zero. An optimizer is freed before its params. STATUS_INVALID: lr > 0 and finite, momentum
 * in [0, 1), betas in [0, 1), epsilon > 0; the message names the setting. STATUS_NO_MEMORY. */
enum status optimizer_new(struct optimizer **out, const struct optimizer_settings *settings,
                          struct params *params, struct error *error);
void optimizer_free(struct optimizer *optimizer);

/* One step against the gradient, which is completed here. The slabs are in one piece (params_place). The
 * caller checks that the gradient is finite. Allocates nothing. */
enum status optimizer_step(struct optimizer *optimizer, struct gradients *gradients, struct error *error);

/* Sets the lr of later steps. Errors as optimizer_new. */
enum status optimizer_lr_set(struct optimizer *optimizer, double lr, struct error *error);

/* ---- state: what a run that goes on elsewhere has to have ---- */

/* The number of steps taken, and sets it: the first step of a kind may differ from later ones, and Adam's
 * corrections follow the count. */
uint64_t optimizer_steps(const struct optimizer *optimizer);
void optimizer_steps_set(struct optimizer *optimizer, uint64_t steps);

/* Moment 0: SGD's momentum, or Adam's first moment. Moment 1: Adam's second. It is read and written by
 * gradients_read and gradients_write. NULL: the optimizer has no such moment. */
struct gradients *optimizer_moment(struct optimizer *optimizer, uint32_t index);

#endif
