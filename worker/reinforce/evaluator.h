/* The evaluator: after every so many updates the policy plays whole episodes apart from training: episodes 0
 * of environments 0, 1, 2 … (player.h), as the command `evaluate` plays them, which finds the same mean in
 * the same checkpoint. Environments in C are in the agent's process. Those in Python are in the observers'
 * processes, and the agent's loop goes on meanwhile (evaluation_shares.h). The agent's thread. */
#ifndef WORKER_REINFORCE_EVALUATOR_H
#define WORKER_REINFORCE_EVALUATOR_H

#include "worker/reinforce/seats.h"

struct evaluator;

/* Opens the evaluations of the worker's job; *out is NULL where it has none. `worker` and `spec` outlive it.
 * Errors as player_open. evaluator_free also follows a failure; NULL is allowed. */
enum status evaluator_new(struct evaluator **out, const struct worker *worker,
                          const struct environment_spec *spec, struct error *error);
void evaluator_free(struct evaluator *evaluator);

/* Begins an evaluation of the policy as it is now. Environments in C: plays all of it, and calls `progress`
 * after each step; STATUS_SHUTDOWN: an order to hurry has cut it short; errors as player_step. Environments
 * in Python: calls the observers (seats_playing). */
enum status evaluator_begin(struct evaluator *evaluator, struct policy *policy, struct seats *seats,
                            policy_progress *progress, void *context, struct error *error);

/* Asks the seat's observer for its share of the evaluation. Errors as seats_call. */
enum status evaluator_call(struct evaluator *evaluator, struct seats *seats, uint32_t seat,
                           struct error *error);

/* METHOD_STEP of an observer that plays its share. Errors in *failure. */
void evaluator_step(struct evaluator *evaluator, uint32_t seat, struct rpc_request *request,
                    const struct step *step, struct error *failure);

/* What the episodes, which have all been played, have come to. */
struct control_evaluation evaluator_end(const struct evaluator *evaluator);

#endif
