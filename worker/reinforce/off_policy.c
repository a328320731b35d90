/* Moves a rollout's steps to the replay buffer, and trains the policy from the buffer. */
#include "worker/reinforce/off_policy.h"

#include "kernels/base/log.h"
#include "kernels/base/monotime.h"
#include "kernels/base/profile.h"
#include "worker/environment/environment.h"
#include "worker/replay/priorities.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the trainings since the last report. */
struct sums {
    uint64_t fits, actor_fits;
    double critic, actor, entropy_coefficient, entropy;
    double seconds;
};

/* What a checkpoint has of the counters. */
struct counters {
    uint64_t steps;           /* of all environments */
    uint64_t since, episodes; /* steps of each environment, and ended episodes, since the last training */
    uint64_t calls;           /* steps of each environment: DQN's target follows by these */
    uint64_t replay_bytes;    /* of the buffer's own part, behind these; 0: it is not saved */
};

struct off_policy {
    const struct worker *worker;
    const struct job *job;
    const struct environment_spec *spec;
    struct policy *policy;
    struct replay *replay;
    struct priorities *priorities; /* NULL: transitions are drawn evenly */
    uint32_t columns;
    uint32_t taken; /* steps of the rollout */
    uint64_t begin; /* counters.steps when the rollout began */
    struct counters counters;
    /* At the newest checkpoint: the buffer's next row, and the first one that could change still. */
    uint64_t saved, final;
    uint64_t flushed; /* the saver's thread's: rows below are on the disk, as they stay */
    uint64_t lost; /* steps of a run that has lost its buffer: a new one is filled before learning goes on */
    bool *cut;     /* (columns) its episode goes on from somewhere else */
    struct sums sums;
    /* A batch: */
    uint64_t *rows;
    float *weights, *errors; /* with priorities */
    struct replay_batch batch;
};

/* ---- opening ---- */

/* The rows that a rollout adds to the buffer, at most: each step may end with a last observation. */
static uint64_t rollout_rows_max(const struct off_policy *o)
{
    return 2 * (uint64_t)o->columns * (o->job->rollout.steps + 1);
}

static enum status open_batch(struct off_policy *o, struct error *error)
{
    const size_t rows = o->job->algorithm.batch_size, seen = environment_space_bytes(&o->spec->observation);
    const size_t choices = o->spec->has_mask == 1 ? environment_choices(o->spec) : 0;
    struct replay_batch *batch = &o->batch;
    o->cut = calloc(o->columns, sizeof *o->cut);
    o->rows = calloc(rows, sizeof *o->rows);
    o->weights = calloc(rows, sizeof *o->weights);
    o->errors = calloc(rows, sizeof *o->errors);
    batch->observations = malloc(rows * seen);
    batch->next_observations = malloc(rows * seen);
    batch->actions = malloc(rows * environment_space_bytes(&o->spec->action));
    batch->masks = choices > 0 ? malloc(rows * choices) : NULL;
    batch->rewards = calloc(rows, sizeof *batch->rewards);
    batch->terminated = calloc(rows, sizeof *batch->terminated);
    return o->cut != NULL && o->rows != NULL && o->weights != NULL && o->errors != NULL &&
                   batch->observations != NULL && batch->next_observations != NULL &&
                   batch->actions != NULL && (batch->masks != NULL || choices == 0) &&
                   batch->rewards != NULL && batch->terminated != NULL
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu rows", rows);
}

/* Bytes of the last axis of one frame; a frame by itself is not kept where an agent may be absent. */
static size_t frame_bytes(const struct off_policy *o)
{
    const struct environment_space *seen = &o->spec->observation;
    const size_t element = seen->dtype == ENVIRONMENT_U8 ? 1 : sizeof(float);
    return seen->shape[seen->rank - 1] / o->job->environment.frames * element;
}

