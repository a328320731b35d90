/* A trained language model, read from a checkpoint: its forward in one process, for the commands `coalesced
 * generate` (daemon/commands/generate_command.c) and `coalesced evaluate`. No messages. One thread, and the
 * math library's. */
#ifndef WORKER_MODEL_PARALLEL_LANGUAGE_H
#define WORKER_MODEL_PARALLEL_LANGUAGE_H

#include "worker/job/job.h"
#include "worker/model_parallel/parallel_data.h"

struct language;

/* Reads the model and its vocabulary from `checkpoint`, a checkpoint's folder, whose job `job` is; the caller
 * keeps both. A batch may have `rows` words (steps times columns). STATUS_INVALID: a model without words
 * (synthetic data). Other errors as checkpoint_load_model. language_close also follows a failure. */
enum status language_open(struct language **out, const struct job *job, const char *checkpoint, size_t rows,
                          struct error *error);
void language_close(struct language *language); /* NULL: nothing */

/* The words that the model knows; valid until language_close. */
const struct vocabulary *language_vocabulary(const struct language *language);

/* Numbers in h, and in c, of one column: layers times hidden. */
size_t language_state_count(const struct language *language);

/* Computes a batch and its new state. *logits: (steps, columns, words), valid until the next forward. */
enum status language_forward(struct language *language, const struct parallel_batch *batch,
                             const float **logits, struct error *error);

/* Evaluates the checkpoint's model on the held-out lines of the job's text: mean loss over `tokens` targets;
 * its exponential is the perplexity. The number of training words does not matter. STATUS_CORRUPT: the
 * loss is not finite. Reads the text; errors as parallel_data_open, checkpoint_load_model. */
enum status language_evaluate(const struct job *job, const char *checkpoint, double *loss, uint64_t *tokens,
                              struct error *error);

#endif
