/* `coalesced run`: has the hosts meet, and leads the job or follows its leader. `coalesced join`: adds this
 * host to a running job. The command's process; after the fork of the workers it is the supervisor's. One
 * thread. */
#include "daemon/commands/commands.h"
#include "daemon/hosts/follow.h"
#include "daemon/hosts/hosts.h"
#include "daemon/hosts/rendezvous.h"
#include "daemon/log/runlog.h"
#include "daemon/process/descriptors.h"
#include "daemon/process/service.h"
#include "daemon/run/resume.h"
#include "daemon/run/rundir.h"
#include "daemon/supervise/supervise.h"
#include "kernels/base/log.h"
#include "worker/checkpoint/checkpoint.h"

#include <stdlib.h>

/* Follows, but exits the process with the leader's exit code where that is not 0: the leader has said what
 * went wrong. */
static enum status follow_leader(const struct follow_config *config, struct error *error)
{
    int code = 0;
    const enum status status = follow(config, &code, error);
    if (status == STATUS_OK && code != 0)
        exit(code);
    return status;
}

static enum status open_run(const struct arguments *arguments, struct job *job, struct rundir *dir,
                            struct runlog **log, struct error *error)
{
    enum status status = descriptors_raise_limit(job, error);
    if (status != STATUS_OK)
        return status;
    status = rundir_open(dir, arguments->run_dir, job, arguments->resume, error);
    if (status != STATUS_OK)
        return status;
    status = checkpoint_probe(rundir_path(dir), error);
    const struct run_identity identity = resume_identity(job);
    if (status == STATUS_OK)
        status = runlog_open(log, rundir_path(dir), job, &identity, error);
    if (status != STATUS_OK)
        rundir_close(dir);
    return status;
}

/* Opens the run directory and the logs, and supervises the job. `rendezvous`: NULL: there is no other host.
 */
static enum status run_leader(const struct arguments *arguments, struct job *job,
                              struct rendezvous *rendezvous, struct error *error)
{
    struct rundir dir;
    struct runlog *log = NULL;
    enum status status = open_run(arguments, job, &dir, &log, error);
    if (status != STATUS_OK) {
        hosts_decline(rendezvous, job, error);
        return status;
    }
    const struct supervise_config config = {.job = job,
                                            .dir = &dir,
                                            .log = log,
                                            .job_path = arguments->job_path,
                                            .overrides = arguments->overrides,
                                            .override_count = arguments->override_count,
                                            .rendezvous = rendezvous};
    status = supervise(&config, error);
    runlog_close(log);
    rundir_close(&dir);
    return status;
}

static enum status run_follower(const struct arguments *arguments, const struct job *job,
                                struct rendezvous *rendezvous, struct error *error)
{
    char run[RUNDIR_PATH_BYTES];
    const struct follow_config config = {
        .rendezvous = rendezvous, .run = run, .patience_s = job->hosts.patience_s};
    const enum status status = rundir_choose(run, arguments->run_dir, job, error);
    if (status != STATUS_OK)
        return status;
    log_run(run);
    return follow_leader(&config, error);
}

/* A finished run of one host ends at once: it takes no lock, no socket and no port, and starts no worker. */
static bool is_over(const struct arguments *arguments, const struct job *job)
{
    char run[RUNDIR_PATH_BYTES];
    struct error error;
    if (!arguments->resume || rundir_choose(run, arguments->run_dir, job, &error) != STATUS_OK ||
        !resume_is_over(run, job))
        return false;
    log_run(run);
    log_info("%s has ended, and /stop asks for no more: nothing is to be done", run);
    service_notify("READY=1\nSTATUS=the run has ended");
    service_notify("STOPPING=1"); /* of one message, systemd takes the last state alone */
    return true;
}

enum status run_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    static struct rendezvous rendezvous; /* with the keys of all hosts: too large for a stack */
    const char *listen = job->hosts.has_listen ? job->hosts.listen : NULL;
    const uint64_t patience_us = (uint64_t)(job->hosts.patience_s * 1e6);
    service_init();
    enum status status = rendezvous_find(&rendezvous, &arguments->rendezvous, listen,
                                         monotime_add_us(monotime_now(), patience_us), error);
    if (status == STATUS_OK && rendezvous.source == RENDEZVOUS_ALONE)
        return is_over(arguments, job) ? STATUS_OK : run_leader(arguments, job, NULL, error);
    if (status == STATUS_OK && rendezvous_is_leader(&rendezvous))
        return run_leader(arguments, job, &rendezvous, error);
    return status == STATUS_OK ? run_follower(arguments, job, &rendezvous, error) : status;
}

enum status join_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum { PATIENCE_S = 60 };
    static struct rendezvous rendezvous;
    (void)job;
    struct rendezvous_flags flags = arguments->rendezvous;
    const struct follow_config config = {.rendezvous = &rendezvous,
                                         .run = NULL,
                                         .patience_s = PATIENCE_S,
                                         .brings = arguments->brings,
                                         .role = arguments->role};
    service_init();
    enum status status = flags.given ? STATUS_OK : key_files_own(&flags.host, flags.keys, error);
    flags.count = flags.given ? flags.count : (uint16_t)(flags.host + 1);
    flags.given = true;
    if (status == STATUS_OK)
        status = rendezvous_find(&rendezvous, &flags, NULL, MONOTIME_NEVER, error);
    if (status == STATUS_OK && rendezvous_is_leader(&rendezvous))
        status =
            error_set(error, STATUS_INVALID, "host 0 leads: expected the key of another host to join with");
    return status == STATUS_OK ? follow_leader(&config, error) : status;
}
