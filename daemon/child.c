/* Forks, executes, orders and reaps workers. Supervisor process; its only thread. */
#include "daemon/child.h"

#include "kernels/base/log.h"
#include "worker/net/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

/* Workers obey the control line alone: they ignore the signals that a terminal or service manager sends to
 * the whole group. */
static void set_signals(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGQUIT};
    sigset_t none;
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Under the default policy each of the workers' many small messages preempts its sender. A batch process lets
 * the sender finish first: ten observers on two cores, a job of 2.03 s became one of 1.72 s (medians of 4);
 * with one observer nothing changed. Where the policy is not permitted the worker runs without it. */
static void set_policy(void)
{
    const struct sched_param none = {0};
    sched_setscheduler(0, SCHED_BATCH, &none);
}

/* ---- segments ---- */

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* since Linux 6.3 */
#endif

/* The memory is never executable. Older kernels refuse the flag that says so. */
static int open_memory_file(unsigned worker)
{
    char name[32];
    snprintf(name, sizeof name, "coalesced-%u", worker);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd >= 0 || errno != EINVAL ? fd : memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/* Moves a descriptor above all numbers at which workers look for segments, so that place_segments overwrites
 * none. */
static int move_above_segments(int fd, unsigned count)
{
    int moved = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, SEGMENT_FD_FIRST + (int)count);
    int errnum = errno;
    if (fd >= 0)
        close(fd);
    errno = errnum;
    return moved;
}

enum status child_segments_open(struct child_segments *segments, unsigned count, struct error *error)
{
    segments->fds = calloc(count, sizeof *segments->fds);
    if (segments->fds == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u segments", count);
    for (unsigned i = 0; i < count; i++) {
        int fd = move_above_segments(open_memory_file(i), count);
        if (fd < 0)
            return error_set_errno(error, errno, "cannot make worker %u's segment", i);
        segments->fds[segments->count++] = fd;
    }
    return STATUS_OK;
}

void child_segments_close(struct child_segments *segments)
{
    for (unsigned i = 0; i < segments->count; i++)
        close(segments->fds[i]);
    free(segments->fds);
    *segments = (struct child_segments){0};
}

/* Gives each segment its number in the worker. Descriptors of the supervisor that have these numbers are
 * overwritten; the exec would close them anyway. */
static bool place_segments(const struct child_segments *segments)
{
    for (unsigned i = 0; i < segments->count; i++)
        if (dup2(segments->fds[i], SEGMENT_FD_FIRST + (int)i) < 0)
            return false;
    return true;
}

/* ---- fork and exec ---- */

/* Moves the control line to the number at which the worker looks for it; it stays open over the exec. */
static bool place_control(int fd)
{
    if (fd == CONTROL_FD)
        return fcntl(fd, F_SETFD, 0) == 0;
    return dup2(fd, CONTROL_FD) == CONTROL_FD;
}

/* A math library's threads must not spin while another worker computes. But an LSTM is hundreds of short
 * parallel loops: threads that slept at once would have to be woken for each, so they spin for some tens of
 * microseconds first (GNU OpenMP counts rounds). On two processors this shortens a step of the language model
 * (10,000 words, 200 wide, 2 layers, 35x20 tokens) by a quarter. */
static void set_threads(void)
{
    setenv("OMP_WAIT_POLICY", "passive", 0);
    setenv("GOMP_SPINCOUNT", "10000", 0);
}

/* The directory may have the number of the control line: it is moved out of the way first. */
static bool place_descriptors(int line, int run_fd, const struct child_segments *segments)
{
    const int run = fcntl(run_fd, F_DUPFD_CLOEXEC, SEGMENT_FD_FIRST + (int)segments->count);
    return run >= 0 && place_control(line) && dup2(run, CONTROL_RUN_FD) >= 0 && place_segments(segments);
}

/* A worker that cannot become its program says so itself: that would come again. */
static _Noreturn void fail_to_execute(const char *program)
{
    struct error why = {0};
    error_set_errno(&why, errno, "cannot execute %.300s", program);
    why.status = STATUS_UNAVAILABLE;
    control_send(CONTROL_FD, CONTROL_FAILED, &why, sizeof why);
    _exit(status_exit_code(why.status));
}

static _Noreturn void execute_worker(const struct child_command *command, const char *role, unsigned worker)
{
    const char *program = command != NULL ? command->interpreter : "/proc/self/exe";
    const char *first = command != NULL ? program : "coalesced";
    const char *second = command != NULL ? command->script : "worker";
    char index[16];
    snprintf(index, sizeof index, "%u", worker);
    execlp(program, first, second, "--role", role, "--index", index, (char *)NULL);
    fail_to_execute(program);
}

static _Noreturn void become_worker(const char *role, unsigned worker, int fd,
                                    const struct child_setting *setting, pid_t supervisor)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor)
        _exit(EX_UNAVAILABLE);
    set_signals();
    set_policy();
    set_threads();
    int null = open("/dev/null", O_RDWR);
    bool placed = null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0;
    if (placed && null > STDERR_FILENO)
        close(null);
    if (!placed || !place_descriptors(fd, setting->run_fd, setting->segments)) {
        log_error("%s %u: cannot place its descriptors: %s", role, worker, strerror(errno));
        _exit(EX_OSERR);
    }
    execute_worker(setting->command, role, worker);
}