/* `resumes`: the file is there, and goes on. */
static enum status open_replay(struct off_policy *o, bool resumes, struct error *error)
{
    const struct job *job = o->job;
    const bool joins = job->environment.frames > 1 && o->spec->agents == 1;
    const uint64_t share = job->replay.rows / 32,
                   least = 3 * (job->checkpoint.keep + 2) * rollout_rows_max(o);
    const struct path run = worker_run_dir(o->worker);
    char path[sizeof o->worker->self.run_dir + sizeof "/replay.bin"];
    snprintf(path, sizeof path, "%s/replay.bin", run.text);
    const struct replay_config config = {
        .path = job->replay.save ? path : NULL,
        .below = &run,
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
    const enum status status = replay_open(&o->replay, &config, error);
    return status == STATUS_OK && job->replay.prioritized
               ? priorities_new(&o->priorities, job->replay.rows, job->replay.alpha, error)
               : status;
}

enum status off_policy_new(struct off_policy **out, const struct worker *worker,
                           const struct environment_spec *spec, struct policy *policy, struct error *error)
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
                             .columns = (observers > 0 ? observers : 1) * job->observers.environments *
                                        spec->agents};
    const enum status status = open_batch(o, error);
    return status == STATUS_OK && !worker_resumes(worker) ? open_replay(o, false, error) : status;
}

void off_policy_free(struct off_policy *o)
{
    if (o == NULL)
        return;
    replay_close(o->replay);
    priorities_free(o->priorities);
    free(o->cut);
    free(o->rows);
    free(o->weights);
    free(o->errors);
    free(o->batch.observations);
    free(o->batch.next_observations);
    free(o->batch.actions);
    free(o->batch.masks);
    free(o->batch.rewards);
    free(o->batch.terminated);
    free(o);
}

/* ---- schedules ---- */

/* How much of the job's steps is done. */
static double share_done(const struct off_policy *o, uint64_t steps)
{
    const double share = (double)steps / (double)o->job->stop.steps;
    return share < 1 ? share : 1;
}

/* The probability of a random action after so many steps. */
static double exploration_rate(const struct off_policy *o, uint64_t steps)
{
    const double first = o->job->replay.exploration_initial_eps, last = o->job->replay.exploration_final_eps;
    const double share = share_done(o, steps) / o->job->replay.exploration_fraction;
    return o->job->algorithm.name != JOB_ALGORITHM_DQN ? 0
           : share < 1                                 ? first + share * (last - first)
                                                       : last;
}

static double learning_rate(const struct off_policy *o)
{
    const bool falls = o->job->algorithm.learning_rate_schedule == JOB_SCHEDULE_LINEAR;
    return o->job->optimizer.lr * (falls ? 1 - share_done(o, o->counters.steps) : 1);
}

/* ---- the course of a rollout ---- */

void off_policy_begin(struct off_policy *o)
{
    o->taken = 0;
    o->begin = o->counters.steps;
}

uint32_t off_policy_taken(const struct off_policy *o)
{
    return o->taken;
}

uint32_t off_policy_horizon(const struct off_policy *o)
{
    const struct job_frequency *every = &o->job->replay.train_freq;
    const uint64_t left = every->episodes ? 1 : every->count - o->counters.since;
    const uint64_t horizon = o->taken - 1 + left; /* taken is 1 more than the step up to which all is known */
    return o->taken == 0 ? 0 : horizon < UINT32_MAX ? (uint32_t)horizon : UINT32_MAX;
}

uint64_t off_policy_steps(const struct off_policy *o)
{
    return o->counters.steps;
}

void off_policy_explore(struct off_policy *o, uint32_t step)
{
    const uint64_t before = o->begin + (uint64_t)step * o->columns;
    const struct policy_exploration exploration = {.is_random = before < o->job->replay.learning_starts,
                                                   .epsilon = exploration_rate(o, before),
                                                   .has_noise = true};
    policy_explore(o->policy, &exploration);
}

