/* Collects the status of a run (daemon/watch/run_status.h), and renders it for `coalesced status`, the page
 * and the metrics. Writes the run's profile from its workers' profiles. Supervisor process; its only thread;
 * no lock. */
#include "daemon/supervise/run_view.h"

#include "daemon/log/profile_files.h"
#include "daemon/process/descriptors.h"
#include "daemon/watch/openmetrics.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/output.h"
#include "worker/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The newest report of a worker. */
struct worker_profile {
    uint32_t starts; /* of the worker, with the one that reports */
    struct profile_figures figures;
};

enum { TICK_US = 1000000, TEXTFILE_US = 15000000, LISTEN_US = 5000000 };

/* ---- the picture ---- */

static const char *state_of(const struct run_view *view)
{
    if (job_end_has_failed(&view->g->end))
        return "failing";
    if (view->g->end.finished || view->g->end.closing)
        return "ending";
    if (view->g->end.stops > 0)
        return "stopping";
    if (view->g->hosts->awaited)
        return "waiting for hosts";
    return view->g->was_ready && !view->g->next.is_planned ? "training" : "starting";
}

/* An agent's median wait in the newest episode, or a server's wait in the newest round. NaN: other workers.
 */
static double wait_of(const struct run_view *view, const struct child *child)
{
    const struct run_totals *totals = &view->totals;
    if (child->start.worker >= view->g->roster.servers)
        return (double)NAN;
    if (totals->has_episode)
        return totals->episode.timing.wait_us_p50 * 1e-6;
    return totals->has_update && totals->update.trainers > 0 ? totals->update.timing.wait_s : (double)NAN;
}

static double staleness_of(const struct run_view *view, const struct child *child)
{
    const unsigned trainer = child->start.worker - view->g->roster.servers;
    if (!view->totals.has_update || child->start.worker < view->g->roster.servers ||
        trainer >= view->totals.update.trainers)
        return (double)NAN;
    const int behind = view->totals.update.staleness[trainer];
    return behind >= 0 ? behind : (double)NAN;
}

static void collect_worker(const struct run_view *view, const struct child *child, uint16_t worker,
                           struct worker_status *out)
{
    *out = (struct worker_status){.worker = worker,
                                  .role = role_by_wire(roster_role(&view->g->roster, worker))->name,
                                  .state = child_states[child->state],
                                  .pid = child_lives(child) ? child->pid : 0,
                                  .host = child->host,
                                  .host_name =
                                      child->relay != NULL ? hosts_name(view->g->hosts, child->host) : "",
                                  .incarnation = child->start.incarnation,
                                  .restarts = child->starts > 0 ? child->starts - 1 : 0,
                                  .has_use = child->use.now.cpu_us > 0,
                                  .work_per_s = child->use.work_per_s,
                                  .cores = child->use.cores,
                                  .staleness = staleness_of(view, child),
                                  .wait_s = wait_of(view, child),
                                  .use = child->use.now};
}

/* Fills *status; the caller frees its `workers`. False: no memory. */
static bool run_view_collect(const struct run_view *view, struct run_status *status)
{
    struct checkpoint_found *found;
    *status =
        (struct run_status){.path = view->g->dir->real,
                            .job = view->g->job,
                            .state = state_of(view),
                            .pid = getpid(),
                            .started_unix_s = view->begin_unix_s,
                            .up_s = (double)monotime_us_between(view->begin, monotime_now()) * 1e-6,
                            .generation = view->g->number,
                            .update = view->g->furthest,
                            .running_reward = view->totals.has_episode ? view->totals.episode.running_reward
                                                                       : view->g->resume.running_reward,
                            .totals = &view->totals,
                            .progress = runlog_progress(view->g->log),
                            .worker_count = view->g->count,
                            .workers = calloc(view->g->count, sizeof(struct worker_status))};
    if (status->workers == NULL)
        return false;
    for (unsigned i = 0; i < view->g->count; i++)
        collect_worker(view, &view->g->children[i], (uint16_t)i, &status->workers[i]);
    const size_t count = checkpoint_find(&found, rundir_path(view->g->dir));
    status->checkpoint = count > 0 ? found[count - 1].number : 0;
    status->checkpoint_age_s = count > 0 ? unix_time_s() - found[count - 1].unix_s : (double)NAN;
    free(found);
    return true;
}

/* The status as JSON; the caller frees it. NULL: no memory. Also a status_socket's answer. */
static char *status_text(void *arg)
{
    const struct run_view *view = arg;
    struct run_status status;
    if (!run_view_collect(view, &status))
        return NULL;
    char *text = run_status_json(&status);
    free(status.workers);
    return text;
}

/* ---- events ---- */

