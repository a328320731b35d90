/* Paints the picture of the run (daemon/watch/run_status.h), and gives it to those who ask. Supervisor
 * process; its only thread; no lock. */
#include "daemon/supervise/supervise_internal.h"
#include "daemon/watch/run_status.h"
#include "kernels/base/log.h"
#include "worker/checkpoint/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const child_states[CHILD_STATES] = {
    [CHILD_STARTING] = "starting", [CHILD_READY] = "running",    [CHILD_LEAVING] = "leaving",
    [CHILD_KILLED] = "killed",     [CHILD_WAITING] = "restarts", [CHILD_GONE] = "gone"};

static const char *state_of(const struct supervisor *s)
{
    if (s->outcome.status != STATUS_OK)
        return "failing";
    if (s->finished || s->closing)
        return "ending";
    if (s->stops > 0)
        return "stopping";
    if (s->hosts.awaited)
        return "waiting for hosts";
    return s->announced && !s->regeneration.pending ? "training" : "starting";
}

/* The median wait of the newest episode, or the newest round's. Only an agent and a server have one: others
 * wait for them. */
static double wait_of(const struct supervisor *s, const struct child *child)
{
    const struct run_totals *totals = &s->totals;
    if (child->start.worker >= s->roster.servers)
        return (double)NAN;
    if (totals->has_episode)
        return totals->episode.timing.wait_us_p50 * 1e-6;
    return totals->has_update && totals->update.trainers > 0 ? totals->update.timing.wait_s : (double)NAN;
}

static double staleness_of(const struct supervisor *s, const struct child *child)
{
    const unsigned trainer = child->start.worker - s->roster.servers;
    if (!s->totals.has_update || child->start.worker < s->roster.servers ||
        trainer >= s->totals.update.trainers)
        return (double)NAN;
    const int behind = s->totals.update.staleness[trainer];
    return behind >= 0 ? behind : (double)NAN;
}

static void paint_worker(const struct supervisor *s, const struct child *child, uint16_t worker,
                         struct worker_status *out)
{
    *out = (struct worker_status){.worker = worker,
                                  .role = role_by_wire(roster_role(&s->roster, worker))->name,
                                  .state = child_states[child->state],
                                  .pid = child_lives(child) ? child->pid : 0,
                                  .host = child->host,
                                  .host_name = child->relay != NULL ? s->hosts.of[child->host].name : "",
                                  .incarnation = child->start.incarnation,
                                  .restarts = child->starts > 0 ? child->starts - 1 : 0,
                                  .has_use = child->use.now.cpu_us > 0,
                                  .work_per_s = child->use.work_per_s,
                                  .cores = child->use.cores,
                                  .staleness = staleness_of(s, child),
                                  .wait_s = wait_of(s, child),
                                  .use = child->use.now};
}

/* The newest checkpoint's number and age, from the folder's names: its writer is another process. */
static void find_checkpoint(const struct supervisor *s, struct run_status *status)
{
    const struct path run = rundir_path(s->config->dir);
    char text[CHECKPOINT_PATH_BYTES];
    struct stat info = {0};
    struct error error;
    int fd;
    status->checkpoint_age_s = (double)NAN;
    status->checkpoint = checkpoint_latest(run);
    snprintf(text, sizeof text, "%s/checkpoints/%08llu", run.text, (unsigned long long)status->checkpoint);
    if (status->checkpoint == 0 || file_open_folder(&fd, path_below(run, text), &error) != STATUS_OK)
        return;
    const bool is_known = fstat(fd, &info) == 0;
    close(fd);
    if (!is_known)
        return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    status->checkpoint_age_s =
        (double)(now.tv_sec - info.st_mtim.tv_sec) + (double)(now.tv_nsec - info.st_mtim.tv_nsec) * 1e-9;
}

double supervise_unix_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool supervise_paint(const struct supervisor *s, struct run_status *status)
{
    *status = (struct run_status){.path = s->config->dir->real,
                                  .job = s->config->job,
                                  .state = state_of(s),
                                  .pid = getpid(),
                                  .started_unix_s = s->begin_unix_s,
                                  .up_s = (double)monotime_us_between(s->begin, monotime_now()) * 1e-6,
                                  .generation = s->generation,
                                  .update = s->furthest,
                                  .running_reward = s->totals.has_episode ? s->totals.episode.running_reward
                                                                          : s->resume.running_reward,
                                  .totals = &s->totals,
                                  .worker_count = s->count,
                                  .workers = calloc(s->count, sizeof(struct worker_status))};
    if (status->workers == NULL)
        return false;
    for (unsigned i = 0; i < s->count; i++)
        paint_worker(s, &s->children[i], (uint16_t)i, &status->workers[i]);
    find_checkpoint(s, status);
    return true;
}

char *supervise_status_text(const struct supervisor *s)
{
    struct run_status status;
    if (!supervise_paint(s, &status))
        return NULL;
    char *text = run_status_json(&status);
    free(status.workers);
    return text;
}

/* The answer to a client of the status socket. */
static char *answer(void *arg)
{
    return supervise_status_text(arg);
}

/* A run whose status cannot be asked for trains all the same. */
void supervise_open_status(struct supervisor *s)
{
    struct error error;
    if (status_socket_open(&s->status, s->config->dir->address, answer, s, &error) != STATUS_OK)
        log_warning("coalesced status will not find this run: %s", error.text);
}
