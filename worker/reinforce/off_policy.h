/* Learning from a replay buffer, while a rollout is played: DQN, SAC and TD3 (worker/model/policy.h).
 *
 *     step        of the running rollout, of all environments together
 *     taken       the step's observations, and what the step before earned, are in the buffer
 *     training    some gradient steps on rows that are drawn from the buffer
 *     boundary    a step behind which a training follows, by /algorithm/train_freq
 *     overlap     how many trainings acting lags behind learning
 *     version     of the parameters within a rollout: 0 as it begins, k behind its training number k
 *
 * When every environment's rows of step t are recorded, off_policy_take moves them to the buffer in the order
 * of columns; and where t is a boundary, the policy is trained. Actions of step t are chosen by the
 * parameters behind the last boundary up to t or, with /algorithm/overlap, so many boundaries before. So the
 * numbers depend on neither the order of messages nor their pace. A step that comes again otherwise, because
 * its observer died and the environment cannot repeat it, is played but not taken again.
 *
 * Without overlap a training is done where its boundary is. With overlap a thread (worker/background.h) does
 * them, one after the other, while the rollout goes on. Actions behind boundary b come from version b -
 * overlap, or 0 where that is negative: a function of b alone, whoever is faster. A policy of its own acts by
 * copies of the parameters. Between two rollouts all trainings are done, so a checkpoint has no other
 * parameters than the policy's.
 *
 *     recorded step t  ->  off_policy_take  ->  off_policy_explore, rollout_act  ->  step t + 1
 *
 * The agent's thread calls; off_policy_flush is the saver's. off_policy_take blocks for arithmetic and the
 * disk's room; off_policy_archive and off_policy_flush for the file; off_policy_free for the training under
 * way.
 */
#ifndef WORKER_REINFORCE_OFF_POLICY_H
#define WORKER_REINFORCE_OFF_POLICY_H

#include "worker/control.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy.h"
#include "worker/reinforce/rollout.h"
#include "worker/worker.h"

struct off_policy;

/* Opens the buffer, of the worker's run, for a policy that learns from one; of a run that resumes
 * off_policy_archive does so. `acting` acts, and is the same policy unless /algorithm/overlap is above 0. All
 * outlive *out. Errors as replay_open (worker/replay/replay.h); STATUS_NO_MEMORY. off_policy_free also
 * follows a failure; NULL is allowed. */
enum status off_policy_new(struct off_policy **out, const struct worker *worker,
                           const struct environment_spec *spec, struct policy *policy, struct policy *acting,
                           struct error *error);
void off_policy_free(struct off_policy *o);

/* Begins a rollout. */
void off_policy_begin(struct off_policy *o);

/* How many steps of the rollout are taken; and the first one whose actions may not be chosen yet. */
uint32_t off_policy_taken(const struct off_policy *o);
uint32_t off_policy_horizon(const struct off_policy *o);

/* Takes the next step, which is recorded as a whole, and trains the policy at a boundary. `progress` is
 * called between two gradient steps. Errors as policy_fit; STATUS_IO: no room for the buffer. */
enum status off_policy_take(struct off_policy *o, const struct rollout *rollout, policy_progress *progress,
                            void *context, struct error *error);

/* In every turn: notes which trainings are done. Errors as policy_fit. */
enum status off_policy_advance(struct off_policy *o, struct error *error);

/* Whether a training is under way. A rollout is over when none is. */
bool off_policy_is_learning(const struct off_policy *o);

/* Has the acting policy act as it does in this step, which is below the horizon. */
void off_policy_explore(struct off_policy *o, uint32_t step);

/* Has the policy act without exploration: for an evaluation. */
void off_policy_exploit(struct off_policy *o);

/* The unfinished episodes of columns first … first + count - 1 go on from somewhere else. */
void off_policy_abandon(struct off_policy *o, uint32_t first, uint32_t count);

/* Fills what the rollout's trainings have found, and forgets it. Returns the seconds that they took. */
double off_policy_report(struct off_policy *o, struct control_figures *figures);

/* Steps of all environments so far. */
uint64_t off_policy_steps(const struct off_policy *o);

/* Whether a checkpoint is needed before the next rollout: else the buffer would overwrite rows that a kept
 * checkpoint still needs. */
bool off_policy_is_full(const struct off_policy *o);

/* The counters and the buffer's places, for a checkpoint. False, with a sentence: the bytes, or the buffer's
 * rows, are not what they were. */
bool off_policy_archive(struct off_policy *o, struct archive *archive, struct error *error);

/* The saver's thread, before a checkpoint of the last off_policy_archive becomes visible: its rows are on the
 * disk. */
enum status off_policy_flush(void *off_policy, struct error *error);

#endif
