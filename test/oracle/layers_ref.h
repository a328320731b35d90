/* The oracle of kernels/policy/layers.h: the same definitions in plain C and double, one row at a time. It
 * shares no code with the kernels. Parameters are in the flat array's order. */
#ifndef TEST_ORACLE_LAYERS_REF_H
#define TEST_ORACLE_LAYERS_REF_H

#include "kernels/policy/layers.h"

enum { LAYERS_REF_WIDEST = DENSE_WIDTH_MAX > DENSE_OUTPUTS_MAX ? DENSE_WIDTH_MAX : DENSE_OUTPUTS_MAX };

/* What each layer makes of a row, after its activation; row shape->layers is the outputs. */
struct layers_ref_row {
    double of[DENSE_LAYERS_MAX + 1][LAYERS_REF_WIDEST];
};

/* x: (inputs). */
void layers_ref_forward(const struct layers_shape *shape, const double *parameters, const double *x,
                        struct layers_ref_row *out);

/* By `pull` (outputs), dL/d of the row's outputs: adds to `gradient` (in the parameters' order; NULL: not
 * wanted), and to dx (inputs; NULL: not wanted). */
void layers_ref_backward(const struct layers_shape *shape, const double *parameters, const double *x,
                         const struct layers_ref_row *row, const double *pull, double *gradient, double *dx);

#endif