void off_policy_exploit(struct off_policy *o)
{
    policy_explore(o->policy, &(struct policy_exploration){0});
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
    if ((flags & ENVIRONMENT_TERMINATED) != 0)
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
    o->counters.episodes += r->flags[row] != 0;
    replay_complete(o->replay, column, r->actions + row * r->config.action_bytes, r->rewards[row], end, last);
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

/* ---- training ---- */

static enum status fit(struct off_policy *o, struct error *error)
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
    const enum status status = policy_fit(o->policy, &batch, learning_rate(o), &losses, error);
    if (status != STATUS_OK)
        return status;
    if (o->priorities != NULL)
        priorities_set(o->priorities, count, o->rows, o->errors);
    struct sums *sums = &o->sums;
    sums->fits++;
    sums->critic += losses.critic;
    if (!isnan(losses.actor)) {
        sums->actor_fits++;
        sums->actor += losses.actor;
    }
    sums->entropy_coefficient += losses.entropy_coefficient;
    sums->entropy += losses.entropy;
    return STATUS_OK;
}

/* Draws the rows of the next gradient step. False: there is no transition. */
static bool draw(struct off_policy *o, struct replay_window window)
{
    const uint32_t update = (uint32_t)policy_fits(o->policy) + 1, count = o->job->algorithm.batch_size;
    const double beta = o->job->replay.beta + (1 - o->job->replay.beta) * share_done(o, o->counters.steps);
    return o->priorities != NULL
               ? priorities_draw(o->priorities, o->job->seed, update, beta, count, o->rows, o->weights)
               : replay_draw(o->replay, window, o->job->seed, update, count, o->rows);
}

static enum status train(struct off_policy *o, uint64_t gradient_steps, policy_progress *progress,
                         void *context, struct error *error)
{
    const struct replay_window window = replay_window(o->replay);
    const struct monotime begin = monotime_now();
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    enum status status = STATUS_OK;
    if (o->priorities != NULL)
        priorities_follow(o->priorities, o->replay, window);
    for (uint64_t i = 0; i < gradient_steps && status == STATUS_OK; i++) {
        if (!draw(o, window))
            break;
        status = fit(o, error);
        progress(context);
    }
    profile_leave(before);
    o->sums.seconds += (double)monotime_us_between(begin, monotime_now()) * 1e-6;
    return status;
}

/* Counts a step of every environment. */
static enum status count_step(struct off_policy *o, struct error *error)
{
    const uint64_t interval = o->job->replay.target_update_interval / o->columns;
    struct counters *counters = &o->counters;
    counters->steps += o->columns;
    counters->since++;
    counters->calls++;
    const bool follows =
        o->job->algorithm.name == JOB_ALGORITHM_DQN && counters->calls % (interval > 0 ? interval : 1) == 0;
    return follows ? policy_follow(o->policy, error) : STATUS_OK;
}

enum status off_policy_take(struct off_policy *o, const struct rollout *rollout, policy_progress *progress,
                            void *context, struct error *error)
{
    const struct job *job = o->job;
    struct counters *counters = &o->counters;
    enum status status = append(o, rollout, error);
    if (status == STATUS_OK && o->taken++ > 0)
        status = count_step(o, error);
    if (status != STATUS_OK)
        return status;
    const bool due = job->replay.train_freq.episodes ? counters->episodes >= job->replay.train_freq.count
                                                     : counters->since >= job->replay.train_freq.count;
    if (!due)
        return STATUS_OK;
    const uint64_t steps = counters->since * o->columns;
    counters->since = counters->episodes = 0;
    if (counters->steps <= job->replay.learning_starts + o->lost)
        return STATUS_OK;
    return train(o, job->replay.gradient_steps < 0 ? steps : (uint64_t)job->replay.gradient_steps, progress,
                 context, error);
}

/* ---- report ---- */

static double mean(double sum, uint64_t count)
{
    return count > 0 ? sum / (double)count : (double)NAN;
}

