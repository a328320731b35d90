/* Whether a call is sound, before a backend sees it. Private to kernels.c and its companions, except
 * op_check_indices, which backends on host memory call.
 *
 * A failure is STATUS_INVALID, and its text names the operation, the tensor at fault with its shape, and the
 * shape that was expected or what it has to fit. */
#ifndef KERNELS_OP_CHECK_H
#define KERNELS_OP_CHECK_H

#include "kernels/kernels.h"

/* Room for "weight \"layer1.0.conv1.weight\" of shape 64x64x3x3". */
enum { TENSOR_TEXT_BYTES = 192 };

/* How messages call a tensor: `role` is its name in the operation's rule. Returns `text`. */
const char *tensor_text(const char *role, const struct tensor *tensor, char text[TENSOR_TEXT_BYTES]);

/* A tensor that can be read: a shape without zeros that does not overflow, a known dtype, and, where `data`
 * is wanted, memory that is large enough (as far as a canonical layout tells). `what` begins the message:
 * the operation's name. */
enum status tensor_check(const char *what, const char *role, const struct tensor *tensor, bool data,
                         struct error *error);

/* The shapes of call->out, from the attributes and the shapes of call->in, which tensor_check has passed and
 * which have the right dtype. */
enum status op_shapes(const struct op_call *call, struct shape out[OP_OUTPUTS_MAX], struct error *error);

/* All that op_forward promises to check; sets the outputs' shapes and dtypes. */
enum status op_check_forward(const struct backend *backend, struct op_call *call, struct error *error);

/* The same for op_backward; sets the shapes and dtypes of call->din. */
enum status op_check_backward(const struct backend *backend, struct op_call *call, struct error *error);

/* For backends: every element of int32 input `input`, in canonical host memory, is in 0..limit-1. */
enum status op_check_indices(const struct op_call *call, uint32_t input, uint32_t limit, struct error *error);

#endif
