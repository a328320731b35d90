/* Reads the runs, groups them by their jobs, and has the groups drawn. The command's process. */
#include "daemon/commands/plot.h"

#include "daemon/commands/figure.h"
#include "daemon/commands/job_files.h"
#include "daemon/commands/run_groups.h"
#include "daemon/run/resume.h"
#include "daemon/run/rundir.h"
#include "kernels/base/log.h"
#include "worker/job/job_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct plot {
    const struct plot_request *request;
    size_t given;       /* runs of the request, each once */
    size_t count;       /* runs that are in the figure */
    struct job *jobs;   /* (given) */
    const char **texts; /* of job.json, every key with its value; malloc'ed */
    const char **names; /* the run directories */
    struct curve *curves;
    struct run_groups groups;
    struct figure_series *series;
    struct band_point *points; /* of all series */
    double *scratch;
};

/* ---- the runs ---- */

/* The index of the same folder among `count` others; `count`: there is none. A path that leads nowhere, whose
 * `folder` is zero, is like no other. */
static size_t find_folder(const struct stat *folders, size_t count, const struct stat *folder)
{
    size_t i = 0;
    while (i < count && (folder->st_ino == 0 || folders[i].st_ino != folder->st_ino ||
                         folders[i].st_dev != folder->st_dev))
        i++;
    return i;
}

static enum status name_runs(struct plot *plot, struct error *error)
{
    const struct plot_request *request = plot->request;
    struct stat *folders = calloc(request->count, sizeof *folders);
    if (folders == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu runs", request->count);
    for (size_t i = 0; i < request->count; i++) {
        struct stat *folder = &folders[plot->given];
        if (stat(request->runs[i], folder) != 0)
            *folder = (struct stat){0};
        const size_t same = find_folder(folders, plot->given, folder);
        if (same < plot->given)
            log_warning("%s is the same run as %s: the run counts once", request->runs[i], plot->names[same]);
        else
            plot->names[plot->given++] = request->runs[i];
    }
    plot->count = plot->given;
    free(folders);
    return STATUS_OK;
}

/* ---- the jobs ---- */

static enum status join_path(char path[RUNDIR_PATH_BYTES], const char *run, const char *name,
                             struct error *error)
{
    const int length = snprintf(path, RUNDIR_PATH_BYTES, "%s/%s", run, name);
    if (length < RUNDIR_PATH_BYTES)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "the path of a run has %d bytes: expected fewer than %d", length,
                     RUNDIR_PATH_BYTES);
}

static bool is_sweep(const char *folder)
{
    char path[RUNDIR_PATH_BYTES];
    struct error error;
    struct stat info;
    return join_path(path, folder, "sweep.json", &error) == STATUS_OK && stat(path, &info) == 0;
}

static enum status read_job(struct plot *plot, size_t i, struct error *error)
{
    char path[RUNDIR_PATH_BYTES];
    size_t bytes;
    const char *run = plot->names[i];
    enum status status = join_path(path, run, "job.json", error);
    if (status == STATUS_OK)
        status = resume_read_job(&plot->jobs[i], path_below(path_of(run), path), error);
    if (status == STATUS_NOT_FOUND && is_sweep(run))
        return error_set(error, status, "%.200s is the folder of a sweep: expected its runs, %.200s/*/", run,
                         run);
    if (status != STATUS_OK)
        return status;
    plot->texts[i] = job_format(&plot->jobs[i], &bytes);
    return plot->texts[i] != NULL
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for the job of %.300s", run);
}

const char *plot_default_y(const char *others, const struct job *job)
{
    const char *y = job->kind != JOB_REINFORCE ? "loss"
                    : job_is_actor_critic(job) ? "ep_rew_mean"
                                               : "running_reward";
    if (others == NULL || strcmp(others, y) == 0)
        return y;
    return strcmp(others, "loss") == 0 || strcmp(y, "loss") == 0 ? "loss" : "running_reward";
}

static struct curve_keys default_keys(const struct job *jobs, size_t count)
{
    size_t rewards = 0, critics = 0;
    const char *y = NULL;
    for (size_t i = 0; i < count; i++) {
        y = plot_default_y(y, &jobs[i]);
        rewards += jobs[i].kind == JOB_REINFORCE;
        critics += jobs[i].kind == JOB_REINFORCE && job_is_actor_critic(&jobs[i]);
    }
    if (rewards == 0)
        return (struct curve_keys){"update", y};
    return (struct curve_keys){rewards < count || critics > 0 ? "steps" : "episode", y};
}

