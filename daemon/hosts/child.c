/* Starts workers, sends them orders, and reaps them. Supervisor process; its only thread. */
#include "daemon/hosts/child.h"

#include "kernels/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const child_states[CHILD_STATES] = {
    [CHILD_STARTING] = "starting", [CHILD_READY] = "running",    [CHILD_LEAVING] = "leaving",
    [CHILD_KILLED] = "killed",     [CHILD_WAITING] = "restarts", [CHILD_GONE] = "gone"};

static char start_body[CONTROL_BODY_BYTES_MAX - sizeof(struct control_relay)]; /* one thread */

static enum status fill_start(const struct child *child, const char *job_text, size_t job_bytes,
                              size_t *bytes, struct error *error)
{
    if (job_bytes > sizeof start_body - sizeof child->start)
        return error_set(error, STATUS_INVALID, "the resolved job has %zu bytes: expected at most %zu",
                         job_bytes, sizeof start_body - sizeof child->start);
    memcpy(start_body, &child->start, sizeof child->start);
    memcpy(start_body + sizeof child->start, job_text, job_bytes);
    *bytes = sizeof child->start + job_bytes;
    return STATUS_OK;
}

static void child_begin(struct child *child, const struct control_start *start)
{
    *child = (struct child){.start = *start,
                            .state = CHILD_GONE,
                            .fd = -1,
                            .deaths = child->deaths,
                            .starts = child->starts + 1,
                            .use = {.past = child->use.now, .now = child->use.now}};
    snprintf(child->name, sizeof child->name, "%s %u", role_by_wire(start->role)->name, start->worker);
}

void child_note_use(struct child *child, const struct control_beat *beat, struct monotime now)
{
    enum { SPAN_US = 1000000 };
    struct child_use *use = &child->use;
    use->now = *beat;
    use->now.cpu_us += use->past.cpu_us;
    use->now.work += use->past.work;
    use->now.bad += use->past.bad;
    use->now.strangers += use->past.strangers;
    use->now.duplicates += use->past.duplicates;
    use->now.stale += use->past.stale;
    use->now.timeouts += use->past.timeouts;
    if (use->at.ns == 0) {
        use->at = now;
        use->before = use->now;
    }
    const uint64_t us = monotime_us_between(use->at, now);
    if (us < SPAN_US)
        return;
    use->work_per_s = (double)(use->now.work - use->before.work) * 1e6 / (double)us;
    use->cores = (double)(use->now.cpu_us - use->before.cpu_us) / (double)us;
    use->before = use->now;
    use->at = now;
}

/* Makes the memory of a worker's note. Returns its descriptor; -1: the worker does without. */
static int open_call(struct child *child)
{
    const int fd = memfd_create("call", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, sizeof *child->call) == 0)
        child->call = mmap(NULL, sizeof *child->call, PROT_READ, MAP_SHARED, fd, 0);
    if (child->call != NULL && child->call != MAP_FAILED)
        return fd;
    child->call = NULL;
    close(fd);
    return -1;
}

static void close_call(struct child *child)
{
    if (child->call != NULL)
        munmap(child->call, sizeof *child->call);
    child->call = NULL;
}

enum status child_spawn(struct child *child, const struct control_start *start, const char *job_text,
                        size_t job_bytes, const struct spawn_setting *setting, struct error *error)
{
    struct spawn_setting whole = *setting;
    size_t bytes = 0;
    child_begin(child, start);
    whole.call_fd = open_call(child);
    enum status status = spawn(&child->pid, &child->fd, start->role, start->worker, &whole, error);
    if (whole.call_fd >= 0)
        close(whole.call_fd);
    if (status != STATUS_OK)
        close_call(child);
    if (status != STATUS_OK)
        return status;
    child->host = start->keys.host;
    child->state = CHILD_STARTING;
    child->last_beat = monotime_now();
    status = fill_start(child, job_text, job_bytes, &bytes, error);
    if (status != STATUS_OK)
        return status;
    status = control_send(child->fd, CONTROL_START, start_body, bytes);
    return status == STATUS_OK || status == STATUS_PEER_DIED /* it was killed at once, and is reaped later */
               ? STATUS_OK
               : error_set(error, status, "cannot send START to %s", child->name);
}

