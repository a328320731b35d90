/* The operations that a backend computes, forward and backward, and how a backend is had.
 *
 *     ref      plain C in double (test/oracle/ref.h): the oracle of the conformance test, linked into tests
 *     onednn   CPU, float32: a plug-in, libcoalesced-onednn.so
 *     cuda     NVIDIA GPU, float32: a plug-in, libcoalesced-cuda.so
 *
 * All operations go through two functions, op_forward and op_backward. They check the call against the
 * operation's rule (how many tensors, which dtype, which shapes fit), set the outputs' shapes, and hand a
 * call that is known to be sound to the backend's table. A backend checks nothing again but what only data
 * can show (an index out of range). The tape (kernels/tape/tape.h) is what a model calls; only tests,
 * benchmarks and the tape call the operations directly.
 *
 * A backend belongs to one thread at a time. Operations on the CPU have finished when they return. On the
 * GPU they are queued on the backend's one stream, in order; backend_download, backend_square_sum and
 * backend_first_not_finite wait for it. An error of the device is told by the call that meets it.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/backend.h"
#include "kernels/op.h"

#endif
