/* Moves a rollout's steps to the replay buffer, draws rows from it, takes gradient steps, and keeps the
 * copies of the parameters that act meanwhile. */
#include "worker/reinforce/off_policy.h"

#include "kernels/base/log.h"
#include "kernels/base/monotime.h"
#include "kernels/base/profile.h"
#include "kernels/base/region.h"
#include "worker/background.h"
#include "worker/environment/environment.h"
#include "worker/job/job.h"
#include "worker/reinforce/schedules.h"
#include "worker/replay/priorities.h"
#include "worker/replay/replay.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { QUEUE = JOB_OVERLAP_MAX + 2 }; /* trainings that may be under way */

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

struct training {
    struct replay_window window;
    uint64_t steps;          /* of all environments, up to the boundary: for schedules */
    uint64_t gradient_steps; /* 0: none */
    uint64_t follows;        /* before these DQN's target moves so many times */
};

/* Of the gradient steps since the last report. */
struct sums {
    uint64_t fits, actor_fits;
    double critic, actor, entropy_coefficient, entropy;
    double seconds;
};

struct off_policy {
    struct region region;
    const struct worker *worker;
    const struct job *job;
    const struct environment_spec *spec;
    struct policy *policy; /* learns */
    struct policy *acting; /* the same one where nothing overlaps */
    struct replay *replay;
    struct priorities *priorities; /* NULL: transitions are drawn evenly */
    uint32_t columns;
    uint32_t taken; /* steps of the rollout */
    uint64_t begin; /* counters.steps when the rollout began */
    struct counters counters;
    /* At the newest checkpoint: the buffer's next row, and the first one that could change still. */
    uint64_t saved, final;
    uint64_t flushed; /* the saver's thread's: rows below are on the disk, as they stay */
    bool *cut;        /* (columns) its episode goes on from somewhere else */

