/* The supervisor's reaction to each signal. Supervisor process; its only thread; no lock. */
#include "daemon/process/service.h"
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum status supervise_take_signals(struct supervisor *s, struct error *error)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&set, taken[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    /* An ignored SIGCHLD, which a process inherits, would never come, and waitpid would find no child. */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd >= 0 ? STATUS_OK
                             : error_set_errno(error, errno, "cannot make a descriptor for signals");
}

/* The first signal asks for an orderly end, the second for a quick one, the third kills. */
static void stop_job(struct supervisor *s)
{
    s->stops++;
    runlog_clear_progress(s->config->log);
    if (s->stops == 1) {
        log_info("stopping: the running round is finished first; a second signal hurries");
        service_notify("STOPPING=1\nSTATUS=finishing the round");
        if (s->regeneration.pending) /* no round is running */
            supervise_close(s);
        child_order(&s->children[s->roster.lead], CONTROL_DRAIN, NULL, 0);
    } else if (s->stops == 2) {
        log_info("hurrying: the running round is given up");
        supervise_hurry(s);
    } else {
        s->kill_at = monotime_now();
    }
}

static void log_lines(char *text)
{
    char *rest;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        log_error("%s", line);
}

/* Takes over /log, the only key that may change while a job runs, but not in a model-parallel job: its
 * workers compute the means that its lines show. Other changes wait for the next start. */
static void adopt_job(struct supervisor *s, struct job *job)
{
    const struct supervise_config *config = s->config;
    const bool log_changes = config->job->kind != JOB_MODEL_PARALLEL;
    size_t bytes;
    resume_keep(job, config->job);
    if (log_changes)
        config->job->log = job->log;
    char *wanted = job_format(job, &bytes), *have = job_format(config->job, &bytes);
    const bool same = wanted != NULL && have != NULL && strcmp(wanted, have) == 0;
    log_info("%s is read again: %s%s", config->job_path,
             log_changes ? "/log is in force" : "nothing changes now",
             same          ? ""
             : log_changes ? "; its other changes wait for the next start"
                           : "; its changes wait for the next start");
    free(wanted);
    free(have);
}

static void reload_job(struct supervisor *s)
{
    const struct supervise_config *config = s->config;
    struct job job;
    char *problems = NULL;
    runlog_clear_progress(config->log);
    if (job_read_file(&job, path_of(config->job_path), config->overrides, config->override_count, NULL,
                      &problems) == STATUS_OK) {
        adopt_job(s, &job);
    } else {
        log_lines(problems);
        log_error("%s cannot be used: nothing is changed", config->job_path);
    }
    free(problems);
}

bool supervise_obey_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    bool child_exited = false;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        switch (info.ssi_signo) {
        case SIGCHLD:
            child_exited = true;
            break;
        case SIGINT:
        case SIGTERM:
            stop_job(s);
            break;
        case SIGHUP:
            reload_job(s);
            break;
        case SIGUSR1:
            supervise_order_save(s);
            break;
        }
    }
    return child_exited;
}
