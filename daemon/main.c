/* The command line: argv in, exit code out. */
#include "daemon/descriptor_limit.h"
#include "daemon/job_files.h"
#include "daemon/rundir.h"
#include "daemon/runlog.h"
#include "daemon/service.h"
#include "daemon/supervise.h"
#include "kernels/base/log.h"
#include "kernels/policy/mlp.h"
#include "worker/job/job.h"
#include "worker/parallel/language.h"
#include "worker/server/evaluation.h"
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
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
    "  coalesced evaluate CHECKPOINT JOB.json [--set /POINTER=VALUE]...   accuracy or perplexity, and loss, "
    "on "
    "held-out data\n"
    "  coalesced generate CHECKPOINT [--words N] [--seed S] [--temperature T]   text by a language model "
    "(100, 1, 1.0)\n"
    "  coalesced schema                                         print the JSON schema of job files\n"
    "  coalesced --help | --version\n"
    "\n"
    "VALUE is JSON, else a string. Logs go to runs/NAME/ (DIR with --run-dir): episodes.log, "
    "episodes.jsonl;\n"
    "checkpoints to its folder checkpoints/. --resume goes on from the newest that is sound. CHECKPOINT is "
    "one\n"
    "of those; for evaluate, but not of a language model, also any safetensors file with the model's names.\n"
    "SIGTERM and ctrl-C finish the round and end the job; a second one hurries. SIGHUP reads JOB.json again\n"
    "(/log changes at once), SIGUSR1 opens the logs anew.\n"
    "\n"
    "Exit: 0 finished, solved or stopped; 64 usage; 65 corrupt data; 66 input missing; 69 device "
    "unavailable;\n"
    "70 internal; 74 I/O; 75 already running; 77 permission; 78 bad job file.\n";

/* What a command takes beside --help. */
enum accepts {
    ACCEPTS_JOB = 1,        /* a job file, --set */
    ACCEPTS_RUN = 2,        /* --run-dir, --resume */
    ACCEPTS_CHECKPOINT = 4, /* in front of the job, if there is one */
    ACCEPTS_TEXT = 8,       /* --words, --seed, --temperature */
};

struct arguments {
    bool help; /* it has been printed: nothing is left to do */
    const char *job_path;
    const char *checkpoint;
    struct language_generate text;
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

/* The whole of `text` as digits, at most `max`. */
static bool read_integer(const char *text, uint64_t max, uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *value <= max;
}

/* The largest that every JSON reader keeps, as a job's seed. */
static const uint64_t integer_max = 9007199254740991;

/* One option of `generate`. */
static int read_text_option(int option, struct language_generate *text)
{
    char *end;
    if (option == 'w')
        return read_integer(optarg, integer_max, &text->words) && text->words > 0
                   ? 0
                   : usage_error("--words: expected an integer from 1, got ", optarg);
    if (option == 'd')
        return read_integer(optarg, integer_max, &text->seed)
                   ? 0
                   : usage_error("--seed: expected an integer from 0, got ", optarg);
    text->temperature = strtod(optarg, &end);
    return end != optarg && *end == '\0' && isfinite(text->temperature) && text->temperature > 0
               ? 0
               : usage_error("--temperature: expected a number above 0, got ", optarg);
}

/* One option. 0, or the exit code of a usage error that has been told. */
static int read_option(int option, char **argv, unsigned accepts, struct arguments *arguments)
{
    static const struct {
        int option;
        unsigned needs;
        const char *refusal;
    } rules[] = {
        {'s', ACCEPTS_JOB, "--set belongs to commands with a job file"},
        {'r', ACCEPTS_RUN, "--run-dir belongs to run"},
        {'c', ACCEPTS_RUN, "--resume belongs to run"},
        {'w', ACCEPTS_TEXT, "--words belongs to generate"},
        {'d', ACCEPTS_TEXT, "--seed belongs to generate"},
        {'t', ACCEPTS_TEXT, "--temperature belongs to generate"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].option == option && (accepts & rules[i].needs) == 0)
            return usage_error(rules[i].refusal, "");
    switch (option) {
    case 's':
        arguments->overrides[arguments->override_count++] = optarg;
        return 0;
    case 'r':
        arguments->run_dir = optarg;
        return optarg[0] != '\0' ? 0 : usage_error("--run-dir: expected a path", "");
    case 'c':
        arguments->resume = true;
        return 0;
    case 'w':
    case 'd':
    case 't':
        return read_text_option(option, &arguments->text);
    case ':':
        return usage_error("an argument is missing after ", argv[optind - 1]);
    default:
        return usage_error("unknown option ", argv[optind - 1]);
    }
}

/* The files behind the options. */
static int read_files(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    const bool job = accepts & ACCEPTS_JOB, checkpoint = accepts & ACCEPTS_CHECKPOINT;
    if (optind + job + checkpoint != argc)
        return usage_error(!checkpoint ? "expected one job file"
                           : job       ? "expected a checkpoint and a job file"
                                       : "expected one checkpoint",
                           "");
    arguments->checkpoint = checkpoint ? argv[optind] : NULL;
    arguments->job_path = job ? argv[argc - 1] : NULL;
    return 0;
}

/* What stands behind a command. 0, or the exit code of a usage error that has been told. */
static int read_arguments(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    static const struct option options[] = {
        {"set", required_argument, NULL, 's'},  {"run-dir", required_argument, NULL, 'r'},
        {"resume", no_argument, NULL, 'c'},     {"words", required_argument, NULL, 'w'},
        {"seed", required_argument, NULL, 'd'}, {"temperature", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0},
    };
    int option, code = 0;
    arguments->overrides = calloc((size_t)argc, sizeof *arguments->overrides);
    if (arguments->overrides == NULL)
        return EX_SOFTWARE;
    opterr = 0;
    while (code == 0 && (option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == 'h') {
            arguments->help = true;
            return print_usage();
        }
        code = read_option(option, argv, accepts, arguments);
    }
    return code == 0 ? read_files(argc, argv, accepts, arguments) : code;
}

/* Tells what went wrong, if anything did; the exit code. */
static int tell(enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        log_error("%s", error->text);
    return status_exit_code(status);
}

/* Reads the job and checks what a table of keys cannot know; but a text that is to be evaluated is read once,
 * in the checkpoint's words. 0, or the exit code. */
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
    if (arguments->checkpoint != NULL && job->kind == JOB_MODEL_PARALLEL)
        return 0;
    return tell(job_files_check(job, &error), &error);
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
    if (code == 0 && !arguments->help)
        code = check_environment();
    if (code == 0 && !arguments->help && arguments->job_path != NULL)
        code = read_job(arguments, job);
    if (code != 0 || arguments->help || arguments->job_path == NULL || job->kind != JOB_REINFORCE)
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
    enum status status = descriptor_limit_raise(job, error);
    if (status != STATUS_OK)
        return status;
    status = open_run(arguments, job, &dir, &resume, error);
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
    int code = prepare(argc, argv, ACCEPTS_JOB | ACCEPTS_RUN, &arguments, &job);
    if (code == 0 && !arguments.help)
        code = tell(run_job(&arguments, &job, &error), &error);
    free(arguments.overrides);
    return code;
}

