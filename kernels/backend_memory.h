/* A backend that stores tensors and computes nothing: float32 in host memory, canonical layouts. A process
 * that needs no math library holds the params of its checkpoints in this backend.
 *
 * backend_open can fail for want of memory alone; backend_upload, backend_download and backend_fill cannot
 * fail at all. Nothing else may be called. */
#ifndef KERNELS_BACKEND_MEMORY_H
#define KERNELS_BACKEND_MEMORY_H

#include "kernels/backend.h"

extern const struct backend_ops memory_ops;

#endif
