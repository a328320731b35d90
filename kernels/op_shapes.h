/* The shapes that an operation's outputs have. */
#ifndef KERNELS_OP_SHAPES_H
#define KERNELS_OP_SHAPES_H

#include "kernels/op.h"

/* Computes the shapes of call->out from the attributes and the shapes of call->in, which have passed
 * tensor_check and have the right dtype. STATUS_INVALID for inputs or attributes that do not fit. */
enum status op_shapes(const struct op_call *call, struct shape out[OP_OUTPUTS_MAX], struct error *error);

#endif
