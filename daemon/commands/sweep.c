/* The loop of a sweep: start what is due, wait, read, judge, draw. The sweep's process; its only thread. */
#include "daemon/commands/sweep.h"

#include "daemon/commands/figure.h"
#include "daemon/commands/plot.h"
#include "daemon/commands/sweep_internal.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { DRAW_US = 100000 }; /* the table is redrawn at most so often */

/* ---- signals ---- */

static enum status take_signals(struct sweep *s, struct error *error)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&set, taken[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGCHLD, SIG_DFL); /* an ignored one, which a process inherits, would never come */
    signal(SIGPIPE, SIG_IGN);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd >= 0 ? STATUS_OK
                             : error_set_errno(error, errno, "cannot make a descriptor for signals");
}

/* Each signal goes on to all runs, for which it means what it means to `coalesced run`. */
static void stop_runs(struct sweep *s)
{
    s->stops++;
    sweep_report_clear(&s->report);
    if (s->stops == 1)
        log_info("stopping: the running runs finish their rounds first; a second signal hurries");
    else if (s->stops == 2)
        log_info("hurrying: the running rounds are given up");
    for (size_t i = 0; i < s->grid.runs; i++)
        if (s->runs[i].state == SWEEP_RUNNING)
            sweep_run_stop(&s->runs[i]);
    s->is_dirty = true;
}

/* True: a run has ended. */
static bool obey_signals(struct sweep *s)
{
    struct signalfd_siginfo info;
    bool has_ended = false;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            has_ended = true;
        else
            stop_runs(s);
    }
    return has_ended;
}

/* ---- the runs ---- */

static size_t count_runs(const struct sweep *s, enum sweep_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < s->grid.runs; i++)
        count += s->runs[i].state == state;
    return count;
}

static enum status start_runs(struct sweep *s, struct error *error)
{
    const size_t parallel = s->arguments->parallel > 0 ? s->arguments->parallel : 1;
    size_t running = count_runs(s, SWEEP_RUNNING);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < s->grid.runs && running < parallel && s->stops == 0 && status == STATUS_OK; i++) {
        if (s->runs[i].state != SWEEP_WAITING)
            continue;
        running += sweep_run_start(&s->runs[i], s->arguments, &s->grid, i) == STATUS_OK;
        status = sweep_report_change(&s->report, &s->runs[i], error);
        s->is_dirty = true;
    }
    return status;
}

static void read_runs(struct sweep *s, nfds_t polled)
{
    nfds_t at = 1;
    for (size_t i = 0; i < s->grid.runs && at < polled; i++) {
        if (s->runs[i].out < 0)
            continue;
        if (s->polled[at++].revents != 0) {
            sweep_run_read(&s->runs[i]);
            s->is_dirty = true;
        }
    }
}

static enum status reap_runs(struct sweep *s, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < s->grid.runs && status == STATUS_OK; i++) {
        if (s->runs[i].state != SWEEP_RUNNING || !sweep_run_reap(&s->runs[i]))
            continue;
        status = sweep_report_change(&s->report, &s->runs[i], error);
        s->is_dirty = true;
    }
    return status;
}

/* ---- the median rule ---- */

static bool is_hopeless(struct sweep *s, size_t number)
{
    const bool less_is_better = strcmp(s->keys.y, "loss") == 0;
    size_t peers = 0;
    for (size_t i = 0; i < s->grid.runs; i++)
        if (i != number)
            s->peers[peers++] = (struct sweep_peer){&s->runs[i].curve, s->runs[i].state == SWEEP_FINISHED ||
                                                                           s->runs[i].state == SWEEP_SOLVED};
    return sweep_rule_stops(&s->runs[number].curve, s->runs[number].grace, s->peers, peers, less_is_better,
                            s->scratch);
}

static void judge_runs(struct sweep *s)
{
    for (size_t i = 0; i < s->grid.runs && s->arguments->stops_hopeless && s->stops == 0; i++) {
        struct sweep_run *run = &s->runs[i];
        if (run->state != SWEEP_RUNNING || run->stops > 0 || !run->is_new)
            continue;
        run->is_new = false;
        run->is_hopeless = is_hopeless(s, i);
        if (run->is_hopeless)
            sweep_run_stop(run);
    }
}

