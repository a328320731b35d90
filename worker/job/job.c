/* Reading a job: the order of things. Runs in the supervisor, which has the file, and in every worker, which
 * is handed the resolved text; always on the caller's thread. */
#include "worker/job/job.h"

#include "kernels/base/file.h"
#include "kernels/base/processors.h"
#include "worker/job/job_reading.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- from text ---- */

/* Adds the one problem of a job that has been read before. */
static void report_fault(struct job_reading *reading, const struct job_fault *fault)
{
    const struct job_found *found = &reading->found[job_key_at(reading->kinds, fault->pointer) - job_keys];
    problem_list_fini(&reading->problems);
    job_report(reading, found->document,
               found->present ? reading->documents[found->document].nodes[found->node].value
                              : (struct json_span){0},
               fault->pointer, "%s", fault->text);
}

/* Reads a job and judges it; with `fault`, says where that is instead. */
static enum status read_text(struct job *job, const char *text, size_t length, const char *origin,
                             const char *const *overrides, size_t override_count,
                             const struct job_fault *fault, struct job_problems *problems)
{
    *problems = (struct job_problems){0};
    struct job result;
    struct job_reading reading = {.job = &result,
                                  .kinds = JOB_KINDS_ALL,
                                  .overrides = overrides,
                                  .override_count = (uint32_t)override_count};
    reading.documents = calloc(1 + override_count, sizeof *reading.documents);
    enum status status = reading.documents == NULL ? STATUS_NO_MEMORY : STATUS_OK;
    if (status == STATUS_OK && length > JOB_TEXT_BYTES_MAX)
        problem_list_add(&reading.problems, (struct problem_place){0},
                         "longer than a job file may be (%d bytes)", JOB_TEXT_BYTES_MAX);
    else if (status == STATUS_OK)
        status = job_collect(&reading, text, length);
    if (status == STATUS_OK && fault != NULL)
        report_fault(&reading, fault);
    else if (status == STATUS_OK)
        job_check(&reading, origin);
    if (status == STATUS_OK)
        status = problem_list_write(&reading.problems, origin, overrides, problems);
    if (status == STATUS_OK && problems->count > 0)
        status = STATUS_INVALID;
    if (status == STATUS_OK)
        *job = result;
    for (size_t i = 0; reading.documents != NULL && i <= override_count; i++)
        json_document_fini(&reading.documents[i]);
    free(reading.documents);
    problem_list_fini(&reading.problems);
    return status;
}

enum status job_parse(struct job *job, const char *text, size_t length, const char *origin,
                      const char *const *overrides, size_t override_count, struct job_problems *problems)
{
    return read_text(job, text, length, origin, overrides, override_count, NULL, problems);
}

/* ---- from a file ---- */

/* Opens a file that can be read to its end. A FIFO would make open wait without O_NONBLOCK. */
static enum status open_file(int *out, const char *path, struct error *error)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return error_set_errno(error, errno, "cannot be opened");
    struct stat about;
    enum status status = STATUS_OK;
    if (fstat(descriptor, &about) != 0)
        status = error_set_errno(error, errno, "cannot be examined");
    else if (!S_ISREG(about.st_mode))
        status = error_set(error, STATUS_INVALID, "expected a regular file, got %s",
                           S_ISDIR(about.st_mode) ? "a directory" : "something else");
    else if (about.st_size > JOB_TEXT_BYTES_MAX)
        status =
            error_set(error, STATUS_INVALID, "longer than a job file may be (%d bytes)", JOB_TEXT_BYTES_MAX);
    if (status != STATUS_OK)
        close(descriptor);
    else
        *out = descriptor;
    return status;
}

static enum status read_file(struct job *job, const char *path, const char *const *overrides,
                             size_t override_count, const struct job_fault *fault,
                             struct job_problems *problems)
{
    *problems = (struct job_problems){0};
    struct error error = {0};
    int descriptor = -1;
    ssize_t length = 0;
    char *text = malloc(JOB_TEXT_BYTES_MAX + 1);
    if (text == NULL)
        return STATUS_NO_MEMORY;
    enum status status = open_file(&descriptor, path, &error);
    if (status == STATUS_OK) {
        /* One byte more than a job may have: a file that grows meanwhile is found too long. */
        length = file_read_at(descriptor, text, JOB_TEXT_BYTES_MAX + 1, 0);
        if (length < 0)
            status = error_set_errno(&error, errno, "cannot be read");
        close(descriptor);
    }
    if (status == STATUS_OK) {
        status = read_text(job, text, (size_t)length, path, overrides, override_count, fault, problems);
    } else {
        struct problem_list list = {0};
        problem_list_add(&list, (struct problem_place){0}, "%s", error.text);
        if (problem_list_write(&list, path, overrides, problems) != STATUS_OK)
            status = STATUS_NO_MEMORY;
        problem_list_fini(&list);
    }
    free(text);
    return status;
}

enum status job_read_file(struct job *job, const char *path, const char *const *overrides,
                          size_t override_count, struct job_problems *problems)
{
    return read_file(job, path, overrides, override_count, NULL, problems);
}

void job_explain_fault(const char *path, const char *const *overrides, size_t override_count,
                       const struct job_fault *fault, struct job_problems *problems)
{
    struct job unused;
    read_file(&unused, path, overrides, override_count, fault, problems);
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
    if (job->kind == JOB_REINFORCE)
        return;
    const uint32_t processors = processors_count();
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
