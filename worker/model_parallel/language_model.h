/* A trained language model in one process, for the commands evaluate and generate (language.h): the three
 * layers in turn, each on its own tape and backend as in a job, so that an evaluation's figures equal the
 * log's. */
#ifndef WORKER_MODEL_PARALLEL_LANGUAGE_MODEL_H
#define WORKER_MODEL_PARALLEL_LANGUAGE_MODEL_H

#include "worker/model_parallel/held_out_loss.h"
#include "worker/model_parallel/layer.h"

struct language {
    const struct job *job;
    struct vocabulary *vocabulary; /* the checkpoint's */
    struct rnn_config rnn;
    struct layer *layers[JOB_LAYERS];
    struct tape *tapes[JOB_LAYERS];
    float *outputs[JOB_LAYERS]; /* each layer's, of the newest forward; the decoder's are logits (rows,
                                   tokens) */
};

/* Opens the model of a checkpoint's folder, for batches of at most `rows` (steps times columns).
 * STATUS_INVALID: a model without words (synthetic data). Errors as checkpoint_load_model. Afterwards, and
 * after a failure, language_close. */
enum status language_open(struct language *language, const struct job *job, const char *checkpoint,
                          size_t rows, struct error *error);
void language_close(struct language *language);

/* Computes a batch: every layer's output, and the new state. */
enum status language_forward(struct language *language, const struct parallel_batch *batch,
                             struct error *error);

#endif
