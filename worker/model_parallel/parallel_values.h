/* What checkpoints of a model-parallel job are written from and read into: the whole model and its momentum,
 * every trainer's hidden state (state.safetensors), and the text's facts.
 *
 * The lead has all of it. Another trainer has the states and the text's facts, and only in a run that
 * resumes. The saver's thread reads it while it writes a checkpoint. */
#ifndef WORKER_MODEL_PARALLEL_PARALLEL_VALUES_H
#define WORKER_MODEL_PARALLEL_PARALLEL_VALUES_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/model_parallel/parallel_data.h"
#include "worker/worker.h"

/* All parameters of the language model, and the optimizer's momentum, in one process's host memory. The lead
 * sends the layers' values from here to their owners, and gathers them here. No iteration of a job computes
 * with it. */
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

struct parallel_values {
    struct whole whole;
    struct backend *backend;
    struct params *states;         /* every trainer's h and c: (layers, batch, hidden) each */
    char *vocabulary;              /* NULL: synthetic data */
    struct checkpoint_extra extra; /* points at the vocabulary and at the states */
};

/* True: the job begins with the values of a checkpoint or of an /init file. */
bool parallel_values_come_from_file(const struct worker *worker);

/* *values: all zero. Reads the file that the job begins with, if any, so that a file that does not fit fails
 * before this trainer meets the others. Afterwards, and after a failure, parallel_values_close. */
enum status parallel_values_open(struct parallel_values *values, const struct worker *worker, bool leads,
                                 const struct parallel_data *data, struct error *error);
void parallel_values_close(struct parallel_values *values);

/* Reads every trainer's state from the checkpoint at `path`, which has the facts `text`. STATUS_INVALID: it
 * is of another text than `data`. Errors as checkpoint_load_state. */
enum status parallel_values_resume(struct parallel_values *values, const struct parallel_data *data,
                                   struct path path, const struct checkpoint_text *text, struct error *error);

/* Trainer `trainer`'s h and c in `states`. */
void parallel_values_state(const struct parallel_values *values, uint32_t trainer, float **h, float **c);

/* The lead's: sends all values to their owners, or fetches them; and their momentum, if asked and there is
 * any. `parameters` are references in the whole model's order. Waits. */
enum status parallel_values_move(const struct parallel_values *values, bool to_owners, bool momentum,
                                 struct dist *dist, struct rref *const parameters[], struct error *error);

#endif
