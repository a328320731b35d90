/* Adam, in place on one slab of float32 parameters, as PyTorch computes it.
 *
 *     m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
 *     p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
 *
 * (Kingma and Ba, "Adam: a method for stochastic optimization", 2015; epsilon stands outside the root and
 * after the bias correction.) The moments are float32; both corrections are made in double from the step
 * count t, by multiplications alone, so that a machine's libm has no say in them. Every float operation is
 * correctly rounded and none is contracted: the same bits on every instruction set. */
#ifndef KERNELS_ADAM_H
#define KERNELS_ADAM_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct adam_settings {
    double lr, beta1, beta2, epsilon;
};

/* PyTorch's defaults. */
#define ADAM_DEFAULTS ((struct adam_settings){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8})

struct adam; /* settings, moments, step count; belongs to whoever holds the parameters */

/* Zero moments for `count` parameters. STATUS_INVALID: lr, a beta outside of [0, 1) or epsilon is out of its
 * range (named); STATUS_NO_MEMORY. */
enum status adam_new(struct adam **out, const struct adam_settings *settings, size_t count,
                     struct error *error);
void adam_free(struct adam *adam);

/* One step: moves parameters[0..count) against gradient[0..count). Allocates nothing. The gradient is taken
 * as it is; whether it is finite is the caller's to see. */
void adam_step(struct adam *adam, float *parameters, const float *gradient);

/* Steps made so far. */
uint64_t adam_steps(const struct adam *adam);

#endif
