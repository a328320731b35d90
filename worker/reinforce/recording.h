/* Recording: what the agent keeps of the running episode. Its rows go into the rollout, which the learner
 * reads; the metrics that environments report, and the returns of episodes that span several rollouts, are
 * summed. Steps come from observers, or from the agent's own environments. The agent's thread. */
#ifndef WORKER_REINFORCE_RECORDING_H
#define WORKER_REINFORCE_RECORDING_H

#include "worker/control.h"
#include "worker/environment/environment_description.h"
#include "worker/job/job.h"
#include "worker/reinforce/off_policy.h"
#include "worker/reinforce/ppo.h"
#include "worker/reinforce/rollout.h"

struct recording;

/* Takes the memory of a rollout and of the sums beside it; `job`, `world` and `learner` outlive it.
 * `learner`: what learns from a replay buffer while the rollout is played; NULL of other algorithms. Errors
 * as rollout_new and ppo_open; STATUS_NO_MEMORY. recording_free also follows a failure; NULL is allowed. */
enum status recording_new(struct recording **out, const struct job *job,
                          const struct environment_description *world, const struct rollout_config *config,
                          struct off_policy *learner, struct error *error);
void recording_free(struct recording *recording);

struct rollout *recording_rollout(const struct recording *recording);

/* Where the algorithm is ppo or a2c. */
struct ppo *recording_ppo(struct recording *recording);

/* Begins an episode: clears the rollout and the metrics. */
void recording_begin(struct recording *recording, uint64_t episode);

/* Records a step that is good. `is_repeated`: the rollout has the step already, and recording_forget has
 * dropped what the step before ended. Errors as rollout_record. */
enum status recording_step(struct recording *recording, const struct step *step, bool is_repeated,
                           struct error *error);

/* Has the learner take in what is recorded of steps below `steps`, of all environments; nothing without one.
 * Errors as off_policy_take. */
enum status recording_take(struct recording *recording, uint32_t steps, policy_progress *progress,
                           void *context, struct error *error);

/* The first step whose actions may not be chosen yet: the learner has to take steps before. */
uint32_t recording_horizon(const struct recording *recording);

/* Has the policy act on the rollout's batch: of a learner rows of one step. Errors as policy_act. */
enum status recording_act(struct recording *recording, struct policy *policy, struct error *error);

/* Records what the last steps of environments from `first` on have earned, ended and reported. */
void recording_end(struct recording *recording, uint32_t first, const struct step_end *end);

/* The rows of environments first … first + count - 1 from some step on come again, and may be others. */
void recording_diverge(struct recording *recording, uint32_t first, uint32_t count);

/* Forgets the ends within the episode of environments first … first + count - 1, whose steps come again. */
void recording_forget(struct recording *recording, uint32_t first, uint32_t count);

/* The unfinished episodes of these environments have come to nothing. */
void recording_abandon(struct recording *recording, uint32_t first, uint32_t count);

/* Warns, once, that the environment takes another course when it is played again. `where` ends the clause. */
void recording_warn_of_course(struct recording *recording, uint32_t environment, const char *where);

/* Warns, once, of what a death or a resume costs with the job's environments (environment_loss). */
void recording_warn_of_loss(struct recording *recording, bool can_save);

/* ---- from playing to learning ---- */

/* The episode is played: adds it to the returns, and keeps `played`, which has its number and what the seats
 * report. The recording is then pending, until recording_learn. */
void recording_close(struct recording *recording, const struct control_episode *played);
bool recording_is_pending(const struct recording *recording);

/* The pending rollout is learned from now, and recording_report is about its episode. No update is under way.
 */
void recording_learn(struct recording *recording);

/* What recording_close has kept, with the episode's reward, steps and metrics, and with PPO the means over
 * the last /algorithm/stats_window_size ended episodes. False, only if rollouts continue: no episode has
 * ended. Then the reward is the latest of ended episodes; before the first, that of the unfinished ones. */
bool recording_report(const struct recording *recording, struct control_episode *record);

/* The sums on which the next episode depends, what a policy remembers of its environments, and the rollout
 * that is pending, for a checkpoint; no update is under way. False, with a sentence: the bytes are not this
 * job's, or of another window. They may have another number of columns (observers were added, or have left):
 * a column that they do not have begins anew, and a pending rollout is played again. */
bool recording_archive(struct recording *recording, struct archive *archive, struct error *error);

#endif
