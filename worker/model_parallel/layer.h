/* One of the language model's three layers (worker/model/rnn.h): embedding, LSTM or decoder, in one process.
 *
 * A layer has its own parameters, which begin with the values that they would have in the whole model
 * (params_count_from), and its own backend with its own number of math threads: it computes the same bits on
 * every worker. Draws are keyed by module, trainer and iteration, never by worker.
 *
 *     layer      takes                                           answers with
 *     embedding  tokens (steps, batch) int32                     embedded (steps, batch, embedding)
 *     lstm       embedded, h, c (layers, batch, hidden) each     output (steps, batch, hidden), h, c
 *     decoder    output (steps, batch, hidden)                   logits (steps, batch, tokens)
 *
 * The LSTM's state goes in and comes out as plain values: no gradient passes through it. A wrong input is
 * STATUS_INVALID with a sentence that names the layer, the input and what was expected.
 *
 * Belongs to one thread. Steady calls allocate nothing but the text of failures. */
#ifndef WORKER_MODEL_PARALLEL_LAYER_H
#define WORKER_MODEL_PARALLEL_LAYER_H

#include "worker/autograd/dist.h"
#include "worker/job/job.h"
#include "worker/model/rnn.h"

enum { LAYER_VARIABLES_MAX = 3, LAYER_NUMBERS = 2 };

/* Travels as it is to the worker that makes the layer. */
struct layer_settings {
    struct rnn_config rnn; /* the whole model's */
    uint64_t seed;         /* of the first values and of the draws */
    uint32_t threads;      /* of its backend */
    uint32_t versions;     /* of its parameters, for `async` rounds (dist_versions.h); 0: one */
};
_Static_assert(sizeof(struct layer_settings) == 40, "no holes on the wire");

/* Its users read backend and params; the rest is layer.c's. */
struct layer {
    struct backend *backend;
    struct params *params;
    enum job_layer which;
    struct rnn_config rnn;
    uint64_t seed;
    struct dist_versions *versions; /* NULL: one version */
    union {
        struct rnn_encoder encoder;
        struct rnn_lstm lstm;
        struct rnn_decoder decoder;
    } model;
    float *stack; /* (stack_count) h or c of all LSTM layers */
    size_t stack_count;
};

/* Makes a layer with its first values, on the job's device. Errors: as rnn_*_init, device_open. */
enum status layer_new(struct layer **out, enum job_layer which, const struct layer_settings *settings,
                      const struct job *job, struct error *error);
void layer_free(struct layer *layer);

/* Computes on a tape of the layer's backend: `in_count` inputs and (trainer, iteration) as the table above
 * says. Returns how many of `out` it has filled; a failure sticks in the tape. */
uint32_t layer_forward(struct layer *layer, struct tape *tape, struct variable *const in[], uint32_t in_count,
                       const uint64_t numbers[LAYER_NUMBERS], struct variable *out[LAYER_VARIABLES_MAX]);

/* ---- as objects ----
 * Other workers create layers and call them (worker/reference/rref.h, worker/autograd/dist.h): classes
 * "embedding", "lstm" and "decoder". A call's numbers are (trainer, iteration); the function's number is 0.
 */

/* Rows for a worker's table of classes. The constructors' context begins with a pointer to the job. */
extern const struct rref_class layer_classes[JOB_LAYERS];

/* The arguments for rpc_remote that make a layer of these settings, which must stay until it has returned. */
struct rpc_message layer_arguments(const struct layer_settings *settings);

#endif
