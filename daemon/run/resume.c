/* Compares a job with the run's, and finds the checkpoint from which a run goes on. Supervisor process; its
 * only thread. */
#include "daemon/run/resume.h"

#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "worker/job/job_table.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the same job ---- */

enum { DIFFERENCES_BYTES = ERROR_TEXT_BYTES / 2 }; /* that the message lists */

/* Adds the value at `pointer` as JSON; equal values have equal words. */
static void add_value(char words[JOB_WORDS_BYTES], const struct job *job, const char *pointer)
{
    const struct job_key *key = job_key_at(JOB_KINDS_OF(job_variant(job)), pointer);
    if (key == NULL)
        words_add(words, "absent");
    else
        words_add_value(words, job, key, true);
}

/* Whether a run's numbers depend on the key. */
static bool key_decides(const struct job_key *key, const struct job *job)
{
    static const char *const free_groups[] = {"/stop/",    "/checkpoint/", "/supervise/", "/hosts/",
                                              "/metrics/", "/listen",      "/replay/",    "/log/"};
    const size_t groups = sizeof free_groups / sizeof free_groups[0];
    const bool log_decides = job->kind == JOB_MODEL_PARALLEL && strcmp(key->pointer, "/log/profile") != 0;
    if ((key->kinds & JOB_KINDS_OF(job_variant(job))) == 0 || key->type == JOB_OBJECT)
        return false;
    for (size_t i = 0; i < groups - (log_decides ? 1 : 0); i++)
        if (strncmp(key->pointer, free_groups[i], strlen(free_groups[i])) == 0)
            return false;
    return true;
}

static enum status compare_jobs(const char *path, const struct job *was, const struct job *is,
                                struct error *error)
{
    char list[DIFFERENCES_BYTES] = "";
    size_t length = 0;
    for (size_t i = 0; i < job_key_count; i++) {
        char old[JOB_WORDS_BYTES] = "", new[JOB_WORDS_BYTES] = "", text[DIFFERENCES_BYTES];
        const char *pointer = job_keys[i].pointer;
        if (!key_decides(&job_keys[i], is))
            continue;
        add_value(old, was, pointer);
        add_value(new, is, pointer);
        const int more = snprintf(text, sizeof text, "%s%.60s (was %.60s, now %.60s)", length > 0 ? ", " : "",
                                  pointer, old, new);
        if (strcmp(old, new) == 0 || length + (size_t)more >= DIFFERENCES_BYTES)
            continue; /* the first always fits; a later one that does not is left out */
        memcpy(list + length, text, (size_t)more + 1);
        length += (size_t)more;
    }
    if (list[0] == '\0')
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.120s is another job: %s; a resumed run may change /stop, %s%s/checkpoint, "
                     "/supervise, /hosts, /listen and /metrics alone",
                     path, list, is->kind == JOB_MODEL_PARALLEL ? "" : "/log, ",
                     job_is_off_policy(is) ? "/replay, " : "");
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

enum status resume_read_job(struct job *job, struct path path, struct error *error)
{
    char *problems = NULL;
    enum status status = job_read_file(job, path, NULL, 0, NULL, &problems);
    if (status != STATUS_OK) {
        const char *why = problems != NULL ? problems : status_name(status);
        status = error_set(error, status == STATUS_INVALID ? STATUS_CORRUPT : status,
                           "the job of the run cannot be read: %.*s", (int)strcspn(why, "\n"), why);
    }
    free(problems);
    return status;
}

enum status resume_adopt(struct path path, struct job *job, struct error *error)
{
    struct job was;
    const enum status status = resume_read_job(&was, path, error);
    if (status != STATUS_OK)
        return status;
    resume_keep(job, &was);
    return compare_jobs(path.text, &was, job, error);
}

/* A key with its default value is left out: a later version may have more keys. */
struct run_identity resume_identity(const struct job *job)
{
    struct run_identity identity = {.seed = job->seed};
    struct job defaults;
    crypto_hash_sha256_state sum;
    crypto_hash_sha256_init(&sum);
    job_defaults(&defaults, JOB_KINDS_OF(job_variant(job)));
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        char words[JOB_WORDS_BYTES] = "", by_default[JOB_WORDS_BYTES] = "";
        if (!key_decides(key, job))
            continue;
        words_add(words, "%s ", key->pointer);
        words_add(by_default, "%s ", key->pointer);
        words_add_value(words, job, key, true);
        words_add_value(by_default, &defaults, key, true);
        if (strcmp(words, by_default) != 0)
            crypto_hash_sha256_update(&sum, (const unsigned char *)words, strlen(words) + 1);
    }
    crypto_hash_sha256_final(&sum, identity.numbers);
    randombytes_buf(identity.id, sizeof identity.id);
    return identity;
}

static enum status judge_by_numbers(void *context, const struct run_place *place, struct error *why)
{
    const struct run_identity *identity = context;
    if (memcmp(place->run.numbers, identity->numbers, sizeof identity->numbers) == 0)
        return STATUS_OK;
    return error_set(why, STATUS_CORRUPT, "it is of another job");
}

