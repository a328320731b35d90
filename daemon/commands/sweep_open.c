/* The steps before the first run of a sweep starts: checks, folders, the list of runs. The sweep's process.
 */
#include "daemon/commands/job_files.h"
#include "daemon/commands/plot.h"
#include "daemon/commands/sweep_internal.h"
#include "daemon/run/resume.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

/* ---- the job with each combination ---- */

static enum status read_job(const struct sweep *sweep, size_t number, job_files_judge *judge, struct job *job,
                            char **problems)
{
    const struct arguments *arguments = sweep->arguments;
    struct sweep_overrides overrides;
    enum status status = STATUS_NO_MEMORY;
    *problems = NULL;
    if (sweep_overrides_make(&overrides, arguments, &sweep->grid, number))
        status = job_read_file(job, path_of(arguments->job_path), overrides.values, overrides.count, judge,
                               problems);
    sweep_overrides_fini(&overrides);
    return status;
}

static void print_problems(const char *name, enum status status, char *problems)
{
    char *rest;
    if (problems == NULL)
        fprintf(stderr, "coalesced: %s: %s\n", name, status_name(status));
    for (char *line = problems == NULL ? NULL : strtok_r(problems, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        fprintf(stderr, "%s: %s\n", name, line);
}

/* The table has one number for all runs. False: the runs before this one are of another kind. */
static bool choose_keys(struct sweep *sweep, const struct job *job)
{
    const bool is_reward = job->kind == JOB_REINFORCE;
    const char *others = sweep->keys.y;
    sweep->keys = (struct curve_keys){is_reward ? "episode" : "update", plot_default_y(others, job)};
    return others == NULL || (strcmp(others, "loss") != 0) == is_reward;
}

/* Prints the problems of the first combination that has any. */
static enum status check_jobs(struct sweep *sweep, int *code, struct error *error)
{
    for (size_t i = 0; i < sweep->grid.runs; i++) {
        struct job job;
        char *problems;
        uint64_t epoch_updates = 0;
        const enum status status = read_job(sweep, i, job_files_check, &job, &problems);
        if (status != STATUS_OK)
            print_problems(sweep->runs[i].name, status, problems);
        free(problems);
        *code = status_exit_code(status);
        if (status != STATUS_OK)
            return STATUS_OK;
        if (!choose_keys(sweep, &job))
            return error_set(error, STATUS_INVALID,
                             "%s is of another kind than the run before it: expected one kind",
                             sweep->runs[i].name);
        if (sweep->arguments->stops_hopeless &&
            job_files_epoch_updates(&epoch_updates, &job, error) != STATUS_OK)
            return error->status;
        sweep->runs[i].grace = sweep_rule_grace(&job, epoch_updates);
        if (i == 0 && rundir_choose(sweep->dir, sweep->arguments->run_dir, &job, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

/* ---- the directory ---- */

static enum status name_paths(struct sweep *sweep, struct error *error)
{
    const size_t length = strlen(sweep->dir);
    if (length + strlen("-sweep/") + SWEEP_NAME_BYTES >= sizeof sweep->dir)
        return error_set(error, STATUS_INVALID, "the sweep's directory has %zu bytes: expected at most %zu",
                         length, sizeof sweep->dir - SWEEP_NAME_BYTES - strlen("-sweep/") - 1);
    if (sweep->arguments->run_dir == NULL)
        snprintf(sweep->dir + length, sizeof sweep->dir - length, "-sweep");
    for (size_t i = 0; i < sweep->grid.runs; i++)
        if (asprintf(&sweep->runs[i].path, "%s/%s", sweep->dir, sweep->runs[i].name) < 0) {
            sweep->runs[i].path = NULL;
            return error_set(error, STATUS_NO_MEMORY, "no memory for the runs' paths");
        }
    return STATUS_OK;
}

/* ---- runs that are there already ---- */

static bool has_file(const char *folder, const char *name)
{
    char path[RUNDIR_PATH_BYTES + 32];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return lstat(path, &info) == 0;
}

static bool has_runs(const struct sweep *sweep)
{
    bool has = has_file(sweep->dir, "sweep.json");
    for (size_t i = 0; i < sweep->grid.runs && !has; i++)
        has = has_file(sweep->runs[i].path, "job.json");
    return has;
}

/* Whether the run's job is still what the command line says: with another /stop it goes on. */
static bool job_is_same(const struct sweep *sweep, size_t number)
{
    struct job began, job;
    struct error error;
    char path[RUNDIR_PATH_BYTES + 32], *problems;
    size_t bytes;
    snprintf(path, sizeof path, "%s/job.json", sweep->runs[number].path);
    if (resume_read_job(&began, path_below(path_of(sweep->runs[number].path), path), &error) != STATUS_OK)
        return false;
    const enum status status = read_job(sweep, number, NULL, &job, &problems);
    free(problems);
    if (status != STATUS_OK)
        return false;
    resume_keep(&job, &began);
    job_resolve(&job);
    char *have = job_format(&began, &bytes), *want = job_format(&job, &bytes);
    const bool is_same = have != NULL && want != NULL && strcmp(have, want) == 0;
    free(have);
    free(want);
    return is_same;
}

/* A log that cannot be read is the run's to complain of. */
static void survey_run(struct sweep *sweep, size_t number)
{
    struct sweep_run *run = &sweep->runs[number];
    struct error error;
    run->is_hopeless = run->is_hopeless && sweep->arguments->stops_hopeless;
    if (curve_read_run(&run->curve, run->path, &error) != STATUS_OK)
        return;
    const bool is_solved = strcmp(run->curve.event, "solved") == 0;
    if (run->is_hopeless)
        run->state = SWEEP_HOPELESS;
    else if ((is_solved || strcmp(run->curve.event, "finished") == 0) && job_is_same(sweep, number))
        run->state = is_solved ? SWEEP_SOLVED : SWEEP_FINISHED;
}

/* ---- open and close ---- */

static enum status allocate(struct sweep *sweep, struct error *error)
{
    const size_t runs = sweep->grid.runs;
    sweep->runs = calloc(runs, sizeof *sweep->runs);
    sweep->peers = calloc(runs, sizeof *sweep->peers);
    sweep->scratch = calloc(runs, sizeof *sweep->scratch);
    sweep->polled = calloc(runs + 1, sizeof *sweep->polled);
    if (sweep->runs == NULL || sweep->peers == NULL || sweep->scratch == NULL || sweep->polled == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu runs", runs);
    for (size_t i = 0; i < runs; i++) {
        sweep_grid_name(&sweep->grid, i, sweep->runs[i].name);
        sweep->runs[i].out = -1;
    }
    return STATUS_OK;
}

static enum status open_directory(struct sweep *sweep, int *code, struct error *error)
{
    enum status status = name_paths(sweep, error);
    if (status == STATUS_OK)
        status = rundir_make(sweep->dir, error);
    if (status == STATUS_OK)
        status = rundir_lock(&sweep->lock_fd, path_of(sweep->dir), "sweep.lock", error);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < sweep->grid.runs; i++)
        curve_init(&sweep->runs[i].curve, sweep->keys);
    if (!sweep->arguments->resume && has_runs(sweep)) {
        *code =
            usage_error("%s has the runs of a sweep: expected --resume, or another --run-dir", sweep->dir);
        return STATUS_OK;
    }
    if (sweep_report_read(&sweep->report, sweep->runs, error) != STATUS_OK)
        return error->status;
    for (size_t i = 0; i < sweep->grid.runs; i++)
        survey_run(sweep, i);
    return STATUS_OK;
}

enum status sweep_open(struct sweep *sweep, const struct arguments *arguments, int *code, struct error *error)
{
    *sweep = (struct sweep){.arguments = arguments, .lock_fd = -1, .signal_fd = -1};
    *code = 0;
    enum status status = sweep_grid_read(&sweep->grid, arguments->overs, arguments->over_count, error);
    if (status == STATUS_INVALID) {
        *code = usage_error("%s", error->text);
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = allocate(sweep, error);
    if (status == STATUS_OK)
        status = check_jobs(sweep, code, error);
    sweep->report = (struct sweep_report){.grid = &sweep->grid,
                                          .runs = sweep->runs,
                                          .count = sweep->grid.runs,
                                          .dir = sweep->dir,
                                          .keys = sweep->keys,
                                          .is_screen = isatty(STDOUT_FILENO)};
    if (status == STATUS_OK && *code == 0)
        status = open_directory(sweep, code, error);
    return status;
}

void sweep_close(struct sweep *sweep)
{
    for (size_t i = 0; sweep->runs != NULL && i < sweep->grid.runs; i++) {
        curve_fini(&sweep->runs[i].curve);
        free(sweep->runs[i].path);
    }
    sweep_report_fini(&sweep->report);
    sweep_grid_fini(&sweep->grid);
    free(sweep->runs);
    free(sweep->peers);
    free(sweep->scratch);
    free(sweep->polled);
    if (sweep->lock_fd >= 0)
        close(sweep->lock_fd);
    if (sweep->signal_fd >= 0)
        close(sweep->signal_fd);
}
