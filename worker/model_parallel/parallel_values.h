/* What checkpoints of a model-parallel job are written from and read into: the whole model, its momentum, and
 * the text's facts. The trainers' hidden states are beside it (parallel_hidden_state.h).
 *
 * The lead has all of it. Another trainer has the text's facts, and only in a run that resumes. The saver's
 * thread reads it while it writes a checkpoint. */
#ifndef WORKER_MODEL_PARALLEL_PARALLEL_VALUES_H
#define WORKER_MODEL_PARALLEL_PARALLEL_VALUES_H

#include "worker/autograd/dist_optimizer.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/model_parallel/parallel_hidden_state.h"
#include "worker/model_parallel/whole_model.h"
#include "worker/worker.h"

struct parallel_values {
    struct whole whole;
    char *vocabulary;              /* NULL: synthetic data */
    struct checkpoint_extra extra; /* points at the vocabulary and at the hidden states */
};

/* True: the job begins with the values of a checkpoint or of an /init file. */
bool parallel_values_begin(const struct worker *worker);

/* *values: all zero. Reads the file that the job begins with, if any, so that a file that does not fit fails
 * before this trainer meets the others. Afterwards, and after a failure, parallel_values_close. */
enum status parallel_values_open(struct parallel_values *values, const struct worker *worker, bool leads,
                                 const struct parallel_data *data, struct hidden_state *hidden,
                                 struct error *error);
void parallel_values_close(struct parallel_values *values);

/* STATUS_INVALID: the checkpoint at `path`, with the facts `text`, is of another text than `data`. */
enum status parallel_values_check(const struct parallel_values *values, const struct parallel_data *data,
                                  struct path path, const struct checkpoint_text *text, struct error *error);

/* The lead's: sends all values (or all momentum) to their owners, or fetches them. `parameters` are
 * references in the whole model's order. Wait. */
enum status parallel_values_send(const struct parallel_values *values, struct dist *dist,
                                 struct rref *const parameters[], bool momentum, struct error *error);
enum status parallel_values_fetch(struct parallel_values *values, struct dist *dist,
                                  struct rref *const parameters[], bool momentum, struct error *error);

#endif