enum status child_spawn_far(struct child *child, const struct control_start *start, const char *job_text,
                            size_t job_bytes, struct relay *relay, uint16_t host, const char *host_name,
                            struct error *error)
{
    size_t bytes = 0;
    child_begin(child, start);
    const size_t length = strlen(child->name);
    snprintf(child->name + length, sizeof child->name - length, " on host %u (%.40s)", host, host_name);
    memset(child->start.keys.secret, 0, sizeof child->start.keys.secret); /* that host has its own */
    const enum status status = fill_start(child, job_text, job_bytes, &bytes, error);
    if (status != STATUS_OK)
        return status;
    child->relay = relay;
    child->host = host;
    child->state = CHILD_STARTING;
    child->last_beat = monotime_now();
    relay_send(relay, host, &child->start, CONTROL_START, start_body, bytes);
    return STATUS_OK;
}

void child_title(const struct child *child, char title[CHILD_TITLE_BYTES])
{
    if (child->relay != NULL)
        snprintf(title, CHILD_TITLE_BYTES, "%s", child->name);
    else
        snprintf(title, CHILD_TITLE_BYTES, "%s (process %ld)", child->name, (long)child->pid);
}

void child_order(struct child *child, enum control_kind kind, const void *body, size_t body_bytes)
{
    if (!child_is_heard(child))
        return;
    if (child->relay != NULL) {
        relay_send(child->relay, child->host, &child->start, kind, body, body_bytes);
        return;
    }
    if (control_send(child->fd, kind, body, body_bytes) != STATUS_BUSY)
        return;
    log_warning("%s (process %ld) does not take its orders: killed", child->name, (long)child->pid);
    kill(child->pid, SIGKILL);
}

int child_fd(const struct child *child)
{
    return child_is_heard(child) && !child->hung_up ? child->fd : -1;
}

/* A worker that dies with orders unread resets the line: the reset arrives ahead of the worker's last words.
 * So a line that has hung up is read again. */
enum status child_receive(struct child *child, struct control_message *message)
{
    if (!child_is_heard(child))
        return STATUS_AGAIN;
    const enum status status = control_receive(child->fd, false, message);
    child->hung_up = child->hung_up || status == STATUS_PEER_DIED;
    return status == STATUS_PEER_DIED ? STATUS_AGAIN : status;
}

void child_bury(struct child *child)
{
    if (child->fd >= 0)
        close(child->fd);
    child->fd = -1;
    child->state = CHILD_GONE;
}

void child_kill(struct child *child)
{
    if (!child_lives(child))
        return;
    if (child->relay != NULL) {
        relay_send(child->relay, child->host, &child->start, CONTROL_KILL, NULL, 0);
        child->killed_at = monotime_now();
    } else {
        kill(child->pid, SIGKILL);
    }
    child->state = CHILD_KILLED;
}

void child_place(const struct child *child, char place[CHILD_PLACE_BYTES])
{
    char name[CHILD_PLACE_BYTES - sizeof " in "];
    place[0] = '\0';
    if (child->call == NULL || atomic_load(&child->call->begun_ns) == 0)
        return;
    plugin_call_name(name, sizeof name, child->call);
    snprintf(place, CHILD_PLACE_BYTES, " in %s", name);
}

bool child_reap(struct child *child, bool wait)
{
    char place[CHILD_PLACE_BYTES];
    int status;
    pid_t ended;
    const long pid = (long)child->pid;
    if (!child_lives(child) || child->relay != NULL)
        return false;
    do
        ended = waitpid(child->pid, &status, wait ? 0 : WNOHANG);
    while (ended < 0 && errno == EINTR);
    if (ended == 0)
        return false;
    child_place(child, place);
    close_call(child);
    if (ended < 0) /* ECHILD: another reaped it */
        snprintf(child->end, sizeof child->end, "%s (process %ld) is gone: how it ended is not known",
                 child->name, pid);
    else if (WIFSIGNALED(status))
        snprintf(child->end, sizeof child->end, "%s (process %ld) was killed by signal %d (%s)%s%s",
                 child->name, pid, WTERMSIG(status), strsignal(WTERMSIG(status)), place,
                 WCOREDUMP(status) ? ", core dumped" : "");
    else
        snprintf(child->end, sizeof child->end, "%s (process %ld) exited with code %d%s", child->name, pid,
                 WEXITSTATUS(status), place);
    return true;
}
