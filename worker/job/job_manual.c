/* Writes the manual page coalesced-job(5) from the table, in mdoc(7). The command's process.
 * config/JOBS.md is the same page, translated by mandoc. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <ctype.h>
#include <string.h>

enum { PAGE_WIDTH = 78 };

static const char introduction[] =
    "A job file is one JSON object (RFC 8259) in UTF-8, read strictly: duplicate keys, comments, trailing "
    "commas, and keys that the job's kind does not have are errors. Every key but /kind has a default. "
    "\"$schema\" and every key that begins with _ are ignored, in every object: they hold an editor's schema "
    "and remarks.";
static const char overrides[] =
    "--set /POINTER=VALUE replaces one value before the job is checked. POINTER is the JSON pointer (RFC "
    "6901) "
    "of a key, as in the headings below, or of a group of keys, which is replaced as a whole. VALUE is JSON, "
    "and a string if it is not JSON. Options are applied in order, and the last one for a key stands.";
static const char notation[] =
    "a..b are the integers from a to b. [a, b) are the numbers from a to below b; a round bracket leaves its "
    "end out.";
static const char messages[] =
    "No message between two workers may carry more than 512 MiB. The check refuses sizes that would make the "
    "tensors of a call, or one parameter, larger, and names the keys.";

/* ---- running text ---- */

/* Writes running text: lines of at most PAGE_WIDTH bytes, and a new line for each sentence. */
static void write_text(FILE *stream, const char *text)
{
    size_t column = 0;
    while (*text != '\0') {
        const size_t length = strcspn(text, " ");
        const bool ends = length > 0 && strchr(".:", text[length - 1]) != NULL;
        if (column > 0 && column + 1 + length > PAGE_WIDTH) {
            fputc('\n', stream);
            column = 0;
        }
        if (column > 0)
            fputc(' ', stream);
        fputs(column == 0 && (text[0] == '.' || text[0] == '\'') ? "\\&" : "", stream);
        for (size_t i = 0; i < length; i++)
            fputs(text[i] == '\\' ? "\\e" : (const char[]){text[i], '\0'}, stream);
        column += length + (column > 0);
        text += length + strspn(text + length, " ");
        if (ends && (isupper((unsigned char)*text) || *text == '"')) {
            fputc('\n', stream);
            column = 0;
        }
    }
    fputc('\n', stream);
}

/* ---- one key ---- */

/* "/data/kind is \"text\"". */
static void add_clause(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition)
{
    const struct job_key *key = job_key_at(kinds, condition->pointer);
    words_add(words, "%s is ", condition->pointer);
    if (condition->test == JOB_IS_SET && key->type != JOB_PATH)
        words_add(words, "set");
    else
        words_add_condition(words, kinds, condition);
}

/* "Where /data/kind is \"text\", this must be null: the text brings its own vocabulary." */
static void add_rule(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_rule *rule)
{
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        words_add(words, i == 0 ? " Where " : " and ");
        add_clause(words, kinds, &rule->when[i]);
    }
    words_add(words, rule->when[0].test == JOB_ALWAYS ? " This must be " : ", this must be ");
    words_add_condition(words, kinds, &rule->then);
    words_add(words, "%s%s.", rule->why != NULL ? ": " : "", rule->why != NULL ? rule->why : "");
}

static void add_limit(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_limit *limit)
{
    if (limit->when.test != JOB_ALWAYS) {
        words_add(words, " Where ");
        add_clause(words, kinds, &limit->when);
        words_add(words, ",");
    }
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++)
        words_add(words, " %s%s", i == 0 ? "" : "* ", limit->factors[i]);
    words_add(words, " may be at most %.0f %s.", limit->most, limit->of);
}

static bool is_factor(const struct job_limit *limit, const struct job_key *key)
{
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++)
        if (strcmp(limit->factors[i], key->pointer) == 0)
            return true;
    return false;
}

/* Writes what the key means: its own text, and the rules that bind it. */
static void write_meaning(FILE *stream, const struct job_key *key)
{
    char words[JOB_WORDS_BYTES] = "";
    words_add(words, "%s", key->text);
    for (size_t i = 0; i < job_rule_count; i++)
        if ((job_rules[i].kinds & key->kinds) != 0 && strcmp(job_rules[i].then.pointer, key->pointer) == 0)
            add_rule(words, job_rules[i].kinds, &job_rules[i]);
    for (size_t i = 0; i < job_limit_count; i++)
        if ((job_limits[i].kinds & key->kinds) != 0 && is_factor(&job_limits[i], key))
            add_limit(words, job_limits[i].kinds & key->kinds, &job_limits[i]);
    write_text(stream, words);
}

