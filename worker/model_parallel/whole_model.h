/* All parameters of the language model, and the optimizer's momentum, in one process's host memory.
 * Checkpoints are written from this copy and read into it. The lead of a job sends the layers' values from
 * here to their owners, and gathers them here. No iteration of a job computes with it. */
#ifndef WORKER_MODEL_PARALLEL_WHOLE_MODEL_H
#define WORKER_MODEL_PARALLEL_WHOLE_MODEL_H

#include "worker/model/rnn.h"

struct whole {
    struct backend *backend;    /* its own: another thread may read while the loop computes */
    struct params *params;      /* encoder.weight, rnn.*, decoder.weight, decoder.bias */
    struct gradients *momentum; /* NULL: the optimizer has none */
};

/* *whole: all zero. Afterwards, and after a failure, whole_close. */
enum status whole_open(struct whole *whole, const struct rnn_config *rnn, bool momentum, struct error *error);
void whole_close(struct whole *whole);

/* Elements of parameter `index`. */
size_t whole_count(const struct whole *whole, uint32_t index);

/* The values of parameter `index`, or of its momentum: (whole_count) float32 in canonical layout. */
float *whole_values(const struct whole *whole, uint32_t index, bool momentum);

#endif
