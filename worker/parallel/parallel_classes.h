/* The table of classes that every worker of a model-parallel job has: the objects that other workers create,
 * call and refer to. Both roles hand it to parallel_open. */
#ifndef WORKER_PARALLEL_PARALLEL_CLASSES_H
#define WORKER_PARALLEL_PARALLEL_CLASSES_H

#include "worker/reference/rref.h"

enum { PARALLEL_CLASSES = 6 };
extern const struct rref_class *const parallel_classes[PARALLEL_CLASSES];

#endif
