/* Inference: one pass of the policy acts on the rows of several steps, where they lie in the rollout.
 *
 *     inference_add, once for each recorded step  ->  inference_run  ->  inference_actions, step by step
 *
 * The agent's thread. Blocks only for the policy's arithmetic. */
#ifndef WORKER_REINFORCE_INFERENCE_H
#define WORKER_REINFORCE_INFERENCE_H

#include "worker/model/policy.h"
#include "worker/reinforce/rollout.h"

struct inference;

/* Both outlive *out. STATUS_NO_MEMORY. inference_free also follows a failure; NULL is allowed. */
enum status inference_new(struct inference **out, struct policy *policy, struct rollout *rollout,
                          struct error *error);
void inference_free(struct inference *inference);

/* Adds a recorded step's rows to the batch. No column is twice in a batch. */
void inference_add(struct inference *inference, const struct step *step);

/* Acts on the batch, and begins an empty one. Errors as policy_act. */
enum status inference_run(struct inference *inference, struct error *error);

/* The actions of a step that was acted on, (rows, components), within their bounds; valid until the next
 * call.
 */
const void *inference_actions(struct inference *inference, const struct step *step);

#endif
