/* The language model's three parts (worker/model/rnn.h) as objects that other workers create and call.
 *
 * A part has parameters of its own, which begin with the values that they would have in the whole model
 * (params_count_from), and a backend of its own with its own number of math threads, so that it computes the
 * same bits wherever it lies. Draws are keyed by module, trainer and iteration, never by worker.
 *
 *     class        takes                                           answers with
 *     "embedding"  tokens (steps, batch) int32                     embedded (steps, batch, embedding)
 *     "lstm"       embedded, h, c (layers, batch, hidden) each     output (steps, batch, hidden), h, c
 *     "decoder"    output (steps, batch, hidden)                   logits (steps, batch, tokens)
 *
 * The LSTM's state goes in as plain values and comes out so: it takes no gradient and has none. A call's
 * numbers are (trainer, iteration); the function's number is 0. What does not fit is STATUS_INVALID with a
 * sentence that names the part, what came and what was expected.
 *
 * Belongs to the one thread of the worker that holds it. Steady calls allocate nothing but for the text of
 * failures. */
#ifndef WORKER_PARALLEL_PARTS_H
#define WORKER_PARALLEL_PARTS_H

#include "worker/autograd/dist.h"
#include "worker/job/job.h"
#include "worker/model/rnn.h"

enum { PART_VARIABLES_MAX = 3, PART_NUMBERS = 2 };

struct part_settings {
    struct rnn_config rnn; /* the whole model's */
    uint64_t seed;         /* of the first values and of the draws */
    uint32_t threads;      /* of its backend */
    uint32_t versions;     /* of its parameters, for rounds that are `async` (dist_versions.h); 0: one */
};

struct part;

/* Makes a part with its first values. `job` says the device. Errors: as rnn_*_init, device_open. */
enum status part_new(struct part **out, enum job_layer which, const struct part_settings *settings,
                     const struct job *job, struct error *error);
void part_free(struct part *part);

struct backend *part_backend(struct part *part);
struct params *part_params(struct part *part);

/* Computes on a tape of the part's backend: `in_count` inputs and (trainer, iteration) as the table above
 * says. Returns how many of `out` it has filled; a failure sticks in the tape. */
uint32_t part_forward(struct part *part, struct tape *tape, struct variable *const in[], uint32_t in_count,
                      const uint64_t numbers[PART_NUMBERS], struct variable *out[PART_VARIABLES_MAX]);

/* "embedding", "lstm", "decoder": the rows for a worker's table of classes. Their constructors' context is
 * the worker's struct parallel (worker/parallel/parallel.h). */
extern const struct rref_class part_classes[JOB_LAYERS];

/* What to give rpc_remote for a part of these settings; `numbers` stays until it has returned. */
enum { PART_ARGUMENTS = 8 };
struct rpc_message part_arguments(const struct part_settings *settings, uint64_t numbers[PART_ARGUMENTS]);

#endif
