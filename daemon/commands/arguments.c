/* argv read by getopt_long. The command's process; its only thread. */
#include "daemon/commands/arguments.h"

#include "daemon/commands/film.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_contract.h"
#include "worker/job/json_document.h"
#include "worker/reinforce/policy_evaluate.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
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
    {"leader", TEXT, ACCEPTS_RUN, "run", AT(place.leader), 0},
    {"keys", TEXT, ACCEPTS_RUN | ACCEPTS_LEADER, "run and join", AT(place.keys), 0},
    {"hosts", COUNT, ACCEPTS_KEYS, "keygen", AT(hosts), HOSTS_MAX},
    {"observers", OBSERVERS, ACCEPTS_LEADER, "join", AT(brings), ROSTER_WORKERS_MAX},
    {"trainers", TRAINERS, ACCEPTS_LEADER, "join", AT(brings), ROSTER_WORKERS_MAX},
    {"json", FLAG, ACCEPTS_JSON, "check and status", AT(json), 0},
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
    case OPTIONS:
        return store_options(text, arguments);
    case RENDER:
        return store_render(text, arguments);
    default:
        return store_node(text, &arguments->place);
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
