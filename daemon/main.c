/* The command line: argv in, exit code out. */
#include "daemon/rundir.h"
#include "daemon/runlog.h"
#include "daemon/service.h"
#include "daemon/supervise.h"
#include "kernels/base/log.h"
#include "kernels/mlp.h"
#include "kernels/safetensors.h"
#include "worker/data/dataset.h"
#include "worker/evaluation.h"
#include "worker/job/job.h"
#include "worker/schedule.h"
#include "worker/worker.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static const char usage[] =
    "coalesced " COALESCED_VERSION ", a training daemon\n"
    "\n"
    "  coalesced run JOB.json [--set /POINTER=VALUE]... [--run-dir DIR] [--resume]   train\n"
    "  coalesced check JOB.json [--set /POINTER=VALUE]...       check the job and its files, print what is "
    "wrong\n"
    "  coalesced evaluate CHECKPOINT JOB.json [--set /POINTER=VALUE]...   accuracy and loss on held-out "
    "data\n"
    "  coalesced schema                                         print the JSON schema of job files\n"
    "  coalesced --help | --version\n"
    "\n"
    "VALUE is JSON, else a string. Logs go to runs/NAME/ (DIR with --run-dir): episodes.log, "
    "episodes.jsonl;\n"
    "checkpoints to its folder checkpoints/. --resume goes on from the newest that is sound. CHECKPOINT is "
    "one\n"
    "of those, or any safetensors file with the model's names.\n"
    "SIGTERM and ctrl-C finish the round and end the job; a second one hurries. SIGHUP reads JOB.json again\n"
    "(/log changes at once), SIGUSR1 opens the logs anew.\n"
    "\n"
    "Exit: 0 finished, solved or stopped; 64 usage; 65 corrupt data; 66 input missing; 69 device "
    "unavailable;\n"
    "70 internal; 74 I/O; 75 already running; 77 permission; 78 bad job file.\n";

/* What a command takes beside --set and --help. */
enum accepts { ACCEPTS_RUN = 1 /* --run-dir, --resume */, ACCEPTS_CHECKPOINT = 2 /* in front of the job */ };

struct arguments {
    const char *job_path; /* NULL: nothing is left to do */
    const char *checkpoint;
    const char *run_dir;
    bool resume;
    const char **overrides; /* of `--set`, in order */
    size_t override_count;
};

static int usage_error(const char *what, const char *which)
{
    fprintf(stderr, "coalesced: %s%s; see coalesced --help\n", what, which);
    return EX_USAGE;
}

static int print_usage(void)
{
    return fputs(usage, stdout) >= 0 && fflush(stdout) == 0 ? 0 : EX_IOERR;
}

/* One option. 0, or the exit code of a usage error that has been told. */
static int read_option(int option, char **argv, unsigned accepts, struct arguments *arguments)
{
    bool of_run = accepts & ACCEPTS_RUN;
    switch (option) {
    case 's':
        arguments->overrides[arguments->override_count++] = optarg;
        return 0;
    case 'r':
        arguments->run_dir = optarg;
        if (of_run && optarg[0] != '\0')
            return 0;
        return usage_error(of_run ? "--run-dir: expected a path" : "--run-dir belongs to run", "");
    case 'c':
        arguments->resume = true;
        return of_run ? 0 : usage_error("--resume belongs to run", "");
    case ':':
        return usage_error("an argument is missing after ", argv[optind - 1]);
    default:
        return usage_error("unknown option ", argv[optind - 1]);
    }
}

/* What stands behind a command. 0, or the exit code of a usage error that has been told. Help is printed
 * here, and leaves no job_path. */
