/* argv read by getopt_long. The command's process; its only thread. */
#include "daemon/arguments.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

int usage_error(const char *what, const char *which)
{
    fprintf(stderr, "coalesced: %s%s; see coalesced --help\n", what, which);
    return EX_USAGE;
}

/* Reads `text`, which must be digits alone. The largest number is 2^53 - 1, as for a job's seed: every JSON
 * reader keeps it. */
static bool read_integer(const char *text, uint64_t *value)
{
    static const uint64_t max = 9007199254740991;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *value <= max;
}

static int read_words(const char *text, struct arguments *arguments)
{
    if (read_integer(text, &arguments->text.words) && arguments->text.words > 0)
        return 0;
    return usage_error("--words: expected an integer from 1, got ", text);
}

static int read_seed(const char *text, struct arguments *arguments)
{
    return read_integer(text, &arguments->text.seed)
               ? 0
               : usage_error("--seed: expected an integer from 0, got ", text);
}

static int read_temperature(const char *text, struct arguments *arguments)
{
    char *end;
    double *value = &arguments->text.temperature;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value) && *value > 0
               ? 0
               : usage_error("--temperature: expected a number above 0, got ", text);
}

static int read_set(const char *text, struct arguments *arguments)
{
    arguments->overrides[arguments->override_count++] = text;
    return 0;
}

static int read_run_dir(const char *text, struct arguments *arguments)
{
    arguments->run_dir = text;
    return text[0] != '\0' ? 0 : usage_error("--run-dir: expected a path", "");
}

static int read_resume(const char *text, struct arguments *arguments)
{
    (void)text;
    arguments->resume = true;
    return 0;
}

static int read_help(const char *text, struct arguments *arguments)
{
    (void)text;
    arguments->help = true;
    return 0;
}

/* One row per option: the commands that take it, and the function that reads its argument. */
static const struct {
    const char *name;
    int has_argument;
    unsigned needs; /* of enum accepts; 0: every command takes it */
    const char *refusal;
    int (*read)(const char *text, struct arguments *arguments);
} rules[] = {
    {"set", required_argument, ACCEPTS_JOB, "--set belongs to commands with a job file", read_set},
    {"run-dir", required_argument, ACCEPTS_RUN, "--run-dir belongs to run", read_run_dir},
    {"resume", no_argument, ACCEPTS_RUN, "--resume belongs to run", read_resume},
    {"words", required_argument, ACCEPTS_TEXT, "--words belongs to generate", read_words},
    {"seed", required_argument, ACCEPTS_TEXT, "--seed belongs to generate", read_seed},
    {"temperature", required_argument, ACCEPTS_TEXT, "--temperature belongs to generate", read_temperature},
    {"help", no_argument, 0, NULL, read_help},
};
enum { RULES = sizeof rules / sizeof rules[0], FIRST_OPTION = 256 /* no character */ };

/* Reads the option that getopt_long has found. 0, or the exit code. */
static int read_option(int option, char **argv, unsigned accepts, struct arguments *arguments)
{
    if (option == ':')
        return usage_error("an argument is missing after ", argv[optind - 1]);
    if (option == '?')
        return usage_error("unknown option ", argv[optind - 1]);
    const size_t rule = (size_t)(option - FIRST_OPTION);
    if ((accepts & rules[rule].needs) != rules[rule].needs)
        return usage_error(rules[rule].refusal, "");
    return rules[rule].read(optarg, arguments);
}

/* Reads the files named after the options. 0, or the exit code. */
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

int arguments_read(struct arguments *arguments, int argc, char **argv, unsigned accepts)
{
    struct option options[RULES + 1] = {{NULL, 0, NULL, 0}};
    int option, code = 0;
    *arguments = (struct arguments){.text = {.words = 100, .seed = 1, .temperature = 1}};
    arguments->overrides = calloc((size_t)argc, sizeof *arguments->overrides);
    if (arguments->overrides == NULL) {
        fprintf(stderr, "coalesced: no memory for the arguments\n");
        return EX_SOFTWARE;
    }
    for (int i = 0; i < RULES; i++)
        options[i] = (struct option){rules[i].name, rules[i].has_argument, NULL, FIRST_OPTION + i};
    opterr = 0;
    while (code == 0 && !arguments->help && (option = getopt_long(argc, argv, ":", options, NULL)) != -1)
        code = read_option(option, argv, accepts, arguments);
    return code == 0 && !arguments->help ? read_files(argc, argv, accepts, arguments) : code;
}

void arguments_fini(struct arguments *arguments)
{
    free(arguments->overrides);
    arguments->overrides = NULL;
}
