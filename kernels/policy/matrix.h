/* A matrix of rows, as the policy's kernels read and write it. */
#ifndef KERNELS_POLICY_MATRIX_H
#define KERNELS_POLICY_MATRIX_H

#include "kernels/lanes/product_lanes.h"

/* Columns come in blocks of 16: whole blocks are read and written, so a row has room for them. product_stride
 * gives a good distance. */
struct dense_matrix {
    float *at;
    size_t stride; // floats between rows
};

#endif
