/* Trainings: gradient steps of a policy on rows that are drawn from the replay buffer.
 *
 *     training   what follows a boundary (off_policy.h): some gradient steps on rows of one window
 *     overlap    how many trainings acting lags behind learning
 *     version    of the parameters within a rollout: 0 as it begins, k behind its training number k
 *
 * Without overlap a training is done where it is added. With overlap a thread (worker/background.h) does
 * them, one after the other, while the rollout goes on. Actions behind boundary b come from version b -
 * overlap, or 0 where that is negative: a function of b alone, whoever is faster. A policy of its own acts by
 * copies of the parameters. Between two rollouts all trainings are done, so a checkpoint has no other
 * parameters than the policy's.
 *
 * The agent's thread calls. */
#ifndef WORKER_REINFORCE_TRAININGS_H
#define WORKER_REINFORCE_TRAININGS_H

#include "worker/control.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy.h"
#include "worker/replay/replay.h"

struct trainings;
struct rpc;

struct trainings_config {
    const struct job *job;
    const struct environment_spec *spec;
    struct policy *policy; /* learns */
    struct policy *acting; /* acts; the same one where nothing overlaps */
    struct rpc *rpc;       /* a turn of it ends when a training is done */
};

struct training {
    struct replay_window window;
    uint64_t steps;          /* of all environments, up to the boundary: for schedules */
    uint64_t gradient_steps; /* 0: none */
    uint64_t follows;        /* before these DQN's target moves so many times */
};

/* All of the configuration outlives *out; the rpc is freed behind it. STATUS_NO_MEMORY; errors as
 * background_open. trainings_free also follows a failure, and waits for the training under way; NULL is
 * allowed. */
enum status trainings_new(struct trainings **out, const struct trainings_config *config, struct error *error);
void trainings_free(struct trainings *t);

/* The buffer to draw from, which outlives *t, before the first training. STATUS_NO_MEMORY. */
enum status trainings_use(struct trainings *t, const struct replay *replay, struct error *error);

/* Begins a rollout: no training is under way (asserted). */
void trainings_begin(struct trainings *t);

/* Adds the rollout's next training. Without overlap blocks until it is done, and calls `progress` between two
 * gradient steps. Errors as policy_fit. */
enum status trainings_add(struct trainings *t, const struct training *training, policy_progress *progress,
                          void *context, struct error *error);

/* In every turn: notes which trainings are done. Errors as policy_fit. */
enum status trainings_advance(struct trainings *t, struct error *error);

/* Trainings of the rollout that were added; and boundaries behind which actions may be chosen, from 0 on. */
uint64_t trainings_added(const struct trainings *t);
uint64_t trainings_open_boundaries(const struct trainings *t);
bool trainings_are_done(const struct trainings *t);

/* From now on policy_act of the acting policy chooses as behind the rollout's boundary number `boundary`,
 * which is below trainings_open_boundaries. */
void trainings_act_behind(struct trainings *t, uint64_t boundary);

/* The learning rate, and the share of the job's steps that is done, after so many steps. */
double trainings_learning_rate(const struct trainings *t, uint64_t steps);
double trainings_share_done(const struct trainings *t, uint64_t steps);

/* Fills the means of the gradient steps since the last report. Returns the seconds that they took. All are
 * done. */
double trainings_report(struct trainings *t, struct control_figures *figures);

/* The priorities of the buffer's rows as bytes; 0 bytes: transitions are drawn evenly. As priorities_save and
 * priorities_load. All trainings are done. */
size_t trainings_save(const struct trainings *t, char *out);
bool trainings_load(struct trainings *t, const char *from, size_t bytes, struct error *error);

#endif
