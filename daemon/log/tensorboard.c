/* Turns records into scalars for TensorBoard. Supervisor process; its only thread. */
#include "daemon/log/tensorboard.h"

#include "kernels/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(CONTROL_METRICS_MAX + 24 <= EVENT_SCALARS_MAX, "an update of PPO has fewer than 24 tags");

/* ---- what a record has to show ---- */

struct scalars {
    struct event_scalar *of;
    size_t count;
};

static void add_named(struct scalars *scalars, const char *tag, size_t bytes, double value)
{
    if (!isfinite(value))
        return;
    struct event_scalar *scalar = &scalars->of[scalars->count++];
    text_show(scalar->tag, sizeof scalar->tag, tag, bytes, sizeof scalar->tag);
    scalar->value = value;
}

static void add_scalar(struct scalars *scalars, const char *tag, double value)
{
    add_named(scalars, tag, strlen(tag), value);
}

/* A plug-in names its metrics, so a name may be any text. */
static void add_metrics(struct scalars *scalars, const struct control_metrics *metrics)
{
    for (uint32_t i = 0; i < metrics->count && i < CONTROL_METRICS_MAX; i++)
        add_named(scalars, metrics->of[i].name, strnlen(metrics->of[i].name, sizeof metrics->of[i].name),
                  metrics->of[i].mean);
}

static void add_rate(struct scalars *scalars, const char *tag, uint64_t count, double seconds)
{
    if (seconds > 0)
        add_scalar(scalars, tag, (double)count / seconds);
}

static void add_evaluation(struct scalars *scalars, const struct control_evaluation *r)
{
    add_scalar(scalars, "eval/mean_reward", r->mean_reward);
    add_scalar(scalars, "eval/mean_ep_length", r->mean_ep_length);
    add_scalar(scalars, "eval/success_rate", r->success_rate);
}

static void add_ppo(struct scalars *scalars, const struct control_ppo *r)
{
    add_scalar(scalars, "rollout/ep_rew_mean", r->ep_rew_mean);
    add_scalar(scalars, "rollout/ep_len_mean", r->ep_len_mean);
    add_scalar(scalars, "train/learning_rate", r->learning_rate);
    add_scalar(scalars, "train/n_updates", (double)r->n_updates);
    add_scalar(scalars, r->is_a2c ? "train/policy_loss" : "train/policy_gradient_loss",
               r->policy_gradient_loss);
    add_scalar(scalars, "train/value_loss", r->value_loss);
    add_scalar(scalars, "train/entropy_loss", r->entropy_loss);
    add_scalar(scalars, "train/explained_variance", r->explained_variance);
    add_scalar(scalars, "train/std", r->std);
    if (!r->is_a2c) {
        add_scalar(scalars, "train/loss", r->loss);
        add_scalar(scalars, "train/approx_kl", r->approx_kl);
        add_scalar(scalars, "train/clip_fraction", r->clip_fraction);
        add_scalar(scalars, "train/clip_range", r->clip_range);
    }
    if (r->has_evaluation)
        add_evaluation(scalars, &r->evaluation);
}

static uint64_t add_episode(struct scalars *scalars, const struct control_episode *r)
{
    if (r->has_ppo) {
        add_ppo(scalars, &r->ppo);
    } else {
        add_scalar(scalars, "rollout/ep_rew_mean", r->running_reward);
        add_scalar(scalars, "rollout/ep_rew", r->reward);
        add_scalar(scalars, "train/loss", r->loss);
    }
    add_rate(scalars, "time/fps", r->env_steps, r->timing.episode_s);
    add_metrics(scalars, &r->metrics);
    return r->has_ppo ? r->ppo.total_timesteps : r->episode;
}

static uint64_t add_update(struct scalars *scalars, const struct control_update *r)
{
    add_scalar(scalars, "train/loss", r->loss);
    add_scalar(scalars, "train/learning_rate", r->lr);
    add_rate(scalars, "time/samples_per_second", r->samples - r->timing.samples_before, r->timing.round_s);
    return r->update;
}

/* Its mean loss is that of its updates' lines. */
static uint64_t add_epoch(struct scalars *scalars, const struct control_epoch *r, bool is_language)
{
    if (r->evaluated == 0)
        return r->update;
    add_scalar(scalars, "eval/loss", r->evaluation_loss);
    if (is_language)
        add_scalar(scalars, "eval/perplexity", exp(r->evaluation_loss));
    else
        add_scalar(scalars, "eval/accuracy", (double)r->correct / (double)r->evaluated);
    return r->update;
}

size_t tensorboard_scalars(const struct job *job, const struct control_message *record,
                           struct event_scalar scalars[EVENT_SCALARS_MAX], uint64_t *step)
{
    struct scalars found = {.of = scalars};
    if (record->kind == CONTROL_EPISODE)
        *step = add_episode(&found, &record->body.episode);
    else if (record->kind == CONTROL_UPDATE)
        *step = add_update(&found, &record->body.update);
    else
        *step = add_epoch(&found, &record->body.epoch, job->kind == JOB_MODEL_PARALLEL);
    return found.count;
}

/* ---- the event file ---- */

void tensorboard_init(struct tensorboard *board, int dir_fd, const char *path)
{
    *board = (struct tensorboard){.dir_fd = dir_fd, .path = path};
}

enum status tensorboard_fini(struct tensorboard *board, struct error *error)
{
    const enum status status = event_file_close(board->file, error);
    board->file = NULL;
    return status;
}

static enum status open_events(struct tensorboard *board, struct error *error)
{
    if (mkdirat(board->dir_fd, TENSORBOARD_FOLDER, 0777) != 0 && errno != EEXIST)
        return error_set_errno(error, errno, "cannot make %s/" TENSORBOARD_FOLDER, board->path);
    const struct path run = path_of_folder(board->dir_fd, board->path);
    char text[PATH_MAX];
    int folder;
    snprintf(text, sizeof text, "%s/" TENSORBOARD_FOLDER, board->path);
    enum status status = file_open_folder(&folder, path_below(run, text), error);
    if (status != STATUS_OK)
        return status;
    status = event_file_open(&board->file, folder, board->path, error);
    close(folder);
    return status;
}

enum status tensorboard_record(struct tensorboard *board, const struct job *job,
                               const struct control_message *record, struct error *error)
{
    struct event_scalar scalars[EVENT_SCALARS_MAX];
    struct error ignored;
    uint64_t step;
    if (!job->log.tensorboard) {
        board->failed = false;
        return board->file != NULL ? tensorboard_fini(board, error) : STATUS_OK;
    }
    const size_t count = board->failed ? 0 : tensorboard_scalars(job, record, scalars, &step);
    if (count == 0)
        return STATUS_OK;
    enum status status = board->file == NULL ? open_events(board, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = event_file_add(board->file, step, scalars, count, error);
    board->failed = status != STATUS_OK;
    if (board->failed)
        tensorboard_fini(board, &ignored);
    return status;
}
