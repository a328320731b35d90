/* Moves a rollout's steps to the replay buffer, and trains the policy from the buffer. */
#include "worker/reinforce/off_policy.h"

#include "kernels/base/log.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/trainings.h"
#include "worker/replay/replay.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* What a checkpoint has of the counters. */
struct counters {
    uint64_t steps;           /* of all environments */
    uint64_t since, episodes; /* steps of each environment, and ended episodes, since the last training */
    uint64_t calls, follows;  /* steps of each environment, by which DQN's target moves; how often the target
                                 moves before the next training */
    uint64_t lost; /* steps of a run that has lost its buffer: a new one is filled before learning goes
                      on */
    uint64_t replay_bytes; /* of the buffer's own part, behind these; 0: it is not saved */
};

struct off_policy {
    const struct worker *worker;
    const struct job *job;
    const struct environment_spec *spec;
    struct policy *acting;
    struct replay *replay;
    struct trainings *trainings;
    uint32_t columns;
    uint32_t taken; /* steps of the rollout */
    uint64_t begin; /* counters.steps when the rollout began */
    struct counters counters;
    /* At the newest checkpoint: the buffer's next row, and the first one that could change still. */
    uint64_t saved, final;
    uint64_t flushed; /* the saver's thread's: rows below are on the disk, as they stay */
    bool *cut;        /* (columns) its episode goes on from somewhere else */
};

/* ---- opening ---- */

/* The rows that a rollout adds to the buffer, at most: each step may end with a last observation. */
static uint64_t rollout_rows_max(const struct off_policy *o)
{
    return 2 * (uint64_t)o->columns * (o->job->rollout.steps + 1);
}

/* Bytes of the last axis of one frame; a frame by itself is not kept where an agent may be absent. */
static size_t frame_bytes(const struct off_policy *o)
{
    const struct environment_space *seen = &o->spec->observation;
    const size_t element = seen->dtype == ENVIRONMENT_U8 ? 1 : sizeof(float);
    return seen->shape[seen->rank - 1] / o->job->environment.frames * element;
}

/* Where the buffer lies; `text` has its path. */
static struct path path_of_buffer(const struct off_policy *o, char text[PATH_MAX])
{
    const struct path run = worker_run_dir(o->worker);
    snprintf(text, PATH_MAX, "%s/replay.bin", run.text);
    return path_below(run, text);
}

/* `resumes`: the file is there, and goes on. The slack has room for the rollouts between the oldest
 * checkpoint that is kept and the newest one. */
static struct replay_config config_of(const struct off_policy *o, struct path path, bool resumes)
{
    const struct job *job = o->job;
    const bool joins = job->environment.frames > 1 && o->spec->agents == 1;
    const uint64_t share = job->replay.rows / 32,
                   least = 3 * (job->checkpoint.keep + 2) * rollout_rows_max(o);
    return (struct replay_config){
        .path = job->replay.save ? path : (struct path){0},
        .resumes = resumes,
        .columns = o->columns,
        .observation_bytes = environment_space_bytes(&o->spec->observation),
        .frames = joins ? job->environment.frames : 1,
        .frame_bytes = joins ? frame_bytes(o) : 0,
        .action_bytes = environment_space_bytes(&o->spec->action),
        .choices = o->spec->has_mask == 1 ? (uint32_t)environment_choices(o->spec) : 0,
        .rows = job->replay.rows,
        .slack = share > least ? share : least,
    };
}

/* The file grows with the steps, so a disk that is too small would show hours later. */
static void warn_of_small_disk(const struct off_policy *o, struct path path)
{
    struct statvfs disk;
    if (!o->job->replay.save || fstatvfs(path.folder, &disk) != 0)
        return;
    const uint64_t capacity = replay_capacity(o->replay), steps = o->job->stop.steps;
    const double needed = (double)(steps < capacity ? steps : capacity) * (double)replay_row_bytes(o->replay),
                 left = (double)disk.f_bavail * (double)disk.f_frsize;
    if (needed > left)
        log_warning("%.300s will grow to %.2f GiB (/algorithm/buffer_size): its disk has %.2f GiB left",
                    path.text, needed / 0x1p30, left / 0x1p30);
}

