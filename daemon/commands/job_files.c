/* Opens the files that a job names, and reads the job of a checkpoint. The command's process, before it
 * forks. */
#include "daemon/commands/job_files.h"

#include "daemon/process/python_program.h"
#include "daemon/run/resume.h"
#include "daemon/run/rundir.h"
#include "daemon/watch/listener.h"
#include "kernels/base/log.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/dataset.h"
#include "worker/data_parallel/schedule.h"
#include "worker/environment/environment_load.h"
#include "worker/job/job_table.h"
#include "worker/model/classifier.h"
#include "worker/model_parallel/parallel_data.h"
#include "worker/reinforce/job_open.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files of a job ---- */

static enum status check_python(const struct job *job, struct error *error)
{
    struct python_worker python_worker;
    return python_worker_find(&python_worker, job, error);
}

/* The key that the sentence begins with, "/policy/network: expected …", is cut off and returned; where it
 * begins with none, `otherwise`. */
static const char *cut_pointer(struct error *error, const char *otherwise)
{
    const size_t length = strcspn(error->text, ":");
    for (size_t i = 0; i < job_key_count; i++) {
        const char *pointer = job_keys[i].pointer;
        if (strlen(pointer) == length && memcmp(pointer, error->text, length) == 0) {
            const char *rest = error->text + length + strspn(error->text + length, ": ");
            memmove(error->text, rest, strlen(rest) + 1);
            return pointer;
        }
    }
    return otherwise;
}

/* A built-in environment can be opened here, and says whether the job's policy fits. */
static enum status check_built_in(const struct job *job, const char **pointer, struct error *error)
{
    struct environments *one = NULL;
    *pointer = "/environment/name";
    enum status status = environment_check_built_in(job->environment.name, error);
    if (status != STATUS_OK)
        return status;
    *pointer = "/environment/options";
    status = job_environments_open(&one, job, 0, 1, error);
    if (status == STATUS_OK) {
        const struct policy_config config = policy_config_of(job, environments_spec(one));
        status = policy_check(&config, error);
        if (status != STATUS_OK)
            *pointer = cut_pointer(error, "/policy");
    }
    environments_close(one);
    return status;
}

/* The observers load a plug-in, this process does not: its code could take the supervisor down. */
static enum status check_environment(const struct job *job, const char **pointer, struct error *error)
{
    if (job_has_python_environments(job)) {
        *pointer = "/environment/python";
        return check_python(job, error);
    }
    if (!job->environment.has_plugin)
        return check_built_in(job, pointer, error);
    *pointer = "/environment/plugin";
    return environment_check_file(job->environment.plugin, error);
}

static enum status check_init(const struct job *job, const struct rnn_config *rnn, const char **pointer,
                              struct error *error)
{
    if (!job->init.has_path)
        return STATUS_OK;
    const enum status status = model_file_check(job->init.path, job, rnn, error);
    if (status != STATUS_OK)
        *pointer = "/init";
    return status;
}

/* Where a class has the images, nothing can be opened here: then the schedule is empty. */
static enum status open_images(struct schedule *schedule, struct dataset_info *info, const struct job *job,
                               const char **pointer, struct error *error)
{
    *schedule = (struct schedule){0};
    if (job->data.kind == JOB_DATA_CLASS) // the trainers say its size, to the servers
        return STATUS_OK;
    const enum status status = dataset_probe(info, job, error);
    *pointer = status == STATUS_OK ? "/trainers/batch" : "/data/path";
    return status == STATUS_OK ? schedule_of(schedule, job, info, error) : status;
}

static enum status check_images(const struct job *job, const char **pointer, struct error *error)
{
    struct dataset_info info = {0};
    struct schedule schedule;
    enum status status = open_images(&schedule, &info, job, pointer, error);
    if (status != STATUS_OK)
        return status;
    /* A warning and no error, for /evaluation/every has a default. Synthetic data has no folder. */
    if (job->evaluation.has_every && info.evaluation == 0 && job->data.kind == JOB_DATA_FOLDER)
        log_warning("%.300s has no folder test: nothing is evaluated, though /evaluation/every is %" PRIu64
                    ": expected that folder, or null",
                    job->data.path, job->evaluation.every);
    *pointer = "/trainers/python";
    status = check_python(job, error);
    return status == STATUS_OK ? check_init(job, NULL, pointer, error) : status;
}

