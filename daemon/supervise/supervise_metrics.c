/* What the run shows while it goes on (/metrics): documents for the HTTP server, events for the streams, and
 * the file for node_exporter. Supervisor process; its only thread; no lock. */
#include "daemon/process/descriptors.h"
#include "daemon/supervise/supervise_internal.h"
#include "daemon/watch/openmetrics.h"
#include "kernels/base/log.h"
#include "kernels/base/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TICK_US = 1000000, TEXTFILE_US = 15000000, LISTEN_US = 5000000 };

/* ---- events ---- */

static void write_lines(const struct supervisor *s, FILE *out)
{
    const char *lines[RUNLOG_TAIL_LINES];
    const unsigned count = runlog_tail(s->config->log, lines);
    fputc('[', out);
    for (unsigned i = 0; i < count; i++) {
        fputs(i > 0 ? "," : "", out);
        run_history_write_string(out, lines[i]);
    }
    fputc(']', out);
}

/* The first event of a stream has the whole run and the job; the later ones what has changed. */
static void write_event(const struct supervisor *s, const char *status, bool is_first, FILE *out)
{
    fprintf(out, "event: %s\ndata: {\"status\":%.*s,\"points\":", is_first ? "begin" : "tick",
            (int)strcspn(status, "\n"), status);
    run_history_write_points(&s->history, is_first, out);
    fprintf(out, ",\"marks\":");
    run_history_write_marks(&s->history, out);
    fprintf(out, ",\"lines\":");
    write_lines(s, out);
    if (is_first) {
        fprintf(out, ",\"job\":");
        for (size_t i = 0; i < s->job_bytes; i++) /* a line feed would end the event's line */
            fputc(s->job_text[i] == '\n' ? ' ' : s->job_text[i], out);
    }
    fprintf(out, "}\n\n");
}

static char *event_text(const struct supervisor *s, bool is_first, size_t *length)
{
    char *text = NULL, *status = supervise_status_text(s);
    FILE *out = status != NULL ? open_memstream(&text, length) : NULL;
    if (out != NULL)
        write_event(s, status, is_first, out);
    const bool failed = out == NULL || ferror(out) != 0;
    if ((out != NULL && fclose(out) != 0) || failed) {
        free(text);
        text = NULL;
    }
    free(status);
    return text;
}

/* ---- documents ---- */

static char *metrics_of(const struct supervisor *s, enum openmetrics_form form, size_t *length)
{
    struct run_status status;
    if (!supervise_paint(s, &status))
        return NULL;
    char *text = openmetrics_text(&status, form, length);
    free(status.workers);
    return text;
}

static char *document(void *arg, enum http_document which, size_t *length)
{
    const struct supervisor *s = arg;
    if (which == HTTP_METRICS || which == HTTP_OPENMETRICS)
        return metrics_of(s, which == HTTP_METRICS ? OPENMETRICS_CLASSIC : OPENMETRICS, length);
    if (which == HTTP_FIRST_EVENT)
        return event_text(s, true, length);
    char *text = supervise_status_text(s);
    *length = text != NULL ? strlen(text) : 0;
    return text;
}

/* ---- the file ---- */

static enum status write_textfile(const char *path, const char *text, size_t length, struct error *error)
{
    struct output output;
    if (output_open(&output, path) && output_close(&output, fwrite(text, 1, length, output.file) == length))
        return STATUS_OK;
    return error_set_errno(error, errno, "cannot write %s", path);
}

/* A failure is told once; the next one after a success again. */
static void update_textfile(struct supervisor *s)
{
    struct error error;
    size_t length = 0;
    char *text = metrics_of(s, OPENMETRICS_TEXTFILE, &length);
    const bool is_written =
        text != NULL && write_textfile(s->config->job->metrics.textfile, text, length, &error) == STATUS_OK;
    free(text);
    if (!is_written && !s->metrics.textfile_failed)
        log_warning("%s: the job goes on", text == NULL ? "no memory for /metrics/textfile" : error.text);
    s->metrics.textfile_written |= is_written;
    s->metrics.textfile_failed = !is_written;
}

/* ---- the loop ---- */

/* The address may be in use now and free later: only the first failure is told. */
static void begin_to_listen(struct supervisor *s, bool is_first)
{
    const char *listen = s->config->job->metrics.listen;
    struct error error;
    const struct http_config config = {
        .document = document, .arg = s, .connections_max = s->metrics.connections_max};
    const enum status status = listener_open(&s->metrics.listener, s->config->job, config, &error);
    s->metrics.listen_due = status == STATUS_OK ? MONOTIME_NEVER : monotime_add_us(monotime_now(), LISTEN_US);
    if (status == STATUS_OK || is_first)
        runlog_clear_progress(s->config->log);
    if (status == STATUS_OK)
        log_info("the run's page is at %s%s", strchr(listen, '/') == NULL ? "http://" : "", listen);
    else if (is_first)
        log_warning("%s: the job goes on without its page, which is tried again every %d s", error.text,
                    LISTEN_US / 1000000);
}

void supervise_open_metrics(struct supervisor *s)
{
    const struct job *job = s->config->job;
    s->metrics.textfile_due = job->metrics.has_textfile ? monotime_now() : MONOTIME_NEVER;
    s->metrics.listen_due = MONOTIME_NEVER;
    if (!job->metrics.has_listen)
        return;
    const unsigned spare = descriptors_spare(job, supervise_has_hosts(s));
    s->metrics.connections_max = spare > HTTP_DESCRIPTORS ? spare - HTTP_DESCRIPTORS : 0;
    if (s->metrics.connections_max > 0)
        begin_to_listen(s, true);
    else
        log_warning("the limit on open files (ulimit -Hn) leaves none for /metrics/listen: the job goes on "
                    "without its page");
}

void supervise_close_metrics(struct supervisor *s)
{
    listener_close(&s->metrics.listener);
    if (s->metrics.textfile_written)
        unlink(s->config->job->metrics.textfile);
}

static void tick(struct supervisor *s)
{
    size_t length = 0;
    char *event = event_text(s, false, &length);
    if (event != NULL)
        listener_tell(&s->metrics.listener, event, length);
    free(event);
    s->history.told = s->history.newest.number;
    listener_serve(&s->metrics.listener);
}

struct monotime supervise_check_metrics(struct supervisor *s, struct monotime now)
{
    if (listener_streams(&s->metrics.listener) > 0 && !monotime_before(now, s->metrics.tick_due)) {
        tick(s);
        s->metrics.tick_due = monotime_add_us(now, TICK_US);
    }
    if (!monotime_before(now, s->metrics.textfile_due)) {
        update_textfile(s);
        s->metrics.textfile_due = monotime_add_us(now, TEXTFILE_US);
    }
    if (!monotime_before(now, s->metrics.listen_due))
        begin_to_listen(s, false);
    const struct monotime due = listener_due(&s->metrics.listener, now);
    if (!monotime_before(now, due))
        listener_serve(&s->metrics.listener);
    struct monotime next = monotime_earliest(s->metrics.textfile_due, s->metrics.listen_due);
    next = monotime_earliest(next, listener_due(&s->metrics.listener, now));
    return listener_streams(&s->metrics.listener) > 0 ? monotime_earliest(next, s->metrics.tick_due) : next;
}
