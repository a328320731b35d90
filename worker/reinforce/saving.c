/* Decides when a checkpoint is due, gathers what it holds, and reads it back. The agent's thread. */
#include "worker/reinforce/saving.h"

#include "kernels/base/profile.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/model/policy.h"
#include "worker/reinforce/job_open.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct saving {
    struct saving_config config;
    struct policy_values values; /* of the newest checkpoint; the saver's until that is written */
    char *states;                /* likewise; NULL: none */
    struct checkpoint_saver saver;
};

static struct checkpoint_values values_of(const struct saving *s)
{
    return (struct checkpoint_values){.params = s->values.params, .moments = s->values.moments};
}

/* ---- environments ---- */

/* All that the next episode depends on, beside the policy, as the bytes of a checkpoint's file. In a job that
 * begins with resets: none. */
static enum status gather_states(struct saving *s, size_t *bytes, struct error *error)
{
    struct own_environments *own = s->config.own;
    free(s->states);
    s->states = NULL;
    *bytes = 0;
    if (s->config.worker->job.rollout.begin != JOB_BEGIN_CONTINUE)
        return STATUS_OK;
    struct archive sums = {0};
    recording_archive(s->config.recording, &sums, NULL);
    const size_t states =
        own != NULL ? own_environments_save(own, NULL, 0) : seats_save(s->config.seats, NULL);
    *bytes = sums.moved + states;
    s->states = malloc(*bytes);
    if (s->states == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environments' states in a checkpoint");
    sums = (struct archive){.out = s->states};
    recording_archive(s->config.recording, &sums, NULL);
    if (states > 0 && own != NULL)
        own_environments_save(own, sums.out, states);
    else if (states > 0)
        seats_save(s->config.seats, sums.out);
    return STATUS_OK;
}

/* No bytes are a checkpoint without states. STATUS_INVALID: they are another job's; the sentence begins
 * behind the path. */
static enum status spread_states(struct saving *s, const char *from, size_t bytes, struct error *error)
{
    const struct job *job = &s->config.worker->job;
    if (job->rollout.begin != JOB_BEGIN_CONTINUE || bytes == 0)
        return STATUS_OK;
    struct archive sums = {.from = from, .left = bytes};
    if (!recording_archive(s->config.recording, &sums, error))
        return error->status;
    if (s->config.own == NULL)
        return seats_load(s->config.seats, sums.from, sums.left, error);
    return sums.left > 0 ? own_environments_load(s->config.own, sums.from, sums.left, error) : STATUS_OK;
}

/* ---- resuming ---- */

static enum status check_counters(const char *path, const struct checkpoint_counters *counters,
                                  struct error *error)
{
    const int measure = counters->score.measure;
    if ((measure == CHECKPOINT_RUNNING_REWARD || measure == CHECKPOINT_EVALUATION_REWARD) &&
        counters->trainers == 1)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.300s comes from a job of another kind: expected one of the kind \"reinforce\"", path);
}

static enum status resume_states(struct saving *s, struct path path, struct error *error)
{
    struct error why;
    char *states;
    size_t bytes;
    enum status status = checkpoint_read(path, CHECKPOINT_ENVIRONMENTS, &states, &bytes, error);
    if (status == STATUS_OK && (status = spread_states(s, states, bytes, &why)) != STATUS_OK)
        error_set(error, status, "%.300s: %s", path.text, why.text);
    free(states);
    return status;
}

static enum status resume(struct saving *s, struct progress *progress, struct error *error)
{
    const struct path path = worker_resume_path(s->config.worker);
    const struct checkpoint_values values = values_of(s);
    struct checkpoint_counters counters;
    enum status status = checkpoint_facts(path, &counters, NULL, error);
    if (status == STATUS_OK)
        status = check_counters(path.text, &counters, error);
    if (status == STATUS_OK)
        status = job_check_environment(path, s->config.spec, error);
    if (status == STATUS_OK)
        status = checkpoint_load(path, &values, error);
    if (status == STATUS_OK)
        status = resume_states(s, path, error);
    if (status != STATUS_OK)
        return status;
    s->values.steps = counters.steps[0];
    progress->episode = counters.update;
    progress->running_reward = counters.running_reward;
    if (counters.score.measure == CHECKPOINT_EVALUATION_REWARD)
        progress->evaluated = counters.score.value;
    return policy_restore(s->config.policy, &s->values, error);
}

/* ---- opening and closing ---- */

