/* Writes a run's records for TensorBoard, as scalars by tag and step, into RUN/tensorboard.
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
 * An environment's metrics have their own names as tags.
 *
 * An event file is named by the time, the host and the process: events.out.tfevents.SECONDS.HOST.PID.N, with
 * the lowest N that is free. It is a sequence of TFRecords. Each holds one Event (daemon/log/events.proto):
 *
 *     uint64 length | uint32 masked CRC-32C of the length | the Event | uint32 masked CRC-32C of the Event
 *
 * All numbers are little-endian. Masked: rotated right by 15 bits, plus 0xa282ead8. The first Event is the
 * file's version.
 *
 * Events gather in memory. They are written when the buffer is full, with the first event that comes a second
 * or more after the last write, and at the end. A process that is killed loses what it gathered since then.
 * Only a loss of power leaves half an event at a file's end. Nothing is synced. Supervisor process; its only
 * thread; blocks on the disk. */
#ifndef DAEMON_LOG_TENSORBOARD_H
#define DAEMON_LOG_TENSORBOARD_H

#include "kernels/base/file.h"
#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

struct tensorboard;

/* `run`: the run's directory, which outlives the writer. NULL: no memory. */
struct tensorboard *tensorboard_new(struct path run);

/* Writes what has gathered, and frees; NULL is allowed. An error names the file. */
enum status tensorboard_free(struct tensorboard *board, struct error *error);

/* Writes a record where /log/tensorboard is true, into a new event file after it was false; where it is
 * false, closes the file, if there is one. The first error names the file and closes it: the file ends with
 * the last whole event that it took, and later records are dropped, without an error, until the key has been
 * false. */
enum status tensorboard_record(struct tensorboard *board, const struct job *job,
                               const struct control_message *record, struct error *error);

#endif
