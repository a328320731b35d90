/* The table of commands, the short ones, and the way to those that are programs of their own. The command's
 * process, its only thread; after the fork of `run`, the supervisor's. */
#include "daemon/commands/commands.h"

#include "daemon/commands/arguments.h"
#include "daemon/commands/export.h"
#include "daemon/commands/job_files.h"
#include "daemon/commands/play.h"
#include "daemon/commands/status_command.h"
#include "daemon/commands/try.h"
#include "daemon/hosts/key_files.h"
#include "daemon/hosts/place.h"
#include "daemon/log/episode_means.h"
#include "daemon/log/runlog.h"
#include "daemon/process/descriptors.h"
#include "daemon/process/program.h"
#include "daemon/process/service.h"
#include "daemon/run/rundir.h"
#include "daemon/supervise/follow.h"
#include "daemon/supervise/supervise.h"
#include "kernels/base/log.h"
#include "kernels/base/program_folders.h"
#include "kernels/policy/mlp.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/reinforce/policy_evaluate.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
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

/* ---- run ---- */

static enum status open_run(const struct arguments *arguments, struct job *job, struct rundir *dir,
                            struct runlog **log, struct error *error)
{
    enum status status = descriptors_raise_limit(job, error);
    if (status != STATUS_OK)
        return status;
    status = rundir_open(dir, arguments->run_dir, job, arguments->resume, error);
    if (status != STATUS_OK)
        return status;
    status = checkpoint_probe(rundir_path(dir), error);
    const struct run_identity identity = resume_identity(job);
    if (status == STATUS_OK)
        status = runlog_open(log, rundir_path(dir), job, &identity, error);
    if (status != STATUS_OK)
        rundir_close(dir);
    return status;
}

/* Where this process leads: the run directory, the logs, the supervisor. `place`: NULL: there is no other
 * host. */
static enum status lead(const struct arguments *arguments, struct job *job, struct place *place,
                        struct error *error)
{
    struct rundir dir;
    struct runlog *log = NULL;
    enum status status = open_run(arguments, job, &dir, &log, error);
    if (status != STATUS_OK)
        return status;
    const struct supervise_config config = {.job = job,
                                            .dir = &dir,
                                            .log = log,
                                            .job_path = arguments->job_path,
                                            .overrides = arguments->overrides,
                                            .override_count = arguments->override_count,
                                            .place = place};
    status = supervise(&config, error);
    runlog_close(log);
    rundir_close(&dir);
    return status;
}

/* The leader has said what went wrong; its exit code is this host's too. */
static enum status follow_to_the_end(const struct follow_config *config, struct error *error)
{
    int code = 0;
    const enum status status = follow(config, &code, error);
    if (status == STATUS_OK && code != 0)
        exit(code);
    return status;
}

static enum status follow_leader(const struct arguments *arguments, const struct job *job,
                                 struct place *place, struct error *error)
{
    char run[RUNDIR_PATH_BYTES];
    const struct follow_config config = {.place = place, .run = run, .patience_s = job->hosts.patience_s};
    const enum status status = rundir_choose(run, arguments->run_dir, job, error);
    if (status != STATUS_OK)
        return status;
    log_run(run);
    return follow_to_the_end(&config, error);
}

/* A finished run of one host ends at once: it takes no lock, no socket and no port, and starts no worker. */
static bool is_over(const struct arguments *arguments, const struct job *job)
{
    char run[RUNDIR_PATH_BYTES];
    struct error error;
    if (!arguments->resume || rundir_choose(run, arguments->run_dir, job, &error) != STATUS_OK ||
        !resume_is_over(run, job))
        return false;
    log_run(run);
    log_info("%s has ended, and /stop asks for no more: nothing is to be done", run);
    service_notify("READY=1\nSTATUS=the run has ended");
    service_notify("STOPPING=1"); /* of one message, systemd takes the last state alone */
    return true;
}

static enum status run_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    static struct place place; /* with the keys of all hosts: too large for a stack */
    const char *listen = job->hosts.has_listen ? job->hosts.listen : NULL;
    const uint64_t patience_us = (uint64_t)(job->hosts.patience_s * 1e6);
    service_init();
    enum status status =
        place_find(&place, &arguments->place, listen, monotime_add_us(monotime_now(), patience_us), error);
    if (status == STATUS_OK && place_is_alone(&place))
        return is_over(arguments, job) ? STATUS_OK : lead(arguments, job, NULL, error);
    if (status == STATUS_OK && place_is_leader(&place))
        return lead(arguments, job, &place, error);
    return status == STATUS_OK ? follow_leader(arguments, job, &place, error) : status;
}

/* Workers of a running job move to this host. The job comes from the leader. */
static enum status join_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum { PATIENCE_S = 60 };
    static struct place place;
    (void)job;
    struct place_flags flags = arguments->place;
    const struct follow_config config = {.place = &place,
                                         .run = NULL,
                                         .patience_s = PATIENCE_S,
                                         .brings = arguments->brings,
                                         .role = arguments->role};
    service_init();
    enum status status = flags.given ? STATUS_OK : key_files_own(&flags.host, flags.keys, error);
    flags.count = flags.given ? flags.count : (uint16_t)(flags.host + 1);
    flags.given = true;
    if (status == STATUS_OK)
        status = place_find(&place, &flags, NULL, MONOTIME_NEVER, error);
    if (status == STATUS_OK && place_is_leader(&place))
        status =
            error_set(error, STATUS_INVALID, "host 0 leads: expected the key of another host to join with");
    return status == STATUS_OK ? follow_to_the_end(&config, error) : status;
}

