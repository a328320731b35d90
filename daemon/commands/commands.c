/* The table of commands, and the way to those that are programs of their own: reads the command line and the
 * job, and calls the command. The command's process; its only thread. */
#include "daemon/commands/commands.h"

#include "daemon/commands/film.h"
#include "daemon/commands/job_files.h"
#include "daemon/hosts/rendezvous.h"
#include "daemon/process/python_program.h"
#include "kernels/base/log.h"
#include "kernels/base/program_files.h"
#include "kernels/base/text.h"
#include "kernels/policy/mlp.h"
#include "worker/environment/environment_contract.h"
#include "worker/job/json_document.h"
#include "worker/reinforce/evaluator.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

/* ---- options ---- */

/* The arguments that a command takes beside --help; combined by |. */
enum accepts {
    ACCEPTS_JOB = 1,         /* a job file, --set */
    ACCEPTS_RUN = 2,         /* --run-dir, --resume, --profile, --node, --leader, --keys */
    ACCEPTS_CHECKPOINT = 4,  /* in front of the job, if there is one */
    ACCEPTS_TEXT = 8,        /* --words, --seed, --temperature */
    ACCEPTS_EPISODES = 16,   /* --episodes */
    ACCEPTS_PLUGIN = 32,     /* a plug-in or an environment, --name, --options, --steps, --limit-s, --seed */
    ACCEPTS_RENDER = 64,     /* --render, --sample */
    ACCEPTS_KEYS = 128,      /* a folder for keys, --hosts */
    ACCEPTS_LEADER = 256,    /* a leader's address, --node, --keys, --observers, --trainers */
    ACCEPTS_ONE_RUN = 512,   /* a run: its directory or name */
    ACCEPTS_ALL_RUNS = 1024, /* with ACCEPTS_ONE_RUN: at most one run */
    ACCEPTS_WATCH = 2048,    /* --watch */
    ACCEPTS_ONNX = 4096,     /* --onnx, which must be given */
    ACCEPTS_JSON = 8192,     /* --json */
    ACCEPTS_FOLDERS = 16384, /* folders, as many as one likes */
    ACCEPTS_RUNNING = 32768, /* --running */
    ACCEPTS_AGE = 65536,     /* --older-than, --dry-run, --all */
    ACCEPTS_PAGE = 131072,   /* --listen, --token */
};

int usage_error(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("coalesced: ", stderr);
    vfprintf(stderr, format, list);
    fputs("; see coalesced --help\n", stderr);
    va_end(list);
    return EX_USAGE;
}

enum option_type {
    FLAG,     /* sets a bool */
    TEXT,     /* keeps the text */
    PATH,     /* keeps the text, which is not empty */
    COUNT,    /* an integer in 1..bound */
    INTEGER,  /* an integer from `bound` */
    OVERRIDE, /* --set */
    PROFILE,
    TEMPERATURE,
    OPTIONS,
    RENDER,
    NODE,
    AGE,
    OBSERVERS, /* a COUNT, and the role */
    TRAINERS,
};

#define AT(member) offsetof(struct arguments, member)

