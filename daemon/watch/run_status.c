/* Sums a run's records, and writes the status as JSON. Supervisor process; its only thread. */
#include "daemon/watch/run_status.h"

#include "daemon/log/json_members.h"
#include "worker/job/job_table.h"

#include <stdlib.h>
#include <string.h>

static const double round_limits_s[RUN_ROUND_BUCKETS - 1] = {1e-4, 1e-3, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                             0.25, 0.5,  1,     2.5,  5,     15,   60};

/* ---- sums ---- */

static void add_rate(struct run_totals *totals, struct monotime now)
{
    enum { SPAN_US = 1000000 };
    const uint64_t done = totals->environment_steps + totals->samples;
    const bool is_first = totals->at.ns == 0;
    const uint64_t us = monotime_us_between(totals->at, now);
    if (!is_first && us < SPAN_US)
        return;
    if (!is_first)
        totals->per_s = (double)(done - totals->before) * 1e6 / (double)us;
    totals->at = now;
    totals->before = done;
}

static void add_episode(struct run_totals *totals, const struct control_episode *episode)
{
    totals->episodes++;
    totals->environment_steps += episode->env_steps;
    totals->launches += episode->timing.launches;
    if (episode->timing.batch_max > totals->rows_most)
        totals->rows_most = episode->timing.batch_max;
    totals->launched_rows += (uint64_t)(episode->timing.batch_mean * (double)episode->timing.launches + 0.5);
    for (unsigned i = 0; i < CONTROL_BATCH_BUCKETS; i++)
        totals->batches[i] += episode->timing.batches[i];
    for (unsigned i = 0; i < CONTROL_WAIT_BUCKETS; i++)
        totals->waits[i] += episode->timing.waits[i];
    totals->wait_s += episode->timing.wait_s;
    totals->learn_s += episode->timing.learn_s;
    if (episode->has_figures && episode->figures.has_evaluation) {
        totals->has_evaluation = true;
        totals->evaluation = episode->figures.evaluation;
    }
    totals->has_episode = true;
    memcpy(&totals->episode, episode, offsetof(struct control_episode, metrics));
}

static void add_update(struct run_totals *totals, const struct control_update *update)
{
    totals->updates += totals->has_update && update->update > totals->update.update
                           ? update->update - totals->update.update
                           : 1;
    totals->samples += update->samples - update->timing.samples_before;
    totals->late += update->late;
    if (update->trainers > 0) { /* a model-parallel job has no rounds of contributions */
        totals->rounds++;
        unsigned bucket = 0;
        while (bucket < RUN_ROUND_BUCKETS - 1 && update->timing.wait_s > round_limits_s[bucket])
            bucket++;
        totals->round_waits[bucket]++;
        totals->round_wait_s += update->timing.wait_s;
    }
    for (uint32_t i = 0; i < update->trainers; i++) {
        const int behind = update->staleness[i];
        if (behind < 0)
            continue;
        totals->staleness[behind < RUN_STALENESS_BUCKETS ? behind : RUN_STALENESS_BUCKETS - 1]++;
        totals->staleness_sum += (uint64_t)behind;
    }
    totals->has_update = true;
    totals->update = *update;
}

void run_totals_add(struct run_totals *totals, const struct control_message *record, struct monotime now)
{
    if (record->kind == CONTROL_EPISODE)
        add_episode(totals, &record->body.episode);
    else if (record->kind == CONTROL_UPDATE)
        add_update(totals, &record->body.update);
    else if (record->body.epoch.evaluated > 0 || !totals->has_epoch || totals->epoch.evaluated == 0)
        totals->epoch = record->body.epoch;
    totals->has_epoch |= record->kind == CONTROL_EPOCH;
    if (record->kind != CONTROL_EPOCH)
        add_rate(totals, now);
}

/* ---- histograms ---- */

static double rows_limit(int bucket)
{
    return (double)(UINT64_C(1) << bucket);
}

static double wait_limit(int bucket)
{
    return control_wait_limits_us[bucket] * 1e-6;
}

static double round_limit(int bucket)
{
    return round_limits_s[bucket];
}

static double staleness_limit(int bucket)
{
    return bucket;
}