    /* ---- trainings ---- */
    uint32_t overlap;
    uint64_t added, done;         /* of the rollout */
    struct training queue[QUEUE]; /* training number k, from 1, is at k % QUEUE */
    float *kept[QUEUE];           /* version k of the parameters that act, at k % QUEUE; with overlap */
    uint64_t acts_by;             /* the acting policy's version; UINT64_MAX: none of this rollout */
    struct background thread;
    /* The thread's while it runs: a batch, and the sums. */
    uint64_t *rows;
    float *weights, *errors; /* with priorities */
    struct replay_batch batch;
    struct sums sums;
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

static enum status open_priorities(struct off_policy *o, struct error *error)
{
    return o->job->replay.prioritized
               ? priorities_new(&o->priorities, o->job->replay.rows, o->job->replay.alpha, error)
               : STATUS_OK;
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
    return open_priorities(o, error);
}

static enum status open_batch(struct off_policy *o, struct error *error)
{
    const struct environment_spec *spec = o->spec;
    const size_t rows = o->job->algorithm.batch_size;
    const size_t seen = environment_space_bytes(&spec->observation);
    const size_t choices = spec->has_mask == 1 ? environment_choices(spec) : 0;
    struct replay_batch *batch = &o->batch;
    o->rows = region_take(&o->region, rows, sizeof *o->rows);
    o->weights = region_take(&o->region, rows, sizeof *o->weights);
    o->errors = region_take(&o->region, rows, sizeof *o->errors);
    batch->observations = region_take(&o->region, rows, seen);
    batch->next_observations = region_take(&o->region, rows, seen);
    batch->actions = region_take(&o->region, rows, environment_space_bytes(&spec->action));
    batch->masks = choices > 0 ? region_take(&o->region, rows, choices) : NULL;
    batch->rewards = region_take(&o->region, rows, sizeof *batch->rewards);
    batch->terminated = region_take(&o->region, rows, sizeof *batch->terminated);
    if (o->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu rows", rows);
    return STATUS_OK;
}

/* What acts while others learn. */
static enum status open_overlap(struct off_policy *o, struct error *error)
{
    const size_t floats = policy_acting_floats(o->policy);
    for (uint32_t i = 0; i < QUEUE; i++)
        o->kept[i] = region_take(&o->region, floats, sizeof(float));
    if (o->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu parameters that act", floats);
    return background_open(&o->thread, o->worker->rpc, "the thread that learns", error);
}

enum status off_policy_new(struct off_policy **out, const struct worker *worker,
                           const struct environment_spec *spec, struct policy *policy, struct policy *acting,
                           struct error *error)
{
    struct off_policy *o = *out = calloc(1, sizeof *o);
    const struct job *job = &worker->job;
    const uint32_t observers = job_observers(job);
    if (o == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a replay buffer");
    *o = (struct off_policy){.worker = worker,
                             .job = job,
                             .spec = spec,
                             .policy = policy,
                             .acting = acting,
                             .columns =
                                 (observers > 0 ? observers : 1) * job->observers.environments * spec->agents,
                             .overlap = job->algorithm.overlap};
    o->cut = region_take(&o->region, o->columns, sizeof *o->cut);
    enum status status = open_batch(o, error);
    if (status == STATUS_OK && o->overlap > 0)
        status = open_overlap(o, error);
    return status == STATUS_OK && !worker_resumes(worker) ? open_replay(o, error) : status;
}

void off_policy_free(struct off_policy *o)
{
    if (o == NULL)
        return;
    background_close(&o->thread);
    priorities_free(o->priorities);
    replay_close(o->replay);
    region_free(&o->region);
    free(o);
}

/* ---- one training: on the thread, or where it is added ---- */

/* Draws the rows of the next gradient step. False: there is no transition. */
static bool draw(struct off_policy *o, const struct training *training)
{
    const struct job *job = o->job;
    const uint32_t update = (uint32_t)policy_fits(o->policy) + 1, count = job->algorithm.batch_size;
    const double beta = schedules_beta(job, training->steps);
    return o->priorities != NULL
               ? priorities_draw(o->priorities, job->seed, update, beta, count, o->rows, o->weights)
               : replay_draw(o->replay, training->window, job->seed, update, count, o->rows);
}

static void add_losses(struct sums *sums, const struct policy_q_losses *losses)
{
    sums->fits++;
    sums->critic += losses->critic;
    if (!isnan(losses->actor)) {
        sums->actor_fits++;
        sums->actor += losses->actor;
    }
    sums->entropy_coefficient += losses->entropy_coefficient;
    sums->entropy += losses->entropy;
}

static enum status fit(struct off_policy *o, const struct training *training, struct error *error)
{
    const uint32_t count = o->job->algorithm.batch_size;
    struct policy_q_losses losses;
    const struct policy_transitions batch = {.count = count,
                                             .observations = o->batch.observations,
                                             .next_observations = o->batch.next_observations,
                                             .actions = o->batch.actions,
                                             .next_allowed = o->batch.masks,
                                             .rewards = o->batch.rewards,
                                             .terminated = o->batch.terminated,
                                             .weights = o->priorities != NULL ? o->weights : NULL,
                                             .errors = o->priorities != NULL ? o->errors : NULL};
    replay_gather(o->replay, count, o->rows, &o->batch);
    const enum status status =
        policy_fit(o->policy, &batch, schedules_learning_rate(o->job, training->steps), &losses, error);
    if (status != STATUS_OK)
        return status;
    if (o->priorities != NULL)
        priorities_set(o->priorities, count, o->rows, o->errors);
    add_losses(&o->sums, &losses);
    return STATUS_OK;
}

static enum status train(struct off_policy *o, const struct training *training, policy_progress *progress,
                         void *context, struct error *error)
{
    const struct monotime begin = monotime_now();
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    enum status status = STATUS_OK;
    for (uint64_t i = 0; i < training->follows && status == STATUS_OK; i++)
        status = policy_follow(o->policy, error);
    if (o->priorities != NULL && training->gradient_steps > 0)
        priorities_follow(o->priorities, o->replay, training->window);
    for (uint64_t i = 0; i < training->gradient_steps && status == STATUS_OK && draw(o, training); i++) {
        status = fit(o, training, error);
        if (progress != NULL)
            progress(context);
    }
    profile_leave(before);
    o->sums.seconds += (double)monotime_us_between(begin, monotime_now()) * 1e-6;
    return status;
}

/* ---- the queue ---- */

static struct training *training_at(struct off_policy *o, uint64_t number)
{
    return &o->queue[number % QUEUE];
}

/* The next one of the queue, on the thread. */
static enum status train_next(void *off_policy, struct error *error)
{
    struct off_policy *o = off_policy;
    return train(o, training_at(o, o->done + 1), NULL, NULL, error);
}

static void keep(struct off_policy *o, uint64_t version)
{
    policy_keep_acting(o->policy, o->kept[version % QUEUE]);
}

static void start_next(struct off_policy *o)
{
    if (o->done < o->added && !background_runs(&o->thread))
        background_start(&o->thread, train_next, o);
}

/* Adds the rollout's next training. Without overlap it is done here. */
static enum status add_training(struct off_policy *o, const struct training *training,
                                policy_progress *progress, void *context, struct error *error)
{
    o->added++;
    if (o->overlap == 0) {
        o->done++;
        return train(o, training, progress, context, error);
    }
    assert(o->added - o->done < QUEUE);
    *training_at(o, o->added) = *training;
    start_next(o);
    return STATUS_OK;
}

enum status off_policy_advance(struct off_policy *o, struct error *error)
{
    if (!background_runs(&o->thread))
        return STATUS_OK;
    const enum status status = background_end(&o->thread, error);
    if (status != STATUS_OK)
        return status == STATUS_AGAIN ? STATUS_OK : status;
    keep(o, ++o->done);
    start_next(o);
    return STATUS_OK;
}

bool off_policy_is_learning(const struct off_policy *o)
{
    return o->done < o->added;
}

/* Boundaries behind which actions may be chosen, from 0 on. */
static uint64_t open_boundaries(const struct off_policy *o)
{
    return o->done + o->overlap + 1;
}

/* From now on the acting policy chooses as behind this boundary of the rollout. */
static void act_behind(struct off_policy *o, uint64_t boundary)
{
    const uint64_t version = boundary > o->overlap ? boundary - o->overlap : 0;
    assert(boundary < open_boundaries(o));
    if (o->overlap == 0 || version == o->acts_by)
        return;
    policy_load_acting(o->acting, o->kept[version % QUEUE]);
    o->acts_by = version;
}

/* ---- the course of a rollout ---- */

void off_policy_begin(struct off_policy *o)
{
    assert(!off_policy_is_learning(o));
    o->taken = 0;
    o->begin = o->counters.steps;
    o->added = o->done = 0;
    o->acts_by = UINT64_MAX;
    if (o->overlap > 0)
        keep(o, 0);
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
    const uint64_t open = open_boundaries(o);
    if (o->taken == 0 || open <= o->added)
        return o->taken == 0 ? 0 : o->taken - 1;
    /* Of episodes the next boundary is known when the step is taken. */
    const uint64_t ahead = o->job->replay.train_freq.episodes ? 1 : steps_to_boundary(o, open - o->added - 1);
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
        const uint64_t newest = open_boundaries(o) - 1;
        return newest < o->added ? newest : o->added;
    }
    const uint64_t ahead = step - (o->taken - 1);
    return o->added + (every->episodes ? 0 : (o->counters.since + ahead) / every->count);
}

void off_policy_explore(struct off_policy *o, uint32_t step)
{
    const uint64_t before = o->begin + (uint64_t)step * o->columns;
    const struct policy_exploration exploration = {.is_random = before < o->job->replay.learning_starts,
                                                   .epsilon = schedules_exploration_rate(o->job, before),
                                                   .has_noise = true};
    policy_explore(o->acting, &exploration);
    act_behind(o, boundaries_up_to(o, step));
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
    return add_training(o, &training, progress, context, error);
}

/* ---- report ---- */

static double mean(double sum, uint64_t count)
{
    return count > 0 ? sum / (double)count : (double)NAN;
}

double off_policy_report(struct off_policy *o, struct control_figures *figures)
{
    const struct sums sums = o->sums;
    o->sums = (struct sums){0};
    *figures =
        (struct control_figures){.algorithm = o->job->algorithm.name,
                                 .total_timesteps = o->counters.steps,
                                 .exploration_rate = schedules_exploration_rate(o->job, o->counters.steps),
                                 .learning_rate = schedules_learning_rate(o->job, o->counters.steps),
                                 .n_updates = policy_fits(o->policy),
                                 .critic_loss = mean(sums.critic, sums.fits),
                                 .actor_loss = mean(sums.actor, sums.actor_fits),
                                 .ent_coef = mean(sums.entropy_coefficient, sums.fits),
                                 .ent_coef_loss = mean(sums.entropy, sums.fits)};
    figures->loss = figures->critic_loss;
    return sums.seconds;
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
    const bool has_leaves = replay > 0 && o->priorities != NULL;
    const size_t leaves = has_leaves ? priorities_save(o->priorities, NULL) : 0;
    o->counters.replay_bytes = replay + leaves;
    o->saved = replay_next(o->replay);
    o->final = replay_window(o->replay).end;
    archive_move(archive, &o->counters, sizeof o->counters);
    char *out = archive_pass(archive, replay + leaves);
    if (out != NULL && replay > 0)
        replay_save(o->replay, out);
    if (out != NULL && has_leaves)
        priorities_save(o->priorities, out + replay);
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
        status = open_priorities(o, &why);
    const size_t loaded = status == STATUS_OK ? replay_load(o->replay, from, bytes, &why) : 0;
    if (loaded > 0 &&
        (o->priorities == NULL || priorities_load(o->priorities, from + loaded, bytes - loaded, &why) > 0))
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