static enum status make_keys(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    const uint16_t hosts = arguments->hosts > 0 ? (uint16_t)arguments->hosts : HOSTS_MAX;
    return key_files_make(arguments->key_folder, hosts, error);
}

/* ---- check ---- */

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

/* ---- evaluate and generate ---- */

static enum status evaluate_images(const struct arguments *arguments, const struct job *job,
                                   struct error *error)
{
    struct evaluation sums;
    enum status status = evaluation_run(&sums, arguments->checkpoint, job, error);
    if (status != STATUS_OK)
        return status;
    double samples = (double)sums.samples;
    printf("Accuracy: %.2f %% (%" PRIu64 " of %" PRIu64 ")\tLoss: %.4f\n",
           100 * (double)sums.correct / samples, sums.correct, sums.samples, sums.loss_sum / samples);
    return STATUS_OK;
}

static enum status evaluate_text(const struct arguments *arguments, const struct job *job,
                                 struct error *error)
{
    uint64_t tokens = 0;
    double loss = 0;
    enum status status = job_files_check_folder(arguments->checkpoint, error);
    if (status == STATUS_OK)
        status = language_evaluate(job, arguments->checkpoint, &loss, &tokens, error);
    if (status == STATUS_OK)
        printf("Perplexity: %.2f (%" PRIu64 " tokens)\tLoss: %.4f\n", exp(loss), tokens, loss);
    return status;
}

static enum status evaluate_policy(const struct arguments *arguments, const struct job *job,
                                   struct error *error)
{
    const uint32_t episodes = arguments->episodes > 0 ? arguments->episodes : 100;
    struct player_summary found;
    char metrics[EPISODE_MEANS_BYTES];
    const enum status status = policy_evaluate(&found, arguments->checkpoint, job, episodes, error);
    if (status != STATUS_OK)
        return status;
    episode_means_text(metrics, &found.metrics);
    printf("Mean reward: %.2f\tStandard deviation: %.2f\tMinimum: %.2f\tMaximum: %.2f%s\t(%" PRIu32
           " episodes)\n",
           found.mean, found.deviation, found.least, found.most, metrics, episodes);
    return STATUS_OK;
}

static enum status evaluate(const struct arguments *arguments, struct job *job, struct error *error)
{
    job_resolve(job);
    if (job->kind == JOB_REINFORCE)
        return evaluate_policy(arguments, job, error);
    return job->kind == JOB_MODEL_PARALLEL ? evaluate_text(arguments, job, error)
                                           : evaluate_images(arguments, job, error);
}

static enum status generate(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum status status = job_files_of_checkpoint(job, arguments->checkpoint, JOB_MODEL_PARALLEL, error);
    if (status != STATUS_OK)
        return status;
    job_resolve(job);
    return language_generate(job, arguments->checkpoint, &arguments->text, stdout, error);
}

static enum status try_environment(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    return try_environments(arguments, error);
}

/* ---- status, list and stop ---- */

static enum status show_status(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    return status_show(arguments, error);
}

static enum status list_runs(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    return status_list(arguments, error);
}

static enum status stop_run(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    return status_stop(arguments, error);
}

/* ---- the commands ---- */

static const struct command {
    const char *name;
    unsigned accepts; /* of enum accepts */
    enum status (*work)(const struct arguments *arguments, struct job *job, struct error *error);
} commands[] = {
    {"run", ACCEPTS_JOB | ACCEPTS_RUN, run_job},
    {"join", ACCEPTS_LEADER, join_job},
    {"keygen", ACCEPTS_KEYS, make_keys},
    {"check", ACCEPTS_JOB | ACCEPTS_JSON, check_job},
    {"evaluate", ACCEPTS_JOB | ACCEPTS_CHECKPOINT | ACCEPTS_EPISODES, evaluate},
    {"generate", ACCEPTS_CHECKPOINT | ACCEPTS_TEXT, generate},
    {"play", ACCEPTS_CHECKPOINT | ACCEPTS_EPISODES | ACCEPTS_RENDER, play},
    {"export", ACCEPTS_CHECKPOINT | ACCEPTS_ONNX, export_model},
    {"try", ACCEPTS_PLUGIN, try_environment},
    {"status", ACCEPTS_ONE_RUN | ACCEPTS_ALL_RUNS, show_status},
    {"list", ACCEPTS_ALL_RUNS, list_runs},
    {"stop", ACCEPTS_ONE_RUN, stop_run},
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
    struct program_folders folders;
    struct error error;
    char path[PATH_MAX], self[PATH_MAX] = "", file[NAME_MAX];
    const int length = snprintf(file, sizeof file, "coalesced-%s", argv[0]);
    if (strchr(argv[0], '/') != NULL || length >= (int)sizeof file ||
        program_folders_find(&folders, PROGRAM_COMMAND, &error) != STATUS_OK ||
        program_folders_have(&folders, file, path) != STATUS_OK)
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
