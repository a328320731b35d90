/* The oracle: every operation of kernels/kernels.h in plain C, double throughout, storage included.
 *
 * Complete and never fast: one loop nest per operation, written from its formula, sharing no code with the
 * other backends. Canonical layout everywhere; sums run in ascending index order; exp, log, tanh are libm's.
 * Only tests and benchmarks link it. */
#ifndef TEST_ORACLE_REF_H
#define TEST_ORACLE_REF_H

#include "kernels/kernels.h"

extern const struct backend_ops ref_ops;

#endif
