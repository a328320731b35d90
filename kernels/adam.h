/* Adam, in place on float32 parameters, as PyTorch computes it: the CPU backend's element-wise update.
 *
 *     m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
 *     p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
 *
 * (Kingma and Ba, "Adam: a method for stochastic optimization", 2015; epsilon stands outside the root and
 * after the bias correction.) The moments are float32. Both corrections are computed in double from the step
 * count t by multiplications alone, so that they do not depend on the libm. Every float operation is
 * correctly rounded and none is contracted: the same bits on every instruction set. Pure functions.
 *
 * RMSprop (torch.optim.RMSprop, not centred, without momentum) is Adam with b1 = 0 and without the two
 * corrections: p -= lr * g / (sqrt(v) + epsilon). */
#ifndef KERNELS_ADAM_H
#define KERNELS_ADAM_H

#include "kernels/base/status.h"
#include "kernels/lanes/adam_lanes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct adam_settings {
    double lr, beta1, beta2, epsilon;
    bool uncorrected; /* both corrections are 1 */
};

/* PyTorch's defaults. */
#define ADAM_DEFAULTS ((struct adam_settings){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8})

/* STATUS_INVALID names the setting that is out of its range: lr > 0 and finite, betas in [0, 1), epsilon > 0
 * and finite (a gradient that was always zero divides by it alone). */
enum status adam_check(const struct adam_settings *settings, struct error *error);

/* The constants of step number `step`. */
void adam_factors(const struct adam_settings *settings, uint64_t step, struct adam_factors *out);

/* The pass over a range with these constants, for this process's instruction set. Callers of many small
 * ranges choose once a step. */
adam_lanes_update *adam_choose(void);

/* Step number `step`, which counts from 1, of `count` parameters with their moments m (`first`) and v
 * (`second`), both zero before step 1. Elements are independent, so a slab may be cut anywhere. The
 * caller checks that the gradient is finite. */
void adam_update(const struct adam_settings *settings, uint64_t step, float *parameters, float *first,
                 float *second, const float *gradient, size_t count);

#endif
