/* Starts the workers of a job, all or one, tells them where the others are, changes their number with the
 * hosts, and has them leave in order. Supervisor process; its only thread; no lock. */
#include "daemon/supervise/generation.h"

#include "daemon/process/descriptors.h"
#include "daemon/process/socket_folder.h"
#include "kernels/base/log.h"

#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ---- */

static void clear_children(struct generation *g, unsigned first)
{
    for (unsigned i = first; i < g->count; i++)
        g->children[i] = (struct child){.state = CHILD_GONE, .fd = -1};
}

enum status generation_open(struct generation *g, struct job *job, const struct rundir *dir,
                            struct runlog *log, struct hosts *hosts, struct error *error)
{
    *g = (struct generation){.job = job,
                             .dir = dir,
                             .log = log,
                             .hosts = hosts,
                             .number = 1,
                             .roster = roster_of(job),
                             .end = {.kill_at = MONOTIME_NEVER, .result.end = CONTROL_END_STOPPED}};
    g->count = roster_workers(&g->roster);
    g->children = calloc(ROSTER_WORKERS_MAX, sizeof *g->children); /* as many as a generation may have */
    g->holdings = calloc(ROSTER_WORKERS_MAX, sizeof *g->holdings);
    g->job_text = job_format(job, &g->job_bytes);
    if (g->children == NULL || g->holdings == NULL || g->job_text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u workers", g->count);
    clear_children(g, 0);
    return python_worker_find(&g->python_worker, job, error);
}

void generation_close(struct generation *g)
{
    spawn_segments_close(&g->segments);
    free(g->children);
    free(g->holdings);
    free(g->job_text);
}

/* Whether a worker lives, or waits for its start. */
static bool has_workers(const struct generation *g)
{
    for (unsigned i = 0; i < g->count; i++)
        if (g->children[i].state != CHILD_GONE)
            return true;
    return false;
}

bool generation_goes_on(const struct generation *g)
{
    return g->next.is_planned || has_workers(g);
}

enum status generation_go_back(struct generation *g, const struct line_restart *cause, struct error *error)
{
    const enum status status = resume_go_back(&g->resume, rundir_path(g->dir), g->log, cause, error);
    if (g->number == 1)
        g->furthest = g->resume.update;
    return status;
}

bool generation_note_ready(struct generation *g)
{
    const bool was_ready = g->was_ready;
    for (unsigned i = 0; i < g->count; i++)
        if (!g->children[i].opened)
            return false;
    g->was_ready = true;
    return !was_ready;
}

bool generation_note_record(struct generation *g, uint64_t number)
{
    const bool is_new = number > g->furthest;
    if (is_new)
        g->furthest = number;
    return is_new;
}

/* ---- starts ---- */

enum status generation_start(struct generation *g, struct child *child, const struct control_start *start,
                             struct error *error)
{
    const struct placement placement = generation_placement(g);
    const uint16_t host = placement_choose_host(&placement, child, start->worker);
    const struct spawn_setting setting = {.python = &g->python_worker,
                                          .run_fd = g->dir->fd,
                                          .segments = &g->segments,
                                          .overlaps = g->job->algorithm.overlap > 0};
    if (host == HOST_LEADER)
        return child_spawn(child, start, g->job_text, g->job_bytes, &setting, error);
    return child_spawn_far(child, start, g->job_text, g->job_bytes, &g->hosts->relay, host,
                           hosts_name(g->hosts, host), error);
}

/* Takes over the number of clients that the hosts bring. Between two generations. */
static void adopt_size(struct generation *g)
{
    const unsigned before = g->count;
    g->drains = false;
    if (hosts_all_bring(g->hosts) == g->job->added)
        return;
    g->job->added = hosts_all_bring(g->hosts);
    g->roster = roster_of(g->job);
    g->count = roster_workers(&g->roster);
    clear_children(g, before);
}

enum status generation_start_all(struct generation *g, struct error *error)
{
    const struct rendezvous *rendezvous = g->hosts->rendezvous;
    if (g->number == 1)
        adopt_size(g);
    enum status status = g->roster.segments ? spawn_segments_open(&g->segments, g->count, error) : STATUS_OK;
    struct control_start start = {.incarnation = 1, .generation = g->number, .added = g->job->added};
    randombytes_buf(start.secret, sizeof start.secret);
    memcpy(start.address, g->dir->address, sizeof start.address);
    memcpy(start.run_dir, g->dir->real, sizeof start.run_dir);
    memcpy(start.resume, g->resume.checkpoint, sizeof start.resume);
    if (rendezvous != NULL) {
        start.keys = rendezvous->link.keys;
        snprintf(start.far_address, sizeof start.far_address, "%.40s:*", rendezvous->listen);
    }
    for (unsigned i = 0; i < g->count && status == STATUS_OK; i++) {
        start.worker = (uint16_t)i;
        start.role = roster_role(&g->roster, start.worker);
        status = generation_start(g, &g->children[i], &start, error);
    }
    return status;
}

/* ---- who connects to whom, and where ---- */

/* Tells a worker the addresses of its listeners on other hosts. */
static void tell_addresses(struct generation *g, struct child *child)
{
    struct control_far far[ROSTER_LISTENERS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < roster_dialed(&g->roster, child->start.worker); i++) {
        const struct child *listener = &g->children[i];
        if (listener->host == child->host)
            continue;
        const char *text = hosts_address(g->hosts, listener->host, child->host);
        text += strncmp(text, "tcp://", 6) == 0 ? 6 : 0;
        far[count] = (struct control_far){.worker = (uint16_t)i, .host = listener->host};
        snprintf(far[count++].address, CONTROL_FAR_BYTES, "tcp://%.*s:%u", (int)strcspn(text, ":"), text,
                 listener->far_port);
    }
    if (count > 0)
        child_order(child, CONTROL_FAR, far, count * sizeof far[0]);
}

/* Tells a worker's listeners on other hosts where all workers are: one message, however many connect. */
static void tell_places(struct generation *g, const struct child *child)
{
    int16_t host_of_worker[ROSTER_WORKERS_MAX];
    for (unsigned i = 0; i < g->count; i++)
        host_of_worker[i] = child_lives(&g->children[i]) ? (int16_t)g->children[i].host : -1;
    for (unsigned i = 0; i < roster_dialed(&g->roster, child->start.worker); i++)
        if (g->children[i].host != child->host)
            child_order(&g->children[i], CONTROL_PLACED, host_of_worker, g->count * sizeof host_of_worker[0]);
}

void generation_connect(struct generation *g)
{
    unsigned bound = 0;
    while (bound < g->roster.listeners && g->children[bound].bound)
        bound++;
    for (unsigned i = 1; i < g->count; i++) {
        struct child *child = &g->children[i];
        if (child->connected || !child_is_heard(child) || roster_dialed(&g->roster, (uint16_t)i) > bound)
            continue;
        child->connected = true;
        if (hosts_count(g->hosts) > 1) {
            tell_places(g, child);
            tell_addresses(g, child);
        }
        child_order(child, CONTROL_CONNECT, NULL, 0);
    }
}

void generation_tell_death(struct generation *g, const struct child *child)
{
    struct control_died died = {.worker = child->start.worker, .incarnation = child->start.incarnation};
    snprintf(died.text, sizeof died.text, "%.190s", child->end);
    for (unsigned i = 0; i < roster_dialed(&g->roster, child->start.worker); i++)
        child_order(&g->children[i], CONTROL_DIED, &died, sizeof died);
}

/* ---- the next generation ---- */

/* No worker starts any more: neither alone nor with all. */
static void forget_starts(struct generation *g)
{
    g->next.is_planned = false;
    for (unsigned i = 0; i < g->count; i++) {
        struct child *child = &g->children[i];
        child->replaced = false;
        if (child->state == CHILD_WAITING)
            child->state = CHILD_GONE;
    }
}

void generation_plan_next(struct generation *g, const struct child *cause, struct monotime due,
                          const char *why)
{
    forget_starts(g);
    for (unsigned i = 0; i < g->count; i++)
        child_kill(&g->children[i]);
    g->next.is_planned = true;
    g->next.is_resize = cause == NULL;
    g->next.due = due;
    g->next.worker = cause != NULL ? cause->start.worker : g->roster.lead;
    snprintf(g->next.reason, sizeof g->next.reason, "%s", why);
}

struct monotime generation_next_due(const struct generation *g)
{
    return g->next.is_planned && !has_workers(g) ? g->next.due : MONOTIME_NEVER;
}

void generation_begin_next(struct generation *g)
{
    g->next.is_planned = false;
    adopt_size(g);
    g->number++;
    memset(g->holdings, 0, g->count * sizeof *g->holdings);
    socket_folder_clear(g->dir->address);
    spawn_segments_close(&g->segments);
}

/* ---- growth ---- */

const char *generation_unit(const struct generation *g, uint32_t count)
{
    if (g->roster.client_role == WIRE_ROLE_OBSERVER)
        return count == 1 ? "observer" : "observers";
    return count == 1 ? "trainer" : "trainers";
}

/* The limits of a job file hold for the job with what is added to it. */
static enum status check_limits(const struct job *job, uint32_t added, struct error *error)
{
    static struct job wanted, checked; /* too large for a stack; one thread */
    size_t bytes;
    char *problems = NULL;
    wanted = *job;
    if (wanted.kind == JOB_REINFORCE)
        wanted.observers.count += added;
    else
        wanted.trainers.count += added;
    char *text = job_format(&wanted, &bytes);
    enum status status =
        text == NULL ? STATUS_NO_MEMORY : job_parse(&checked, text, bytes, "the job", NULL, 0, &problems);
    if (status != STATUS_OK)
        error_set(error, status, "%.300s", problems != NULL ? problems : "no memory for the job");
    else
        status = descriptors_raise_limit(&checked, error);
    free(problems);
    free(text);
    return status;
}

enum status generation_check_growth(const struct generation *g, uint32_t role, uint32_t count,
                                    struct error *error)
{
    const struct job *job = g->job;
    const struct placement placement = generation_placement(g);
    const char *unit = generation_unit(g, 0);
    if (job->kind == JOB_MODEL_PARALLEL)
        return error_set(error, STATUS_INVALID,
                         "the job is of the kind model-parallel: it cannot get more trainers while it runs");
    if (role != g->roster.client_role)
        return error_set(error, STATUS_INVALID, "the job has %s: expected --%s N", unit, unit);
    if (placement_own_clients(&placement) == 0)
        return error_set(
            error, STATUS_INVALID,
            "the job has its environments in the agent's process: expected /observers/count >= 1");
    if (!job->supervise.restart)
        return error_set(error, STATUS_INVALID,
                         "the job does not let workers start again (/supervise/restart is false), and so it "
                         "cannot get more %s",
                         unit);
    return check_limits(job, hosts_all_bring(g->hosts) + count, error);
}

void generation_resize(struct generation *g, const char *why)
{
    const struct placement placement = generation_placement(g);
    const uint32_t clients = placement_own_clients(&placement) + hosts_all_bring(g->hosts);
    const bool has_begun = !g->hosts->awaited;
    if (clients == g->roster.clients)
        return;
    runlog_clear_progress(g->log);
    log_info("%s: the job goes on with %u %s%s", why, clients, generation_unit(g, clients),
             has_begun ? " after this round" : "");
    if (!has_begun || g->next.is_planned || g->drains)
        return;
    g->drains = true;
    child_order(generation_lead(g), CONTROL_DRAIN, NULL, 0);
}

void generation_shrink(struct generation *g, uint16_t host, const char *end)
{
    char why[160];
    const uint32_t brought = hosts_take_away(g->hosts, host);
    if (brought == 0 || job_end_has_begun(&g->end))
        return;
    snprintf(why, sizeof why, "host %u (%.60s) %s, with %u %s", host, hosts_name(g->hosts, host), end,
             brought, generation_unit(g, brought));
    generation_resize(g, why);
}

/* ---- the end ---- */

/* The worker reports once more what it holds before it exits. A worker that dies instead holds nothing. */
static void order_exit(struct generation *g, struct child *child)
{
    if (child->state != CHILD_STARTING && child->state != CHILD_READY)
        return;
    g->holdings[child->start.worker] = (struct control_status){0};
    child_order(child, CONTROL_EXIT, NULL, 0);
    child->state = CHILD_LEAVING;
}

void generation_leave_next(struct generation *g)
{
    bool others_live = false;
    if (!g->end.closing)
        return;
    for (unsigned i = g->roster.listeners; i < g->count; i++) {
        order_exit(g, &g->children[i]);
        others_live |= g->children[i].state != CHILD_GONE;
    }
    unsigned listener = others_live ? 0 : g->roster.listeners;
    while (listener > 0 && g->children[listener - 1].state == CHILD_GONE)
        listener--;
    if (listener > 0)
        order_exit(g, &g->children[listener - 1]);
}

void generation_leave(struct generation *g)
{
    g->end.closing = true;
    forget_starts(g);
    generation_leave_next(g);
}

void generation_hurry(struct generation *g)
{
    enum { GRACE_US = 2000000 };
    g->end.hurried = true;
    forget_starts(g);
    for (unsigned i = 0; i < g->count; i++)
        child_order(&g->children[i], CONTROL_HURRY, NULL, 0);
    g->end.kill_at = monotime_earliest(g->end.kill_at, monotime_add_us(monotime_now(), GRACE_US));
}

void generation_fail(struct generation *g, const struct child *cause, enum status status, const char *format,
                     ...)
{
    struct job_end *end = &g->end;
    const bool is_follow_on = cause != NULL && child_is_follow_on(cause);
    char why[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    if (end->is_follow_on && cause != NULL && !is_follow_on) {
        log_error("%s", end->outcome.text);
        end->outcome.status = STATUS_OK;
    }
    if (end->outcome.status == STATUS_OK) {
        error_set(&end->outcome, status, "%s", why);
        end->is_follow_on = is_follow_on;
    } else {
        log_error("%s", why);
    }
    generation_hurry(g);
    generation_leave(g);
}
