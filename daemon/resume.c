/* Whether and where a run goes on. Supervisor process; its only thread. */
#include "daemon/resume.h"

#include "daemon/job_files.h"
#include "kernels/base/log.h"
#include "worker/job/job_table.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same job ---- */

/* A sentence's list of differences. The first fits in any case; of the others, what does not is left out. */
struct differences {
    char text[ERROR_TEXT_BYTES / 2];
    size_t length;
};

/* A value as JSON, malloc'ed; cJSON itself would not write every digit. */
static char *show(const cJSON *value)
{
    char number[32];
    if (!cJSON_IsNumber(value))
        return value != NULL ? cJSON_PrintUnformatted(value) : strdup("absent");
    job_number_show(number, value->valuedouble);
    return strdup(number);
}

static void add_difference(struct differences *differences, const char *pointer, const cJSON *was,
                           const cJSON *is)
{
    char *old = show(was), *new = show(is);
    size_t room = sizeof differences->text - differences->length;
    int length = snprintf(differences->text + differences->length, room, "%s%.60s (was %.60s, now %.60s)",
                          differences->length > 0 ? ", " : "", pointer, old != NULL ? old : "",
                          new != NULL ? new : "");
    if (length > 0 && (size_t)length < room)
        differences->length += (size_t)length;
    else
        differences->text[differences->length] = '\0';
    free(old);
    free(new);
}

/* cJSON's own comparison lets numbers that are near each other pass. */
static bool equal(const cJSON *a, const cJSON *b)
{
    if (a == NULL || b == NULL || a->type != b->type)
        return a == b;
    if (cJSON_IsNumber(a))
        return !(a->valuedouble < b->valuedouble || a->valuedouble > b->valuedouble);
    if (cJSON_IsString(a))
        return strcmp(a->valuestring, b->valuestring) == 0;
    const cJSON *x = a->child, *y = b->child;
    for (; x != NULL && y != NULL; x = x->next, y = y->next)
        if (!equal(x, y))
            return false;
    return x == y;
}

/* Two jobs have at most two levels of keys; a key that one kind lacks is none of the other's. */
static void compare_members(struct differences *differences, const char *parent, const cJSON *was,
                            const cJSON *is)
{
    char pointer[64];
    for (const cJSON *now = is->child; now != NULL; now = now->next) {
        const cJSON *then = cJSON_GetObjectItemCaseSensitive(was, now->string);
        snprintf(pointer, sizeof pointer, "%s/%s", parent, now->string);
        if (cJSON_IsObject(now) && cJSON_IsObject(then))
            compare_members(differences, pointer, then, now);
        else if (!equal(then, now))
            add_difference(differences, pointer, then, now);
    }
}

static cJSON *tree_of(const struct job *job)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    cJSON *tree = text != NULL ? cJSON_Parse(text) : NULL;
    free(text);
    return tree;
}

static enum status compare_jobs(const char *path, const struct job *was, const struct job *is,
                                struct error *error)
{
    struct differences differences = {0};
    cJSON *then = tree_of(was), *now = tree_of(is);
    if (then != NULL && now != NULL)
        compare_members(&differences, "", then, now);
    else
        error_set(error, STATUS_NO_MEMORY, "no memory to compare the job with %s", path);
    bool compared = then != NULL && now != NULL;
    cJSON_Delete(then);
    cJSON_Delete(now);
    if (!compared)
        return STATUS_NO_MEMORY;
    if (differences.length == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.120s is another job: %s; a resumed run may change /stop, %s/checkpoint and "
                     "/supervise alone",
                     path, differences.text, is->kind == JOB_MODEL_PARALLEL ? "" : "/log, ");
}

void resume_keep(struct job *job, const struct job *began)
{
    if (!job->trainers.has_threads) {
        job->trainers.has_threads = began->trainers.has_threads;
        job->trainers.threads = began->trainers.threads;
    }
    for (int part = 0; part < JOB_LAYERS; part++)
        if (!job->threads[part].has)
            job->threads[part] = began->threads[part];
}

enum status resume_adopt(const char *path, struct job *job, struct error *error)
{
    struct job was;
    const enum status status = job_files_of_run(&was, path, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, status, "there is no run to resume: expected %s", path);
    if (status != STATUS_OK)
        return status;
    resume_keep(job, &was);
    was.stop = job->stop;
    if (job->kind != JOB_MODEL_PARALLEL)
        was.log = job->log;
    was.checkpoint = job->checkpoint;
    was.supervise = job->supervise;
    return compare_jobs(path, &was, job, error);
}

/* ---- where it goes on ---- */

static void tell_damaged(const char *path, const char *why)
{
    log_warning("the checkpoint %s is damaged and left out: %s", path, why);
}

enum status resume_find(struct resume_point *point, const char *run_dir, struct error *error)
{
    struct checkpoint_counters counters = {0};
    *point = (struct resume_point){0};
    enum status status = checkpoint_newest(run_dir, point->checkpoint, &counters, tell_damaged, error);
    if (status == STATUS_NOT_FOUND) {
        log_info("%s has no sound checkpoint: the run begins anew, beside its own log", run_dir);
        point->checkpoint[0] = '\0';
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    point->update = counters.update;
    log_info("going on from %s", point->checkpoint);
    return STATUS_OK;
}
