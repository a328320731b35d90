/* The table of commands, and the way to those that are programs of their own: reads the arguments and the
 * job, and calls the command. The command's process; its only thread. */
#include "daemon/commands/commands.h"

#include "daemon/commands/arguments.h"
#include "daemon/commands/job_files.h"
#include "daemon/hosts/place.h"
#include "daemon/process/program.h"
#include "kernels/base/log.h"
#include "kernels/base/program_files.h"
#include "kernels/policy/mlp.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

/* ---- in front of the work ---- */

/* Prints what went wrong, if anything did; the exit code. */
static int report_status(enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        log_error("%s", error->text);
    return status_exit_code(status);
}

/* Reads the job, and checks the files that a run of it needs; an evaluation checks its files itself. 0, or
 * the exit code. */
static int read_job(const struct arguments *arguments, struct job *job)
{
    char *problems;
    const enum status status =
        job_read_file(job, path_of(arguments->job_path), arguments->overrides, arguments->override_count,
                      arguments->checkpoint == NULL ? job_files_check : NULL, &problems);
    if (status != STATUS_OK && problems == NULL)
        fprintf(stderr, "coalesced: %s: %s\n", arguments->job_path, status_name(status));
    else if (status != STATUS_OK)
        fputs(problems, stderr);
    free(problems);
    return status_exit_code(status);
}

/* A wrong COALESCED_ISA is an error of usage, reported before a worker starts. 0, or the exit code. */
static int check_environment(void)
{
    struct error error;
    enum status status = mlp_check_isa(&error);
    if (status == STATUS_OK)
        return 0;
    fprintf(stderr, "coalesced: %s\n", error.text);
    return status == STATUS_INVALID ? EX_USAGE : status_exit_code(status);
}

static int check_kind(const struct arguments *arguments, const struct job *job)
{
    if (arguments->episodes == 0 || job->kind == JOB_REINFORCE)
        return 0;
    return usage_error("--episodes belongs to jobs of kind reinforce: %s", arguments->job_path);
}

/* Reads the arguments and the job among them. 0, COMMAND_HELP, or the exit code of an error that is printed.
 */
static int prepare_command(int argc, char **argv, unsigned accepts, struct arguments *arguments,
                           struct job *job)
{
    log_name("");
    int code = arguments_read(arguments, argc, argv, accepts);
    if (code == 0 && arguments->help)
        return COMMAND_HELP;
    if (code == 0)
        code = check_environment();
    if (code != 0 || arguments->job_path == NULL)
        return code;
    code = read_job(arguments, job);
    return code == 0 ? check_kind(arguments, job) : code;
}

static enum status make_keys(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    const uint16_t hosts = arguments->hosts > 0 ? (uint16_t)arguments->hosts : HOSTS_MAX;
    return key_files_make(arguments->key_folder, hosts, error);
}

/* Reading the job has checked it. --json is for programs that start runs of it. */
static enum status check_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    uint64_t epoch_updates = 0;
    size_t bytes;
    const enum status status =
        arguments->json ? job_files_epoch_updates(&epoch_updates, job, error) : STATUS_OK;
    if (status != STATUS_OK || !arguments->json)
        return status;
    job_resolve(job);
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to print the job");
    printf("{\"epoch_updates\": %" PRIu64 ", \"job\": %s}\n", epoch_updates, text);
    free(text);
    return STATUS_OK;
}

/* ---- the commands ---- */

static const struct command {
    const char *name;
    unsigned accepts; /* of enum accepts */
    command_work *work;
} commands[] = {
    {"run", ACCEPTS_JOB | ACCEPTS_RUN, run_job},
    {"join", ACCEPTS_LEADER, join_job},
    {"keygen", ACCEPTS_KEYS, make_keys},
    {"check", ACCEPTS_JOB | ACCEPTS_JSON, check_job},
    {"evaluate", ACCEPTS_JOB | ACCEPTS_CHECKPOINT | ACCEPTS_EPISODES, evaluate},
    {"generate", ACCEPTS_CHECKPOINT | ACCEPTS_TEXT, generate},
    {"play", ACCEPTS_CHECKPOINT | ACCEPTS_EPISODES | ACCEPTS_RENDER, play},
    {"export", ACCEPTS_CHECKPOINT | ACCEPTS_ONNX, export_model},
    {"try", ACCEPTS_PLUGIN, try_environments},
    {"status", ACCEPTS_ONE_RUN | ACCEPTS_ALL_RUNS, status_show},
    {"list", ACCEPTS_ALL_RUNS, status_list},
    {"stop", ACCEPTS_ONE_RUN, status_stop},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

/* Becomes the program coalesced-NAME, as git does, if there is one. All of them are in Python, and start this
 * program as $COALESCED. Returns the exit code. */
static int become_program(char **argv)
{
    char path[PATH_MAX], self[PATH_MAX] = "", file[NAME_MAX];
    const int length = snprintf(file, sizeof file, "coalesced-%s", argv[0]);
    if (strchr(argv[0], '/') != NULL || length >= (int)sizeof file ||
        program_find(path, PROGRAM_COMMAND, file, NULL) != STATUS_OK)
        return usage_error("unknown command %s", argv[0]);
    if (!program_exists("python3")) {
        fprintf(stderr, "coalesced: %s needs python3, which is not in PATH: apt install python3\n", argv[0]);
        return EX_UNAVAILABLE;
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || setenv("COALESCED", self, 1) != 0 ||
        execv(path, argv) != 0)
        fprintf(stderr, "coalesced: cannot run %s: %s\n", path, strerror(errno));
    return EX_UNAVAILABLE;
}

int command_run(int argc, char **argv)
{
    const struct command *command = find_command(argv[0]);
    struct arguments arguments;
    struct job job;
    struct error error = {0};
    if (command == NULL)
        return become_program(argv);
    int code = prepare_command(argc, argv, command->accepts, &arguments, &job);
    if (code == 0 && command->work != NULL)
        code = report_status(command->work(&arguments, &job, &error), &error);
    arguments_fini(&arguments);
    return code;
}
