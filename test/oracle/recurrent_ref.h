/* The oracle of kernels/policy/recurrent.h: the same equations in plain C and double, one number at a time.
 * Only tests call it; it shares no code with the kernels. */
#ifndef TEST_ORACLE_RECURRENT_REF_H
#define TEST_ORACLE_RECURRENT_REF_H

#include "kernels/policy/recurrent.h"

/* Computes the results y (rows, hidden) of inputs x (rows, inputs); `state` (slots, recurrent_state_floats)
 * in and out, as recurrent_forward has it. */
void recurrent_ref_forward(const struct recurrent_shape *shape, const double *parameters,
                           const struct recurrent_rows *rows, const double *x, double *state, double *y);

#endif