enum status saving_new(struct saving **out, const struct saving_config *config, struct progress *progress,
                       struct error *error)
{
    const struct worker *worker = config->worker;
    const struct policy_config policy = policy_config_of(&worker->job, config->spec);
    struct saving *s = *out = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for checkpoints");
    s->config = *config;
    enum status status = policy_values_open(&s->values, &policy, error);
    if (status == STATUS_OK && worker_resumes(worker))
        status = resume(s, progress, error);
    if (status != STATUS_OK)
        return status;
    const struct checkpoint_saver_config saver = {.run_dir = worker_run_dir(worker),
                                                  .job = &worker->job,
                                                  .rpc = worker->rpc,
                                                  .publishes = true,
                                                  .saved = progress->episode,
                                                  .again = worker_goes_on(worker),
                                                  .flush = config->learner != NULL ? off_policy_flush : NULL,
                                                  .context = config->learner,
                                                  .published = worker_report_saved};
    return checkpoint_saver_open(&s->saver, &saver, error);
}

void saving_free(struct saving *s)
{
    if (s == NULL)
        return;
    checkpoint_saver_close(&s->saver);
    policy_values_close(&s->values);
    free(s->states);
    free(s);
}

/* ---- taking ---- */

/* What a checkpoint of now is judged by. */
static struct checkpoint_score score_of(const struct progress *progress)
{
    if (isnan(progress->evaluated))
        return (struct checkpoint_score){CHECKPOINT_RUNNING_REWARD, progress->running_reward};
    return (struct checkpoint_score){CHECKPOINT_EVALUATION_REWARD, progress->evaluated};
}

static bool follows_evaluation(const struct progress *progress)
{
    return progress->evaluated_at == progress->episode;
}

/* With evaluations, the checkpoints behind them compete. With /checkpoint/every, the checkpoints that compete
 * to be the best are the same in all equal runs: those at its multiples and at the job's end, not those by
 * the clock or at a stop. Without it, all compete. */
static bool competes(const struct job *job, const struct progress *progress, bool last, bool stopped)
{
    if (job->evaluation.has_every)
        return follows_evaluation(progress);
    return !job->checkpoint.has_every || progress->episode % job->checkpoint.every == 0 || (last && !stopped);
}

/* Copies what the checkpoint holds, and gives it to the saver. */
static enum status take(struct saving *s, const struct progress *progress, bool competing,
                        struct error *error)
{
    struct worker *worker = s->config.worker;
    struct checkpoint_values values = values_of(s);
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    enum status status = policy_save(s->config.policy, &s->values, error);
    if (status == STATUS_OK)
        status = gather_states(s, &values.environments.count, error);
    profile_leave(before);
    if (status != STATUS_OK)
        return status;
    values.environments.text = s->states;
    values.description = (struct checkpoint_bytes){s->config.description, strlen(s->config.description)};
    const struct checkpoint_saving saving = {.counters = {.update = progress->episode,
                                                          .trainers = 1,
                                                          .steps = {s->values.steps},
                                                          .score = score_of(progress),
                                                          .running_reward = progress->running_reward},
                                             .values = values,
                                             .asked = worker->save,
                                             .competes = competing};
    worker_keep_place(worker);
    worker->save = false;
    checkpoint_saver_begin(&s->saver, &saving);
    return STATUS_OK;
}

enum status saving_begin(struct saving *s, const struct progress *progress, bool last, bool stopped,
                         struct error *error)
{
    const struct job *job = &s->config.worker->job;
    const struct checkpoint_score score = score_of(progress);
    const bool judged = job->checkpoint.best && follows_evaluation(progress);
    const bool idle = saving_is_idle(s);
    if ((judged && (!idle || checkpoint_saver_improves(&s->saver, &score))) ||
        (s->config.learner != NULL && off_policy_is_full(s->config.learner)) ||
        checkpoint_saver_due(&s->saver, progress->episode, last || s->config.worker->save)) {
        if (!idle)
            return STATUS_AGAIN;
        const enum status status = take(s, progress, competes(job, progress, last, stopped), error);
        if (status != STATUS_OK)
            return status;
    }
    return checkpoint_saver_holds(&s->saver) ? STATUS_AGAIN : STATUS_OK;
}

enum status saving_advance(struct saving *s, struct error *error)
{
    const struct run_place *place = worker_kept_place(s->config.worker);
    const enum status status = checkpoint_saver_advance(&s->saver, place, error);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

bool saving_is_idle(const struct saving *s)
{
    return s->saver.state == CHECKPOINT_IDLE;
}
