/* Orthogonal first values of a weight, as torch.nn.init.orthogonal_ has them (Saxe et al., arXiv 1312.6120).
 */
#ifndef KERNELS_POLICY_ORTHOGONAL_H
#define KERNELS_POLICY_ORTHOGONAL_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Fills `weight` (rows, columns) with orthonormal columns, or rows where it is wider than tall, times the
 * gain. They are normal_fill's draws of stream RNG_INIT, block 1, episode `parameter`, in the weight's order,
 * made orthonormal one after the other by the modified method of Gram and Schmidt in double, in ascending
 * order; this is the Q of a QR decomposition whose R has a positive diagonal. The same bits on every machine.
 * A weight (m, n) takes m n min(m, n) multiplications and as many additions, and 8 m n bytes.
 * STATUS_NO_MEMORY. */
enum status orthogonal_draw(float *weight, size_t rows, size_t columns, double gain, uint64_t seed,
                            uint32_t parameter, struct error *error);

#endif
