/* The room of the mathematics: operations, backends, parameters. It knows nothing of processes or messages.
 *
 *     op.h        the operations: what each computes, and one call of one operation
 *     backend.h   a device with its table of functions: opening, loading, memory, optimizers
 *     tensor.h    shapes, dtypes and tensors                 adam.h   Adam's formula
 *     backend_memory.h   a backend that stores and computes nothing
 *
 * It includes kernels/base/ and, for the policy's kernels, kernels/lanes/ and kernels/policy/. The rooms
 * below it (onednn/, cuda/, params/, tape/) and all of worker/ include it. A model calls the tape
 * (kernels/tape/tape.h); only tests, benchmarks and the tape call operations directly.
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
