/* observer.py --describe. The command's process. */
#include "daemon/commands/python_spaces.h"

#include "daemon/process/python_program.h"
#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { DESCRIPTION_BYTES_MAX = 1 << 24, SENTENCE_BYTES = 400 };

static enum status write_job(const struct program *python, const struct job *job, struct error *error)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the job");
    const bool is_written = file_write(python->input, text, bytes);
    const int errnum = errno;
    free(text);
    return is_written ? STATUS_OK : error_set_errno(error, errnum, "cannot write the job for Python");
}

/* observer.py ends with the exit codes of a worker. */
static enum status status_of(int how)
{
    static const enum status known[] = {STATUS_INVALID, STATUS_CORRUPT, STATUS_NOT_FOUND};
    for (size_t i = 0; WIFEXITED(how) && i < sizeof known / sizeof known[0]; i++)
        if (status_exit_code(known[i]) == WEXITSTATUS(how))
            return known[i];
    return STATUS_UNAVAILABLE;
}

/* The last line that observer.py has said. A traceback may stand above it. */
static enum status tell(const struct program *python, int how, struct error *error)
{
    char words[PROGRAM_WORDS_BYTES], sentence[SENTENCE_BYTES], end[32];
    program_read_words(words, python);
    size_t length = strlen(words);
    while (length > 0 && words[length - 1] == '\n')
        words[--length] = '\0';
    const char *line = strrchr(words, '\n');
    line = line != NULL ? line + 1 : words;
    text_show(sentence, sizeof sentence, line, strlen(line), SENTENCE_BYTES - 1);
    program_name_end(end, how);
    return error_set(error, status_of(how), "the environment in Python has not been made (%s): %s", end,
                     length > 0 ? sentence : "Python said nothing");
}

/* The description is the last line: a script that starts the interpreter may have printed others. */
static enum status parse(struct environment_description *out, const char *text, size_t bytes,
                         const char *interpreter, struct error *error)
{
    struct error why = {0};
    const char *before = memrchr(text, '\n', bytes);
    const char *line = before != NULL ? before + 1 : text;
    const enum status status = environment_description_read(out, line, bytes - (size_t)(line - text), &why);
    if (status != STATUS_OK)
        (error_set)(error, status, "what %.150s printed is no description of an environment: %.300s",
                    interpreter, why.text);
    return status;
}

static enum status read_description(struct environment_description *out, const struct program *python,
                                    const char *interpreter, struct error *error)
{
    struct stat info;
    if (fstat(python->output, &info) != 0)
        return error_set_errno(error, errno, "cannot read what Python has said");
    if (info.st_size > DESCRIPTION_BYTES_MAX)
        return error_set(error, STATUS_INVALID,
                         "the environment's description has %lld bytes: expected at most %d",
                         (long long)info.st_size, DESCRIPTION_BYTES_MAX);
    const size_t bytes = (size_t)info.st_size;
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the environment's description");
    const ssize_t got = file_read_at(python->output, text, bytes, 0);
    const enum status status = got >= 0 ? parse(out, text, (size_t)got, interpreter, error)
                                        : error_set_errno(error, errno, "cannot read what Python has said");
    free(text);
    return status;
}

/* observer.py finds the job at its standard input. */
static enum status run_python(const struct program *python, const struct python_worker *worker,
                              struct error *error)
{
    static char option[] = "--describe";
    char interpreter[PATH_MAX], script[PATH_MAX];
    int how;
    snprintf(interpreter, sizeof interpreter, "%s", worker->interpreter);
    snprintf(script, sizeof script, "%s", worker->script);
    char *const argv[] = {interpreter, script, option, NULL};
    const enum status status = program_run(python, argv, &how, error);
    return status == STATUS_OK && how != 0 ? tell(python, how, error) : status;
}

enum status python_spaces_read(struct environment_description *out, const struct job *job,
                               struct error *error)
{
    struct python_worker worker;
    struct program python;
    *out = (struct environment_description){0};
    enum status status = python_worker_find(&worker, job, error);
    if (status != STATUS_OK)
        return status;
    status = program_open(&python, error);
    if (status == STATUS_OK)
        status = write_job(&python, job, error);
    if (status == STATUS_OK)
        status = run_python(&python, &worker, error);
    if (status == STATUS_OK)
        status = read_description(out, &python, job->environment.python, error);
    program_close(&python);
    return status;
}
