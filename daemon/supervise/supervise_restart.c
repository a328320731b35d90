/* Workers that start again: one in its place, or all under the next generation. Supervisor process; its only
 * thread; no lock. */
#include "daemon/process/socket_folder.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

/* The first start comes at once. As long as no episode or update comes between, later ones come 0.5 s after
 * the death, 1 s after it, then 2 s, up to 30 s. */
static struct monotime restart_time(unsigned fruitless)
{
    enum { FIRST_US = 500000, LONGEST_US = 30000000, DOUBLINGS_MAX = 6 };
    const unsigned doublings = fruitless < 2 + DOUBLINGS_MAX ? fruitless - 2 : DOUBLINGS_MAX;
    const uint64_t delay_us = fruitless < 2 ? 0 : (uint64_t)FIRST_US << doublings;
    return monotime_add_us(monotime_now(), delay_us < LONGEST_US ? delay_us : LONGEST_US);
}

static enum status start_child(struct supervisor *s, struct child *child, const struct control_start *start,
                               struct error *error)
{
    return supervise_spawn_on(s, child, start, supervise_choose_host(s, start->worker), error);
}

/* ---- one worker ---- */

enum { CAUSE_US = 200000 }; /* a follow-on failure may be reaped so long before its cause */

static void plan_start(struct child *child, struct monotime due, const char *why)
{
    child->replaced = true;
    child->restart_at = due;
    snprintf(child->reason, sizeof child->reason, "%s", why);
}

/* If the death of the peer that is the cause starts the next generation, this worker needs no successor. */
void supervise_replace(struct child *child, bool is_follow_on, const char *why)
{
    plan_start(child, monotime_add_us(restart_time(child->deaths), is_follow_on ? CAUSE_US : 0), why);
}

void supervise_await_cause(struct child *child, const char *why)
{
    plan_start(child, monotime_add_us(monotime_now(), CAUSE_US), why);
}

/* No cause has come. An order to stop has perhaps: then no generation begins. */
static void end_wait_for_cause(struct supervisor *s, const struct child *child)
{
    if (s->stops > 0)
        supervise_close(s);
    else
        supervise_regenerate(s, child, child->reason);
}

static enum status log_restart(struct supervisor *s, const struct child *child, uint32_t incarnation,
                               struct error *error)
{
    const struct line_restart line = {.role = role_by_wire(child->start.role)->name,
                                      .worker = child->start.worker,
                                      .incarnation = incarnation,
                                      .reason = child->reason};
    runlog_clear_progress(s->config->log);
    run_history_mark(&s->history, child->reason);
    log_warning("%s; incarnation %u takes its place", child->reason, incarnation);
    return runlog_restart(s->config->log, &line, error);
}

/* A fork that fails counts as a death: it is tried again. */
static void restart_worker(struct supervisor *s, struct child *child)
{
    struct error error = {0};
    struct control_start start = child->start;
    start.incarnation++;
    if (log_restart(s, child, start.incarnation, &error) != STATUS_OK) {
        s->log_failed = true;
        supervise_fail(s, error.status, error.text);
        return;
    }
    if (start_child(s, child, &start, &error) != STATUS_OK) {
        child_kill(child);
        supervise_lose(s, child, STATUS_INTERNAL, error.text);
        if (child->state == CHILD_GONE && child->replaced)
            child->state = CHILD_WAITING;
    }
    supervise_connect(s);
}

void restart_due(struct supervisor *s, struct child *child, const struct control_message *message)
{
    (void)message;
    if (child->start.worker >= s->roster.replaceable)
        restart_worker(s, child);
    else
        end_wait_for_cause(s, child);
}

void supervise_forget_restarts(struct supervisor *s)
{
    s->regeneration.pending = false;
    for (unsigned i = 0; i < s->count; i++) {
        struct child *child = &s->children[i];
        child->replaced = false;
        if (child->state == CHILD_WAITING)
            child->state = CHILD_GONE;
    }
}

/* ---- all workers ---- */

enum status supervise_spawn_all(struct supervisor *s, struct error *error)
{
    enum status status = s->roster.segments ? spawn_segments_open(&s->segments, s->count, error) : STATUS_OK;
    struct control_start start = {
        .incarnation = 1, .generation = s->generation, .added = s->config->job->added};
    randombytes_buf(start.secret, sizeof start.secret);
    memcpy(start.address, s->config->dir->address, sizeof start.address);
    memcpy(start.run_dir, s->config->dir->real, sizeof start.run_dir);
    memcpy(start.resume, s->resume.checkpoint, sizeof start.resume);
    if (s->config->place != NULL) {
        start.keys = s->config->place->link.keys;
        snprintf(start.far_address, sizeof start.far_address, "%.40s:*", s->config->place->listen);
    }
    for (unsigned i = 0; i < s->count && status == STATUS_OK; i++) {
        start.worker = (uint16_t)i;
        start.role = roster_role(&s->roster, start.worker);
        status = start_child(s, &s->children[i], &start, error);
    }
    if (status != STATUS_OK)
        return status;
    s->records = 0;
    supervise_tell_place(s);
    supervise_order_save(s);
    return STATUS_OK;
}

