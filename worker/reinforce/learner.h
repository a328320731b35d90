/* The learner: an agent's second thread, which turns a finished rollout into the next parameters.
 *
 * It and the coalescer thread take turns. learner_start hands over the rollout and with it the policy's
 * parameters; until learner_poll says otherwise, both belong to the learner, and the coalescer thread
 * launches nothing. The hand-over is an inproc pair (worker/net/endpoint.h). */
#ifndef WORKER_REINFORCE_LEARNER_H
#define WORKER_REINFORCE_LEARNER_H

#include "kernels/base/status.h"
#include "worker/reinforce/rollout.h"

#include <stdint.h>

struct learner;
struct endpoint;
struct endpoint_pair;
struct policy;

struct learner_config {
    struct endpoint *endpoint; /* whose ZeroMQ context the pair lives in */
    struct policy *policy;     /* both outlive the learner */
    struct rollout *rollout;
    struct rollout_returns returns;
};

/* What learning from one rollout gave. */
struct learner_result {
    double loss;
    double seconds;
};

/* Starts the thread. STATUS_NO_MEMORY, STATUS_IO (no thread). learner_free waits for a pass under way. */
enum status learner_new(struct learner **out, const struct learner_config *config, struct error *error);
void learner_free(struct learner *learner);

/* The end to watch: it becomes readable when learner_poll has an answer. */
struct endpoint_pair *learner_pair(struct learner *learner);

/* Hands the rollout over. Not while one is handed over already (asserted). Does not block. */
void learner_start(struct learner *learner);

/* STATUS_AGAIN: still learning. STATUS_OK: *result is filled, rollout and policy are the caller's again.
 * Anything else: learning failed, the parameters are as before, and *error says in which episode and why.
 * Does not block. */
enum status learner_poll(struct learner *learner, struct learner_result *result, struct error *error);

/* Moves on while the learner works; a hung learner's stands still. */
uint64_t learner_progress(const struct learner *learner);

#endif
