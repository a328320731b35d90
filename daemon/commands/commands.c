/* Runs a command: reads its arguments and its job, and calls its function. The command's process; its only
 * thread. */
#include "daemon/commands/commands.h"

#include "daemon/commands/arguments.h"
#include "daemon/commands/job_files.h"
#include "daemon/commands/plot.h"
#include "daemon/commands/sweep.h"
#include "daemon/hosts/key_files.h"
#include "kernels/base/log.h"
#include "kernels/policy/mlp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

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
    if (code != 0 || arguments->job_path == NULL || (accepts & ACCEPTS_SWEEP))
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

/* ---- sweep ---- */

static enum status sweep_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    int code = 0;
    (void)job;
    const enum status status = sweep(arguments, &code, error);
    if (status == STATUS_OK && code != 0)
        exit(code);
    return status;
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
    {"check", ACCEPTS_JOB, NULL}, /* reading the job has checked it */
    {"evaluate", ACCEPTS_JOB | ACCEPTS_CHECKPOINT | ACCEPTS_EPISODES, evaluate},
    {"generate", ACCEPTS_CHECKPOINT | ACCEPTS_TEXT, generate},
    {"play", ACCEPTS_CHECKPOINT | ACCEPTS_EPISODES | ACCEPTS_RENDER, play},
    {"export", ACCEPTS_CHECKPOINT | ACCEPTS_ONNX, export_model},
    {"try", ACCEPTS_PLUGIN, try_environments},
    {"status", ACCEPTS_ONE_RUN | ACCEPTS_ALL_RUNS, status_show},
    {"list", ACCEPTS_ALL_RUNS, status_list},
    {"stop", ACCEPTS_ONE_RUN, status_stop},
    {"plot", ACCEPTS_PLOT, plot},
    {"sweep", ACCEPTS_JOB | ACCEPTS_SWEEP, sweep_job}, /* checks the job with each combination */
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

int command_run(int argc, char **argv)
{
    const struct command *command = find_command(argv[0]);
    struct arguments arguments;
    struct job job;
    struct error error = {0};
    if (command == NULL)
        return usage_error("unknown command %s", argv[0]);
    int code = prepare_command(argc, argv, command->accepts, &arguments, &job);
    if (code == 0 && command->work != NULL)
        code = report_status(command->work(&arguments, &job, &error), &error);
    arguments_fini(&arguments);
    return code;
}
