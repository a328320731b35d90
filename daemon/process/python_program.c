/* Finds Python and the scripts of its workers, and runs programs whose input and output are files in memory.
 * The supervisor's or a command's only thread. */
#include "daemon/process/python_program.h"

#include "kernels/base/file.h"
#include "kernels/base/program_files.h"
#include "worker/net/wire.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

bool program_exists(const char *name)
{
    const char *path = getenv("PATH");
    char *copy = strchr(name, '/') == NULL && path != NULL ? strdup(path) : NULL;
    bool found = copy == NULL && access(name, X_OK) == 0;
    char *rest = NULL;
    for (char *folder = copy != NULL ? strtok_r(copy, ":", &rest) : NULL; folder != NULL && !found;
         folder = strtok_r(NULL, ":", &rest)) {
        char whole[PATH_MAX];
        found = (size_t)snprintf(whole, sizeof whole, "%s/%s", folder, name) < sizeof whole &&
                access(whole, X_OK) == 0;
    }
    free(copy);
    return found;
}

/* ---- workers in Python ---- */

static enum status find_worker(struct python_worker *out, enum wire_role role, const char *interpreter,
                               const char *script, struct error *error)
{
    char path[PATH_MAX];
    out->role = (uint8_t)role;
    out->interpreter = interpreter;
    if (!program_exists(interpreter))
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a Python interpreter, a path or a name in PATH", interpreter);
    const enum status status = program_find(path, PROGRAM_WORKER, script, error);
    return status == STATUS_OK && realpath(path, out->script) == NULL
               ? error_set_errno(error, errno, "%.300s", path)
               : status;
}

enum status python_worker_find(struct python_worker *out, const struct job *job, struct error *error)
{
    *out = (struct python_worker){0};
    if (job_has_python_environments(job))
        return find_worker(out, WIRE_ROLE_OBSERVER, job->environment.python, "observer.py", error);
    if (job->trainers.has_class)
        return find_worker(out, WIRE_ROLE_TRAINER, job->trainers.python, "trainer.py", error);
    return STATUS_OK;
}

/* ---- a program between files in memory ---- */

enum status program_open(struct program *program, struct error *error)
{
    program->input = memfd_create("input", MFD_CLOEXEC);
    program->output = memfd_create("output", MFD_CLOEXEC);
    program->words = memfd_create("words", MFD_CLOEXEC);
    if (program->input >= 0 && program->output >= 0 && program->words >= 0)
        return STATUS_OK;
    return error_set_errno(error, errno, "cannot make memory for a program's files");
}

void program_close(const struct program *program)
{
    const int fds[] = {program->input, program->output, program->words};
    for (unsigned i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* 0 or errno's number. */
static int start(pid_t *pid, const struct program *program, char *const argv[])
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, program->input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, program->output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, program->words, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const int errnum = posix_spawnp(pid, argv[0], &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return errnum;
}

enum status program_run(const struct program *program, char *const argv[], int *how, struct error *error)
{
    pid_t pid;
    signal(SIGCHLD, SIG_DFL); /* a caller may have left it ignored, and then nothing can be waited for */
    if (lseek(program->input, 0, SEEK_SET) != 0)
        return error_set_errno(error, errno, "cannot rewind the input of %.100s", argv[0]);
    const int errnum = start(&pid, program, argv);
    if (errnum == ENOENT)
        return error_set(error, STATUS_NOT_FOUND, "%.100s: expected a program, a path or a name in PATH",
                         argv[0]);
    if (errnum != 0)
        return error_set_errno(error, errnum, "cannot execute %.100s", argv[0]);
    while (waitpid(pid, how, 0) < 0)
        if (errno != EINTR)
            return error_set_errno(error, errno, "cannot wait for %.100s", argv[0]);
    return STATUS_OK;
}

void program_read_words(char words[PROGRAM_WORDS_BYTES], const struct program *program)
{
    const off_t bytes = lseek(program->words, 0, SEEK_END), most = PROGRAM_WORDS_BYTES - 1;
    const ssize_t got =
        file_read_at(program->words, words, (size_t)most, bytes > most ? (uint64_t)(bytes - most) : 0);
    const size_t length = got > 0 ? (size_t)got : 0;
    for (size_t i = 0; i < length; i++)
        if (words[i] == '\0')
            words[i] = ' ';
    words[length] = '\0';
}

void program_name_end(char text[32], int how)
{
    if (WIFSIGNALED(how))
        snprintf(text, 32, "signal %d", WTERMSIG(how));
    else
        snprintf(text, 32, "exit code %d", WEXITSTATUS(how));
}
