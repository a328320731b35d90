/* Draws rows, takes gradient steps, and keeps the copies of the parameters that act meanwhile. */
#include "worker/reinforce/trainings.h"

#include "kernels/base/monotime.h"
#include "kernels/base/profile.h"
#include "kernels/base/region.h"
#include "worker/background.h"
#include "worker/job/job.h"
#include "worker/replay/priorities.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { QUEUE = JOB_OVERLAP_MAX + 2 }; /* trainings that may be under way */

/* Of the gradient steps since the last report. */
struct sums {
    uint64_t fits, actor_fits;
    double critic, actor, entropy_coefficient, entropy;
    double seconds;
};

struct trainings {
    struct region region;
    struct trainings_config config;
    const struct replay *replay;
    struct priorities *priorities; /* NULL: transitions are drawn evenly */
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

static enum status open_batch(struct trainings *t, struct error *error)
{
    const struct environment_spec *spec = t->config.spec;
    const size_t rows = t->config.job->algorithm.batch_size;
    const size_t seen = environment_space_bytes(&spec->observation);
    const size_t choices = spec->has_mask == 1 ? environment_choices(spec) : 0;
    struct replay_batch *batch = &t->batch;
    t->rows = region_take(&t->region, rows, sizeof *t->rows);
    t->weights = region_take(&t->region, rows, sizeof *t->weights);
    t->errors = region_take(&t->region, rows, sizeof *t->errors);
    batch->observations = region_take(&t->region, rows, seen);
    batch->next_observations = region_take(&t->region, rows, seen);
    batch->actions = region_take(&t->region, rows, environment_space_bytes(&spec->action));
    batch->masks = choices > 0 ? region_take(&t->region, rows, choices) : NULL;
    batch->rewards = region_take(&t->region, rows, sizeof *batch->rewards);
    batch->terminated = region_take(&t->region, rows, sizeof *batch->terminated);
    if (t->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu rows", rows);
    return STATUS_OK;
}

/* What acts while others learn. */
static enum status open_overlap(struct trainings *t, struct error *error)
{
    const size_t floats = policy_acting_floats(t->config.policy);
    for (uint32_t i = 0; i < QUEUE; i++)
        t->kept[i] = region_take(&t->region, floats, sizeof(float));
    if (t->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu parameters that act", floats);
    return background_open(&t->thread, t->config.rpc, "the thread that learns", error);
}

enum status trainings_new(struct trainings **out, const struct trainings_config *config, struct error *error)
{
    struct trainings *t = *out = calloc(1, sizeof *t);
    if (t == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for trainings");
    t->config = *config;
    t->overlap = config->job->algorithm.overlap;
    const enum status status = open_batch(t, error);
    return status == STATUS_OK && t->overlap > 0 ? open_overlap(t, error) : status;
}

void trainings_free(struct trainings *t)
{
    if (t == NULL)
        return;
    background_close(&t->thread);
    priorities_free(t->priorities);
    region_free(&t->region);
    free(t);
}

enum status trainings_use(struct trainings *t, const struct replay *replay, struct error *error)
{
    const struct job *job = t->config.job;
    t->replay = replay;
    return job->replay.prioritized
               ? priorities_new(&t->priorities, job->replay.rows, job->replay.alpha, error)
               : STATUS_OK;
}

/* ---- schedules ---- */

double trainings_share_done(const struct trainings *t, uint64_t steps)
{
    const double share = (double)steps / (double)t->config.job->stop.steps;
    return share < 1 ? share : 1;
}

double trainings_learning_rate(const struct trainings *t, uint64_t steps)
{
    const struct job *job = t->config.job;
    const bool falls = job->algorithm.learning_rate_schedule == JOB_SCHEDULE_LINEAR;
    return job->optimizer.lr * (falls ? 1 - trainings_share_done(t, steps) : 1);
}

/* ---- one training: on the thread, or where it is added ---- */

/* Draws the rows of the next gradient step. False: there is no transition. */
static bool draw(struct trainings *t, const struct training *training)
{
    const struct job *job = t->config.job;
    const uint32_t update = (uint32_t)policy_fits(t->config.policy) + 1, count = job->algorithm.batch_size;
    const double beta = job->replay.beta + (1 - job->replay.beta) * trainings_share_done(t, training->steps);
    return t->priorities != NULL
               ? priorities_draw(t->priorities, job->seed, update, beta, count, t->rows, t->weights)
               : replay_draw(t->replay, training->window, job->seed, update, count, t->rows);
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

static enum status fit(struct trainings *t, const struct training *training, struct error *error)
{
    const uint32_t count = t->config.job->algorithm.batch_size;
    struct policy_q_losses losses;
    const struct policy_transitions batch = {.count = count,
                                             .observations = t->batch.observations,
                                             .next_observations = t->batch.next_observations,
                                             .actions = t->batch.actions,
                                             .next_allowed = t->batch.masks,
                                             .rewards = t->batch.rewards,
                                             .terminated = t->batch.terminated,
                                             .weights = t->priorities != NULL ? t->weights : NULL,
                                             .errors = t->priorities != NULL ? t->errors : NULL};
    replay_gather(t->replay, count, t->rows, &t->batch);
    const enum status status =
        policy_fit(t->config.policy, &batch, trainings_learning_rate(t, training->steps), &losses, error);
    if (status != STATUS_OK)
        return status;
    if (t->priorities != NULL)
        priorities_set(t->priorities, count, t->rows, t->errors);
    add_losses(&t->sums, &losses);
    return STATUS_OK;
}

static enum status train(struct trainings *t, const struct training *training, policy_progress *progress,
                         void *context, struct error *error)
{
    const struct monotime begin = monotime_now();
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    enum status status = STATUS_OK;
    for (uint64_t i = 0; i < training->follows && status == STATUS_OK; i++)
        status = policy_follow(t->config.policy, error);
    if (t->priorities != NULL && training->gradient_steps > 0)
        priorities_follow(t->priorities, t->replay, training->window);
    for (uint64_t i = 0; i < training->gradient_steps && status == STATUS_OK && draw(t, training); i++) {
        status = fit(t, training, error);
        if (progress != NULL)
            progress(context);
    }
    profile_leave(before);
    t->sums.seconds += (double)monotime_us_between(begin, monotime_now()) * 1e-6;
    return status;
}

/* ---- the queue ---- */

static struct training *training_at(struct trainings *t, uint64_t number)
{
    return &t->queue[number % QUEUE];
}

/* The next one of the queue, on the thread. */
static enum status train_next(void *trainings, struct error *error)
{
    struct trainings *t = trainings;
    return train(t, training_at(t, t->done + 1), NULL, NULL, error);
}

static void keep(struct trainings *t, uint64_t version)
{
    policy_keep_acting(t->config.policy, t->kept[version % QUEUE]);
}

static void start_next(struct trainings *t)
{
    if (t->done < t->added && !background_runs(&t->thread))
        background_start(&t->thread, train_next, t);
}

void trainings_begin(struct trainings *t)
{
    assert(trainings_are_done(t));
    t->added = t->done = 0;
    t->acts_by = UINT64_MAX;
    if (t->overlap > 0)
        keep(t, 0);
}

enum status trainings_add(struct trainings *t, const struct training *training, policy_progress *progress,
                          void *context, struct error *error)
{
    t->added++;
    if (t->overlap == 0) {
        t->done++;
        return train(t, training, progress, context, error);
    }
    assert(t->added - t->done < QUEUE);
    *training_at(t, t->added) = *training;
    start_next(t);
    return STATUS_OK;
}

enum status trainings_advance(struct trainings *t, struct error *error)
{
    if (!background_runs(&t->thread))
        return STATUS_OK;
    const enum status status = background_end(&t->thread, error);
    if (status != STATUS_OK)
        return status == STATUS_AGAIN ? STATUS_OK : status;
    keep(t, ++t->done);
    start_next(t);
    return STATUS_OK;
}

uint64_t trainings_added(const struct trainings *t)
{
    return t->added;
}

uint64_t trainings_open_boundaries(const struct trainings *t)
{
    return t->done + t->overlap + 1;
}

bool trainings_are_done(const struct trainings *t)
{
    return t->done == t->added;
}

void trainings_act_behind(struct trainings *t, uint64_t boundary)
{
    const uint64_t version = boundary > t->overlap ? boundary - t->overlap : 0;
    assert(boundary < trainings_open_boundaries(t));
    if (t->overlap == 0 || version == t->acts_by)
        return;
    policy_load_acting(t->config.acting, t->kept[version % QUEUE]);
    t->acts_by = version;
}

/* ---- report ---- */

static double mean(double sum, uint64_t count)
{
    return count > 0 ? sum / (double)count : (double)NAN;
}

double trainings_report(struct trainings *t, struct control_figures *figures)
{
    const struct sums sums = t->sums;
    t->sums = (struct sums){0};
    figures->n_updates = policy_fits(t->config.policy);
    figures->loss = figures->critic_loss = mean(sums.critic, sums.fits);
    figures->actor_loss = mean(sums.actor, sums.actor_fits);
    figures->ent_coef = mean(sums.entropy_coefficient, sums.fits);
    figures->ent_coef_loss = mean(sums.entropy, sums.fits);
    return sums.seconds;
}

/* ---- priorities ---- */

size_t trainings_save(const struct trainings *t, char *out)
{
    return t->priorities != NULL ? priorities_save(t->priorities, out) : 0;
}

bool trainings_load(struct trainings *t, const char *from, size_t bytes, struct error *error)
{
    return t->priorities == NULL || priorities_load(t->priorities, from, bytes, error) > 0;
}
