/* Forks, executes, signals and reaps one run. The sweep's process; its only thread. */
#include "daemon/commands/sweep_run.h"

#include "daemon/run/rundir.h"
#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

const char *sweep_state_name(enum sweep_state state)
{
    static const char *const names[SWEEP_STATES] = {
        [SWEEP_WAITING] = "waiting",   [SWEEP_RUNNING] = "running",
        [SWEEP_FINISHED] = "finished", [SWEEP_SOLVED] = "solved",
        [SWEEP_STOPPED] = "stopped",   [SWEEP_HOPELESS] = "stopped by the median rule",
        [SWEEP_FAILED] = "failed"};
    return names[state];
}

/* ---- start ---- */

bool sweep_overrides_make(struct sweep_overrides *overrides, const struct arguments *arguments,
                          const struct sweep_grid *grid, size_t number)
{
    const size_t most = arguments->override_count + grid->axis_count;
    *overrides = (struct sweep_overrides){.values = calloc(most + 1, sizeof *overrides->values),
                                          .borrowed = arguments->override_count};
    bool made = overrides->values != NULL;
    while (made && overrides->count < overrides->borrowed) {
        overrides->values[overrides->count] = arguments->overrides[overrides->count];
        overrides->count++;
    }
    for (size_t axis = 0; made && axis < grid->axis_count; axis++) {
        const char *value = sweep_grid_override(grid, number, axis);
        overrides->values[overrides->count++] = value;
        made = value != NULL;
    }
    return made;
}

void sweep_overrides_fini(struct sweep_overrides *overrides)
{
    for (size_t i = overrides->borrowed; i < overrides->count; i++)
        free((void *)(uintptr_t)overrides->values[i]);
    free(overrides->values);
}

/* The arguments of `coalesced run`, ended by NULL; only the list is malloc'ed. NULL: no memory. */
static const char **make_arguments(const struct sweep_run *run, const struct arguments *arguments,
                                   const struct sweep_overrides *overrides)
{
    const char *const first[] = {"coalesced", "run", arguments->job_path, "--run-dir", run->path, "--resume"};
    const size_t firsts = arguments->resume ? 6 : 5;
    const char **argv = calloc(firsts + 2 * overrides->count + 1, sizeof *argv);
    if (argv == NULL)
        return NULL;
    for (size_t i = 0; i < firsts; i++)
        argv[i] = first[i];
    for (size_t i = 0; i < overrides->count; i++) {
        argv[firsts + 2 * i] = "--set";
        argv[firsts + 2 * i + 1] = overrides->values[i];
    }
    return argv;
}

static _Noreturn void become_run(const char *const *argv, int out, int messages, pid_t sweep)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != sweep)
        _exit(EX_UNAVAILABLE);
    setpgid(0, 0);
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
        dup2(messages, STDERR_FILENO) >= 0)
        execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(EX_OSERR);
}

static enum status open_messages(int *fd, const struct sweep_run *run, struct error *error)
{
    if (mkdir(run->path, 0777) != 0 && errno != EEXIST)
        return error_set_errno(error, errno, "cannot make the directory %s", run->path);
    return file_open_below(fd, path_of(run->path), "messages.log", O_WRONLY | O_CREAT | O_APPEND, error);
}

static enum status run_failed(struct sweep_run *run, const struct error *error)
{
    snprintf(run->reason, sizeof run->reason, "%.*s", (int)sizeof run->reason - 1, error->text);
    run->state = SWEEP_FAILED;
    run->code = status_exit_code(error->status);
    return error->status;
}

static enum status fork_run(struct sweep_run *run, const char *const *argv)
{
    int line[2] = {-1, -1};
    const pid_t sweep = getpid();
    struct error error;
    int messages;
    if (open_messages(&messages, run, &error) != STATUS_OK)
        return run_failed(run, &error);
    const pid_t pid = pipe2(line, O_CLOEXEC) == 0 ? fork() : -1;
    const int errnum = errno;
    if (pid == 0)
        become_run(argv, line[1], messages, sweep);
    close(messages);
    if (line[1] >= 0)
        close(line[1]);
    if (pid < 0) {
        if (line[0] >= 0)
            close(line[0]);
        error_set_errno(&error, errnum, "cannot start the run");
        return run_failed(run, &error);
    }
    fcntl(line[0], F_SETFL, O_NONBLOCK);
    run->pid = pid;
    run->out = line[0];
    run->state = SWEEP_RUNNING;
    return STATUS_OK;
}

