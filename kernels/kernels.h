/* The room of the mathematics: operations, backends, parameters. It knows nothing of processes or messages.
 *
 *     operation   one step of a model, such as a convolution: a forward and a backward
 *     backend     a device that computes operations, as a table of functions
 *     plug-in     a shared library that holds a backend, loaded when a job needs it
 *     tensor      a description of memory: shape, dtype, layout, address
 *     layout      the order of a tensor's elements; NULL is canonical: row-major
 *     arena       memory of one step, released as a whole (kernels/base/arena.h)
 *     slab        one flat tensor that holds many entries: all parameters of a model, or all gradients
 *     saved       a tensor that a forward keeps for its backward
 *
 *     op.h        the operations: what each computes, and one call of one operation
 *     backend.h   a device with its table of functions: opening, loading, memory, optimizers
 *     tensor.h    shapes, dtypes and tensors                 adam.h   Adam's formula
 *
 * It includes kernels/base/ and kernels/lanes/. The rooms below it (onednn/, cuda/, params/, tape/) and all
 * of worker/ include it. A model calls the tape (kernels/tape/tape.h); only tests, benchmarks and the tape
 * call operations directly.
 *
 * There are three backends:
 *     ref      plain C in double (test/oracle/ref.h): the oracle of the conformance test, linked into tests
 *     onednn   CPU, float32: a plug-in, libcoalesced-onednn.so
 *     cuda     NVIDIA GPU, float32: a plug-in, libcoalesced-cuda.so */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/backend.h"
#include "kernels/op.h"

#endif
