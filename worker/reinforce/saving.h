/* Saving: the agent's checkpoints (worker/checkpoint/checkpoint_saver.h). A checkpoint is taken between two
 * episodes. It is written from a copy of the policy's values, so that the next episode is played and learned
 * from meanwhile. Everything else that an episode depends on is a function of (seed, episode), but for
 * environments that go on where the episode before has left them: of these the checkpoint holds the sums of
 * the recording and the states. The agent's thread. */
#ifndef WORKER_REINFORCE_SAVING_H
#define WORKER_REINFORCE_SAVING_H

#include "worker/reinforce/observer.h"
#include "worker/reinforce/observer_seats.h"

struct saving;

/* The values to save. All outlive the saving but the rpc: the saving is freed before the rpc. */
struct saving_config {
    struct worker *worker;
    const struct environment_spec *spec;
    const char *description; /* the environment's */
    struct policy *policy;
    struct recording *recording;
    struct off_policy *learner; /* NULL: there is no replay buffer */
    struct seats *seats;
    struct own_environments *own; /* NULL: the job has observers */
};

/* Where the job is, and how well it does. */
struct progress {
    uint64_t episode; /* the newest */
    double running_reward;
    double evaluated;      /* the mean reward of the newest evaluation; NaN: there was none */
    uint64_t evaluated_at; /* its episode; 0: this process has made no evaluation */
};

/* In a run that resumes, also gives the policy its values, and the agent its progress. STATUS_INVALID: the
 * checkpoint is of another kind of job, of another shape, or of another environment. saving_free also follows
 * a failure, waits for the saver's thread, and allows NULL. */
enum status saving_new(struct saving **out, const struct saving_config *config, struct progress *progress,
                       struct error *error);
void saving_free(struct saving *saving);

/* Between two episodes: begins a checkpoint if one is due. `last`: the job ends here; `stopped`: by an order.
 * STATUS_AGAIN: one is due, and the one before is not done, or the saver holds the agent; call again after
 * the next turn. */
enum status saving_begin(struct saving *saving, const struct progress *progress, bool last, bool stopped,
                         struct error *error);

/* In every turn: continues the checkpoint that is being taken. Does not block. */
enum status saving_advance(struct saving *saving, struct error *error);

/* Whether no checkpoint is being taken. */
bool saving_is_idle(const struct saving *saving);

#endif
