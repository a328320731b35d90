/* Writes a run's records for TensorBoard: their tags, values and steps.
 *
 * Tags are Stable-Baselines3's where it has one. A value that is no number is left out, as it is null in
 * episodes.jsonl.
 *
 *     ppo, a2c         rollout/ep_rew_mean, rollout/ep_len_mean, time/fps, train/… (learning_rate, loss,
 *                      policy_gradient_loss or policy_loss, value_loss, entropy_loss, approx_kl,
 *                      clip_fraction, clip_range, explained_variance, std, n_updates), eval/… (mean_reward,
 *                      mean_ep_length, success_rate). The step is total_timesteps, as in Stable-Baselines3.
 *     reinforce        rollout/ep_rew_mean (the running reward), rollout/ep_rew (the episode's), train/loss,
 *                      time/fps. The step is the episode: a resumed run does not know the steps before it.
 *     parameter-server, model-parallel    train/loss, train/learning_rate, time/samples_per_second (of a
 *                      model-parallel job tokens), eval/loss, and eval/accuracy (a share of 1) or
 *                      eval/perplexity. The step is the update.
 *
 * An environment's metrics have their own names as tags. Supervisor process; its only thread; blocks on the
 * disk. */
#ifndef DAEMON_LOG_TENSORBOARD_H
#define DAEMON_LOG_TENSORBOARD_H

#include "daemon/log/event_file.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

#include <stdbool.h>

#define TENSORBOARD_FOLDER "tensorboard"

/* The tags and values of a record, and its step. Returns how many; 0: the record has nothing to show. Pure.
 */
size_t tensorboard_scalars(const struct job *job, const struct control_message *record,
                           struct event_scalar scalars[EVENT_SCALARS_MAX], uint64_t *step);

struct tensorboard {
    int dir_fd;              /* the run directory, */
    const char *path;        /* as it is named in messages */
    struct event_file *file; /* NULL: none is open */
    bool failed;             /* nothing is written until /log/tensorboard has been off */
};

void tensorboard_init(struct tensorboard *board, int dir_fd, const char *path);
/* Errors as event_file_close. */
enum status tensorboard_fini(struct tensorboard *board, struct error *error);

/* Writes a record where /log/tensorboard is true, into a new event file after it was false; where it is
 * false, closes the file, if there is one. The first error closes the file too: later records are dropped,
 * without an error, until the key has been false. */
enum status tensorboard_record(struct tensorboard *board, const struct job *job,
                               const struct control_message *record, struct error *error);

#endif
