/* Forks, gives the child its descriptors, and executes the program. Supervisor process; its only thread. */
#include "daemon/process/spawn.h"

#include "kernels/base/log.h"
#include "kernels/base/thread.h"
#include "worker/control.h"
#include "worker/net/segment.h"
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
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

enum status signals_open(int *fd, struct error *error)
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
    *fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *fd >= 0 ? STATUS_OK : error_set_errno(error, errno, "cannot make a descriptor for signals");
}

/* Under the default policy each of the workers' many small messages preempts its sender. A batch process lets
 * the sender finish first: ten observers on two cores, a job of 2.03 s became one of 1.72 s (medians of 4);
 * with one observer nothing changed. Where the policy is not permitted the worker runs without it.
 *
 * Where learning overlaps acting, a message must not wait for what computes on its processor: a job of PPO
 * beside another one on two cores took 3.90 s as a batch process, and takes 2.64 s. */
static void set_policy(const struct spawn_setting *setting)
{
    const struct sched_param none = {0};
    if (!setting->overlaps)
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

enum status spawn_segments_open(struct spawn_segments *segments, unsigned count, struct error *error)
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

void spawn_segments_close(struct spawn_segments *segments)
{
    for (unsigned i = 0; i < segments->count; i++)
        close(segments->fds[i]);
    free(segments->fds);
    *segments = (struct spawn_segments){0};
}

/* Gives each segment its number in the worker. Descriptors of the supervisor that have these numbers are
 * overwritten; the exec would close them anyway. */
static bool place_segments(const struct spawn_segments *segments)
{
    for (unsigned i = 0; i < segments->count; i++)
        if (dup2(segments->fds[i], SEGMENT_FD_FIRST + (int)i) < 0)
            return false;
    return true;
}

/* ---- fork and exec ---- */

/* Copies a descriptor to the number at which the worker looks for it; it stays open over the exec. */
static bool place_at(int fd, int number)
{
    return fd == number ? fcntl(fd, F_SETFD, 0) == 0 : dup2(fd, number) == number;
}

/* Moves a descriptor out of the way of the numbers that workers know, to any number behind them: all high
 * ones may be in use. */
static int move_aside(int fd)
{
    return fd >= 0 && fd < SEGMENT_FD_FIRST ? fcntl(fd, F_DUPFD_CLOEXEC, SEGMENT_FD_FIRST) : fd;
}

static bool place_descriptors(int line, const struct spawn_setting *setting)
{
    const int run = move_aside(setting->run_fd), call = move_aside(setting->call_fd);
    return run >= 0 && place_at(line, CONTROL_FD) && place_at(run, CONTROL_RUN_FD) &&
           (setting->call_fd < 0 || place_at(call, CONTROL_CALL_FD)) && place_segments(setting->segments);
}

static _Noreturn void become_worker(const char *role, unsigned worker, int fd, bool is_python,
                                    const struct spawn_setting *setting, pid_t supervisor)
{
    const char *program = is_python ? setting->python->interpreter : "/proc/self/exe";
    struct error why = {0};
    char index[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor)
        _exit(EX_UNAVAILABLE);
    set_signals();
    set_policy(setting);
    /* A math library's threads must not spin while another worker computes. But an LSTM is hundreds of short
     * parallel loops: threads that slept at once would have to be woken for each, so they spin for some tens
     * of microseconds first (GNU OpenMP counts rounds). On two processors this shortens a step of the
     * language model (10,000 words, 200 wide, 2 layers, 35x20 tokens) by a quarter. */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    setenv("GOMP_SPINCOUNT", "10000", 0);
    int null = open("/dev/null", O_RDWR);
    bool placed = null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0;
    if (placed && null > STDERR_FILENO)
        close(null);
    if (!placed || !place_descriptors(fd, setting)) {
        log_error("%s %u: cannot place its descriptors: %s", role, worker, strerror(errno));
        _exit(EX_OSERR);
    }
    snprintf(index, sizeof index, "%u", worker);
    execlp(program, is_python ? program : "coalesced", is_python ? setting->python->script : "worker",
           "--role", role, "--index", index, (char *)NULL);
    /* A worker that cannot become its program says so itself: that would come again. */
    error_set_errno(&why, errno, "cannot execute %.300s", program);
    why.status = STATUS_UNAVAILABLE;
    control_send(CONTROL_FD, CONTROL_FAILED, &why, sizeof why);
    _exit(status_exit_code(why.status));
}

enum status spawn(pid_t *pid, int *fd, uint8_t role, unsigned worker, const struct spawn_setting *setting,
                  struct error *error)
{
    const char *name = role == 0 ? "link" : role_by_wire(role)->name;
    int line[2];
    char limits[THREAD_LIMITS_BYTES];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0)
        return error_set_errno(error, errno, "cannot make a control line for %s %u", name, worker);
    const pid_t supervisor = getpid();
    const pid_t forked = fork();
    const int errnum = errno;
    if (forked == 0)
        become_worker(name, worker, line[1], setting->python != NULL && role == setting->python->role,
                      setting, supervisor);
    close(line[1]);
    if (forked < 0) {
        close(line[0]);
        thread_limits(limits);
        return error_set_errno(error, errnum, "cannot fork %s %u%s", name, worker, limits);
    }
    *pid = forked;
    *fd = line[0];
    return STATUS_OK;
}