void run_histograms(struct run_histogram histograms[RUN_HISTOGRAMS], const struct run_totals *t)
{
    const struct run_histogram all[RUN_HISTOGRAMS] = {
        {"batch_rows", "coalescer_batch_rows", "rows", "Rows of a launch.", t->batches, CONTROL_BATCH_BUCKETS,
         rows_limit, (double)t->launched_rows},
        {"wait_s", "coalescer_wait_seconds", "seconds", "A request's wait for its launch.", t->waits,
         CONTROL_WAIT_BUCKETS, wait_limit, t->wait_s},
        {"round_wait_s", "round_wait_seconds", "seconds",
         "From the first contribution of a round to its last.", t->round_waits, RUN_ROUND_BUCKETS,
         round_limit, t->round_wait_s},
        {"staleness", "staleness_versions", "versions",
         "How many versions old the model of a contribution was.", t->staleness, RUN_STALENESS_BUCKETS,
         staleness_limit, (double)t->staleness_sum}};
    memcpy(histograms, all, sizeof all);
}

/* ---- JSON ---- */

void run_status_write_string(FILE *out, const char *text)
{
    cJSON *string = cJSON_CreateStringReference(text);
    char *quoted = cJSON_PrintUnformatted(string);
    cJSON_Delete(string);
    fputs(quoted != NULL ? quoted : "\"\"", out);
    cJSON_free(quoted);
}

static double rate_of(const struct run_totals *totals)
{
    return totals->per_s > 0 ? totals->per_s : (double)NAN;
}

static void put_use(cJSON *object, const struct worker_status *w)
{
    json_put(object, "work", (double)w->use.work);
    json_put(object, "work_per_s", w->work_per_s);
    json_put(object, "cpu_s", (double)w->use.cpu_us * 1e-6);
    json_put(object, "cores", w->cores);
    json_put(object, "resident_bytes", (double)w->use.resident_bytes);
    json_put(object, "queue", w->use.queue);
    cJSON *dropped = cJSON_AddObjectToObject(object, "dropped");
    json_put(dropped, "bad", (double)w->use.bad);
    json_put(dropped, "strangers", (double)w->use.strangers);
    json_put(dropped, "duplicates", (double)w->use.duplicates);
    json_put(dropped, "stale", (double)w->use.stale);
    json_put(dropped, "timeouts", (double)w->use.timeouts);
}

static void put_worker(cJSON *list, const struct worker_status *w)
{
    cJSON *object = cJSON_CreateObject();
    json_put(object, "worker", w->worker);
    cJSON_AddStringToObject(object, "role", w->role);
    cJSON_AddStringToObject(object, "state", w->state);
    json_put(object, "pid", w->pid > 0 ? (double)w->pid : (double)NAN);
    json_put(object, "host", w->host);
    cJSON_AddStringToObject(object, "host_name", w->host_name);
    json_put(object, "incarnation", w->incarnation);
    json_put(object, "restarts", w->restarts);
    json_put(object, "wait_s", w->wait_s);
    json_put(object, "staleness", w->staleness);
    if (w->has_use)
        put_use(object, w);
    cJSON_AddItemToArray(list, object);
}

static void put_episode(cJSON *progress, const struct run_status *status)
{
    const struct run_totals *totals = status->totals;
    json_put(progress, "episode", (double)status->update);
    json_put(progress, "running_reward", status->running_reward);
    json_put(progress, "reward", totals->has_episode ? totals->episode.reward : (double)NAN);
    json_put(progress, "loss", totals->has_episode ? totals->episode.loss : (double)NAN);
    json_put(progress, "environment_steps", (double)totals->environment_steps);
    json_put(progress, "steps_per_s", rate_of(totals));
    json_put(progress, "batch_rows",
             totals->launches > 0 && totals->launched_rows == totals->launches * totals->rows_most
                 ? (double)totals->rows_most
                 : (double)NAN);
    json_put(progress, "batch_mean", totals->has_episode ? totals->episode.timing.batch_mean : (double)NAN);
    json_put(progress, "wait_us_p50", totals->has_episode ? totals->episode.timing.wait_us_p50 : (double)NAN);
    json_put(progress, "wait_us_p99", totals->has_episode ? totals->episode.timing.wait_us_p99 : (double)NAN);
}

