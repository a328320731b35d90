/* The number of observers or trainers follows the hosts that `coalesced join` brings and that leave again.
 * Supervisor process; its only thread; no lock.
 *
 * The number is fixed within a generation. When it changes, the lead is told to drain: it finishes the round
 * and writes a checkpoint, and then all workers start again under the next generation, from that checkpoint.
 * So no episode or update is lost or computed again, and no worker has to know how another one grows. A host
 * that is lost takes its clients along only then: until the round is over they run elsewhere, as those of any
 * lost host. */
#include "daemon/process/descriptors.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t supervise_own_clients(const struct supervisor *s)
{
    return s->roster.clients - s->config->job->added;
}

const char *supervise_clients_unit(const struct supervisor *s, uint32_t count)
{
    if (s->roster.client_role == WIRE_ROLE_OBSERVER)
        return count == 1 ? "observer" : "observers";
    return count == 1 ? "trainer" : "trainers";
}

uint32_t supervise_brings(const struct supervisor *s, uint16_t host)
{
    const struct host *of = &s->hosts.of[host];
    return of->state == HOST_UP && !of->unfit ? of->brings : 0;
}

/* What all hosts bring. */
static uint32_t sum_of_brings(const struct supervisor *s)
{
    uint32_t sum = 0;
    for (uint16_t i = 1; supervise_has_hosts(s) && i < supervise_host_count(s); i++)
        sum += supervise_brings(s, i);
    return sum;
}

/* ---- before ---- */

/* The limits of a job file hold for the job with what is added to it. */
static enum status check_limits(const struct supervisor *s, uint32_t added, struct error *error)
{
    static struct job wanted, checked; /* too large for a stack; one thread */
    size_t bytes;
    char *problems = NULL;
    wanted = *s->config->job;
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

enum status supervise_check_growth(const struct supervisor *s, uint32_t role, uint32_t count,
                                   struct error *error)
{
    const struct job *job = s->config->job;
    const char *unit = supervise_clients_unit(s, 0);
    if (job->kind == JOB_MODEL_PARALLEL)
        return error_set(error, STATUS_INVALID,
                         "the job is of the kind model-parallel: it cannot get more trainers while it runs");
    if (role != s->roster.client_role)
        return error_set(error, STATUS_INVALID, "the job has %s: expected --%s N", unit, unit);
    if (supervise_own_clients(s) == 0)
        return error_set(
            error, STATUS_INVALID,
            "the job has its environments in the agent's process: expected /observers/count >= 1");
    if (!job->supervise.restart)
        return error_set(error, STATUS_INVALID,
                         "the job does not let workers start again (/supervise/restart is false), and so it "
                         "cannot get more %s",
                         unit);
    return check_limits(s, sum_of_brings(s) + count, error);
}

void supervise_resize(struct supervisor *s, const char *why)
{
    const uint32_t clients = supervise_own_clients(s) + sum_of_brings(s);
    if (clients == s->roster.clients || s->finished || s->closing || s->stops > 0)
        return;
    runlog_clear_progress(s->config->log);
    log_info("%s: the job goes on with %u %s%s", why, clients, supervise_clients_unit(s, clients),
             s->hosts.awaited ? "" : " after this round");
    if (s->hosts.awaited || s->regeneration.pending || s->resizes)
        return;
    s->resizes = true;
    child_order(&s->children[s->roster.lead], CONTROL_DRAIN, NULL, 0);
}

/* ---- between two generations ---- */

/* Room for at least `count` workers; those that are new are gone. */
static enum status grow(struct supervisor *s, unsigned count, struct error *error)
{
    struct child *children = calloc(count, sizeof *children);
    struct control_status *holdings = calloc(count, sizeof *holdings);
    struct pollfd *waits = calloc(1 + count + WAITS_BEHIND, sizeof *waits);
    if (children == NULL || holdings == NULL || waits == NULL) {
        free(children);
        free(holdings);
        free(waits);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u workers", count);
    }
    for (unsigned i = 0; i < count; i++)
        children[i] = i < s->count ? s->children[i] : (struct child){.state = CHILD_GONE, .fd = -1};
    free(s->children);
    free(s->holdings);
    free(s->waits);
    s->children = children;
    s->holdings = holdings;
    s->waits = waits;
    return STATUS_OK;
}

enum status supervise_adopt_size(struct supervisor *s, struct error *error)
{
    s->resizes = false;
    if (sum_of_brings(s) == s->config->job->added)
        return STATUS_OK;
    s->config->job->added = sum_of_brings(s);
    const struct roster roster = roster_of(s->config->job);
    const enum status status =
        roster_workers(&roster) > s->count ? grow(s, roster_workers(&roster), error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    s->roster = roster;
    s->count = roster_workers(&roster);
    return STATUS_OK;
}