static const struct option_rule {
    const char *name;
    enum option_type type;
    unsigned accepts;  /* the commands that it belongs to, by any of these bits, */
    const char *owner; /* and in words */
    size_t at;         /* where its value goes, in struct arguments */
    uint32_t bound;
} rules[] = {
    {"set", OVERRIDE, ACCEPTS_JOB, "commands with a job file", 0, 0},
    {"run-dir", PATH, ACCEPTS_RUN, "run", AT(run_dir), 0},
    {"resume", FLAG, ACCEPTS_RUN, "run", AT(resume), 0},
    {"episodes", COUNT, ACCEPTS_EPISODES, "evaluate and play", AT(episodes), POLICY_EPISODES_MAX},
    {"words", INTEGER, ACCEPTS_TEXT, "generate", AT(text.words), 1},
    {"seed", INTEGER, ACCEPTS_TEXT | ACCEPTS_PLUGIN, "generate and try", AT(text.seed), 0},
    {"temperature", TEMPERATURE, ACCEPTS_TEXT, "generate", 0, 0},
    {"name", TEXT, ACCEPTS_PLUGIN, "try", AT(name), 0},
    {"options", OPTIONS, ACCEPTS_PLUGIN, "try", 0, 0},
    {"steps", COUNT, ACCEPTS_PLUGIN, "try", AT(steps), CONTRACT_STEPS_MAX},
    {"limit-s", COUNT, ACCEPTS_PLUGIN, "try", AT(limit_s), 86400},
    {"render", RENDER, ACCEPTS_RENDER, "play", 0, 0},
    {"sample", FLAG, ACCEPTS_RENDER, "play", AT(sample), 0},
    {"onnx", PATH, ACCEPTS_ONNX, "export", AT(onnx), 0},
    {"node", NODE, ACCEPTS_RUN | ACCEPTS_LEADER, "run and join", 0, 0},
    {"leader", TEXT, ACCEPTS_RUN, "run", AT(rendezvous.leader), 0},
    {"keys", TEXT, ACCEPTS_RUN | ACCEPTS_LEADER, "run and join", AT(rendezvous.keys), 0},
    {"hosts", COUNT, ACCEPTS_KEYS, "keygen", AT(hosts), HOSTS_MAX},
    {"observers", OBSERVERS, ACCEPTS_LEADER, "join", AT(brings), ROSTER_WORKERS_MAX},
    {"trainers", TRAINERS, ACCEPTS_LEADER, "join", AT(brings), ROSTER_WORKERS_MAX},
    {"json", FLAG, ACCEPTS_JSON, "check, status and list", AT(json), 0},
    {"running", FLAG, ACCEPTS_RUNNING, "list", AT(running), 0},
    {"older-than", AGE, ACCEPTS_AGE, "clean", 0, 0},
    {"dry-run", FLAG, ACCEPTS_AGE, "clean", AT(dry_run), 0},
    {"all", FLAG, ACCEPTS_AGE, "clean", AT(all), 0},
    {"listen", PATH, ACCEPTS_PAGE, "page", AT(listen), 0},
    {"token", PATH, ACCEPTS_PAGE, "page", AT(token), 0},
    {"watch", FLAG, ACCEPTS_WATCH, "status", AT(watch), 0},
    {"profile", PROFILE, ACCEPTS_RUN, "run", 0, 0},
    {"help", FLAG, ~0u, "", AT(help), 0},
};
enum { RULES = sizeof rules / sizeof rules[0] };

/* Reads an integer in 1..most. 0, or the exit code. */
static int store_count(const char *name, const char *text, uint32_t most, uint32_t *value)
{
    uint64_t read;
    if (!text_integer(text, most, &read) || read == 0)
        return usage_error("--%s: expected an integer in 1..%u, got %s", name, most, text);
    *value = (uint32_t)read;
    return 0;
}

static int store_integer(const char *name, const char *text, uint32_t least, uint64_t *value)
{
    const uint64_t most = 9007199254740991; /* 2^53 - 1, as for a job's seed: every JSON reader keeps it */
    if (text_integer(text, most, value) && *value >= least)
        return 0;
    return usage_error("--%s: expected an integer from %u, got %s", name, least, text);
}

static int store_temperature(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(*value) && *value > 0)
        return 0;
    return usage_error("--temperature: expected a number above 0, got %s", text);
}

static int store_render(const char *text, struct arguments *arguments)
{
    arguments->render = text;
    if (strcmp(text, "text") == 0 || film_is_path(text))
        return 0;
    return usage_error("--render: expected text, or a path that ends in .gif or .png, got %s", text);
}

static int store_options(const char *text, struct arguments *arguments)
{
    struct json_document document;
    struct json_error why = {.text = "expected a JSON object"};
    const bool good = json_document_parse(&document, text, strlen(text), &why) == STATUS_OK &&
                      cJSON_IsObject(document.root);
    json_document_fini(&document);
    arguments->options = text;
    return good ? 0 : usage_error("--options: %s: %s", why.text, text);
}

/* "I/N": this host's number and how many there are. */
static int store_node(const char *text, struct rendezvous_flags *flags)
{
    char number[16] = "";
    uint64_t host, count;
    const size_t length = strcspn(text, "/");
    if (length < sizeof number)
        memcpy(number, text, length);
    if (text[length] != '/' || !text_integer(number, HOSTS_MAX - 1, &host) ||
        !text_integer(text + length + 1, HOSTS_MAX, &count) || count < 1 || host >= count)
        return usage_error("--node: expected I/N, this host's number from 0 and the number of hosts (at most "
                           "%d), got %s",
                           HOSTS_MAX, text);
    flags->given = true;
    flags->host = (uint16_t)host;
    flags->count = (uint16_t)count;
    return 0;
}

/* "12h", "30d" or "6w". */
static int store_age(const char *text, double *seconds)
{
    static const char units[] = "hdw";
    static const double unit_s[] = {3600, 86400, 604800};
    char number[16] = "";
    uint64_t count;
    const size_t length = strlen(text);
    const char *unit = length > 0 && length <= sizeof number ? strchr(units, text[length - 1]) : NULL;
    if (unit != NULL)
        memcpy(number, text, length - 1);
    if (unit == NULL || *unit == '\0' || !text_integer(number, 1000000, &count))
        return usage_error(
            "--older-than: expected a number of hours, days or weeks, as 12h, 30d or 6w, got %s", text);
    *seconds = (double)count * unit_s[unit - units];
    return 0;
}