static int command_check(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct job job;
    log_name("");
    int code = prepare(argc, argv, ACCEPTS_JOB, &arguments, &job);
    free(arguments.overrides);
    return code;
}

static int flush_result(void)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : EX_IOERR;
}

static int evaluate_images(const struct arguments *arguments, const struct job *job)
{
    struct evaluation sums;
    struct error error = {0};
    int code = tell(evaluation_run(&sums, arguments->checkpoint, job, &error), &error);
    if (code != 0)
        return code;
    double samples = (double)sums.samples;
    printf("Accuracy: %.2f %% (%" PRIu64 " of %" PRIu64 ")\tLoss: %.4f\n",
           100 * (double)sums.correct / samples, sums.correct, sums.samples, sums.loss_sum / samples);
    return flush_result();
}

static int evaluate_text(const struct arguments *arguments, const struct job *job)
{
    struct error error = {0};
    uint64_t tokens = 0;
    double loss = 0;
    enum status status = job_files_check_folder(arguments->checkpoint, &error);
    if (status == STATUS_OK)
        status = language_evaluate(job, arguments->checkpoint, &loss, &tokens, &error);
    if (status != STATUS_OK)
        return tell(status, &error);
    printf("Perplexity: %.2f (%" PRIu64 " tokens)\tLoss: %.4f\n", exp(loss), tokens, loss);
    return flush_result();
}

static int command_evaluate(int argc, char **argv)
{
    struct arguments arguments = {0};
    struct job job;
    log_name("");
    int code = prepare(argc, argv, ACCEPTS_JOB | ACCEPTS_CHECKPOINT, &arguments, &job);
    if (code == 0 && !arguments.help) {
        job_resolve(&job);
        code = job.kind == JOB_MODEL_PARALLEL ? evaluate_text(&arguments, &job)
                                              : evaluate_images(&arguments, &job);
    }
    free(arguments.overrides);
    return code;
}

static int command_generate(int argc, char **argv)
{
    struct arguments arguments = {.text = {.words = 100, .seed = 1, .temperature = 1}};
    struct job job;
    struct error error = {0};
    log_name("");
    int code = prepare(argc, argv, ACCEPTS_CHECKPOINT | ACCEPTS_TEXT, &arguments, &job);
    if (code == 0 && !arguments.help) {
        enum status status = job_files_of_checkpoint(&job, arguments.checkpoint, &error);
        if (status == STATUS_OK) {
            job_resolve(&job);
            status = language_generate(&job, arguments.checkpoint, &arguments.text, stdout, &error);
        }
        code = tell(status, &error);
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
    } commands[] = {{"run", command_run},           {"check", command_check},
                    {"evaluate", command_evaluate}, {"generate", command_generate},
                    {"schema", command_schema},     {"worker", command_worker}};
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
