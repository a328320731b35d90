/* Inference: the steps that wait for actions, the batch that answers several of them with one pass of the
 * policy, and the replies. A coalescer for the groups of each number decides when a batch is due. One step of
 * each group of each observer can wait; `group` is its place among all groups: seat * groups + number.
 *
 * The agent's thread; nothing here blocks but for the policy's arithmetic. */
#ifndef WORKER_REINFORCE_INFERENCE_H
#define WORKER_REINFORCE_INFERENCE_H

#include "worker/model/policy.h"
#include "worker/net/rpc.h"
#include "worker/reinforce/rollout.h"
#include "worker/worker.h"

struct inference;

/* The lines of the worker's job. A pass of the policy that fails writes *failure, which ends the job.
 * `worker` and `failure` outlive it. STATUS_NO_MEMORY. inference_free also follows a failure; NULL is
 * allowed. */
enum status inference_new(struct inference **out, struct worker *worker, struct error *failure,
                          struct error *error);
void inference_free(struct inference *inference);

/* The policy and the rollout on whose rows it acts. They outlive *inference. STATUS_NO_MEMORY. */
enum status inference_open(struct inference *inference, struct policy *policy, struct rollout *rollout,
                           const struct environment_spec *spec, struct error *error);

/* Forgets the launches and waits that inference_report reports. */
void inference_begin(struct inference *inference);
void inference_report(const struct inference *inference, struct control_episode *record);

/* How many environments live in the groups of a number: so many rows can wait (coalescer_set_live). */
void inference_set_live(struct inference *inference, uint32_t number, uint32_t environments);

/* ---- a group's step ---- */

/* Puts a request in line, whose step is recorded before the next launch. STATUS_BUSY: the line is full. */
enum status inference_add(struct inference *inference, uint32_t group, struct rpc_request *request,
                          const struct step *step);

/* Whether a step of the group waits. */
bool inference_waits(const struct inference *inference, uint32_t group);

/* A successor's request for the step that waits, which gets the same answer; whether there is one. */
void inference_repeat(struct inference *inference, uint32_t group, struct rpc_request *request);
bool inference_repeats(const struct inference *inference, uint32_t group);

/* Fails the request that waits, or the one that repeats it, with STATUS_PEER_DIED, if there is one. */
void inference_withdraw(struct inference *inference, uint32_t group);
void inference_withdraw_repeat(struct inference *inference, uint32_t group);

/* Answers a request with the actions of its recorded step. The closing step's answer is empty. */
void inference_reply(struct inference *inference, struct rpc_request *request, const struct step *step);

/* Acts on a recorded step at once. *actions: of its rows, within their bounds; valid until the next call.
 * Errors as policy_act. */
enum status inference_act(struct inference *inference, const struct step *step, const void **actions,
                          struct error *error);

/* ---- the lines ---- */

/* Launches every batch that is due, and answers its requests. The worker reports how many wait on. */
void inference_run(struct inference *inference);

/* When the next batch is due, as coalescer_due. */
struct monotime inference_due(const struct inference *inference);

/* Fails all requests with STATUS_SHUTDOWN. */
void inference_clear(struct inference *inference);

#endif