/* Stores the option's value. 0, or the exit code. */
static int store_option(const struct option_rule *rule, const char *text, struct arguments *arguments)
{
    void *value = (char *)arguments + rule->at;
    switch (rule->type) {
    case FLAG:
        *(bool *)value = true;
        return 0;
    case TEXT:
    case PATH:
        *(const char **)value = text;
        return rule->type == TEXT || text[0] != '\0' ? 0 : usage_error("--%s: expected a path", rule->name);
    case OBSERVERS:
    case TRAINERS:
        arguments->role = rule->type == OBSERVERS ? WIRE_ROLE_OBSERVER : WIRE_ROLE_TRAINER;
        return store_count(rule->name, text, rule->bound, value);
    case COUNT:
        return store_count(rule->name, text, rule->bound, value);
    case INTEGER:
        return store_integer(rule->name, text, rule->bound, value);
    case OVERRIDE:
    case PROFILE:
        arguments->overrides[arguments->override_count++] =
            rule->type == PROFILE ? "/log/profile=true" : text;
        return 0;
    case TEMPERATURE:
        return store_temperature(text, &arguments->text.temperature);
    case AGE:
        return store_age(text, &arguments->age_s);
    case OPTIONS:
        return store_options(text, arguments);
    case RENDER:
        return store_render(text, arguments);
    default:
        return store_node(text, &arguments->rendezvous);
    }
}

/* Reads the options up to --help or the last one. 0, or the exit code. */
static int read_options(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    struct option options[RULES + 1] = {0};
    int option, index = 0, code = 0;
    for (int i = 0; i < RULES; i++)
        options[i] = (struct option){
            .name = rules[i].name,
            .has_arg = rules[i].type == FLAG || rules[i].type == PROFILE ? no_argument : required_argument,
            .val = i + 1};
    opterr = 0;
    while (code == 0 && !arguments->help && (option = getopt_long(argc, argv, ":", options, &index)) != -1) {
        if (option == ':')
            return usage_error("an argument is missing after %s", argv[optind - 1]);
        if (option == '?' && optopt > RULES) /* a letter, perhaps one of several behind one dash */
            return usage_error("unknown option -%c", optopt);
        if (option == '?')
            return usage_error("unknown option %s", argv[optind - 1]);
        const struct option_rule *rule = &rules[option - 1];
        if ((rule->accepts & accepts) == 0)
            return usage_error("--%s belongs to %s", rule->name, rule->owner);
        code = store_option(rule, optarg, arguments);
    }
    return code;
}

/* Reads the run that is named, if one may be. 0, or the exit code. */
static int read_run(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    const bool may_lack = accepts & ACCEPTS_ALL_RUNS;
    const int count = argc - optind;
    arguments->run = argv[optind];
    if (count == 1 || (count == 0 && may_lack))
        return 0;
    return usage_error("expected %s run: its directory, or its name", may_lack ? "at most one" : "one");
}

/* Reads the files named after the options. 0, or the exit code. */
static int read_files(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    const bool job = accepts & ACCEPTS_JOB, checkpoint = accepts & ACCEPTS_CHECKPOINT;
    if (accepts & ACCEPTS_PLUGIN) {
        arguments->environment = argv[optind];
        return optind + 1 == argc ? 0 : usage_error("expected one plug-in, or the name of an environment");
    }
    if (accepts & ACCEPTS_FOLDERS) {
        arguments->folders = (const char *const *)argv + optind;
        arguments->folder_count = (size_t)(argc - optind);
        return 0;
    }
    if (accepts & (ACCEPTS_ONE_RUN | ACCEPTS_ALL_RUNS))
        return read_run(argc, argv, accepts, arguments);
    if (accepts & ACCEPTS_KEYS) {
        arguments->key_folder = argv[optind];
        return optind + 1 == argc ? 0 : usage_error("expected one folder for the keys");
    }
    if (accepts & ACCEPTS_LEADER) {
        const char *scheme = "tcp://", *address = argv[optind];
        if (optind + 1 != argc || strncmp(address, scheme, strlen(scheme)) != 0)
            return usage_error("expected the leader's address, tcp://HOST:PORT");
        if (arguments->rendezvous.keys == NULL || arguments->brings == 0)
            return usage_error("expected --keys DIR, and --observers N or --trainers N");
        arguments->rendezvous.leader = address + strlen(scheme);
        return 0;
    }
    if (accepts & ACCEPTS_ONNX && arguments->onnx == NULL)
        return usage_error("expected --onnx FILE");
    if (!arguments->rendezvous.given &&
        (arguments->rendezvous.leader != NULL || arguments->rendezvous.keys != NULL))
        return usage_error("--leader and --keys belong to a start with --node");
    const int given = argc - optind;
    if (given != 1 && !(job && checkpoint && given == 2))
        return usage_error("expected %s", !checkpoint ? "one job file"
                                          : job       ? "a run or a checkpoint, then at most one job file"
                                                      : "one run or checkpoint");
    arguments->checkpoint = checkpoint ? argv[optind] : NULL;
    arguments->job_path = job && given == 1 + checkpoint ? argv[argc - 1] : NULL;
    return 0;
}