void supervise_regenerate(struct supervisor *s, const struct child *cause, const char *why)
{
    struct regeneration *regeneration = &s->regeneration;
    supervise_forget_restarts(s);
    for (unsigned i = 0; i < s->count; i++)
        child_kill(&s->children[i]);
    regeneration->pending = true;
    regeneration->due = restart_time(++regeneration->fruitless);
    regeneration->worker = cause->start.worker;
    regeneration->is_resize = false;
    snprintf(regeneration->reason, sizeof regeneration->reason, "%s", why);
}

void supervise_regenerate_resized(struct supervisor *s)
{
    supervise_forget_restarts(s);
    for (unsigned i = 0; i < s->count; i++)
        child_kill(&s->children[i]);
    s->regeneration.pending = s->regeneration.is_resize = true;
    snprintf(s->regeneration.reason, sizeof s->regeneration.reason, "the number of %s changes with the hosts",
             supervise_clients_unit(s, 0));
    s->regeneration.due = monotime_now();
    s->regeneration.worker = s->roster.lead;
}

/* The sockets of killed workers are still there, and their segments may hold half a write. */
static enum status regeneration_start(struct supervisor *s, struct error *error)
{
    const bool is_resize = s->regeneration.is_resize;
    const struct child cause = s->children[s->regeneration.worker];
    enum status status = supervise_adopt_size(s, error);
    if (status != STATUS_OK)
        return status;
    s->generation++;
    memset(s->holdings, 0, s->count * sizeof *s->holdings);
    socket_folder_clear(s->config->dir->address);
    spawn_segments_close(&s->segments);
    runlog_clear_progress(s->config->log);
    run_history_mark(&s->history, s->regeneration.reason);
    if (is_resize)
        log_info("the job goes on with %u %s", s->roster.clients,
                 supervise_clients_unit(s, s->roster.clients));
    else
        log_warning("%s; all workers start again", s->regeneration.reason);
    const struct line_restart line = {.role = is_resize ? NULL : role_by_wire(cause.start.role)->name,
                                      .worker = cause.start.worker,
                                      .incarnation = cause.start.incarnation,
                                      .generation = s->generation,
                                      .reason = s->regeneration.reason};
    return resume_go_back(&s->resume, rundir_path(s->config->dir), s->config->log, &line, error);
}

/* A fork that fails counts as another death of the worker that is the cause: it is tried again. */
static void regeneration_run(struct supervisor *s)
{
    struct error error = {0};
    s->regeneration.pending = false;
    if (regeneration_start(s, &error) != STATUS_OK)
        supervise_fail(s, error.status, error.text);
    else if (supervise_spawn_all(s, &error) != STATUS_OK)
        supervise_lose(s, &s->children[s->regeneration.worker], STATUS_INTERNAL, error.text);
}

struct monotime supervise_advance_generation(struct supervisor *s, struct monotime now)
{
    if (!s->regeneration.pending)
        return MONOTIME_NEVER;
    for (unsigned i = 0; i < s->count; i++)
        if (s->children[i].state != CHILD_GONE)
            return MONOTIME_NEVER;
    if (monotime_before(now, s->regeneration.due))
        return s->regeneration.due;
    regeneration_run(s);
    return MONOTIME_NEVER;
}

/* ---- progress ---- */

/* Whether the worker took part. An update of a parameter server has no loss of a trainer that did not. */
static bool took_part(const struct supervisor *s, const struct child *child,
                      const struct control_message *record)
{
    const unsigned trainer = child->start.worker - s->roster.servers;
    const bool names_trainers =
        record->kind == CONTROL_UPDATE && s->config->job->kind == JOB_PARAMETER_SERVER;
    return !names_trainers || child->start.worker < s->roster.servers ||
           (trainer < record->body.update.trainers && !isnan(record->body.update.losses[trainer]));
}

void supervise_note_progress(struct supervisor *s, const struct control_message *record)
{
    const uint64_t number = record->kind == CONTROL_EPOCH ? 0 : control_record_number(record);
    for (unsigned i = 0; i < s->count; i++)
        if (took_part(s, &s->children[i], record))
            s->children[i].deaths = 0;
    if (number <= s->furthest)
        return;
    s->furthest = number;
    s->regeneration.fruitless = 0;
    s->regeneration.alike = 0;
}