static enum status choose_keys(const struct plot *plot, struct curve_keys *keys, struct error *error)
{
    size_t other = 0;
    for (size_t i = 0; i < plot->count && other == 0; i++)
        if (plot->jobs[i].kind != plot->jobs[0].kind)
            other = i;
    if (other > 0 && plot->request->keys.y == NULL)
        return error_set(
            error, STATUS_INVALID,
            "%.150s is a run of kind %s and %.150s one of kind %s: expected runs of one kind, or "
            "--y KEY with a number that both logs have",
            plot->names[0], job_kind_name(plot->jobs[0].kind), plot->names[other],
            job_kind_name(plot->jobs[other].kind));
    *keys = default_keys(plot->jobs, plot->count);
    if (plot->request->keys.x != NULL)
        keys->x = plot->request->keys.x;
    if (plot->request->keys.y != NULL)
        keys->y = plot->request->keys.y;
    return STATUS_OK;
}

/* ---- the curves ---- */

/* A run that has just begun has no log yet. */
static enum status read_curve(struct curve *curve, const char *run, struct curve_keys keys,
                              struct error *error)
{
    curve_init(curve, keys);
    const enum status status = curve_read_run(curve, run, error);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    if (curve->wrong > 0)
        log_warning("%s/episodes.jsonl: %" PRIu64
                    " lines are no lines of a log and are left out, the first one is line %" PRIu64,
                    run, curve->wrong, curve->first_wrong);
    if (status == STATUS_NOT_FOUND)
        log_warning("%s/episodes.jsonl is not there: the run is left out", run);
    else if (curve->count == 0)
        log_warning("%s/episodes.jsonl: no line has the numbers %s and %s: the run is left out", run, keys.x,
                    keys.y);
    return STATUS_OK;
}

/* The runs that have a point take the first places. */
static enum status read_curves(struct plot *plot, struct curve_keys keys, struct error *error)
{
    size_t kept = 0;
    for (size_t i = 0; i < plot->count; i++) {
        const enum status status = read_curve(&plot->curves[kept], plot->names[i], keys, error);
        if (status != STATUS_OK)
            return status;
        if (plot->curves[kept].count == 0) {
            curve_fini(&plot->curves[kept]);
            continue;
        }
        const char *text = plot->texts[kept];
        plot->texts[kept] = plot->texts[i];
        plot->texts[i] = text;
        plot->names[kept++] = plot->names[i];
    }
    plot->count = kept;
    return kept > 0
               ? STATUS_OK
               : error_set(error, STATUS_NOT_FOUND,
                           "there is nothing to draw: expected a run whose episodes.jsonl has the numbers "
                           "%.100s and %.100s in a line",
                           keys.x, keys.y);
}

/* ---- the figure ---- */

static struct figure_series draw_line(struct band_point *points, const struct curve *curve)
{
    for (uint32_t i = 0; i < curve->count; i++) {
        const double y = curve->points[i].y;
        points[i] = (struct band_point){curve->points[i].x, y, y, y};
    }
    return (struct figure_series){.points = points, .count = curve->count};
}

