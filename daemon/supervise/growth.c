/* Changes the number of clients with the hosts. Supervisor process; its only thread; no lock. */
#include "daemon/supervise/growth.h"

#include "daemon/process/descriptors.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <stdlib.h>

const char *growth_unit(const struct generation *g, uint32_t count)
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

enum status growth_check(const struct generation *g, uint32_t role, uint32_t count, struct error *error)
{
    const struct job *job = g->config->job;
    const char *unit = growth_unit(g, 0);
    if (job->kind == JOB_MODEL_PARALLEL)
        return error_set(error, STATUS_INVALID,
                         "the job is of the kind model-parallel: it cannot get more trainers while it runs");
    if (role != g->roster.client_role)
        return error_set(error, STATUS_INVALID, "the job has %s: expected --%s N", unit, unit);
    if (generation_own_clients(g) == 0)
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

void growth_follow(struct generation *g, const char *why)
{
    const uint32_t clients = generation_own_clients(g) + hosts_all_bring(g->hosts);
    const bool has_begun = !g->hosts->awaited;
    if (clients == g->roster.clients)
        return;
    runlog_clear_progress(g->config->log);
    log_info("%s: the job goes on with %u %s%s", why, clients, growth_unit(g, clients),
             has_begun ? " after this round" : "");
    if (!has_begun || g->next.is_planned || g->drains)
        return;
    g->drains = true;
    child_order(generation_lead(g), CONTROL_DRAIN, NULL, 0);
}

void growth_take_away(struct generation *g, uint16_t host, const char *end, bool job_is_ending)
{
    char why[160];
    const uint32_t brought = hosts_take_away(g->hosts, host);
    if (brought == 0 || job_is_ending)
        return;
    snprintf(why, sizeof why, "host %u (%.60s) %s, with %u %s", host, hosts_name(g->hosts, host), end,
             brought, growth_unit(g, brought));
    growth_follow(g, why);
}
