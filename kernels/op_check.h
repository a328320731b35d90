/* Checks of a call before a backend sees it. Private to op_run.c, except op_check_indices, which backends on
 * host memory call.
 *
 * A failure is STATUS_INVALID. The message names the operation, the tensor and its shape, and the expected
 * shape or the tensor that it has to fit. */
#ifndef KERNELS_OP_CHECK_H
#define KERNELS_OP_CHECK_H

#include "kernels/backend.h"

/* All that op_forward promises to check; sets the outputs' shapes and dtypes. */
enum status op_check_forward(const struct backend *backend, struct op_call *call, struct error *error);

/* The same for op_backward; sets the shapes and dtypes of call->din. */
enum status op_check_backward(const struct backend *backend, struct op_call *call, struct error *error);

/* For backends: every element of int32 input `input`, in canonical host memory, is in 0..limit-1. */
enum status op_check_indices(const struct op_call *call, uint32_t input, uint32_t limit, struct error *error);

#endif