enum status sweep_run_start(struct sweep_run *run, const struct arguments *arguments,
                            const struct sweep_grid *grid, size_t number)
{
    struct sweep_overrides overrides;
    const bool is_made = sweep_overrides_make(&overrides, arguments, grid, number);
    const char **argv = is_made ? make_arguments(run, arguments, &overrides) : NULL;
    const struct error error = {STATUS_NO_MEMORY, "no memory to start the run"};
    const enum status status = argv != NULL ? fork_run(run, argv) : run_failed(run, &error);
    free(argv);
    sweep_overrides_fini(&overrides);
    return status;
}

/* ---- while it runs ---- */

void sweep_run_stop(struct sweep_run *run)
{
    run->stops++;
    kill(run->pid, SIGTERM);
}

/* A log that cannot be read now is read later, or its run fails by itself. */
static void read_log(struct sweep_run *run)
{
    struct error error;
    const uint64_t lines = run->curve.lines;
    if (curve_read_run(&run->curve, run->path, &error) == STATUS_OK && run->curve.lines > lines)
        run->is_new = true;
}

void sweep_run_read(struct sweep_run *run)
{
    char block[4096];
    ssize_t got;
    while ((got = read(run->out, block, sizeof block)) > 0)
        ;
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        close(run->out);
        run->out = -1;
    }
    read_log(run);
}

/* ---- its end ---- */

/* The last line of messages.log. */
static void read_last_words(struct sweep_run *run)
{
    char path[RUNDIR_PATH_BYTES + 32], text[2048];
    struct error error;
    uint64_t bytes;
    int fd;
    snprintf(path, sizeof path, "%s/messages.log", run->path);
    if (file_open(&fd, &bytes, path_below(path_of(run->path), path), &error) != STATUS_OK)
        return;
    const uint64_t offset = bytes > sizeof text - 1 ? bytes - (sizeof text - 1) : 0;
    ssize_t got = file_read_at(fd, text, sizeof text - 1, offset);
    close(fd);
    while (got > 0 && text[got - 1] == '\n')
        got--;
    text[got > 0 ? got : 0] = '\0';
    const char *line = strrchr(text, '\n');
    line = line != NULL ? line + 1 : text;
    text_show(run->reason, sizeof run->reason, line, strlen(line), 200);
}

static enum sweep_state state_at_end(const struct sweep_run *run, int how)
{
    const bool is_good = WIFEXITED(how) && WEXITSTATUS(how) == 0;
    /* Before the run takes its signals, SIGTERM kills it. */
    const bool is_stopped = run->stops > 0 && WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM;
    if (!is_good && !is_stopped)
        return SWEEP_FAILED;
    if (is_stopped || strcmp(run->curve.event, "stopped") == 0)
        return run->is_hopeless ? SWEEP_HOPELESS : SWEEP_STOPPED;
    return strcmp(run->curve.event, "solved") == 0 ? SWEEP_SOLVED : SWEEP_FINISHED;
}

bool sweep_run_reap(struct sweep_run *run)
{
    int how;
    if (waitpid(run->pid, &how, WNOHANG) != run->pid)
        return false;
    if (run->out >= 0)
        close(run->out);
    run->out = -1;
    run->pid = 0;
    read_log(run);
    run->state = state_at_end(run, how);
    if (run->state != SWEEP_FAILED)
        return true;
    run->code = WIFEXITED(how) ? WEXITSTATUS(how) : EX_SOFTWARE;
    read_last_words(run);
    if (WIFSIGNALED(how))
        snprintf(run->reason, sizeof run->reason, "killed by signal %d (%s)", WTERMSIG(how),
                 strsignal(WTERMSIG(how)));
    return true;
}