enum status child_fork(struct child_process *process, const char *role, unsigned worker,
                       const struct child_setting *setting, struct error *error)
{
    int line[2];
    *process = (struct child_process){.pid = -1, .fd = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0)
        return error_set_errno(error, errno, "cannot make a control line for %s %u", role, worker);
    const pid_t supervisor = getpid();
    const pid_t pid = fork();
    if (pid == 0)
        become_worker(role, worker, line[1], setting, supervisor);
    close(line[1]);
    if (pid < 0) {
        close(line[0]);
        return error_set_errno(error, errno, "cannot fork %s %u", role, worker);
    }
    *process = (struct child_process){pid, line[0]};
    return STATUS_OK;
}

static char start_body[CONTROL_BODY_BYTES_MAX - sizeof(struct control_relay)]; /* one thread */

static size_t fill_start(const struct child *child, const char *job_text, size_t job_bytes)
{
    memcpy(start_body, &child->start, sizeof child->start);
    memcpy(start_body + sizeof child->start, job_text, job_bytes);
    return sizeof child->start + job_bytes;
}

/* A worker that was killed at once is no error here: its exit is reaped later. */
static enum status send_start(struct child *child, const char *job_text, size_t job_bytes,
                              struct error *error)
{
    if (job_bytes > sizeof start_body - sizeof child->start)
        return error_set(error, STATUS_INVALID, "the resolved job has %zu bytes: expected at most %zu",
                         job_bytes, sizeof start_body - sizeof child->start);
    const size_t bytes = fill_start(child, job_text, job_bytes);
    enum status status = control_send(child->fd, CONTROL_START, start_body, bytes);
    if (status == STATUS_OK || status == STATUS_PEER_DIED)
        return STATUS_OK;
    return error_set(error, status, "cannot send START to %s", child->name);
}

static void child_begin(struct child *child, const struct control_start *start)
{
    *child = (struct child){.start = *start, .state = CHILD_GONE, .fd = -1, .deaths = child->deaths};
    snprintf(child->name, sizeof child->name, "%s %u", role_by_wire(start->role)->name, start->worker);
}

enum status child_spawn(struct child *child, const struct control_start *start, const char *job_text,
                        size_t job_bytes, const struct child_setting *setting, struct error *error)
{
    struct child_process process;
    child_begin(child, start);
    const enum status status =
        child_fork(&process, role_by_wire(start->role)->name, start->worker, setting, error);
    if (status != STATUS_OK)
        return status;
    child->host = start->keys.host;
    child->pid = process.pid;
    child->fd = process.fd;
    child->state = CHILD_STARTING;
    child->last_beat = monotime_now();
    return send_start(child, job_text, job_bytes, error);
}

void child_spawn_far(struct child *child, const struct control_start *start, const char *job_text,
                     size_t job_bytes, struct relay *relay, uint16_t host, const char *host_name)
{
    child_begin(child, start);
    const size_t length = strlen(child->name);
    snprintf(child->name + length, sizeof child->name - length, " on host %u (%.40s)", host, host_name);
    child->relay = relay;
    child->host = host;
    memset(child->start.keys.secret, 0, sizeof child->start.keys.secret); /* that host has its own */
    child->state = CHILD_STARTING;
    child->last_beat = monotime_now();
    relay_send(relay, host, &child->start, CONTROL_START, start_body, fill_start(child, job_text, job_bytes));
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

void child_kill(struct child *child)
{
    if (!child_lives(child))
        return;
    if (child->relay != NULL)
        relay_send(child->relay, child->host, &child->start, CONTROL_KILL, NULL, 0);
    else
        kill(child->pid, SIGKILL);
    child->state = CHILD_KILLED;
}

bool child_reap(struct child *child, bool wait)
{
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
    if (ended < 0) /* ECHILD: another reaped it */
        snprintf(child->end, sizeof child->end, "%s (process %ld) is gone: how it ended is not known",
                 child->name, pid);
    else if (WIFSIGNALED(status))
        snprintf(child->end, sizeof child->end, "%s (process %ld) was killed by signal %d (%s)%s",
                 child->name, pid, WTERMSIG(status), strsignal(WTERMSIG(status)),
                 WCOREDUMP(status) ? ", core dumped" : "");
    else
        snprintf(child->end, sizeof child->end, "%s (process %ld) exited with code %d", child->name, pid,
                 WEXITSTATUS(status));
    return true;
}
