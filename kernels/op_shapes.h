/* The shapes that an operation's outputs have. */
#ifndef KERNELS_OP_SHAPES_H
#define KERNELS_OP_SHAPES_H

#include "kernels/op.h"

/* The shapes of call->out, from the attributes and the shapes of call->in, which tensor_check has passed and
 * which have the right dtype. */
enum status op_shapes(const struct op_call *call, struct shape out[OP_OUTPUTS_MAX], struct error *error);

#endif
