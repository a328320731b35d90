/* Whether a safetensors file holds the values of a job's model. For the check of a job, which computes
 * nothing: no backend is loaded and no parameter has memory. */
#ifndef WORKER_MODEL_MODEL_FILE_H
#define WORKER_MODEL_MODEL_FILE_H

#include "worker/job/job.h"
#include "worker/model/rnn.h"

/* Compares names, shapes and dtypes. `rnn`: the model of a model-parallel job, whose vocabulary may be a
 * text's; else NULL. STATUS_INVALID names the first few entries at fault with both shapes; otherwise the
 * errors of safetensors_open. Blocks on the file. */
enum status model_file_check(const char *path, const struct job *job, const struct rnn_config *rnn,
                             struct error *error);

#endif
