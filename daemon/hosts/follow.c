/* Follows a leader, in a loop: wait, read the workers' messages, reap, read the leader's messages, beat.
 * Supervisor process; its only thread; no lock. */
#include "daemon/hosts/follow.h"

#include "daemon/hosts/child.h"
#include "daemon/hosts/relay.h"
#include "daemon/process/descriptors.h"
#include "daemon/process/python_program.h"
#include "daemon/process/service.h"
#include "daemon/process/socket_folder.h"
#include "daemon/run/resume.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

enum {
    JOIN_US = 3500000,          /* between two requests: longer than the leader takes to miss this host */
    REQUEUE_STEP_US = 10000000, /* between the hosts that may ask for a requeue */
    BEAT_US_MIN = 500000,       /* beats of a worker that are passed on */
    MESSAGES_PER_TURN = 64,
};

struct follower {
    const struct follow_config *config;
    struct relay relay;
    int signal_fd;
    unsigned stops;
    bool admitted;
    struct control_admit terms;
    struct monotime heard;              /* the leader's last message */
    struct monotime join_due, beat_due; /* the next request, the next beat */
    struct monotime give_up;            /* no request after it */
    bool over;
    int code;
    struct error failure;

    /* the job, as the newest generation's first START has it */
    uint32_t generation;
    struct job job;
    struct roster roster;
    struct python_worker python_worker;
    struct spawn_segments segments;
    char address[CONTROL_ADDRESS_BYTES];
    int run_fd;
    unsigned count;
    struct child children[ROSTER_WORKERS_MAX]; /* (count) by worker number */
    struct monotime beats[ROSTER_WORKERS_MAX]; /* (count) when a worker's beat was passed on last */
    struct pollfd waits[2 + ROSTER_WORKERS_MAX];
};

static struct control_message message; /* too large for a stack; one thread */

static uint16_t own_host(const struct follower *f)
{
    return f->config->rendezvous->link.keys.host;
}

/* ---- workers that end ---- */

static void report_exit(struct follower *f, struct child *child)
{
    struct control_exited exited = {.pid = child->pid};
    snprintf(exited.end, sizeof exited.end, "%s", child->end);
    relay_send(&f->relay, HOST_LEADER, &child->start, CONTROL_EXITED, &exited, sizeof exited);
}

/* ---- a generation ---- */

/* Kills the workers. The leader hears of each, if it can hear. */
static void forget_generation(struct follower *f)
{
    for (unsigned i = 0; i < f->count; i++)
        child_kill(&f->children[i]);
    for (unsigned i = 0; i < f->count; i++) {
        if (!child_reap(&f->children[i], true))
            continue;
        child_bury(&f->children[i]);
        report_exit(f, &f->children[i]);
    }
    spawn_segments_close(&f->segments);
    if (f->run_fd >= 0)
        close(f->run_fd);
    f->run_fd = -1;
    f->count = 0;
    f->generation = 0;
}

static enum status follower_read_job(struct follower *f, const char *text, size_t bytes, struct error *error)
{
    char *problems = NULL;
    enum status status = job_parse(&f->job, text, bytes, "the leader's job", NULL, 0, &problems);
    if (status != STATUS_OK)
        status = error_set(error, STATUS_INTERNAL, "%.300s",
                           problems != NULL ? problems : "no memory for the job");
    free(problems);
    return status;
}

