/* The commands `coalesced evaluate` and `coalesced generate` of a trained language model: one process, one
 * thread beside the math library's, no messages. The model and its vocabulary come from a checkpoint. */
#ifndef WORKER_MODEL_PARALLEL_LANGUAGE_H
#define WORKER_MODEL_PARALLEL_LANGUAGE_H

#include "worker/job/job.h"

struct language_generate {
    uint64_t words; /* to write; "<eos>" counts, and is written as a line end */
    uint64_t seed;
    double temperature; /* > 0; each logit is divided by it */
};

/* Writes text to `stream`: words with single spaces between them, <unk> as it is, punctuation spaced as in
 * prose (worker/data/tokenize.h). The same (checkpoint, words, seed, temperature) give the same text.
 * `checkpoint` is a checkpoint's folder, whose job `job` is. STATUS_INVALID: a model without words (synthetic
 * data); STATUS_CORRUPT: a logit is not finite. Errors as checkpoint_load_model. */
enum status language_generate(const struct job *job, const char *checkpoint,
                              const struct language_generate *settings, FILE *stream, struct error *error);

/* Evaluates the checkpoint's model on the held-out lines of the job's text: mean loss over `tokens` targets;
 * its exponential is the perplexity. The number of training words does not matter. STATUS_CORRUPT: the
 * loss is not finite. Reads the text; errors as parallel_data_open, checkpoint_load_model. */
enum status language_evaluate(const struct job *job, const char *checkpoint, double *loss, uint64_t *tokens,
                              struct error *error);

#endif
