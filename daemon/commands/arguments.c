/* argv read by getopt_long. The command's process; its only thread. */
#include "daemon/commands/arguments.h"

#include "daemon/commands/film.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_contract.h"
#include "worker/job/json_document.h"
#include "worker/reinforce/evaluator.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

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

/* 2^53 - 1, as for a job's seed: every JSON reader keeps it. */
static const uint64_t integer_max = 9007199254740991;

static bool read_positive(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value) && *value > 0;
}

enum {
    SET = 1,
    RUN_DIR,
    RESUME,
    EPISODES,
    WORDS,
    SEED,
    TEMPERATURE,
    NAME,
    OPTIONS,
    STEPS,
    LIMIT_S,
    RENDER,
    SAMPLE,
    ONNX,
    NODE,
    LEADER,
    KEYS,
    HOSTS,
    OBSERVERS,
    TRAINERS,
    JSON,
    WATCH,
    PROFILE,
    HELP
};

static const struct option options[] = {
    {"set", required_argument, NULL, SET},
    {"run-dir", required_argument, NULL, RUN_DIR},
    {"resume", no_argument, NULL, RESUME},
    {"episodes", required_argument, NULL, EPISODES},
    {"words", required_argument, NULL, WORDS},
    {"seed", required_argument, NULL, SEED},
    {"temperature", required_argument, NULL, TEMPERATURE},
    {"name", required_argument, NULL, NAME},
    {"options", required_argument, NULL, OPTIONS},
    {"steps", required_argument, NULL, STEPS},
    {"limit-s", required_argument, NULL, LIMIT_S},
    {"render", required_argument, NULL, RENDER},
    {"sample", no_argument, NULL, SAMPLE},
    {"onnx", required_argument, NULL, ONNX},
    {"node", required_argument, NULL, NODE},
    {"leader", required_argument, NULL, LEADER},
    {"keys", required_argument, NULL, KEYS},
    {"hosts", required_argument, NULL, HOSTS},
    {"observers", required_argument, NULL, OBSERVERS},
    {"trainers", required_argument, NULL, TRAINERS},
    {"json", no_argument, NULL, JSON},
    {"watch", no_argument, NULL, WATCH},
    {"profile", no_argument, NULL, PROFILE},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

/* The commands that the option belongs to; NULL: it belongs to this one, which takes `accepts`. */
static const char *option_owner(int option, unsigned accepts)
{
    if (option == SET)
        return accepts & ACCEPTS_JOB ? NULL : "commands with a job file";
    const bool is_status = (accepts & ACCEPTS_ONE_RUN) && (accepts & ACCEPTS_ALL_RUNS);
    if (option == WATCH)
        return is_status ? NULL : "status";
    if (option == JSON)
        return is_status || (accepts & ACCEPTS_JSON) ? NULL : "check and status";
    if (option == HOSTS)
        return accepts & ACCEPTS_KEYS ? NULL : "keygen";
    if (option == OBSERVERS || option == TRAINERS)
        return accepts & ACCEPTS_LEADER ? NULL : "join";
    if (option == NODE || option == KEYS)
        return accepts & (ACCEPTS_RUN | ACCEPTS_LEADER) ? NULL : "run and join";
    if (option == RUN_DIR || option == RESUME || option == LEADER || option == PROFILE)
        return accepts & ACCEPTS_RUN ? NULL : "run";
    if (option == EPISODES)
        return accepts & ACCEPTS_EPISODES ? NULL : "evaluate and play";
    if (option == RENDER || option == SAMPLE)
        return accepts & ACCEPTS_RENDER ? NULL : "play";
    if (option == ONNX)
        return accepts & ACCEPTS_ONNX ? NULL : "export";
    if (option == NAME || option == OPTIONS || option == STEPS || option == LIMIT_S)
        return accepts & ACCEPTS_PLUGIN ? NULL : "try";
    if (option == SEED)
        return accepts & (ACCEPTS_TEXT | ACCEPTS_PLUGIN) ? NULL : "generate and try";
    return option == HELP || accepts & ACCEPTS_TEXT ? NULL : "generate";
}

/* Reads an integer in 1..most. 0, or the exit code. */
static int store_count(const char *name, const char *text, uint32_t most, uint32_t *value)
{
    uint64_t read;
    if (!text_integer(text, most, &read) || read == 0)
        return usage_error("--%s: expected an integer in 1..%u, got %s", name, most, text);
    *value = (uint32_t)read;
    return 0;
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
static int store_node(const char *text, struct place_flags *place)
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
    place->given = true;
    place->host = (uint16_t)host;
    place->count = (uint16_t)count;
    return 0;
}

/* Stores an option of a job on several hosts. 0, or the exit code. */
static int store_of_hosts(int option, const char *text, struct arguments *arguments)
{
    switch (option) {
    case NODE:
        return store_node(text, &arguments->place);
    case LEADER:
        arguments->place.leader = text;
        return 0;
    case KEYS:
        arguments->place.keys = text;
        return 0;
    case OBSERVERS:
        arguments->role = WIRE_ROLE_OBSERVER;
        return store_count("observers", text, ROSTER_WORKERS_MAX, &arguments->brings);
    case TRAINERS:
        arguments->role = WIRE_ROLE_TRAINER;
        return store_count("trainers", text, ROSTER_WORKERS_MAX, &arguments->brings);
    default:
        return store_count("hosts", text, HOSTS_MAX, &arguments->hosts);
    }
}

/* Stores the option's value. 0, or the exit code. */
static int store_option(int option, const char *text, struct arguments *arguments)
{
    struct language_generate *settings = &arguments->text;
    switch (option) {
    case SET:
        arguments->overrides[arguments->override_count++] = text;
        return 0;
    case PROFILE:
        arguments->overrides[arguments->override_count++] = "/log/profile=true";
        return 0;
    case RUN_DIR:
        arguments->run_dir = text;
        return text[0] != '\0' ? 0 : usage_error("--run-dir: expected a path");
    case RESUME:
        arguments->resume = true;
        return 0;
    case EPISODES:
        return store_count("episodes", text, POLICY_EPISODES_MAX, &arguments->episodes);
    case WORDS:
        if (text_integer(text, integer_max, &settings->words) && settings->words > 0)
            return 0;
        return usage_error("--words: expected an integer from 1, got %s", text);
    case SEED:
        if (text_integer(text, integer_max, &settings->seed))
            return 0;
        return usage_error("--seed: expected an integer from 0, got %s", text);
    case TEMPERATURE:
        if (read_positive(text, &settings->temperature))
            return 0;
        return usage_error("--temperature: expected a number above 0, got %s", text);
    case NAME:
        arguments->name = text;
        return 0;
    case OPTIONS:
        return store_options(text, arguments);
    case STEPS:
        return store_count("steps", text, CONTRACT_STEPS_MAX, &arguments->steps);
    case RENDER:
        arguments->render = text;
        return strcmp(text, "text") == 0 || film_is_path(text)
                   ? 0
                   : usage_error("--render: expected text, or a path that ends in .gif or .png, got %s",
                                 text);
    case SAMPLE:
        arguments->sample = true;
        return 0;
    case ONNX:
        arguments->onnx = text;
        return text[0] != '\0' ? 0 : usage_error("--onnx: expected a path");
    case JSON:
        arguments->json = true;
        return 0;
    case WATCH:
        arguments->watch = true;
        return 0;
    case LIMIT_S:
        return store_count("limit-s", text, 86400, &arguments->limit_s);
    case HELP:
        arguments->help = true;
        return 0;
    default:
        return store_of_hosts(option, text, arguments);
    }
}

/* Reads the options up to --help or the last one. 0, or the exit code. */
static int read_options(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    int option, index = 0, code = 0;
    opterr = 0;
    while (code == 0 && !arguments->help && (option = getopt_long(argc, argv, ":", options, &index)) != -1) {
        if (option == ':')
            return usage_error("an argument is missing after %s", argv[optind - 1]);
        if (option == '?' && optopt > HELP) /* a letter, perhaps one of several behind one dash */
            return usage_error("unknown option -%c", optopt);
        if (option == '?')
            return usage_error("unknown option %s", argv[optind - 1]);
        const char *owner = option_owner(option, accepts);
        if (owner != NULL)
            return usage_error("--%s belongs to %s", options[index].name, owner);
        code = store_option(option, optarg, arguments);
    }
    return code;
}

/* Reads the run that is named, if one may be. 0, or the exit code. */
static int read_run(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    const int least = accepts & ACCEPTS_ALL_RUNS ? 0 : 1, most = accepts & ACCEPTS_ONE_RUN ? 1 : 0;
    arguments->run = argv[optind];
    if (argc - optind >= least && argc - optind <= most)
        return 0;
    return most == 0 ? usage_error("expected no argument, got %s", argv[optind])
                     : usage_error("expected %s run: its directory, or its name",
                                   least == 1 ? "one" : "at most one");
}

/* Reads the files named after the options. 0, or the exit code. */
static int read_files(int argc, char **argv, unsigned accepts, struct arguments *arguments)
{
    const bool job = accepts & ACCEPTS_JOB, checkpoint = accepts & ACCEPTS_CHECKPOINT;
    if (accepts & ACCEPTS_PLUGIN) {
        arguments->environment = argv[optind];
        return optind + 1 == argc ? 0 : usage_error("expected one plug-in, or the name of an environment");
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
        if (arguments->place.keys == NULL || arguments->brings == 0)
            return usage_error("expected --keys DIR, and --observers N or --trainers N");
        arguments->place.leader = address + strlen(scheme);
        return 0;
    }
    if (accepts & ACCEPTS_ONNX && arguments->onnx == NULL)
        return usage_error("expected --onnx FILE");
    if (!arguments->place.given && (arguments->place.leader != NULL || arguments->place.keys != NULL))
        return usage_error("--leader and --keys belong to a start with --node");
    if (optind + job + checkpoint != argc)
        return usage_error("expected %s", !checkpoint ? "one job file"
                                          : job       ? "a checkpoint and a job file"
                                                      : "one checkpoint");
    arguments->checkpoint = checkpoint ? argv[optind] : NULL;
    arguments->job_path = job ? argv[argc - 1] : NULL;
    return 0;
}

int arguments_read(struct arguments *arguments, int argc, char **argv, unsigned accepts)
{
    *arguments = (struct arguments){
        .text = {.words = 100, .seed = 1, .temperature = 1}, .options = "{}", .steps = 1000, .limit_s = 60};
    arguments->overrides = calloc((size_t)argc, sizeof *arguments->overrides);
    if (arguments->overrides == NULL) {
        fprintf(stderr, "coalesced: no memory for the arguments\n");
        return EX_SOFTWARE;
    }
    const int code = read_options(argc, argv, accepts, arguments);
    return code == 0 && !arguments->help ? read_files(argc, argv, accepts, arguments) : code;
}

void arguments_fini(struct arguments *arguments)
{
    free(arguments->overrides);
    arguments->overrides = NULL;
}