static enum status draw_median(struct figure_series *series, struct band_point *points,
                               const struct plot *plot, size_t g, struct error *error)
{
    const struct curve **curves = calloc(plot->count, sizeof *curves);
    size_t count = 0;
    enum status status = STATUS_OK;
    if (curves == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu curves", plot->count);
    for (size_t i = 0; i < plot->count && status == STATUS_OK; i++) {
        if (plot->groups.group_of[i] != g)
            continue;
        curves[count++] = &plot->curves[i];
        if (!plot->curves[i].ascends)
            status = error_set(error, STATUS_INVALID,
                               "--x %.60s: the numbers of %.200s decrease: expected numbers that never do, "
                               "for a median of several runs",
                               plot->curves[i].keys.x, plot->names[i]);
    }
    if (status == STATUS_OK)
        *series = (struct figure_series){
            .points = points, .count = curve_band(points, curves, count, plot->scratch), .has_band = true};
    free(curves);
    return status;
}

static size_t points_of(const struct plot *plot, size_t g)
{
    const struct run_group *group = &plot->groups.groups[g];
    return group->runs > 1 ? BAND_POINTS : plot->curves[group->first].count;
}

static enum status make_series(struct plot *plot, struct error *error)
{
    const struct run_groups *groups = &plot->groups;
    size_t points = 0;
    enum status status = STATUS_OK;
    for (size_t g = 0; g < groups->count; g++)
        points += points_of(plot, g);
    plot->series = calloc(groups->count + 1, sizeof *plot->series);
    plot->points = calloc(points + 1, sizeof *plot->points);
    plot->scratch = calloc(plot->count + 1, sizeof *plot->scratch);
    if (plot->series == NULL || plot->points == NULL || plot->scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a figure of %zu points", points);
    points = 0;
    for (size_t g = 0; g < groups->count && status == STATUS_OK; g++) {
        struct figure_series *series = &plot->series[g];
        if (groups->groups[g].runs > 1)
            status = draw_median(series, plot->points + points, plot, g, error);
        else
            *series = draw_line(plot->points + points, &plot->curves[groups->groups[g].first]);
        series->label = groups->groups[g].label;
        points += points_of(plot, g);
    }
    return status;
}

/* The title is the jobs' name, if all have the same. */
static enum status draw(const struct plot *plot, struct curve_keys keys, struct error *error)
{
    bool is_one_job = true;
    for (size_t i = 1; i < plot->given; i++)
        is_one_job = is_one_job && strcmp(plot->jobs[i].name, plot->jobs[0].name) == 0;
    const struct figure figure = {.title = is_one_job ? plot->jobs[0].name : "",
                                  .x_label = keys.x,
                                  .y_label = keys.y,
                                  .series = plot->series,
                                  .count = plot->groups.count};
    return figure_write(&figure, plot->request->output, error);
}

static void plot_fini(struct plot *plot)
{
    for (size_t i = 0; i < plot->request->count; i++) {
        if (plot->texts != NULL)
            free((void *)(uintptr_t)plot->texts[i]);
        if (plot->curves != NULL)
            curve_fini(&plot->curves[i]);
    }
    run_groups_fini(&plot->groups);
    free(plot->jobs);
    free(plot->texts);
    free(plot->names);
    free(plot->curves);
    free(plot->series);
    free(plot->points);
    free(plot->scratch);
}

static enum status plot_init(struct plot *plot, const struct plot_request *request, struct error *error)
{
    const size_t count = request->count;
    *plot = (struct plot){.request = request,
                          .jobs = calloc(count, sizeof *plot->jobs),
                          .texts = calloc(count, sizeof *plot->texts),
                          .names = calloc(count, sizeof *plot->names),
                          .curves = calloc(count, sizeof *plot->curves)};
    if (plot->jobs != NULL && plot->texts != NULL && plot->names != NULL && plot->curves != NULL)
        return name_runs(plot, error);
    return error_set(error, STATUS_NO_MEMORY, "no memory for %zu runs", count);
}

enum status plot_runs(struct plot_summary *summary, const struct plot_request *request, struct error *error)
{
    struct plot plot;
    struct curve_keys keys = request->keys;
    enum status status = plot_init(&plot, request, error);
    for (size_t i = 0; i < plot.given && status == STATUS_OK; i++)
        status = read_job(&plot, i, error);
    if (status == STATUS_OK)
        status = choose_keys(&plot, &keys, error);
    if (status == STATUS_OK)
        status = read_curves(&plot, keys, error);
    if (status == STATUS_OK)
        status = run_groups_make(&plot.groups, plot.texts, plot.names, plot.count, error);
    if (status == STATUS_OK)
        status = make_series(&plot, error);
    if (status == STATUS_OK)
        status = draw(&plot, keys, error);
    *summary = (struct plot_summary){plot.groups.count, plot.count};
    plot_fini(&plot);
    return status;
}

enum status plot(const struct arguments *arguments, struct job *job, struct error *error)
{
    struct plot_summary summary;
    const struct plot_request request = {.runs = arguments->runs,
                                         .count = arguments->run_count,
                                         .output = arguments->output != NULL ? arguments->output : "plot.svg",
                                         .keys = {arguments->x, arguments->y}};
    (void)job;
    const enum status status = plot_runs(&summary, &request, error);
    if (status == STATUS_OK)
        printf("%s: %zu curve%s of %zu run%s\n", request.output, summary.groups,
               summary.groups == 1 ? "" : "s", summary.runs, summary.runs == 1 ? "" : "s");
    return status;
}