double off_policy_report(struct off_policy *o, struct control_figures *figures)
{
    const struct sums sums = o->sums;
    const double critic = mean(sums.critic, sums.fits);
    o->sums = (struct sums){0};
    *figures = (struct control_figures){.algorithm = o->job->algorithm.name,
                                        .total_timesteps = o->counters.steps,
                                        .n_updates = policy_fits(o->policy),
                                        .loss = critic,
                                        .critic_loss = critic,
                                        .actor_loss = mean(sums.actor, sums.actor_fits),
                                        .ent_coef = mean(sums.entropy_coefficient, sums.fits),
                                        .ent_coef_loss = mean(sums.entropy, sums.fits),
                                        .exploration_rate = exploration_rate(o, o->counters.steps),
                                        .learning_rate = learning_rate(o)};
    return sums.seconds;
}

/* ---- checkpoints ---- */

/* In its first lap the ring overwrites nothing. */
bool off_policy_is_full(const struct off_policy *o)
{
    const uint64_t share = replay_slack(o->replay) / (o->job->checkpoint.keep + 2);
    const uint64_t more = rollout_rows_max(o);
    return o->job->replay.save && replay_next(o->replay) + more > replay_capacity(o->replay) &&
           replay_since(o->replay, o->saved) + more > share;
}

/* The newest off_policy_save's rows are those that the saver's thread flushes. */
size_t off_policy_save(struct off_policy *o, char *out)
{
    const size_t head = sizeof o->counters, replay = o->job->replay.save ? replay_save(o->replay, NULL) : 0;
    const size_t leaves = replay > 0 && o->priorities != NULL ? priorities_save(o->priorities, NULL) : 0;
    if (out == NULL)
        return head + replay + leaves;
    o->counters.replay_bytes = replay + leaves;
    o->saved = replay_next(o->replay);
    o->final = replay_window(o->replay).end;
    memcpy(out, &o->counters, head);
    if (replay > 0)
        replay_save(o->replay, out + head);
    if (leaves > 0)
        priorities_save(o->priorities, out + head + replay);
    return head + replay + leaves;
}

/* The run goes on without the rows that it had. */
static enum status begin_anew(struct off_policy *o, struct error *error)
{
    log_warning(
        "the replay buffer was not saved, or is not wanted (/replay/save): a new one is filled with %llu "
        "steps before learning goes on",
        (unsigned long long)o->job->replay.learning_starts);
    o->lost = o->counters.steps;
    return open_replay(o, false, error);
}

/* Loads the rows that the checkpoint has beside those in the file, and the priorities of all. */
static enum status load_replay(struct off_policy *o, const char *from, struct error *error)
{
    struct error why = {0};
    const uint64_t bytes = o->counters.replay_bytes;
    const enum status status = open_replay(o, true, error);
    if (status != STATUS_OK)
        return status;
    size_t loaded = replay_load(o->replay, from, bytes, &why);
    if (loaded > 0 && o->priorities != NULL)
        loaded = priorities_load(o->priorities, from + loaded, bytes - loaded, &why);
    return loaded > 0 ? STATUS_OK
                      : error_set(error, STATUS_CORRUPT,
                                  "%.300s; with --set /replay/save=false the run goes on with a new buffer",
                                  why.text);
}

size_t off_policy_load(struct off_policy *o, const char *from, size_t bytes, struct error *error)
{
    const size_t head = sizeof o->counters;
    if (bytes < head)
        return 0;
    memcpy(&o->counters, from, head);
    if (o->counters.replay_bytes > bytes - head)
        return 0;
    const bool goes_on = o->job->replay.save && o->counters.replay_bytes > 0;
    if ((goes_on ? load_replay(o, from + head, error) : begin_anew(o, error)) != STATUS_OK)
        return 0;
    o->saved = replay_next(o->replay);
    o->final = o->flushed = replay_window(o->replay).end;
    return head + o->counters.replay_bytes;
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
