/* The oracle of kernels/policy/squashed.h: log P of one row and its action, in plain C and double. It shares
 * no code with the kernels. Gradients are finite differences of it. */
#ifndef TEST_ORACLE_SQUASHED_REF_H
#define TEST_ORACLE_SQUASHED_REF_H

#include "kernels/policy/squashed.h"

struct squashed_ref_row {
    const double *z;       /* (outputs) */
    const double *noise;   /* (components); state-dependent: (features, components) */
    const double *h;       /* (features) */
    const double *log_std; /* (features, components) */
};

/* Returns log P; writes the action (components). */
double squashed_ref_act(const struct squashed_shape *shape, const struct squashed_ref_row *row,
                        double *action);

#endif