/* The first event of a stream has the whole run and the job; the later ones what has changed. */
static char *event_text(struct run_view *view, bool is_first, size_t *length)
{
    const char *lines[RUNLOG_TAIL_LINES];
    const unsigned count = runlog_tail(view->g->log, lines);
    char *text = NULL, *status = status_text(view);
    FILE *out = status != NULL ? open_memstream(&text, length) : NULL;
    if (out != NULL) {
        fprintf(out, "event: %s\ndata: {\"status\":%.*s,", is_first ? "begin" : "tick",
                (int)strcspn(status, "\n"), status);
        run_history_write(view->history, rundir_path(view->g->dir), is_first, out);
        fprintf(out, ",\"orders\":%s,\"lines\":[", view->g->job->metrics.has_token ? "true" : "false");
        for (unsigned i = 0; i < count; i++) {
            fputs(i > 0 ? "," : "", out);
            run_status_write_string(out, lines[i]);
        }
        fprintf(out, "]}\n\n");
    }
    const bool failed = out == NULL || ferror(out) != 0;
    if ((out != NULL && fclose(out) != 0) || failed) {
        free(text);
        text = NULL;
    }
    free(status);
    return text;
}

static void tell(struct run_view *view)
{
    size_t length = 0;
    char *event = event_text(view, view->is_cut, &length);
    if (event != NULL)
        listener_tell(&view->listener, event, length);
    free(event);
    view->is_cut = false;
    run_history_told(view->history);
    listener_serve(&view->listener);
}

/* The last event of each stream, and the time to send it. */
static void tell_end(struct run_view *view, const char *state, const char *reason)
{
    enum { PATIENCE_MS = 1000, TURN_MS = 10 };
    char *event = NULL, sum[PROGRESS_TEXT_BYTES];
    size_t length = 0;
    tell(view);
    progress_sum_up(sum, runlog_progress(view->g->log));
    FILE *out = open_memstream(&event, &length);
    if (out == NULL)
        return;
    fprintf(out, "event: end\ndata: {\"state\":\"%s\",\"reason\":", state);
    run_status_write_string(out, reason);
    fputs(",\"sum\":", out);
    run_status_write_string(out, sum);
    fputs("}\n\n", out);
    if (fclose(out) == 0)
        listener_tell(&view->listener, event, length);
    free(event);
    listener_end(&view->listener);
    struct pollfd wait = {.fd = listener_fd(&view->listener), .events = POLLIN};
    for (int ms = 0; ms < PATIENCE_MS && listener_streams(&view->listener) > 0; ms += TURN_MS) {
        listener_serve(&view->listener);
        poll(&wait, 1, TURN_MS);
    }
}

/* ---- documents ---- */

static char *metrics_of(const struct run_view *view, enum openmetrics_form form, size_t *length)
{
    struct run_status status;
    if (!run_view_collect(view, &status))
        return NULL;
    char *text = openmetrics_text(&status, form, length);
    free(status.workers);
    return text;
}

static char *document(void *arg, enum http_document which, const char *id, size_t *length)
{
    struct run_view *view = arg;
    (void)id;
    if (which == HTTP_METRICS || which == HTTP_OPENMETRICS)
        return metrics_of(view, which == HTTP_METRICS ? OPENMETRICS_CLASSIC : OPENMETRICS, length);
    if (which == HTTP_FIRST_EVENT)
        return event_text(view, true, length);
    char *text = status_text(view);
    *length = text != NULL ? strlen(text) : 0;
    return text;
}

/* The supervisor takes it in its next turn. */
static const char *take_order(void *arg, enum http_order order)
{
    struct run_view *view = arg;
    const struct job_end *end = &view->g->end;
    if (end->stops > 0 || end->finished || end->closing || job_end_has_failed(end))
        return "the run is ending";
    view->orders |= 1U << order;
    return NULL;
}

bool run_view_take_order(struct run_view *view, enum http_order *order)
{
    for (int i = HTTP_STOP; i <= HTTP_CHECKPOINT; i++)
        if ((view->orders & (1U << i)) != 0) {
            view->orders &= ~(1U << i);
            *order = (enum http_order)i;
            return true;
        }
    return false;
}

/* ---- the history ---- */

static void read_history(struct run_view *view)
{
    struct error error;
    run_history_clear(view->history);
    if (run_history_read(view->history, rundir_path(view->g->dir), &error) != STATUS_OK)
        run_history_note(view->history, "warning", error.text);
    view->is_cut = true;
}

/* Lines behind a checkpoint were cut off the log before its "resumed". */
static void take_line(void *arg, const char *line, size_t length)
{
    static const char resumed[] = "{\"event\":\"resumed\"";
    struct run_view *view = arg;
    if (length > sizeof resumed && memcmp(line, resumed, sizeof resumed - 1) == 0)
        read_history(view);
    else
        run_history_take(view->history, line, length);
}