static void put_update(cJSON *progress, const struct run_status *status)
{
    const struct run_totals *totals = status->totals;
    const struct control_epoch *epoch = &totals->epoch;
    const bool is_language = status->job->kind == JOB_MODEL_PARALLEL;
    json_put(progress, "update", (double)status->update);
    json_put(progress, "loss", totals->has_update ? totals->update.loss : (double)NAN);
    json_put(progress, "learning_rate", totals->has_update ? totals->update.lr : (double)NAN);
    json_put(progress, is_language ? "tokens" : "samples", (double)totals->samples);
    json_put(progress, is_language ? "tokens_per_s" : "samples_per_s", rate_of(totals));
    json_put(progress, "late", (double)totals->late);
    if (!totals->has_epoch)
        return;
    json_put(progress, "epoch", (double)epoch->epoch);
    if (epoch->evaluated == 0)
        return;
    json_put(progress, "evaluation_loss", epoch->evaluation_loss);
    if (is_language)
        json_put(progress, "perplexity", exp(epoch->evaluation_loss));
    else
        json_put(progress, "accuracy", (double)epoch->correct / (double)epoch->evaluated);
}

static void put_end(cJSON *object, const struct progress *progress)
{
    if (progress->unit == NULL)
        return;
    cJSON_AddStringToObject(object, "unit", progress->unit);
    json_put(object, "done", (double)progress->done);
    json_put(object, "total", progress->total > 0 ? (double)progress->total : (double)NAN);
    json_put(object, "goal", progress->goal);
    json_put(object, "eta_s", progress->eta_s);
}

static void put_evaluating(cJSON *object, const struct progress *progress)
{
    if (!progress_evaluates(progress))
        return;
    cJSON *evaluating = cJSON_AddObjectToObject(object, "evaluating");
    json_put(evaluating, "done", progress->evaluating.done);
    json_put(evaluating, "total", progress->evaluating.total);
}

/* People read "evaluating 37/100" in place of "training". Programs have progress.evaluating. */
static void put_state(cJSON *root, const struct run_status *status)
{
    const struct control_share *evaluating = &status->progress->evaluating;
    char text[64];
    const bool is_training = strcmp(status->state, "training") == 0;
    snprintf(text, sizeof text, "evaluating %u/%u", evaluating->done, evaluating->total);
    cJSON_AddStringToObject(root, "state",
                            is_training && progress_evaluates(status->progress) ? text : status->state);
}

static void put_histograms(cJSON *object, const struct run_totals *totals)
{
    struct run_histogram all[RUN_HISTOGRAMS];
    run_histograms(all, totals);
    for (int i = 0; i < RUN_HISTOGRAMS; i++) {
        if ((i < RUN_FIRST_ROUND_HISTOGRAM ? totals->launches : totals->rounds) == 0)
            continue;
        cJSON *list = cJSON_AddArrayToObject(object, all[i].member);
        for (int bucket = 0; bucket < all[i].buckets; bucket++) {
            cJSON *pair = cJSON_CreateArray();
            cJSON_AddItemToArray(pair, bucket + 1 < all[i].buckets ? cJSON_CreateNumber(all[i].limit(bucket))
                                                                   : cJSON_CreateNull());
            cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)all[i].counts[bucket]));
            cJSON_AddItemToArray(list, pair);
        }
    }
}

char *run_status_json(const struct run_status *status)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "run", status->path);
    cJSON_AddStringToObject(root, "name", status->job->name);
    cJSON_AddStringToObject(root, "kind", job_kind_name(status->job->kind));
    put_state(root, status);
    json_put(root, "pid", status->pid);
    cJSON_AddStringToObject(root, "version", COALESCED_VERSION);
    json_put(root, "started_unix_s", status->started_unix_s);
    json_put(root, "up_s", status->up_s);
    json_put(root, "generation", status->generation);
    json_put(root, "checkpoint", status->checkpoint > 0 ? (double)status->checkpoint : (double)NAN);
    json_put(root, "checkpoint_age_s", status->checkpoint_age_s);
    cJSON *progress = cJSON_AddObjectToObject(root, "progress");
    if (status->job->kind == JOB_REINFORCE)
        put_episode(progress, status);
    else
        put_update(progress, status);
    put_end(progress, status->progress);
    put_evaluating(progress, status->progress);
    put_histograms(cJSON_AddObjectToObject(root, "histograms"), status->totals);
    cJSON *workers = cJSON_AddArrayToObject(root, "workers");
    for (uint32_t i = 0; i < status->worker_count; i++)
        put_worker(workers, &status->workers[i]);
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    const size_t length = text != NULL ? strlen(text) : 0;
    char *line = text != NULL ? realloc(text, length + 2) : NULL;
    if (line != NULL)
        memcpy(line + length, "\n", 2);
    else
        free(text);
    return line;
}
