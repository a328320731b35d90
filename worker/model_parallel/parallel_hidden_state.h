/* The language model's hidden state: h and c of every LSTM layer. Each trainer keeps its own from iteration
 * to iteration. A checkpoint has every trainer's (state.safetensors).
 *
 * The state enters the LSTM's call as plain values, and the new state is copied out. So the graph of an
 * iteration ends there. With random data the first state is normal draws, keyed by seed and trainer (the
 * tutorial's torch.randn), and the state is carried through all epochs. With a text every epoch begins with
 * zeros. */
#ifndef WORKER_MODEL_PARALLEL_PARALLEL_HIDDEN_STATE_H
#define WORKER_MODEL_PARALLEL_PARALLEL_HIDDEN_STATE_H

#include "worker/model_parallel/parallel_data.h"

/* h and c are (layers, batch, hidden) each. */
struct hidden_state {
    size_t count;           /* elements of h */
    float *h, *c;           /* before the next iteration */
    float *h_next, *c_next; /* after it */
    struct backend *backend;
    struct params
        *saved; /* every trainer's h and c, for a checkpoint; NULL without hidden_state_open_saved */
};

/* The state of trainer `trainer` before its first iteration. STATUS_NO_MEMORY. Afterwards, and after a
 * failure, hidden_state_close. */
enum status hidden_state_open(struct hidden_state *state, const struct parallel_data *data, uint32_t trainer,
                              struct error *error);
void hidden_state_close(struct hidden_state *state);

void hidden_state_first(const struct parallel_data *data, uint32_t trainer, float *h, float *c);

/* After an iteration: the next state becomes the state. */
void hidden_state_advance(struct hidden_state *state);

/* An epoch has ended: a text's next epoch begins with zeros. */
void hidden_state_end_epoch(struct hidden_state *state, const struct parallel_data *data);

/* ---- checkpoints ---- */

/* Makes room for the states of all the job's trainers. */
enum status hidden_state_open_saved(struct hidden_state *state, const struct parallel_data *data,
                                    struct error *error);

/* Trainer `trainer`'s h and c in that room. */
void hidden_state_saved(const struct hidden_state *state, uint32_t trainer, float **h, float **c);

/* This trainer's state into that room; from the checkpoint at `path`. Errors as checkpoint_load_state. */
void hidden_state_save(struct hidden_state *state, uint32_t trainer);
enum status hidden_state_load(struct hidden_state *state, uint32_t trainer, struct path path,
                              struct error *error);

#endif