static void take_message(void *arg, enum log_level level, const char *text)
{
    struct run_view *view = arg;
    run_history_note(view->history, level == LOG_LEVEL_INFO ? "message" : "warning", text);
    runlog_note_message(view->g->log, text);
}

static void open_history(struct run_view *view)
{
    struct error error;
    if (run_history_new(&view->history, &error) != STATUS_OK) {
        log_warning("%s: the job goes on without its page", error.text);
        return;
    }
    read_history(view);
    runlog_listen(view->g->log, take_line, view);
    log_listen(take_message, view);
}

/* ---- the file ---- */

/* Writes the metrics file. Warns only at the first of successive failures. */
static void update_textfile(struct run_view *view)
{
    const char *path = view->g->job->metrics.textfile;
    struct output output;
    size_t length = 0;
    char *text = metrics_of(view, OPENMETRICS_TEXTFILE, &length);
    const bool is_written = text != NULL && output_open(&output, path) &&
                            output_close(&output, fwrite(text, 1, length, output.file) == length);
    if (!is_written && !view->textfile_failed && text == NULL)
        log_warning("no memory for /metrics/textfile: the job goes on");
    else if (!is_written && !view->textfile_failed)
        log_warning("cannot write %s: %s: the job goes on", path, strerror(errno));
    free(text);
    view->textfile_written |= is_written;
    view->textfile_failed = !is_written;
}

/* ---- records ---- */

void run_view_record(struct run_view *view, const struct control_message *record)
{
    run_totals_add(&view->totals, record, monotime_now());
}

/* ---- profiles ---- */

void run_view_keep_profile(struct run_view *view, const struct child *child,
                           const struct control_profile *part)
{
    struct worker_profile **kept = &view->profiles[child->start.worker];
    if (!view->is_profiled)
        return;
    if (*kept == NULL)
        *kept = calloc(1, sizeof **kept);
    if (*kept == NULL)
        return;
    if (part->first == 0) { /* a report begins */
        struct profile_figures *figures = &(*kept)->figures;
        (*kept)->starts = child->starts;
        *figures = (struct profile_figures){.begin_ns = part->begin_ns,
                                            .end_ns = part->end_ns,
                                            .cpu_ns = part->cpu_ns,
                                            .span_count = part->span_count};
        memcpy(figures->ns, part->ns, sizeof part->ns);
        if (child->relay != NULL) /* its host has another clock; the message was not long under way */
            figures->ahead_ns = (int64_t)(monotime_now().ns - part->end_ns);
    }
    if (part->first != (*kept)->figures.kept) /* a part is missing: the spans end before it */
        return;
    memcpy((*kept)->figures.spans + part->first, part->spans, part->count * sizeof part->spans[0]);
    (*kept)->figures.kept = part->first + part->count;
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
    const bool has_figures = kept != NULL && kept->starts == child->starts;
    row->figures = has_figures ? &kept->figures : NULL;
    if (!has_figures && roster_role(&g->roster, child->start.worker) == g->python_worker.role)
        snprintf(row->note, sizeof row->note, "not profiled: it runs in Python");
    else if (!has_figures && child->starts == 0)
        snprintf(row->note, sizeof row->note, "no figures: it has not started");
    else if (!has_figures)
        snprintf(row->note, sizeof row->note, "no figures: %.280s",
                 child->end[0] != '\0' ? child->end : "it did not report them");
    else if (child->starts > 1)
        snprintf(row->note, sizeof row->note, "started %u times: figures of the last start only",
                 child->starts);
}

