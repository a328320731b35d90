/* Keeps the profile that each worker reports when it leaves, and writes the run's profile from them.
 * Supervisor process; its only thread; no lock. */
#include "daemon/supervise/worker_profiles.h"

#include "daemon/log/profile_files.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The newest report of a worker. */
struct worker_profile {
    uint32_t incarnation, generation;
    struct profile_figures figures;
};

/* ---- keeping ---- */

/* The first message of a report begins the figures anew. */
static void begin_report(const struct child *child, const struct control_profile *part,
                         struct worker_profile *kept)
{
    kept->incarnation = child->start.incarnation;
    kept->generation = child->start.generation;
    kept->figures = (struct profile_figures){.begin_ns = part->begin_ns,
                                             .end_ns = part->end_ns,
                                             .cpu_ns = part->cpu_ns,
                                             .span_count = part->span_count};
    memcpy(kept->figures.ns, part->ns, sizeof part->ns);
    if (child->relay != NULL) /* its host has another clock; the message was not long under way */
        kept->figures.ahead_ns = (int64_t)(monotime_now().ns - part->end_ns);
}

void worker_profiles_keep(struct worker_profiles *profiles, const struct child *child,
                          const struct control_profile *part)
{
    struct worker_profile **kept = &profiles->of[child->start.worker];
    if (!profiles->is_on)
        return;
    if (*kept == NULL)
        *kept = calloc(1, sizeof **kept);
    if (*kept == NULL)
        return;
    if (part->first == 0)
        begin_report(child, part, *kept);
    if (part->first != (*kept)->figures.kept) /* a part is missing: the spans end before it */
        return;
    memcpy((*kept)->figures.spans + part->first, part->spans, part->count * sizeof part->spans[0]);
    (*kept)->figures.kept = part->first + part->count;
}

/* ---- writing ---- */

/* Why a worker has no figures. */
static void explain_absence(const struct generation *g, const struct child *child, struct profile_row *row)
{
    if (roster_role(&g->roster, child->start.worker) == g->python_worker.role)
        snprintf(row->note, sizeof row->note, "not profiled: it runs in Python");
    else if (child->starts == 0)
        snprintf(row->note, sizeof row->note, "no figures: it has not started");
    else
        snprintf(row->note, sizeof row->note, "no figures: %.280s",
                 child->end[0] != '\0' ? child->end : "it did not report them");
}

static void fill_row(const struct generation *g, unsigned worker, const struct worker_profile *kept,
                     struct profile_row *row)
{
    const struct child *child = &g->children[worker];
    *row = (struct profile_row){0};
    if (child->starts > 0)
        snprintf(row->name, sizeof row->name, "%s", child->name);
    else
        snprintf(row->name, sizeof row->name, "%s %u",
                 role_by_wire(roster_role(&g->roster, (uint16_t)worker))->name, worker);
    if (kept == NULL || kept->incarnation != child->start.incarnation ||
        kept->generation != child->start.generation) {
        explain_absence(g, child, row);
        return;
    }
    row->figures = &kept->figures;
    if (child->starts > 1)
        snprintf(row->note, sizeof row->note, "started %u times: the figures are of the last one",
                 child->starts);
}

static void write_table(const struct generation *g, const struct profile_row *rows, FILE *out)
{
    profile_write_table(out, rows, g->count);
    if (g->dir->resumed)
        fprintf(out, "the run was resumed: the figures are of the time since\n");
}

/* Writes a file of the run directory: the trace from `begin` on, or the table if `begin` is NULL. False:
 * failed, with a warning. */
static bool write_file(const struct generation *g, const struct profile_row *rows,
                       const struct monotime *begin, const char *name)
{
    const struct path run = rundir_path(g->dir);
    struct error error;
    int fd;
    if (file_open_below(&fd, run, name, O_WRONLY | O_CREAT | O_TRUNC, &error) != STATUS_OK) {
        log_warning("%s", error.text);
        return false;
    }
    FILE *out = fdopen(fd, "w");
    if (out == NULL)
        close(fd);
    else if (begin != NULL)
        profile_write_trace(out, rows, g->count, *begin);
    else
        write_table(g, rows, out);
    const bool is_written = out != NULL && ferror(out) == 0;
    if (out != NULL && fclose(out) == 0 && is_written)
        return true;
    log_warning("cannot write %s/%s: %s", run.text, name, strerror(errno));
    return false;
}

void worker_profiles_end(struct worker_profiles *profiles, const struct generation *g, struct monotime begin)
{
    struct profile_row *rows = profiles->is_on ? calloc(g->count, sizeof *rows) : NULL;
    for (unsigned i = 0; i < g->count && rows != NULL; i++)
        fill_row(g, i, profiles->of[i], &rows[i]);
    if (rows != NULL) {
        runlog_clear_progress(g->log);
        write_table(g, rows, stderr);
        if (write_file(g, rows, NULL, "profile.txt") && write_file(g, rows, &begin, "profile.json"))
            log_info("the profile is in %s/profile.txt and profile.json", g->dir->path);
    }
    free(rows);
    for (unsigned i = 0; i < ROSTER_WORKERS_MAX; i++)
        free(profiles->of[i]);
}