bool resume_recognizes(struct path run, const struct job *job)
{
    char checkpoint[CHECKPOINT_PATH_BYTES];
    struct checkpoint_counters counters;
    struct run_place place;
    struct error unused;
    struct job resolved = *job;
    job_resolve(&resolved);
    struct run_identity identity = resume_identity(&resolved);
    const struct checkpoint_judge judge = {.fits = judge_by_numbers, .context = &identity};
    return checkpoint_newest(run, &judge, checkpoint, &counters, &place, &unused) == STATUS_OK;
}

/* ---- the checkpoint ---- */

/* What the search judges checkpoints by. */
struct search {
    struct runlog *log;
    unsigned least;       /* so many logs must confirm the place */
    struct error foreign; /* why the newest one that is another run's is; STATUS_OK: there is none */
};

static void search_warn(void *context, const char *path, const char *why)
{
    const struct search *search = context;
    if (search->least == RUN_LOGS)
        log_warning("the checkpoint %s is skipped: %s", path, why);
}

static enum status search_judge(void *context, const struct run_place *place, struct error *why)
{
    struct search *search = context;
    const enum status status = runlog_owns(search->log, place, why);
    if (status != STATUS_OK && search->foreign.status == STATUS_OK)
        search->foreign = *why;
    return status == STATUS_OK ? runlog_confirm(search->log, place, search->least, why) : status;
}

/* With each round fewer logs need confirm a checkpoint. */
static enum status resume_find(struct resume_point *point, struct path run, struct runlog *log,
                               struct error *error)
{
    struct checkpoint_counters counters = {0};
    struct search search = {.log = log, .least = RUN_LOGS};
    const struct checkpoint_judge judge = {search_judge, search_warn, &search};
    *point = (struct resume_point){0};
    enum status status = checkpoint_newest(run, &judge, point->checkpoint, &counters, &point->place, error);
    while (status == STATUS_NOT_FOUND && search.least-- > 0)
        status = checkpoint_newest(run, &judge, point->checkpoint, &counters, &point->place, error);
    if (status != STATUS_OK)
        point->checkpoint[0] = '\0';
    if (status == STATUS_NOT_FOUND && search.foreign.status != STATUS_OK)
        return error_set(error, STATUS_INVALID,
                         "%.300s/checkpoints has no checkpoint of this run, but another run's: %.150s",
                         run.text, search.foreign.text);
    point->update = counters.update;
    point->running_reward = counters.running_reward;
    return status;
}

enum status resume_go_back(struct resume_point *point, struct path run, struct runlog *log,
                           const struct line_restart *cause, struct error *error)
{
    enum status status = resume_find(point, run, log, error);
    const bool found = status == STATUS_OK;
    if (found)
        log_info("going on from %s", point->checkpoint);
    else if (status == STATUS_NOT_FOUND)
        log_info("%s has no sound checkpoint: the run starts again from its beginning", run.text);
    else
        return status;
    status = checkpoint_set_aside(run, point->update, error);
    return status == STATUS_OK ? runlog_resume(log, found ? &point->place : NULL, point->update,
                                               point->running_reward, cause, error)
                               : status;
}

/* ---- the end ---- */

char *resume_last_line(struct path run)
{
    struct error unused;
    int fd;
    if (file_open_below(&fd, run, run_log_name(RUN_LOG_JSON), O_RDONLY, &unused) != STATUS_OK)
        return NULL;
    const off_t size = lseek(fd, 0, SEEK_END);
    char *tail = calloc(1, RUNLOG_LINE_BYTES + 1);
    if (tail != NULL) {
        const uint64_t at = size > RUNLOG_LINE_BYTES ? (uint64_t)size - RUNLOG_LINE_BYTES : 0;
        const ssize_t bytes = file_read_at(fd, tail, RUNLOG_LINE_BYTES, at);
        const size_t end = bytes > 0 && tail[bytes - 1] == '\n' ? (size_t)bytes - 1 : 0;
        const char *before = memrchr(tail, '\n', end);
        tail[end] = '\0';
        if (before != NULL)
            memmove(tail, before + 1, end - (size_t)(before - tail));
    }
    close(fd);
    return tail;
}

bool resume_is_over(const char *run_dir, const struct job *job)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct error error;
    struct job wanted = *job;
    const int dir_fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *line = dir_fd >= 0 ? resume_last_line(path_of_folder(dir_fd, run_dir)) : NULL;
    snprintf(path, sizeof path, "%s/job.json", run_dir);
    const bool is_over =
        line != NULL && runlog_ends_job(line, job) &&
        resume_adopt(path_below(path_of_folder(dir_fd, run_dir), path), &wanted, &error) == STATUS_OK;
    free(line);
    if (dir_fd >= 0)
        close(dir_fd);
    return is_over;
}