static void write_table(const struct generation *g, const struct profile_row *rows, FILE *out)
{
    profile_write_table(out, rows, g->count);
    if (g->dir->resumed)
        fprintf(out, "the run was resumed: the figures begin there\n");
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

void run_view_write_profile(struct run_view *view)
{
    const struct generation *g = view->g;
    struct profile_row *rows = view->is_profiled ? calloc(g->count, sizeof *rows) : NULL;
    for (unsigned i = 0; i < g->count && rows != NULL; i++)
        fill_row(g, i, view->profiles[i], &rows[i]);
    if (rows != NULL) {
        runlog_clear_progress(g->log);
        write_table(g, rows, stderr);
        if (write_file(g, rows, NULL, "profile.txt") && write_file(g, rows, &view->begin, "profile.json"))
            log_info("the profile is in %s/profile.txt and profile.json", g->dir->path);
    }
    free(rows);
    for (unsigned i = 0; i < ROSTER_WORKERS_MAX; i++)
        free(view->profiles[i]);
}

/* ---- opening and closing ---- */

void run_view_init(struct run_view *view, const struct generation *g, bool is_profiled)
{
    *view = (struct run_view){.g = g,
                              .is_profiled = is_profiled,
                              .begin = monotime_now(),
                              .begin_unix_s = unix_time_s(),
                              .status = {.fd = -1},
                              .listen_due = MONOTIME_NEVER,
                              .textfile_due = MONOTIME_NEVER};
}

/* The address may be in use now and free later: only the first failure is told. */
static void begin_to_listen(struct run_view *view, bool is_first)
{
    const char *listen = view->g->job->metrics.listen;
    struct error error;
    const struct http_config config = {
        .document = document, .order = take_order, .arg = view, .connections_max = view->connections_max};
    const struct listener_place place = listener_place_of(view->g->job);
    const enum status status = listener_open(&view->listener, &place, config, &error);
    view->listen_due = status == STATUS_OK ? MONOTIME_NEVER : monotime_add_us(monotime_now(), LISTEN_US);
    if (status == STATUS_OK || is_first)
        runlog_clear_progress(view->g->log);
    if (status == STATUS_OK)
        log_info("the run's page is at %s%s", strchr(listen, '/') == NULL ? "http://" : "", listen);
    else if (is_first)
        log_warning("%s: the job goes on without its page, which is tried again every %d s", error.text,
                    LISTEN_US / 1000000);
}

static void open_page(struct run_view *view)
{
    const unsigned spare = descriptors_spare(view->g->job, view->g->hosts->rendezvous != NULL);
    view->connections_max = spare > HTTP_DESCRIPTORS ? spare - HTTP_DESCRIPTORS : 0;
    if (view->connections_max > 0)
        open_history(view);
    if (view->history != NULL)
        begin_to_listen(view, true);
    else if (view->connections_max > 0)
        return;
    else
        log_warning("the limit on open files (ulimit -Hn) leaves %u for /metrics/listen, which needs "
                    "more than %d: the job goes on without its page",
                    spare, HTTP_DESCRIPTORS);
}

void run_view_open(struct run_view *view)
{
    struct error error;
    if (view->g->job->metrics.has_textfile)
        view->textfile_due = monotime_now();
    if (view->g->job->metrics.has_listen)
        open_page(view);
    if (status_socket_open(&view->status, view->g->dir->address, status_text, view, &error) != STATUS_OK)
        log_warning("coalesced status will not find this run: %s", error.text);
    else if (!view->g->job->metrics.has_listen &&
             isatty(STDERR_FILENO) == 1) // the hint is for a person, not for a journal
        log_info("see more with `coalesced status %s`, or a page with --set /metrics/listen=127.0.0.1:9477",
                 view->g->dir->path);
}

void run_view_close(struct run_view *view, const char *state, const char *reason)
{
    status_socket_close(&view->status);
    if (listener_streams(&view->listener) > 0)
        tell_end(view, state, reason);
    listener_close(&view->listener);
    if (view->history != NULL) {
        runlog_listen(view->g->log, NULL, NULL);
        log_listen(NULL, NULL);
        run_history_free(view->history);
        view->history = NULL;
    }
    if (view->textfile_written)
        file_remove_or_warn(view->g->job->metrics.textfile);
}

/* ---- the loop ---- */

void run_view_waits(const struct run_view *view, struct pollfd waits[RUN_VIEW_WAITS])
{
    waits[0] = (struct pollfd){.fd = listener_fd(&view->listener), .events = POLLIN};
    status_socket_waits(&view->status, &waits[1]);
}

void run_view_serve(struct run_view *view, const struct pollfd waits[RUN_VIEW_WAITS])
{
    if (waits[0].revents != 0)
        listener_serve(&view->listener);
    status_socket_serve(&view->status, &waits[1]);
}

struct monotime run_view_check(struct run_view *view, struct monotime now)
{
    struct monotime next = status_socket_check(&view->status, now);
    if (listener_streams(&view->listener) > 0 && !monotime_before(now, view->tick_due)) {
        tell(view);
        view->tick_due = monotime_add_us(now, TICK_US);
    }
    if (!monotime_before(now, view->textfile_due)) {
        update_textfile(view);
        view->textfile_due = monotime_add_us(now, TEXTFILE_US);
    }
    if (!monotime_before(now, view->listen_due))
        begin_to_listen(view, false);
    if (!monotime_before(now, listener_due(&view->listener, now)))
        listener_serve(&view->listener);
    next = monotime_earliest(next, monotime_earliest(view->textfile_due, view->listen_due));
    next = monotime_earliest(next, listener_due(&view->listener, now));
    return listener_streams(&view->listener) > 0 ? monotime_earliest(next, view->tick_due) : next;
}
