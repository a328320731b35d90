/* The command line: argv in, exit code out. */
#include "daemon/rundir.h"
#include "daemon/runlog.h"
#include "daemon/service.h"
#include "daemon/supervise.h"
#include "kernels/base/log.h"
#include "kernels/mlp.h"
#include "worker/job/job.h"
#include "worker/worker.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static const char usage[] =
    "coalesced " COALESCED_VERSION ", a training daemon\n"
    "\n"
    "  coalesced run JOB.json [--set /POINTER=VALUE]... [--run-dir DIR]   train\n"
    "  coalesced check JOB.json [--set /POINTER=VALUE]...                 check the job file, print what is "
    "wrong\n"
    "  coalesced schema                                                   print the JSON schema of job "
    "files\n"
    "  coalesced --help | --version\n"
    "\n"
    "VALUE is JSON, else a string. Logs go to runs/NAME/ (DIR with --run-dir): episodes.log, "
    "episodes.jsonl.\n"
    "SIGTERM and ctrl-C finish the round and end the job; a second one hurries. SIGHUP reads JOB.json again\n"
    "(/log changes at once), SIGUSR1 opens the logs anew.\n"
    "\n"
    "Exit: 0 finished, solved or stopped; 64 usage; 65 corrupt data; 66 input missing; 69 device "
    "unavailable;\n"
    "70 internal; 74 I/O; 75 already running; 77 permission; 78 bad job file.\n";

struct arguments {
    const char *job_path; /* NULL: nothing is left to do */
    const char *run_dir;
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

/* Options of run and check. 0, or the exit code of a usage error that has been told. Help is printed here,
 * and leaves no job_path. */
static int read_arguments(int argc, char **argv, bool with_run_dir, struct arguments *arguments)
{
    static const struct option options[] = {{"set", required_argument, NULL, 's'},
                                            {"run-dir", required_argument, NULL, 'r'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option;
    arguments->overrides = calloc((size_t)argc, sizeof *arguments->overrides);
    if (arguments->overrides == NULL)
        return EX_SOFTWARE;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == 's')
            arguments->overrides[arguments->override_count++] = optarg;
        else if (option == 'r' && with_run_dir && optarg[0] != '\0')
            arguments->run_dir = optarg;
        else if (option == 'r')
            return usage_error(with_run_dir ? "--run-dir: expected a path" : "--run-dir belongs to run", "");
        else if (option == 'h')
            return print_usage();
        else if (option == ':')
            return usage_error("an argument is missing after ", argv[optind - 1]);
        else
            return usage_error("unknown option ", argv[optind - 1]);
    }
    if (optind + 1 != argc)
        return usage_error("expected one job file", "");
    arguments->job_path = argv[optind];
    return 0;
}

/* Reads the job and checks what a table of keys cannot know. 0, or the exit code. */
static int read_job(const struct arguments *arguments, struct job *job)
{
    struct job_problems problems = {0};
    enum status status =
        job_read_file(job, arguments->job_path, arguments->overrides, arguments->override_count, &problems);
    if (problems.text != NULL)
        fwrite(problems.text, 1, problems.bytes, stderr);
    else if (status != STATUS_OK)
        fprintf(stderr, "coalesced: %s: %s\n", arguments->job_path, status_name(status));
    job_problems_fini(&problems);
    if (status != STATUS_OK)
        return status_exit_code(status);
    return 0;
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

static enum status run_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    struct rundir dir;
    struct runlog *log = NULL;
    enum status status = rundir_open(&dir, arguments->run_dir, job, error);
    if (status != STATUS_OK)
        return status;
    status = runlog_open(&log, dir.fd, dir.path, job, error);
    if (status == STATUS_OK) {
        struct supervise_config config = {.job = job,
                                          .dir = &dir,
                                          .log = log,
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
    int code = read_arguments(argc, argv, true, &arguments);
    if (code == 0 && arguments.job_path != NULL)
        code = check_environment();
    if (code == 0 && arguments.job_path != NULL)
        code = read_job(&arguments, &job);
    if (code == 0 && arguments.job_path != NULL) {
        enum status status = run_job(&arguments, &job, &error);
        if (status != STATUS_OK)
            log_error("%s", error.text);
        code = status_exit_code(status);
    }
    free(arguments.overrides);
    return code;
}

static int command_check(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct job job;
    int code = read_arguments(argc, argv, false, &arguments);
    if (code == 0 && arguments.job_path != NULL)
        code = check_environment();
    if (code == 0 && arguments.job_path != NULL)
        code = read_job(&arguments, &job);
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