/* ---- the loop ---- */

static struct monotime draw_at(const struct sweep *s)
{
    return s->is_dirty && s->report.is_screen ? monotime_add_us(s->drawn, DRAW_US) : MONOTIME_NEVER;
}

/* Returns how many descriptors are polled: the signals' and one for each pipe. */
static nfds_t wait_for_something(struct sweep *s)
{
    nfds_t count = 0;
    s->polled[count++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    for (size_t i = 0; i < s->grid.runs; i++)
        if (s->runs[i].out >= 0)
            s->polled[count++] = (struct pollfd){.fd = s->runs[i].out, .events = POLLIN};
    if (poll(s->polled, count, monotime_poll_ms(monotime_now(), draw_at(s))) < 0)
        return 0;
    return count;
}

static void draw_when_due(struct sweep *s)
{
    if (monotime_before(monotime_now(), draw_at(s)) || !s->is_dirty)
        return;
    sweep_report_draw(&s->report);
    s->drawn = monotime_now();
    s->is_dirty = false;
}

/* Until no run is running and none is to be started. After a failure to write, the runs are stopped. */
static enum status run_all(struct sweep *s, struct error *error)
{
    enum status status = sweep_report_write(&s->report, error);
    while (true) {
        if (status == STATUS_OK)
            status = start_runs(s, error);
        if (status != STATUS_OK && s->stops == 0)
            stop_runs(s);
        if (count_runs(s, SWEEP_RUNNING) == 0 && (s->stops > 0 || count_runs(s, SWEEP_WAITING) == 0))
            return status;
        draw_when_due(s);
        read_runs(s, wait_for_something(s));
        if (obey_signals(s)) {
            struct error other;
            const enum status reaped = reap_runs(s, status == STATUS_OK ? error : &other);
            status = status == STATUS_OK ? reaped : status;
        }
        judge_runs(s);
    }
}

/* ---- the end ---- */

/* A figure that fails is no failure of the sweep. */
static void draw_figure(const struct sweep *s)
{
    const char **runs = calloc(s->grid.runs, sizeof *runs);
    char output[RUNDIR_PATH_BYTES + 32];
    struct plot_summary summary;
    struct error error;
    size_t count = 0;
    for (size_t i = 0; runs != NULL && i < s->grid.runs; i++)
        if (s->runs[i].curve.count > 0)
            runs[count++] = s->runs[i].path;
    snprintf(output, sizeof output, "%s/sweep.svg", s->dir);
    const struct plot_request request = {.runs = runs, .count = count, .output = output};
    if (!figure_is_possible())
        log_info("no figure is drawn: gnuplot is not in PATH");
    else if (count > 0 && plot_runs(&summary, &request, &error) != STATUS_OK)
        log_warning("no figure is drawn: %s", error.text);
    else if (count > 0)
        printf("%s: %zu curve%s of %zu run%s\n", output, summary.groups, summary.groups == 1 ? "" : "s",
               summary.runs, summary.runs == 1 ? "" : "s");
    free(runs);
}

static int report_end(struct sweep *s)
{
    int code = 0;
    sweep_report_print(&s->report);
    draw_figure(s);
    for (size_t i = 0; i < s->grid.runs && code == 0; i++)
        code = s->runs[i].state == SWEEP_FAILED ? s->runs[i].code : 0;
    if (code != 0)
        log_error("%zu of %zu runs failed; see messages.log of each", count_runs(s, SWEEP_FAILED),
                  s->grid.runs);
    return code;
}

enum status sweep(const struct arguments *arguments, int *code, struct error *error)
{
    struct sweep s;
    enum status status = sweep_open(&s, arguments, code, error);
    if (status == STATUS_OK && *code == 0)
        status = take_signals(&s, error);
    if (status == STATUS_OK && *code == 0) {
        status = run_all(&s, error);
        *code = report_end(&s);
    }
    sweep_close(&s);
    return status;
}
