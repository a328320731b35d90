/* Gradients as bfloat16 in messages (/transport/precision), with error feedback.
 *
 * A bfloat16 is the upper half of a float32: the same range, 8 bits of precision. What rounding takes from an
 * element is kept and added to that element's gradient of the next step (Seide et al., "1-bit stochastic
 * gradient descent and its application to data-parallel distributed training of speech DNNs", 2014). So over
 * the steps, the sum of what was sent plus the kept error is the sum of the gradients, but for float32's own
 * rounding of each addition.
 *
 * Models stay float32: every trainer computes on the same version, bit for bit. So do batch norms'
 * statistics, which are few and are averaged rather than summed up. Pure functions. */
#ifndef WORKER_DATA_PARALLEL_BFLOAT16_H
#define WORKER_DATA_PARALLEL_BFLOAT16_H

#include <stddef.h>
#include <stdint.h>

/* rounded[i] = values[i] + kept[i], to the nearest bfloat16, ties to even; kept[i] = what that rounding took.
 * A sum that is NaN, or rounds to an infinity, is sent as such, and nothing is kept. */
void bfloat16_round(uint16_t *rounded, const float *values, float *kept, size_t count);

/* values[i] = the bfloat16 number i at `rounded`, which may lie at any address. */
void bfloat16_widen(float *values, const void *rounded, size_t count);

#endif