static enum status check_text(const struct job *job, const char **pointer, struct error *error)
{
    struct parallel_data data;
    enum status status = parallel_data_open(&data, job, NULL, error);
    *pointer = "/data/path";
    if (status == STATUS_OK)
        status = parallel_data_check(&data, error);
    if (status == STATUS_OK)
        status = check_init(job, &data.rnn, pointer, error);
    parallel_data_close(&data);
    return status;
}

enum status job_files_check(const struct job *job, const char **pointer, struct error *error)
{
    const enum status status = listener_check(job, pointer, error);
    if (status != STATUS_OK)
        return status;
    *pointer = NULL;
    if (job->kind == JOB_PARAMETER_SERVER)
        return check_images(job, pointer, error);
    if (job->kind == JOB_MODEL_PARALLEL)
        return check_text(job, pointer, error);
    return check_environment(job, pointer, error);
}

enum status job_files_epoch_updates(uint64_t *updates, const struct job *job, struct error *error)
{
    struct dataset_info info;
    struct schedule schedule = {0};
    struct parallel_data data = {0};
    const char *pointer;
    enum status status = STATUS_OK;
    if (job->kind == JOB_PARAMETER_SERVER)
        status = open_images(&schedule, &info, job, &pointer, error);
    if (job->kind == JOB_MODEL_PARALLEL) {
        status = parallel_data_open(&data, job, NULL, error);
        parallel_data_close(&data);
    }
    *updates = schedule.epoch_updates + data.epoch_updates;
    return status;
}

/* ---- the job of a run or checkpoint ---- */

enum status job_files_check_folder(const char *checkpoint, struct error *error)
{
    struct stat info;
    if (stat(checkpoint, &info) != 0)
        return error_set_errno(error, errno, "%.300s", checkpoint);
    if (!S_ISDIR(info.st_mode))
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a run's or a checkpoint's folder, or a job file behind it",
                         checkpoint);
    char path[CHECKPOINT_PATH_BYTES];
    const int length = snprintf(path, sizeof path, "%s/manifest.json", checkpoint);
    if ((size_t)length < sizeof path && stat(path, &info) != 0 && errno == ENOENT)
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: there is no manifest.json in it, expected a run's folder, or a "
                         "checkpoint's, RUN/checkpoints/NUMBER",
                         checkpoint);
    return STATUS_OK;
}

/* Whether there is FOLDER/NAME. */
static bool has_entry(const char *folder, const char *name)
{
    char path[CHECKPOINT_PATH_BYTES];
    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           access(path, F_OK) == 0;
}

const char *job_files_find_checkpoint(struct job_files_found *found, const char *name, struct error *error)
{
    const struct checkpoint_judge judge = {0};
    struct checkpoint_counters counters;
    struct run_place place;
    if (has_entry(name, "manifest.json") || !has_entry(name, "checkpoints"))
        return name;
    if (checkpoint_newest(path_of(name), &judge, found->checkpoint, &counters, &place, error) != STATUS_OK)
        return NULL;
    fprintf(stderr, "%s\n", found->checkpoint);
    return found->checkpoint;
}

enum status job_files_find_job(struct job_files_found *found, const char *checkpoint, struct error *error)
{
    const enum status status = job_files_check_folder(checkpoint, error);
    if (status != STATUS_OK)
        return status;
    char *real = realpath(checkpoint, NULL);
    if (real == NULL)
        return error_set_errno(error, errno, "%.300s", checkpoint);
    const char *above = dirname(dirname(real));
    const int run = snprintf(found->run, sizeof found->run, "%s", above),
              job = snprintf(found->job, sizeof found->job, "%s/job.json", above);
    free(real);
    return (size_t)run < sizeof found->run && (size_t)job < sizeof found->job
               ? STATUS_OK
               : error_set_errno(error, ENAMETOOLONG, "%.300s", checkpoint);
}

enum status job_files_of_checkpoint(struct job *job, const char *checkpoint, int kind, struct error *error)
{
    struct job_files_found found;
    enum status status = job_files_find_job(&found, checkpoint, error);
    if (status == STATUS_OK)
        status = resume_read_job(job, path_below(path_of(found.run), found.job), error);
    if (status == STATUS_OK && kind != JOB_FILES_ANY_KIND && job->kind != kind)
        status =
            error_set(error, STATUS_INVALID, "%.300s is of a job of the kind \"%s\": expected a \"%s\", %s",
                      checkpoint, job_kind_name(job->kind), job_kind_name(kind),
                      kind == JOB_REINFORCE ? "whose policy plays" : "whose model writes text");
    return status;
}