/* Reads argv, of which argv[0] is the command. 0, or the exit code of a usage error, whose message is
 * printed. In either case the caller frees the overrides. */
static int read_arguments(struct arguments *arguments, int argc, char **argv, unsigned accepts)
{
    *arguments = (struct arguments){.text = {.words = 100, .seed = 1, .temperature = 1},
                                    .options = "{}",
                                    .steps = 1000,
                                    .limit_s = 60,
                                    .age_s = 30 * 86400,
                                    .listen = "127.0.0.1:9478"};
    arguments->overrides = calloc((size_t)argc, sizeof *arguments->overrides);
    if (arguments->overrides == NULL) {
        fprintf(stderr, "coalesced: no memory for the arguments\n");
        return EX_SOFTWARE;
    }
    const int code = read_options(argc, argv, accepts, arguments);
    return code == 0 && !arguments->help ? read_files(argc, argv, accepts, arguments) : code;
}

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
    const bool is_found = arguments->job_path == arguments->found.job;
    const struct path path = is_found ? path_below(path_of(arguments->found.run), arguments->job_path)
                                      : path_of(arguments->job_path);
    const enum status status =
        job_read_file(job, path, arguments->overrides, arguments->override_count,
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

/* Finds the newest checkpoint of a run that was given in place of one, and the job of its run where a job is
 * missing. 0, or the exit code. */
static int find_in_run(struct arguments *arguments, unsigned accepts)
{
    struct error error;
    enum status status = STATUS_OK;
    if (arguments->checkpoint == NULL)
        return 0;
    arguments->checkpoint = job_files_find_checkpoint(&arguments->found, arguments->checkpoint, &error);
    if (arguments->checkpoint == NULL)
        status = error.status;
    else if ((accepts & ACCEPTS_JOB) && arguments->job_path == NULL)
        status = job_files_find_job(&arguments->found, arguments->checkpoint, &error);
    if (status == STATUS_OK && (accepts & ACCEPTS_JOB) && arguments->job_path == NULL)
        arguments->job_path = arguments->found.job;
    return report_status(status, &error);
}

/* Reads the arguments and the job among them. 0, COMMAND_HELP, or the exit code of an error that is printed.
 */
static int prepare_command(int argc, char **argv, unsigned accepts, struct arguments *arguments,
                           struct job *job)
{
    log_name("");
    int code = read_arguments(arguments, argc, argv, accepts);
    if (code == 0 && arguments->help)
        return COMMAND_HELP;
    if (code == 0)
        code = check_environment();
    if (code == 0)
        code = find_in_run(arguments, accepts);
    if (code != 0 || arguments->job_path == NULL)
        return code;
    code = read_job(arguments, job);
    if (code == 0 && arguments->episodes > 0 && job->kind != JOB_REINFORCE)
        return usage_error("--episodes belongs to jobs of kind reinforce: %s", arguments->job_path);
    return code;
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
    uint64_t epoch_updates;
    size_t bytes;
    if (!arguments->json)
        return STATUS_OK;
    const enum status status = job_files_epoch_updates(&epoch_updates, job, error);
    if (status != STATUS_OK)
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
    {"status", ACCEPTS_ONE_RUN | ACCEPTS_ALL_RUNS | ACCEPTS_JSON | ACCEPTS_WATCH, status_show},
    {"list", ACCEPTS_FOLDERS | ACCEPTS_RUNNING | ACCEPTS_JSON, list_runs},
    {"stop", ACCEPTS_ONE_RUN, status_stop},
    {"clean", ACCEPTS_FOLDERS | ACCEPTS_AGE, clean_runs},
    {"page", ACCEPTS_FOLDERS | ACCEPTS_PAGE, page_serve},
};

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
    const struct command *command = NULL;
    struct arguments arguments;
    struct job job;
    struct error error = {0};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            command = &commands[i];
    if (command == NULL)
        return become_program(argv);
    int code = prepare_command(argc, argv, command->accepts, &arguments, &job);
    if (code == 0)
        code = report_status(command->work(&arguments, &job, &error), &error);
    free(arguments.overrides);
    return code;
}
