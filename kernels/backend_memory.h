/* A backend that stores and computes nothing: float32 in host memory, canonical layouts. For the params of
 * checkpoints in a process that needs no math library.
 *
 * backend_open cannot fail but for want of memory; backend_upload, backend_download and backend_fill cannot
 * fail at all. Nothing else may be called. */
#ifndef KERNELS_BACKEND_MEMORY_H
#define KERNELS_BACKEND_MEMORY_H

#include "kernels/backend.h"

extern const struct backend_ops memory_ops;

#endif
