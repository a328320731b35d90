/* A plug-in may crash, or never come back. So a child loads it and runs the checks; the command's process
 * waits for the child, and kills it when one call of the plug-in takes too long. What the child is doing, and
 * its end, are in memory that both map. */
#include "daemon/commands/commands.h"

#include "kernels/base/monotime.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_contract.h"
#include "worker/environment/environment_load.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TRY_NAME_BYTES = 128 };

/* Written by the child, read by the command when the child has ended. */
struct try_board {
    struct plugin_call progress;
    struct error error; /* the child's end, if `told` */
    bool told;
    char name[TRY_NAME_BYTES]; /* of the environment being tried; "" before the plug-in is loaded */
    uint32_t count;            /* the plug-in's environments, once it is loaded */
};

/* ---- the child ---- */

/* Tells of what the plug-in has printed, and forgets it. */
static void tell_output(FILE *report)
{
    char line[81] = "";
    fflush(stdout);
    const ssize_t got = pread(STDOUT_FILENO, line, sizeof line - 1, 0);
    if (got <= 0)
        return;
    line[strcspn(line, "\n")] = '\0';
    char shown[4 * sizeof line];
    text_show(shown, sizeof shown, line, strlen(line), sizeof line);
    fprintf(report, "  !!  it prints on standard output, where a run has its log: \"%s\"\n", shown);
    fflush(report);
    if (ftruncate(STDOUT_FILENO, 0) == 0)
        lseek(STDOUT_FILENO, 0, SEEK_SET);
}

static enum status try_names(const struct arguments *arguments, struct try_board *board,
                             const struct environment_plugin *plugin, FILE *report, struct error *error)
{
    enum status status = STATUS_OK;
    const bool built_in = environment_is_built_in(arguments->environment);
    const char *wanted = built_in ? arguments->environment : arguments->name;
    if (built_in && arguments->name != NULL)
        return error_set(error, STATUS_INVALID, "--name is for a plug-in; %s is a built-in environment",
                         arguments->environment);
    if (wanted != NULL && !environment_has_name(plugin, wanted))
        return error_set(error, STATUS_INVALID, "%s has no environment %s", arguments->environment, wanted);
    for (const char *const *name = plugin->names; *name != NULL && status == STATUS_OK; name++) {
        if (wanted != NULL && strcmp(wanted, *name) != 0)
            continue;
        const struct environment_trial trial = {.plugin = plugin,
                                                .name = *name,
                                                .options = arguments->options,
                                                .seed = arguments->text.seed,
                                                .steps = arguments->steps,
                                                .progress = &board->progress,
                                                .report = report};
        snprintf(board->name, sizeof board->name, "%s", *name);
        status = environment_contract(&trial, error);
        tell_output(report);
    }
    return status;
}

/* Signals end a crashed plug-in's process as the system does, whatever a sanitizer has made of them. The
 * child does not outlive the command. */
static void restore_signals(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    sigset_t none;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static _Noreturn void try_child(const struct arguments *arguments, struct try_board *board, int caught)
{
    const struct environment_plugin *plugin = NULL;
    restore_signals();
    plugin_call_note_at(&board->progress);
    const int output = dup(STDOUT_FILENO); /* what the plug-in prints there goes to the file `caught` */
    FILE *report = output >= 0 && dup2(caught, STDOUT_FILENO) >= 0 ? fdopen(output, "w") : NULL;
    enum status status = report != NULL
                             ? environment_load(&plugin, arguments->environment, &board->error)
                             : error_set_errno(&board->error, errno, "cannot catch standard output");
    if (status == STATUS_OK)
        status = try_names(arguments, board, plugin, report, &board->error);
    board->error.status = status;
    board->told = true;
    _exit(0);
}

/* ---- the command ---- */

/* Waits for the child's end; kills it when a call takes longer than the limit. SIGCHLD is blocked. Whether
 * the child was killed. */
static bool watch_child(pid_t child, const struct try_board *board, uint64_t limit_us, int *wait_status)
{
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    bool killed = false;
    while (waitpid(child, wait_status, killed ? 0 : WNOHANG) == 0) {
        const struct monotime now = monotime_now();
        const uint64_t begun_ns = atomic_load(&board->progress.begun_ns);
        const struct monotime begun = {begun_ns != 0 ? begun_ns : now.ns};
        const uint64_t left_us = monotime_us_between(now, monotime_add_us(begun, limit_us));
        const struct timespec wait = {.tv_sec = (time_t)(left_us / 1000000),
                                      .tv_nsec = (long)(left_us % 1000000) * 1000};
        killed = left_us == 0;
        if (killed)
            kill(child, SIGKILL);
        else
            sigtimedwait(&ended, NULL, &wait);
    }
    return killed;
}

/* Where the child was: "NAME: CLAUSE: in step of 5 environments". */
static void describe_place(char *out, size_t size, const struct try_board *board)
{
    const struct plugin_call *progress = &board->progress;
    char call[96];
    plugin_call_name(call, sizeof call, progress);
    snprintf(out, size, "%s%s%s%s%s %s", board->name, board->name[0] != '\0' ? ": " : "", progress->clause,
             progress->clause[0] != '\0' ? ": " : "", atomic_load(&progress->begun_ns) != 0 ? "in" : "after",
             call);
}

static enum status judge_end(const struct arguments *arguments, const struct try_board *board, bool killed,
                             int wait_status, struct error *error)
{
    char place[2 * TRY_NAME_BYTES + 256];
    const char *file = arguments->environment;
    if (board->told) {
        *error = board->error;
        return error->status;
    }
    describe_place(place, sizeof place, board);
    if (killed)
        return error_set(error, STATUS_TIMEOUT, "%s: %s: did not come back within %u s", file, place,
                         arguments->limit_s);
    if (WIFSIGNALED(wait_status))
        return error_set(error, STATUS_INTERNAL, "%s: %s: crashed with signal %d (%s)", file, place,
                         WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    return error_set(error, STATUS_INTERNAL, "%s: %s: ended the process with exit status %d", file, place,
                     WEXITSTATUS(wait_status));
}

static enum status try_with(const struct arguments *arguments, struct try_board *board, struct error *error)
{
    int wait_status = 0;
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, NULL); /* before the fork, so that the child's end is not missed */
    fflush(stdout);
    const int caught = memfd_create("output", MFD_CLOEXEC);
    const pid_t child = caught >= 0 ? fork() : -1;
    if (child < 0) {
        error_set_errno(error, errno, "cannot start a process");
        close(caught);
        return error->status;
    }
    if (child == 0)
        try_child(arguments, board, caught);
    const bool killed = watch_child(child, board, arguments->limit_s * UINT64_C(1000000), &wait_status);
    char text[4096];
    ssize_t got = board->told ? 0 : 1; /* what it had printed may say why it has not come to its end */
    for (off_t at = 0; got > 0 && (got = pread(caught, text, sizeof text, at)) > 0; at += got)
        fwrite(text, 1, (size_t)got, stderr);
    close(caught);
    return judge_end(arguments, board, killed, wait_status, error);
}

enum status try_environments(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    struct try_board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return error_set_errno(error, errno, "no memory for a trial");
    const enum status status = try_with(arguments, board, error);
    munmap(board, sizeof *board);
    return status;
}
