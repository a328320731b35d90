/* Reads a job from its text, and writes it back. The supervisor reads the file; every worker reads the
 * resolved text. The caller's thread. */
#include "worker/job/job.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"
#include "kernels/base/thread.h"
#include "worker/job/job_reading.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one reading ---- */

static struct job_reading *reading_new(const char *origin, const char *const *overrides,
                                       size_t override_count)
{
    struct job_reading *reading =
        calloc(1, sizeof *reading + (1 + override_count) * sizeof *reading->documents);
    if (reading == NULL)
        return NULL;
    reading->kinds = JOB_KINDS_ALL;
    reading->origin = origin;
    reading->overrides = overrides;
    reading->override_count = (uint32_t)override_count;
    return reading;
}

/* Collects and judges a text, and the files that a good job names. */
static enum status reading_judge(struct job_reading *reading, const char *text, size_t length,
                                 job_files_judge *judge_files)
{
    if (length > JOB_TEXT_BYTES_MAX) {
        job_report(reading, (struct problem_place){0}, "", "longer than a job file may be (%d bytes)",
                   JOB_TEXT_BYTES_MAX);
        return STATUS_INVALID;
    }
    enum status status = job_collect(reading, text, length);
    if (status == STATUS_OK)
        status = job_check(reading);
    if (status == STATUS_OK && reading->problem_count > 0)
        status = STATUS_INVALID;
    if (status != STATUS_OK || judge_files == NULL)
        return status;
    const char *pointer;
    struct error error;
    status = judge_files(&reading->job, &pointer, &error);
    if (status != STATUS_OK) {
        const struct job_key *key = job_key_at(reading->kinds, pointer);
        job_report(reading, job_found_place(reading, &reading->found[key - job_keys]), pointer, "%s",
                   error.text);
    }
    return status;
}

/* Hands over the job, or the list of problems, and releases the reading. */
static enum status reading_end(struct job_reading *reading, enum status status, struct job *job,
                               char **problems)
{
    if (status == STATUS_OK)
        *job = reading->job;
    else if (status != STATUS_NO_MEMORY && job_problems_write(reading, problems) != STATUS_OK)
        status = STATUS_NO_MEMORY;
    for (size_t i = 0; i <= reading->override_count; i++)
        json_document_fini(&reading->documents[i]);
    free(reading);
    return status;
}

enum status job_parse(struct job *job, const char *text, size_t length, const char *origin,
                      const char *const *overrides, size_t override_count, char **problems)
{
    struct job_reading *reading = reading_new(origin, overrides, override_count);
    *problems = NULL;
    if (reading == NULL)
        return STATUS_NO_MEMORY;
    return reading_end(reading, reading_judge(reading, text, length, NULL), job, problems);
}

/* ---- from a file ---- */

/* Reads one byte more than a job may have, if the file has it. */
static enum status read_file(struct path path, char text[JOB_TEXT_BYTES_MAX + 1], size_t *length,
                             struct error *error)
{
    uint64_t bytes;
    int fd;
    enum status status = file_open(&fd, &bytes, path, error);
    if (status != STATUS_OK)
        return status;
    const ssize_t got = file_read_at(fd, text, JOB_TEXT_BYTES_MAX + 1, 0);
    if (got < 0)
        status = error_set_errno(error, errno, "%s: cannot be read", path.text);
    *length = (size_t)got;
    close(fd);
    return status;
}

enum status job_read_file(struct job *job, struct path path, const char *const *overrides,
                          size_t override_count, job_files_judge *judge_files, char **problems)
{
    char *text = malloc(JOB_TEXT_BYTES_MAX + 1), shown[4 * ERROR_TEXT_BYTES + 8];
    struct job_reading *reading;
    struct error error;
    size_t length = 0;
    *problems = NULL;
    enum status status = text != NULL ? read_file(path, text, &length, &error) : STATUS_NO_MEMORY;
    if (status == STATUS_OK) {
        reading = reading_new(path.text, overrides, override_count);
        status = reading != NULL
                     ? reading_end(reading, reading_judge(reading, text, length, judge_files), job, problems)
                     : STATUS_NO_MEMORY;
    } else if (text != NULL) {
        text_show(shown, sizeof shown, error.text, strlen(error.text), ERROR_TEXT_BYTES);
        status = asprintf(problems, "%s\n", shown) < 0 ? STATUS_NO_MEMORY : status;
    }
    free(text);
    return status;
}

/* ---- to text ---- */

/* A group's members follow it in the table. */
char *job_format(const struct job *job, size_t *bytes)
{
    char *text = NULL;
    const char *before = "{\n  ", *group = "";
    FILE *stream = open_memstream(&text, bytes);
    if (stream == NULL)
        return NULL;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        char value[JOB_WORDS_BYTES] = "";
        if ((key->kinds & JOB_KINDS_OF(job_variant(job))) == 0)
            continue;
        if (!job_key_is_member(key, group)) {
            fputs("}", stream);
            before = ",\n  ";
            group = "";
        }
        fprintf(stream, "%s\"%s\": ", before, job_key_name(key));
        if (key->type == JOB_OBJECT)
            group = key->pointer;
        else
            words_add_value(value, job, key, false);
        before = key->type == JOB_OBJECT ? "{" : group[0] == '\0' ? ",\n  " : ", ";
        fputs(value, stream);
    }
    fputs(group[0] == '\0' ? "\n}\n" : "}\n}\n", stream);
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}

/* ---- what depends on the machine ---- */

/* Replaces null by `threads`, within the bounds of the key `pointer`. */
static void default_threads(bool *has, uint32_t *count, uint32_t threads, const char *pointer)
{
    const uint32_t most = (uint32_t)job_key_at(JOB_KINDS_ALL, pointer)->max;
    if (*has)
        return;
    *has = true;
    *count = threads == 0 ? 1 : threads > most ? most : threads;
}

void job_resolve(struct job *job)
{
    const uint32_t processors = processors_count();
    if (job->kind == JOB_REINFORCE && job->policy.network == JOB_NETWORK_CNN)
        default_threads(&job->policy.has_threads, &job->policy.threads, processors, "/policy/threads");
    if (job->kind == JOB_REINFORCE)
        return;
    default_threads(&job->trainers.has_threads, &job->trainers.threads, processors / job->trainers.count,
                    "/trainers/threads");
    for (int layer = 0; layer < JOB_LAYERS && job->kind == JOB_MODEL_PARALLEL; layer++)
        default_threads(&job->threads[layer].has, &job->threads[layer].count, processors, "/threads/lstm");
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

uint64_t job_updates(const struct job *job, uint64_t epoch_updates)
{
    uint64_t updates = job->stop.has_updates ? job->stop.updates : UINT64_MAX;
    if (job->stop.has_epochs && epoch_updates > 0 && product(job->stop.epochs, epoch_updates) < updates)
        updates = product(job->stop.epochs, epoch_updates);
    return updates;
}
