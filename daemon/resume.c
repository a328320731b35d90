/* Compares jobs, and finds checkpoints. Supervisor process; its only thread. */
#include "daemon/resume.h"

#include "daemon/job_files.h"
#include "kernels/base/log.h"
#include "worker/job/job_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same job ---- */

/* The differences that the message lists. The first always fits; a later one that does not is left out. */
struct differences {
    char text[ERROR_TEXT_BYTES / 2];
    size_t length;
};

/* Adds the value at `pointer` as JSON; equal values have equal words. */
static void add_value(char words[JOB_WORDS_BYTES], const struct job *job, const char *pointer)
{
    const struct job_key *key = job_key_at(JOB_KINDS_OF(job_variant(job)), pointer);
    if (key == NULL)
        words_add(words, "absent");
    else
        words_add_value(words, job, key, true);
}

static void add_difference(struct differences *differences, const char *pointer, const char *was,
                           const char *is)
{
    const size_t room = sizeof differences->text - differences->length;
    const int length =
        snprintf(differences->text + differences->length, room, "%s%.60s (was %.60s, now %.60s)",
                 differences->length > 0 ? ", " : "", pointer, was, is);
    if (length > 0 && (size_t)length < room)
        differences->length += (size_t)length;
    else
        differences->text[differences->length] = '\0';
}

static void compare_key(struct differences *differences, const char *pointer, const struct job *was,
                        const struct job *is)
{
    char old[JOB_WORDS_BYTES] = "", new[JOB_WORDS_BYTES] = "";
    add_value(old, was, pointer);
    add_value(new, is, pointer);
    if (strcmp(old, new) != 0)
        add_difference(differences, pointer, old, new);
}

static enum status compare_jobs(const char *path, const struct job *was, const struct job *is,
                                struct error *error)
{
    struct differences differences = {0};
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & JOB_KINDS_OF(job_variant(is))) != 0 && job_keys[i].type != JOB_OBJECT)
            compare_key(&differences, job_keys[i].pointer, was, is);
    if (differences.length == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.120s is another job: %s; a resumed run may change /stop, %s/checkpoint, "
                     "/supervise, /hosts, /listen and /metrics alone",
                     path, differences.text, is->kind == JOB_MODEL_PARALLEL ? "" : "/log, ");
}

void resume_keep(struct job *job, const struct job *began)
{
    if (!job->trainers.has_threads) {
        job->trainers.has_threads = began->trainers.has_threads;
        job->trainers.threads = began->trainers.threads;
    }
    if (!job->policy.has_threads) {
        job->policy.has_threads = began->policy.has_threads;
        job->policy.threads = began->policy.threads;
    }
    for (int layer = 0; layer < JOB_LAYERS; layer++)
        if (!job->threads[layer].has)
            job->threads[layer] = began->threads[layer];
}

enum status resume_adopt(struct path path, struct job *job, struct error *error)
{
    struct job was;
    const enum status status = job_files_of_run(&was, path, error);
    if (status != STATUS_OK)
        return status;
    resume_keep(job, &was);
    was.stop = job->stop;
    if (job->kind != JOB_MODEL_PARALLEL)
        was.log = job->log;
    was.log.profile = job->log.profile;
    was.checkpoint = job->checkpoint;
    was.supervise = job->supervise;
    was.hosts = job->hosts;
    was.metrics = job->metrics;
    return compare_jobs(path.text, &was, job, error);
}

/* ---- the checkpoint ---- */

static void warn_damaged(const char *path, const char *why)
{
    log_warning("the checkpoint %s is damaged and skipped: %s", path, why);
}

enum status resume_find(struct resume_point *point, struct path run, uint64_t covered, struct error *error)
{
    struct checkpoint_counters counters = {0};
    *point = (struct resume_point){0};
    enum status status = checkpoint_set_aside(run, covered, error);
    if (status != STATUS_OK)
        return status;
    status = checkpoint_newest(run, point->checkpoint, &counters, warn_damaged, error);
    if (status == STATUS_NOT_FOUND) {
        log_info("%s has no sound checkpoint: the run starts again from its beginning and compares its log",
                 run.text);
        point->checkpoint[0] = '\0';
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    point->update = counters.update;
    point->running_reward = counters.running_reward;
    log_info("going on from %s", point->checkpoint);
    return STATUS_OK;
}