static enum status open_replay(struct off_policy *o, struct error *error)
{
    char text[PATH_MAX];
    const struct path path = path_of_buffer(o, text);
    const struct replay_config config = config_of(o, path, false);
    const enum status status = replay_open(&o->replay, &config, error);
    if (status != STATUS_OK)
        return status;
    warn_of_small_disk(o, path);
    return trainings_use(o->trainings, o->replay, error);
}

enum status off_policy_new(struct off_policy **out, const struct worker *worker,
                           const struct environment_spec *spec, struct policy *policy, struct policy *acting,
                           struct error *error)
{
    struct off_policy *o = *out = calloc(1, sizeof *o);
    const struct job *job = &worker->job;
    const uint32_t observers = job_observers(job);
    const struct trainings_config trainings = {
        .job = job, .spec = spec, .policy = policy, .acting = acting, .rpc = worker->rpc};
    if (o == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a replay buffer");
    *o = (struct off_policy){.worker = worker,
                             .job = job,
                             .spec = spec,
                             .acting = acting,
                             .columns = (observers > 0 ? observers : 1) * job->observers.environments *
                                        spec->agents};
    o->cut = calloc(o->columns, sizeof *o->cut);
    if (o->cut == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u columns", o->columns);
    const enum status status = trainings_new(&o->trainings, &trainings, error);
    return status == STATUS_OK && !worker_resumes(worker) ? open_replay(o, error) : status;
}

void off_policy_free(struct off_policy *o)
{
    if (o == NULL)
        return;
    trainings_free(o->trainings);
    replay_close(o->replay);
    free(o->cut);
    free(o);
}

/* The probability of a random action after so many steps. */
static double exploration_rate(const struct off_policy *o, uint64_t steps)
{
    const double first = o->job->replay.exploration_initial_eps, last = o->job->replay.exploration_final_eps;
    const double share = trainings_share_done(o->trainings, steps) / o->job->replay.exploration_fraction;
    return o->job->algorithm.name != JOB_ALGORITHM_DQN ? 0
           : share < 1                                 ? first + share * (last - first)
                                                       : last;
}

/* ---- the course of a rollout ---- */

void off_policy_begin(struct off_policy *o)
{
    o->taken = 0;
    o->begin = o->counters.steps;
    trainings_begin(o->trainings);
}

uint32_t off_policy_taken(const struct off_policy *o)
{
    return o->taken;
}

/* How many steps ahead of the newest taken one the next boundary but `more` lies. */
static uint64_t steps_to_boundary(const struct off_policy *o, uint64_t more)
{
    const struct job_frequency *every = &o->job->replay.train_freq;
    return every->episodes ? more + 1 : every->count - o->counters.since + more * every->count;
}

uint32_t off_policy_horizon(const struct off_policy *o)
{
    const uint64_t added = trainings_added(o->trainings), open = trainings_open_boundaries(o->trainings);
    if (o->taken == 0 || open <= added)
        return o->taken == 0 ? 0 : o->taken - 1;
    /* Of episodes the next boundary is known when the step is taken. */
    const uint64_t ahead = o->job->replay.train_freq.episodes ? 1 : steps_to_boundary(o, open - added - 1);
    const uint64_t horizon = o->taken - 1 + ahead;
    return horizon < UINT32_MAX ? (uint32_t)horizon : UINT32_MAX;
}

uint64_t off_policy_steps(const struct off_policy *o)
{
    return o->counters.steps;
}

/* The rollout's boundaries up to a step. A step that comes again, of an environment that cannot be played
 * again after its observer's death, is acted on by the newest parameters that may act. */
static uint64_t boundaries_up_to(const struct off_policy *o, uint32_t step)
{
    const struct job_frequency *every = &o->job->replay.train_freq;
    if (step + 1 < o->taken) {
        const uint64_t newest = trainings_open_boundaries(o->trainings) - 1,
                       added = trainings_added(o->trainings);
        return newest < added ? newest : added;
    }
    const uint64_t ahead = step - (o->taken - 1);
    return trainings_added(o->trainings) + (every->episodes ? 0 : (o->counters.since + ahead) / every->count);
}

void off_policy_explore(struct off_policy *o, uint32_t step)
{
    const uint64_t before = o->begin + (uint64_t)step * o->columns;
    const struct policy_exploration exploration = {.is_random = before < o->job->replay.learning_starts,
                                                   .epsilon = exploration_rate(o, before),
                                                   .has_noise = true};
    policy_explore(o->acting, &exploration);
    trainings_act_behind(o->trainings, boundaries_up_to(o, step));
}

void off_policy_exploit(struct off_policy *o)
{
    policy_explore(o->acting, &(struct policy_exploration){0});
}

void off_policy_abandon(struct off_policy *o, uint32_t first, uint32_t count)
{
    memset(o->cut + first, true, count);
}

/* ---- from the rollout to the buffer ---- */

static enum replay_end end_of(const struct rollout *r, uint32_t row)
{
    const uint8_t flags = r->flags[row];
    if ((flags & ENVIRONMENT_FAILED) != 0)
        return REPLAY_VOID;
    if (environment_flags_have_no_future(flags))
        return REPLAY_TERMINATED;
    if ((flags & ENVIRONMENT_TRUNCATED) == 0)
        return REPLAY_GOES_ON;
    return rollout_find_last(r, row) < r->last_count ? REPLAY_TRUNCATED
                                                     : REPLAY_VOID; /* or it has restarted itself */
}

/* The step before the newest one: its row becomes a transition. */
static void complete(struct off_policy *o, const struct rollout *r, uint32_t step, uint32_t column)
{
    const uint32_t row = rollout_row(r, step, column);
    const enum replay_end end = end_of(r, row);
    const char *last = end == REPLAY_TRUNCATED
                           ? r->last_observations + rollout_find_last(r, row) * r->config.observation_bytes
                           : NULL;
    o->counters.episodes += environment_flags_count(r->flags[row]);
    replay_complete(o->replay, column, r->actions + row * r->config.action_bytes,
                    rollout_learned_reward(r, row), end, last);
}

static void observe(struct off_policy *o, const struct rollout *r, uint32_t step, uint32_t column)
{
    const size_t row = rollout_row(r, step, column);
    replay_observe(o->replay, column, r->observations + row * r->config.observation_bytes,
                   r->allowed != NULL ? r->allowed + row * r->config.choices : NULL);
}

/* Moves the newest step to the buffer. */
static enum status append(struct off_policy *o, const struct rollout *r, struct error *error)
{
    const uint32_t step = o->taken;
    const enum status status = replay_reserve(o->replay, error);
    for (uint32_t column = 0; column < o->columns && status == STATUS_OK; column++) {
        if (o->cut[column])
            replay_abandon(o->replay, column);
        o->cut[column] = false;
        if (step > 0 && replay_is_open(o->replay, column))
            complete(o, r, step - 1, column);
    }
    for (uint32_t column = 0; column < o->columns && status == STATUS_OK; column++) {
        if (rollout_is_absent(r, step, column))
            replay_abandon(o->replay, column);
        else if (!replay_is_open(o->replay, column))
            observe(o, r, step, column);
    }
    return status;
}

/* ---- boundaries ---- */

/* Counts a step of every environment. */
static void count_step(struct off_policy *o)
{
    const uint64_t interval = o->job->replay.target_update_interval / o->columns;
    struct counters *counters = &o->counters;
    counters->steps += o->columns;
    counters->since++;
    counters->calls++;
    if (o->job->algorithm.name == JOB_ALGORITHM_DQN && counters->calls % (interval > 0 ? interval : 1) == 0)
        counters->follows++;
}

/* The training behind a boundary; before /algorithm/learning_starts it has no gradient steps. */
static struct training next_training(struct off_policy *o)
{
    struct counters *counters = &o->counters;
    const bool learns = counters->steps > o->job->replay.learning_starts + counters->lost;
    const uint64_t steps = counters->since * o->columns;
    struct training training = {
        .window = replay_window(o->replay), .steps = counters->steps, .follows = counters->follows};
    if (learns)
        training.gradient_steps =
            o->job->replay.gradient_steps < 0 ? steps : (uint64_t)o->job->replay.gradient_steps;
    counters->since = counters->episodes = counters->follows = 0;
    return training;
}

enum status off_policy_take(struct off_policy *o, const struct rollout *rollout, policy_progress *progress,
                            void *context, struct error *error)
{
    const struct job_frequency *every = &o->job->replay.train_freq;
    const enum status status = append(o, rollout, error);
    if (status != STATUS_OK)
        return status;
    if (o->taken++ > 0)
        count_step(o);
    if ((every->episodes ? o->counters.episodes : o->counters.since) < every->count)
        return STATUS_OK;
    const struct training training = next_training(o);
    return trainings_add(o->trainings, &training, progress, context, error);
}

enum status off_policy_advance(struct off_policy *o, struct error *error)
{
    return trainings_advance(o->trainings, error);
}

bool off_policy_is_learning(const struct off_policy *o)
{
    return !trainings_are_done(o->trainings);
}

/* ---- report ---- */

double off_policy_report(struct off_policy *o, struct control_figures *figures)
{
    *figures =
        (struct control_figures){.algorithm = o->job->algorithm.name,
                                 .total_timesteps = o->counters.steps,
                                 .exploration_rate = exploration_rate(o, o->counters.steps),
                                 .learning_rate = trainings_learning_rate(o->trainings, o->counters.steps)};
    return trainings_report(o->trainings, figures);
}

/* ---- checkpoints ---- */

/* In its first lap the ring overwrites nothing. */
bool off_policy_is_full(const struct off_policy *o)
{
    const uint64_t share = replay_slack(o->replay) / (o->job->checkpoint.keep + 2);
    const uint64_t more = rollout_rows_max(o);
    return o->job->replay.save && replay_next(o->replay) + more > replay_capacity(o->replay) &&
           replay_next(o->replay) - o->saved + more > share;
}

/* The newest archive's rows are those that the saver's thread flushes. */
static bool save_replay(struct off_policy *o, struct archive *archive)
{
    const size_t replay = o->job->replay.save ? replay_save(o->replay, NULL) : 0;
    const size_t leaves = replay > 0 ? trainings_save(o->trainings, NULL) : 0;
    o->counters.replay_bytes = replay + leaves;
    o->saved = replay_next(o->replay);
    o->final = replay_window(o->replay).end;
    archive_move(archive, &o->counters, sizeof o->counters);
    char *out = archive_pass(archive, replay + leaves);
    if (out != NULL && replay > 0)
        replay_save(o->replay, out);
    if (out != NULL && leaves > 0)
        trainings_save(o->trainings, out + replay);
    return true;
}

/* The run goes on without the rows that it had. */
static enum status begin_anew(struct off_policy *o, struct error *error)
{
    log_warning("%s (/replay/save): a new one is filled with %llu steps before learning goes on",
                o->counters.replay_bytes > 0 ? "the saved replay buffer is not wanted"
                                             : "the replay buffer was not saved",
                (unsigned long long)o->job->replay.learning_starts);
    o->counters.lost = o->counters.steps;
    return open_replay(o, error);
}

/* Loads the rows that the checkpoint has beside those in the file, and the priorities of all. */
static enum status load_replay(struct off_policy *o, const char *from, struct error *error)
{
    struct error why = {0};
    const uint64_t bytes = o->counters.replay_bytes;
    char text[PATH_MAX];
    const struct replay_config config = config_of(o, path_of_buffer(o, text), true);
    enum status status = replay_open(&o->replay, &config, &why);
    if (status == STATUS_OK)
        status = replay_grow(o->replay, &config, from, bytes, &why);
    if (status == STATUS_OK)
        status = trainings_use(o->trainings, o->replay, &why);
    const size_t loaded = status == STATUS_OK ? replay_load(o->replay, from, bytes, &why) : 0;
    if (loaded > 0 && trainings_load(o->trainings, from + loaded, bytes - loaded, &why))
        return STATUS_OK;
    return error_set(
        error, status != STATUS_OK ? status : STATUS_CORRUPT,
        "%.300s; with --set /replay/save=false the run goes on with a new buffer, in memory alone", why.text);
}

bool off_policy_archive(struct off_policy *o, struct archive *archive, struct error *error)
{
    if (!archive_loads(archive))
        return save_replay(o, archive);
    if (!archive_move(archive, &o->counters, sizeof o->counters))
        return false;
    const char *from = archive_pass(archive, o->counters.replay_bytes);
    const bool goes_on = o->job->replay.save && o->counters.replay_bytes > 0;
    if (from == NULL || (goes_on ? load_replay(o, from, error) : begin_anew(o, error)) != STATUS_OK)
        return false;
    o->saved = replay_next(o->replay);
    o->final = o->flushed = replay_window(o->replay).end;
    return true;
}

enum status off_policy_flush(void *off_policy, struct error *error)
{
    struct off_policy *o = off_policy;
    if (!o->job->replay.save)
        return STATUS_OK;
    const enum status status = replay_flush(o->replay, o->flushed, o->saved, error);
    o->flushed = o->final;
    return status;
}