static int read_arguments(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    static const struct option options[] = {
        {"set", required_argument, NULL, 's'},
        {"run-dir", required_argument, NULL, 'r'},
        {"resume", no_argument, NULL, 'c'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option, code = 0, files = accepts & ACCEPTS_CHECKPOINT ? 2 : 1;
    arguments->overrides = calloc((size_t)argc, sizeof *arguments->overrides);
    if (arguments->overrides == NULL)
        return EX_SOFTWARE;
    opterr = 0;
    while (code == 0 && (option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == 'h')
            return print_usage();
        code = read_option(option, argv, accepts, arguments);
    }
    if (code != 0)
        return code;
    if (optind + files != argc)
        return usage_error(files == 2 ? "expected a checkpoint and a job file" : "expected one job file", "");
    arguments->checkpoint = files == 2 ? argv[optind] : NULL;
    arguments->job_path = argv[argc - 1];
    return 0;
}

/* Tells what went wrong, if anything did; the exit code. */
static int tell(enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        log_error("%s", error->text);
    return status_exit_code(status);
}

/* Opens every file that the job names, so that one that is missing or no good is told before anybody starts.
 */
static enum status check_files(const struct job *job, struct error *error)
{
    struct dataset_info info;
    struct safetensors *init = NULL;
    struct schedule schedule;
    if (job->kind != JOB_PARAMETER_SERVER)
        return STATUS_OK;
    enum status status = dataset_probe(&info, job, error);
    if (status == STATUS_OK)
        status = schedule_of(&schedule, job, &info, error);
    if (status == STATUS_OK && job->init.has_path)
        status = safetensors_open(&init, job->init.path, error);
    if (init != NULL)
        safetensors_close(init);
    return status;
}

/* Reads the job and checks what a table of keys cannot know. 0, or the exit code. */
static int read_job(const struct arguments *arguments, struct job *job)
{
    struct job_problems problems = {0};
    struct error error;
    enum status status =
        job_read_file(job, arguments->job_path, arguments->overrides, arguments->override_count, &problems);
    if (problems.text != NULL)
        fwrite(problems.text, 1, problems.bytes, stderr);
    else if (status != STATUS_OK)
        fprintf(stderr, "coalesced: %s: %s\n", arguments->job_path, status_name(status));
    job_problems_fini(&problems);
    if (status != STATUS_OK)
        return status_exit_code(status);
    return tell(check_files(job, &error), &error);
}

/* What the environment says wrongly is a mistake of the command, and told before a worker stumbles over it.
 * 0, or the exit code. */
static int check_environment(void)
{
    struct error error;
    enum status status = mlp_check_isa(&error);
    if (status == STATUS_OK)
        return 0;
    fprintf(stderr, "coalesced: %s\n", error.text);
    return status == STATUS_INVALID ? EX_USAGE : status_exit_code(status);
}

/* Everything in front of the work itself. 0 with a job to work on, 0 without (help was asked for), or the
 * exit code of what has been told. */
static int prepare(int argc, char **argv, unsigned accepts, struct arguments *arguments, struct job *job)
{
    int code = read_arguments(argc, argv, accepts, arguments);
    if (code == 0 && arguments->job_path != NULL)
        code = check_environment();
    if (code == 0 && arguments->job_path != NULL)
        code = read_job(arguments, job);
    if (code != 0 || arguments->job_path == NULL || job->kind != JOB_REINFORCE)
        return code;
    if (arguments->resume)
        return usage_error("--resume: a job of kind reinforce has no checkpoints to go on from: ",
                           arguments->job_path);
    if (arguments->checkpoint != NULL)
        return usage_error("a job of kind reinforce has no held-out data to evaluate on: ",
                           arguments->job_path);
    return 0;
}

static enum status open_run(const struct arguments *arguments, struct job *job, struct rundir *dir,
                            struct resume_point *resume, struct error *error)
{
    if (!arguments->resume)
        return rundir_open(dir, arguments->run_dir, job, error);
    enum status status = rundir_resume(dir, arguments->run_dir, job, error);
    if (status != STATUS_OK)
        return status;
    status = resume_find(resume, dir->real, error);
    if (status != STATUS_OK)
        rundir_close(dir);
    return status;
}

static enum status run_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    struct rundir dir;
    struct resume_point resume;
    struct runlog *log = NULL;
    enum status status = open_run(arguments, job, &dir, &resume, error);
    if (status != STATUS_OK)
        return status;
    status = runlog_open(&log, dir.fd, dir.path, job, error);
    if (status == STATUS_OK) {
        struct supervise_config config = {.job = job,
                                          .dir = &dir,
                                          .log = log,
                                          .resume = arguments->resume ? &resume : NULL,
                                          .job_path = arguments->job_path,
                                          .overrides = arguments->overrides,
                                          .override_count = arguments->override_count};
        status = supervise(&config, error);
    }
    runlog_close(log);
    rundir_close(&dir);
    return status;
}

static int command_run(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct job job;
    struct error error = {0};
    log_name("");
    service_init();
    int code = prepare(argc, argv, ACCEPTS_RUN, &arguments, &job);
    if (code == 0 && arguments.job_path != NULL)
        code = tell(run_job(&arguments, &job, &error), &error);
    free(arguments.overrides);
    return code;
}

static int command_check(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct job job;
    log_name("");
    int code = prepare(argc, argv, 0, &arguments, &job);
    free(arguments.overrides);
    return code;
}

static int print_evaluation(const struct evaluation *sums)
{
    double samples = (double)sums->samples;
    printf("Accuracy: %.2f %% (%" PRIu64 " of %" PRIu64 ")\tLoss: %.4f\n",
           100 * (double)sums->correct / samples, sums->correct, sums->samples, sums->loss_sum / samples);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : EX_IOERR;
}

static int command_evaluate(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct job job;
    struct evaluation sums;
    struct error error = {0};
    log_name("");
    int code = prepare(argc, argv, ACCEPTS_CHECKPOINT, &arguments, &job);
    if (code == 0 && arguments.job_path != NULL) {
        job_resolve(&job);
        code = tell(evaluation_run(&sums, arguments.checkpoint, &job, &error), &error);
        if (code == 0)
            code = print_evaluation(&sums);
    }
    free(arguments.overrides);
    return code;
}

static int command_schema(int argc, char **argv)
{
    if (argc != 1)
        return usage_error("schema takes no argument: ", argv[1]);
    return job_write_schema(stdout) == 0 && fflush(stdout) == 0 ? 0 : EX_IOERR;
}

/* Not for people: what the supervisor executes. */
static int command_worker(int argc, char **argv)
{
    const struct role *role = argc == 5 && strcmp(argv[1], "--role") == 0 ? role_by_name(argv[2]) : NULL;
    if (role == NULL || fcntl(CONTROL_FD, F_GETFD) < 0)
        return usage_error("worker is started by the supervisor only", "");
    return worker_main(role);
}

/* A descriptor of 0 to 2 that is closed would be given to the next file that is opened, and then written to.
 */
static void secure_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"run", command_run},
                    {"check", command_check},
                    {"evaluate", command_evaluate},
                    {"schema", command_schema},
                    {"worker", command_worker}};
    secure_standard_descriptors();
    if (argc < 2)
        return usage_error("expected a command", "");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_usage();
    if (strcmp(argv[1], "--version") == 0)
        return puts("coalesced " COALESCED_VERSION) >= 0 && fflush(stdout) == 0 ? 0 : EX_IOERR;
    return usage_error("unknown command ", argv[1]);
}
