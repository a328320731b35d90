/* The language model's data: batches of a text, or of the tutorial's random numbers, by trainer and
 * iteration; the numbers of updates that follow from its size; and the loss over the held-out lines. Pure
 * after parallel_data_open, which blocks on the text's file; belongs to one thread. */
#ifndef WORKER_MODEL_PARALLEL_PARALLEL_DATA_H
#define WORKER_MODEL_PARALLEL_PARALLEL_DATA_H

#include "worker/data/corpus.h"
#include "worker/job/job.h"
#include "worker/model/rnn.h"

struct parallel_data {
    const struct job *job;
    bool text; /* read from a file: `corpus` is there */
    struct corpus corpus;
    struct rnn_config rnn;           /* of the job, with the text's vocabulary */
    uint64_t epoch_updates, updates; /* of an epoch, of the job: iterations of each trainer */
    uint64_t held_out_batches;       /* of an evaluation; 0: too little is held out */
};

/* Of `reading` its vocabulary and its progress count; NULL: neither. Errors as corpus_read. Afterwards, and
 * after a failure, parallel_data_close. */
enum status parallel_data_open(struct parallel_data *data, const struct job *job,
                               const struct corpus_config *reading, struct error *error);

/* Checks that the job can train on the data; an evaluation alone does not need it. STATUS_INVALID: a text
 * that is too short for one iteration, or for an evaluation that the job asks for; a vocabulary with which a
 * message becomes too large (job_large_messages). */
enum status parallel_data_check(const struct parallel_data *data, struct error *error);

/* The model's configuration where its vocabulary has `tokens` words. */
struct rnn_config parallel_rnn(const struct job *job, uint32_t tokens);
void parallel_data_close(struct parallel_data *data);

/* The largest batch: int32 numbers of tokens, of targets. */
size_t parallel_data_tokens_max(const struct parallel_data *data);
size_t parallel_data_targets_max(const struct parallel_data *data);

/* Iteration `iteration` (from 0) of trainer `trainer`: tokens (steps, batch), and targets of the same shape,
 * or (steps, vocabulary) where the batch's dimension has the classes. Returns the steps. */
uint32_t parallel_data_batch(const struct parallel_data *data, uint32_t trainer, uint64_t iteration,
                             int32_t *tokens, int32_t *targets);

/* Tokens that a trainer reads in the iterations [first, end). */
uint64_t parallel_data_tokens(const struct parallel_data *data, uint64_t first, uint64_t end);

/* Whether an epoch ends with iteration `iteration`; the job's last iteration ends one in any case. */
bool parallel_data_ends_epoch(const struct parallel_data *data, uint64_t iteration);

/* Elements of a state's h (or c) of `columns` columns. */
size_t parallel_data_state_count(const struct parallel_data *data, uint32_t columns);

/* The state before the first iteration of trainer `trainer`: zeros with a text. With random data it is normal
 * draws, keyed by seed and trainer (the tutorial's torch.randn). h, c: (layers, batch, hidden). */
void parallel_data_first_state(const struct parallel_data *data, uint32_t trainer, float *h, float *c);

/* ---- the loss over the held-out lines of a text ----
 * The lead of a running job and `coalesced evaluate` share it, so their losses are equal bit for bit. */

/* One batch of a training or an evaluation. */
struct parallel_batch {
    uint32_t steps, columns;
    const int32_t *tokens, *targets;
    const float *h, *c;   /* (layers, columns, hidden): the state before */
    float *h_out, *c_out; /* the state after; may be the same memory */
};

/* Computes one batch without learning: its mean loss, and the state. */
typedef enum status held_out_forward(void *context, const struct parallel_batch *batch, double *loss,
                                     struct error *error);

/* *loss: the mean over all `*count` targets. The state begins at zero and is carried from batch to batch.
 * Allocates memory for the call. */
enum status held_out_loss(const struct parallel_data *data, held_out_forward *forward, void *context,
                          double *loss, uint64_t *count, struct error *error);

#endif