static void write_value(FILE *stream, const struct job_key *key)
{
    char words[JOB_WORDS_BYTES] = "Value: ";
    words_add_expected(words, key);
    if (key->unit != NULL)
        words_add(words, " (%s)", key->unit);
    words_add(words, ". Default: %s",
              key->by_default != NULL ? key->by_default
              : key->type == JOB_NAME ? "the file's name"
                                      : "none, the key is required");
    for (size_t i = 0; i < JOB_NULLS_MAX && key->null_where[i].test != JOB_ALWAYS; i++) {
        words_add(words, i == 0 ? "; null where " : ", or ");
        add_clause(words, key->kinds, &key->null_where[i]);
    }
    words_add(words, ".");
    write_text(stream, words);
    fputs(".br\n", stream);
}

static void write_key(FILE *stream, const struct job_key *key)
{
    fprintf(stream, ".It Li %s\n", key->pointer);
    if (key->type != JOB_OBJECT)
        write_value(stream, key);
    write_meaning(stream, key);
}

/* ---- the whole ---- */

static const char page_begin[] =
    ".\\\" Generated from the daemon's own table by `make documents`.\n"
    ".Dd November 22, 2026\n.Dt COALESCED-JOB 5\n.Os\n.Sh NAME\n.Nm coalesced-job\n"
    ".Nd job files of the training daemon coalesced\n.Sh DESCRIPTION\n";

static const char page_end[] = ".Sh EXAMPLES\n"
                               "CartPole with ten observers, whose requests are joined in batches:\n"
                               ".Bd -literal -offset indent\n"
                               "{\n"
                               "  \"$schema\": \"/usr/local/share/coalesced/job.schema.json\",\n"
                               "  \"kind\": \"reinforce\",\n"
                               "  \"observers\": {\"count\": 10},\n"
                               "  \"stop\": {\"episodes\": 1000, \"running_reward\": 475}\n"
                               "}\n"
                               ".Ed\n"
                               ".Sh SEE ALSO\n.Xr coalesced 1\n";

enum {
    OF_REINFORCE = JOB_KINDS_OF(JOB_REINFORCE),
    OF_PPO = JOB_KINDS_OF(JOB_VARIANT_PPO),
    OF_A2C = JOB_KINDS_OF(JOB_VARIANT_A2C),
    OF_ACTOR_CRITIC = OF_PPO | OF_A2C,
    OF_AGENT = OF_REINFORCE | OF_ACTOR_CRITIC,
};

static const struct section {
    const char *title;
    unsigned kinds, without; /* keys that all of these have, and not all of those */
    const char *text;        /* or NULL */
} sections[] = {
    {"Keys of every kind", JOB_KINDS_ALL, 0, NULL},
    {"Keys of the kind reinforce", OF_AGENT, JOB_KINDS_ALL, NULL},
    {"Keys of the kind reinforce with the algorithm reinforce", OF_REINFORCE, OF_AGENT, NULL},
    {"Keys of the kind reinforce with the algorithm ppo or a2c", OF_ACTOR_CRITIC, OF_AGENT, NULL},
    {"Keys of the kind reinforce with the algorithm ppo", OF_PPO, OF_ACTOR_CRITIC, NULL},
    {"Keys of the kind reinforce with the algorithm a2c", OF_A2C, OF_ACTOR_CRITIC, NULL},
    {"Keys of the kind parameter-server", JOB_KINDS_OF(JOB_PARAMETER_SERVER), JOB_KINDS_ALL, NULL},
    {"Keys of the kind model-parallel", JOB_KINDS_OF(JOB_MODEL_PARALLEL), JOB_KINDS_ALL, messages},
};

static void write_section(FILE *stream, const struct section *section)
{
    fprintf(stream, ".Ss %s\n", section->title);
    if (section->text != NULL)
        write_text(stream, section->text);
    fputs(".Bl -tag -width Ds\n", stream);
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & section->kinds) == section->kinds &&
            (section->without == 0 || (job_keys[i].kinds & section->without) != section->without))
            write_key(stream, &job_keys[i]);
    fputs(".El\n", stream);
}

int job_write_manual(FILE *stream)
{
    fputs(page_begin, stream);
    write_text(stream, introduction);
    fputs(".Pp\n", stream);
    write_text(stream, overrides);
    fputs(".Pp\n", stream);
    write_text(stream, notation);
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        write_section(stream, &sections[i]);
    fputs(page_end, stream);
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}

int job_write_pointers(FILE *stream)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if (job_key_at(JOB_KINDS_ALL, key->pointer) != key || key->type == JOB_OBJECT)
            continue;
        fputs(key->pointer, stream);
        for (size_t n = 0; key->names != NULL && key->names[n] != NULL; n++)
            if (key->names[n][0] != '\0')
                fprintf(stream, " %s", key->names[n]);
        fputs(key->type == JOB_BOOLEAN ? " true false\n" : "\n", stream);
    }
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}