static enum status begin_generation(struct follower *f, const struct control_start *start, const char *text,
                                    size_t bytes, struct error *error)
{
    forget_generation(f);
    enum status status = follower_read_job(f, text, bytes, error);
    if (status != STATUS_OK)
        return status;
    f->job.added = start->added;
    f->roster = roster_of(&f->job);
    f->count = roster_workers(&f->roster);
    for (unsigned i = 0; i < f->count; i++) {
        f->children[i] = (struct child){.state = CHILD_GONE, .fd = -1};
        f->beats[i] = (struct monotime){0};
    }
    status = descriptors_raise_limit(&f->job, error);
    if (status == STATUS_OK)
        status = python_worker_find(&f->python_worker, &f->job, error);
    if (status == STATUS_OK)
        f->run_fd = open(start->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (status == STATUS_OK && f->run_fd < 0) /* only some workers use the run's files */
        f->run_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (status == STATUS_OK && f->run_fd < 0)
        status = error_set_errno(error, errno, "cannot open %.300s, nor /", start->run_dir);
    if (status == STATUS_OK && f->roster.segments)
        status = spawn_segments_open(&f->segments, f->count, error);
    if (status == STATUS_OK)
        f->generation = start->generation; /* unset after a failure: the next START begins it again */
    return status;
}

/* ---- the leader's orders ---- */

static enum status spawn_worker(struct follower *f, struct control_start *start, const char *text,
                                size_t bytes, struct error *error)
{
    const struct rendezvous *rendezvous = f->config->rendezvous;
    struct child *child = &f->children[start->worker];
    const struct spawn_setting setting = {.python = &f->python_worker,
                                          .run_fd = f->run_fd,
                                          .segments = &f->segments,
                                          .overlaps = f->job.algorithm.overlap > 0};
    start->keys = rendezvous->link.keys;
    memcpy(start->address, f->address, sizeof start->address);
    snprintf(start->far_address, sizeof start->far_address, "%.40s:*", rendezvous->listen);
    const enum status status = child_spawn(child, start, text, bytes, &setting, error);
    if (status != STATUS_OK)
        child_kill(child);
    return child_lives(child) ? STATUS_OK : status; /* one that lives is reaped, and reported then */
}

static void start_worker(struct follower *f, const struct control_message *order)
{
    struct control_start start = order->body.start;
    const char *text = order->body.bytes + sizeof start;
    const size_t bytes = order->body_bytes - sizeof start;
    struct error error = {0};
    enum status status = STATUS_OK;
    if (role_by_wire(start.role) == NULL)
        return;
    if (start.generation != f->generation)
        status = begin_generation(f, &start, text, bytes, &error);
    if (status == STATUS_OK && (start.worker >= f->count || child_lives(&f->children[start.worker])))
        status = error_set(&error, STATUS_INTERNAL, "worker %u: expected one below %u that does not run here",
                           start.worker, f->count);
    if (status == STATUS_OK)
        status = spawn_worker(f, &start, text, bytes, &error);
    if (status == STATUS_OK)
        return;
    struct child ended = {.start = start}; /* at once, with last words */
    error.status = status;
    snprintf(ended.end, sizeof ended.end, "%s %u cannot start: %.150s", role_by_wire(start.role)->name,
             start.worker, error.text);
    relay_send(&f->relay, HOST_LEADER, &start, CONTROL_FAILED, &error, sizeof error);
    report_exit(f, &ended);
}

static void order_worker(struct follower *f, const struct control_relay *head)
{
    struct child *child = head->worker < f->count ? &f->children[head->worker] : NULL;
    if (message.kind == CONTROL_START) {
        start_worker(f, &message);
        return;
    }
    if (child == NULL || child->start.incarnation != head->incarnation ||
        child->start.generation != head->generation)
        return;
    if (message.kind == CONTROL_KILL)
        child_kill(child);
    else
        child_order(child, (enum control_kind)message.kind, message.body.bytes, message.body_bytes);
}

/* What an earlier admission has left here is none of the leader's any more. */
static void take_admission(struct follower *f, const struct control_admit *admit)
{
    char identity[HOST_KEY_BYTES * 2 + 32];
    const struct host_keys *keys = &f->config->rendezvous->link.keys;
    forget_generation(f);
    f->terms = *admit;
    f->admitted = true;
    f->heard = monotime_now();
    sodium_bin2hex(identity, sizeof identity, keys->public_of_host[keys->host], HOST_KEY_BYTES);
    if (socket_folder_open(f->address, identity, ROSTER_LISTENERS_MAX, &f->failure) != STATUS_OK)
        f->over = true;
    log_info("host %u takes part in the job", own_host(f));
    service_notify("READY=1\nSTATUS=host %u of a job", own_host(f));
}

/* STATUS_BUSY passes: the leader may still hold this host's earlier session. */
static void take_refusal(struct follower *f, struct error *refusal)
{
    refusal->text[ERROR_TEXT_BYTES - 1] = '\0';
    if (refusal->status == STATUS_BUSY) {
        log_warning("the leader does not take host %u yet: %.300s", own_host(f), refusal->text);
        return;
    }
    error_set(&f->failure, refusal->status, "the leader refuses host %u: %.300s", own_host(f), refusal->text);
    f->over = true;
}

static void obey_leader(struct follower *f, const struct control_relay *head)
{
    if (head->worker == CONTROL_NO_WORKER && message.kind == CONTROL_ADMIT)
        take_admission(f, &message.body.admit);
    else if (head->worker == CONTROL_NO_WORKER && message.kind == CONTROL_REFUSE && !f->admitted)
        take_refusal(f, &message.body.failed);
    if (!f->admitted)
        return;
    f->heard = monotime_now();
    if (head->worker != CONTROL_NO_WORKER)
        order_worker(f, head);
    if (head->worker == CONTROL_NO_WORKER && message.kind == CONTROL_OVER) {
        log_info("%.*s", (int)sizeof message.body.over.text - 1, message.body.over.text);
        f->code = message.body.over.exit_code;
        f->over = true;
    }
}

static void read_leader(struct follower *f)
{
    struct control_relay head;
    enum status status = STATUS_OK;
    for (unsigned i = 0;
         i < MESSAGES_PER_TURN && status != STATUS_AGAIN && status != STATUS_PEER_DIED && !f->over; i++) {
        status = relay_receive(&f->relay, &head, &message);
        if (status == STATUS_OK)
            obey_leader(f, &head);
    }
}

/* ---- the workers' messages ---- */

/* Beats are passed on twice a second; the leader needs no more. */
static bool is_passed_on(struct follower *f, unsigned worker)
{
    const struct monotime now = monotime_now();
    if (message.kind != CONTROL_BEAT)
        return true;
    if (monotime_before(now, monotime_add_us(f->beats[worker], BEAT_US_MIN)))
        return false;
    f->beats[worker] = now;
    return true;
}

/* False: nothing has come. A worker that sends an invalid message is killed. */
static bool read_worker(struct follower *f, unsigned worker)
{
    struct child *child = &f->children[worker];
    const enum status status = child_receive(child, &message);
    if (status == STATUS_AGAIN)
        return false;
    if (status != STATUS_OK) {
        log_warning("%s sent an invalid message: killed", child->name);
        child_kill(child);
    } else if (is_passed_on(f, worker)) {
        relay_send(&f->relay, HOST_LEADER, &child->start, (enum control_kind)message.kind, message.body.bytes,
                   message.body_bytes);
    }
    return true;
}

static void follower_reap(struct follower *f)
{
    for (unsigned i = 0; i < f->count; i++) {
        struct child *child = &f->children[i];
        if (!child_reap(child, false))
            continue;
        while (read_worker(f, i))
            ;
        child_bury(child);
        report_exit(f, child);
    }
}

/* ---- signals ---- */

static void obey_stop(struct follower *f)
{
    if (++f->stops > 1 || !f->admitted) {
        log_info("%s",
                 f->admitted ? "this host ends at once" : "stopped before the leader has taken this host");
        f->over = true;
        return;
    }
    log_info("departing: the leader moves the workers elsewhere; a second signal ends this host at once");
    relay_send(&f->relay, HOST_LEADER, NULL, CONTROL_DEPART, NULL, 0);
}

static void follower_obey_signals(struct follower *f)
{
    struct signalfd_siginfo info;
    while (read(f->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            follower_reap(f);
        else if (info.ssi_signo == SIGINT || info.ssi_signo == SIGTERM)
            obey_stop(f);
    }
}

/* ---- the leader's silence ---- */

static void ask_to_join(struct follower *f, struct monotime now)
{
    struct control_join join = {
        .build = f->relay.order.build, .brings = f->config->brings, .role = f->config->role};
    randombytes_buf(&join.attempt, sizeof join.attempt);
    gethostname(join.name, sizeof join.name - 1);
    relay_send(&f->relay, HOST_LEADER, NULL, CONTROL_JOIN, &join, sizeof join);
    f->join_due = monotime_add_us(now, JOIN_US);
}

/* Kills the workers, closes the link, and begins to ask again. */
static void follower_cut_off(struct follower *f, struct monotime now, const char *why)
{
    const uint64_t wait_us = (uint64_t)(f->terms.patience_s * 1e6) + (own_host(f) - 1u) * REQUEUE_STEP_US;
    log_warning("%s: the workers of this host end, and the host asks to join again for %.0f s", why,
                (double)wait_us / 1e6);
    service_notify("STATUS=looking for the leader");
    forget_generation(f);
    f->admitted = false;
    f->give_up = monotime_add_us(now, wait_us);
    f->join_due = now;
    relay_close(&f->relay, true);
}

/* Whether the run's log ends with the job's end: then the leader is gone because the job is over, and not put
 * back into the queue. A job that has failed is this host's failure, too. */
static bool job_has_ended(struct follower *f)
{
    char event[16] = "";
    int length = 0; /* up to behind the quote of the event's name */
    char *line = f->config->run != NULL ? resume_last_line(path_of(f->config->run)) : NULL;
    if (line != NULL)
        sscanf(line, "{\"event\":\"%15[a-z]\"%n", event, &length);
    free(line);
    const char *end = length > 0 ? runlog_end(event) : NULL;
    if (end == NULL)
        return false;
    log_info("the leader is gone, and the log says that the job is over: %s", end);
    if (strcmp(end, "failed") == 0)
        error_set(&f->failure, STATUS_UNAVAILABLE, "the job has failed while this host was cut off");
    return true;
}

/* Asks Slurm to put the job back into the queue. Slurm then ends this process, too. */
static void follower_requeue(const struct follower *f)
{
    const char *id = getenv("SLURM_JOB_ID");
    int status;
    if (!f->terms.requeue || id == NULL)
        return;
    log_warning("the leader is gone: job %s goes back into the queue", id);
    const pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execlp("scontrol", "scontrol", "requeue", id, (char *)NULL);
        _exit(EX_UNAVAILABLE);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        log_error("scontrol requeue %s has failed: submit the job again, and it goes on", id);
}

static void follower_give_up(struct follower *f)
{
    const bool was_admitted = f->terms.patience_s > 0;
    f->over = true;
    if (was_admitted && job_has_ended(f))
        return;
    if (was_admitted)
        error_set(&f->failure, STATUS_UNAVAILABLE, "the leader is gone: it has not answered for %.0f s",
                  (double)monotime_us_between(f->heard, monotime_now()) * 1e-6);
    else
        error_set(&f->failure, STATUS_TIMEOUT,
                  "no leader has answered for %g s at %s%s: expected one there that knows the key of host %u",
                  f->config->patience_s, f->relay.order.addresses[0],
                  f->relay.order.addresses[1][0] != '\0' ? " and its other addresses" : "", own_host(f));
    if (was_admitted)
        follower_requeue(f);
}

static struct monotime check_deadlines(struct follower *f)
{
    const struct monotime now = monotime_now();
    if (f->relay.broken && f->admitted)
        follower_cut_off(f, now, "the link has ended");
    if (f->relay.broken && !monotime_before(now, f->relay.may_open))
        f->over = relay_reopen(&f->relay, &f->failure) != STATUS_OK; /* it tries all addresses anew */
    if (f->admitted && !monotime_before(now, monotime_add_us(f->heard, RELAY_SILENCE_US)))
        follower_cut_off(f, now, "nothing was heard of the leader for 3 s");
    if (!f->admitted && !monotime_before(now, f->give_up))
        follower_give_up(f);
    if (!f->admitted && !f->over && !f->relay.broken && !monotime_before(now, f->join_due))
        ask_to_join(f, now);
    if (f->admitted && !monotime_before(now, f->beat_due)) {
        relay_send(&f->relay, HOST_LEADER, NULL, CONTROL_BEAT, NULL, 0);
        f->beat_due = monotime_add_us(now, RELAY_BEAT_US);
    }
    struct monotime next = monotime_earliest(service_watchdog(now), monotime_add_us(now, RELAY_BEAT_US));
    if (f->relay.broken)
        next = monotime_earliest(next, f->relay.may_open);
    return f->admitted ? next : monotime_earliest(next, monotime_earliest(f->join_due, f->give_up));
}

/* ---- the loop ---- */

static void wait_and_read(struct follower *f, struct monotime until)
{
    struct pollfd *waits = f->waits;
    waits[0] = (struct pollfd){.fd = f->signal_fd, .events = POLLIN};
    waits[1] = (struct pollfd){.fd = relay_fd(&f->relay), .events = POLLIN};
    for (unsigned i = 0; i < f->count; i++)
        waits[2 + i] = (struct pollfd){.fd = child_fd(&f->children[i]), .events = POLLIN};
    if (poll(waits, f->count + 2, monotime_poll_ms(monotime_now(), until)) < 0 && errno != EINTR) {
        error_set_errno(&f->failure, errno, "cannot wait for %u workers", f->count);
        f->over = true;
    }
    for (unsigned i = 0; i < f->count; i++)
        for (unsigned n = 0; n < MESSAGES_PER_TURN && read_worker(f, i); n++)
            ;
    if (waits[0].revents != 0)
        follower_obey_signals(f);
    read_leader(f);
}

static enum status open_follower(struct follower *f, struct error *error)
{
    const struct monotime until = monotime_add_us(monotime_now(), (uint64_t)(f->config->patience_s * 1e6));
    enum status status = rendezvous_seek(f->config->rendezvous, f->config->run, until, error);
    if (status == STATUS_OK) /* until here they end the process */
        status = signals_open(&f->signal_fd, error);
    if (status != STATUS_OK)
        return status;
    rendezvous_close(f->config->rendezvous);
    f->give_up = until;
    return relay_open(&f->relay, &f->config->rendezvous->link, NULL, error);
}

enum status follow(const struct follow_config *config, int *code, struct error *error)
{
    struct follower *f = calloc(1, sizeof *f); /* large: only a host that follows has one */
    if (f == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to follow a leader");
    f->config = config;
    f->signal_fd = f->run_fd = -1;
    enum status status = open_follower(f, error);
    while (status == STATUS_OK && !f->over) {
        const struct monotime next = check_deadlines(f);
        if (!f->over)
            wait_and_read(f, next);
    }
    forget_generation(f);
    if (f->address[0] != '\0')
        socket_folder_clear(f->address);
    relay_close(&f->relay, false);
    if (f->signal_fd >= 0)
        close(f->signal_fd);
    *code = f->code;
    if (status == STATUS_OK && f->failure.status != STATUS_OK) {
        *error = f->failure;
        status = f->failure.status;
    }
    free(f);
    return status;
}
