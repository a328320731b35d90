/* The manual of job files, out of the table: as Markdown (config/JOBS.md), and as the page coalesced-job(5)
 * in the language of mdoc(7). One walk over the table writes both. Runs in the command's process. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

enum { PAGE_WIDTH = 78, TEXT_BYTES = 4096 };

struct manual {
    FILE *stream;
    bool page;  /* mdoc(7); else Markdown */
    bool begun; /* the section has a paragraph */
};

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

/* ---- the two languages ---- */

/* Writes running text for mdoc: lines of at most PAGE_WIDTH bytes, and a new line for each sentence. */
static void write_page_text(FILE *stream, const char *text)
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

/* Writes running text for Markdown: what it would take for markup is escaped. */
static void write_markdown_text(FILE *stream, const char *text)
{
    for (; *text != '\0'; text++) {
        if (strchr("<*|", *text) != NULL)
            fputc('\\', stream);
        fputc(*text, stream);
    }
}

static void write_paragraph(struct manual *manual, const char *text)
{
    if (manual->page) {
        fputs(manual->begun ? ".Pp\n" : "", manual->stream);
        write_page_text(manual->stream, text);
        manual->begun = true;
    } else {
        fputc('\n', manual->stream);
        write_markdown_text(manual->stream, text);
        fputc('\n', manual->stream);
    }
}

static void write_heading(struct manual *manual, const char *text)
{
    manual->begun = false;
    fprintf(manual->stream, manual->page ? ".Ss %s\n" : "\n## %s\n", text);
}

/* ---- one key ---- */

static void text_add(char text[TEXT_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

static void text_add(char text[TEXT_BYTES], const char *format, ...)
{
    const size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, TEXT_BYTES - length, format, arguments);
    va_end(arguments);
}

/* "Where /data/kind is \"text\", this must be null: the text brings its own vocabulary." */
static void text_add_rule(char text[TEXT_BYTES], unsigned kinds, const struct job_rule *rule)
{
    char clause[JOB_WORDS_BYTES];
    const char *before = " Where ";
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        job_condition_clause(clause, kinds, &rule->when[i]);
        text_add(text, "%s%s", before, clause);
        before = " and ";
    }
    job_condition_expected(clause, kinds, &rule->then);
    text_add(text, "%s must be %s%s%s.", rule->when[0].test == JOB_ALWAYS ? " This" : ", this", clause,
             rule->why != NULL ? ": " : "", rule->why != NULL ? rule->why : "");
}

static void text_add_limit(char text[TEXT_BYTES], unsigned kinds, const struct job_limit *limit)
{
    char clause[JOB_WORDS_BYTES] = "";
    if (limit->when.test != JOB_ALWAYS)
        job_condition_clause(clause, kinds, &limit->when);
    text_add(text, "%s%s%s", clause[0] == '\0' ? "" : " Where ", clause, clause[0] == '\0' ? "" : ",");
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++)
        text_add(text, " %s%s", i == 0 ? "" : "* ", limit->factors[i]);
    text_add(text, " may be at most %.0f %s.", limit->most, limit->of);
}

static bool is_factor(const struct job_limit *limit, const struct job_key *key)
{
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++)
        if (strcmp(limit->factors[i], key->pointer) == 0)
            return true;
    return false;
}

/* Composes what the key means: its own text, and the rules that bind it. */
static void compose_meaning(char text[TEXT_BYTES], const struct job_key *key)
{
    text[0] = '\0';
    text_add(text, "%s", key->text);
    for (size_t i = 0; i < job_rule_count; i++)
        if ((job_rules[i].kinds & key->kinds) != 0 && strcmp(job_rules[i].then.pointer, key->pointer) == 0)
            text_add_rule(text, job_rules[i].kinds, &job_rules[i]);
    for (size_t i = 0; i < job_limit_count; i++)
        if ((job_limits[i].kinds & key->kinds) != 0 && is_factor(&job_limits[i], key))
            text_add_limit(text, job_limits[i].kinds & key->kinds, &job_limits[i]);
}

static void compose_default(char text[TEXT_BYTES], const struct job_key *key)
{
    char clause[JOB_WORDS_BYTES];
    text[0] = '\0';
    text_add(text, "%s",
             key->by_default != NULL ? key->by_default
             : key->type == JOB_NAME ? "the file's name"
                                     : "none, the key is required");
    if (key->null_where.test == JOB_ALWAYS)
        return;
    job_condition_clause(clause, key->kinds, &key->null_where);
    text_add(text, "; null where %s", clause);
}

static void write_page_key(FILE *stream, const struct job_key *key, const char *value, const char *by_default,
                           const char *meaning)
{
    char type[2 * TEXT_BYTES];
    snprintf(type, sizeof type, "Value: %s. Default: %s.", value, by_default);
    fprintf(stream, ".It Li %s\n", key->pointer);
    if (key->type != JOB_OBJECT) {
        write_page_text(stream, type);
        fputs(".br\n", stream);
    }
    write_page_text(stream, meaning);
}

/* One row of a table; of a group of keys, whose value is its members, without value and default. */
static void write_markdown_key(FILE *stream, const struct job_key *key, const char *value,
                               const char *by_default, const char *meaning)
{
    const bool group = key->type == JOB_OBJECT;
    fprintf(stream, group ? "| **`%s`** | " : "| `%s` | ", key->pointer);
    write_markdown_text(stream, group ? "" : value);
    fputs(" | ", stream);
    write_markdown_text(stream, group ? "" : by_default);
    fputs(" | ", stream);
    write_markdown_text(stream, meaning);
    fputs(" |\n", stream);
}

static void write_key(const struct manual *manual, const struct job_key *key)
{
    char value[TEXT_BYTES] = "", by_default[TEXT_BYTES], meaning[TEXT_BYTES], expected[JOB_WORDS_BYTES];
    job_value_expected(expected, key);
    text_add(value, "%s", expected);
    if (key->unit != NULL)
        text_add(value, " (%s)", key->unit);
    compose_default(by_default, key);
    compose_meaning(meaning, key);
    (manual->page ? write_page_key : write_markdown_key)(manual->stream, key, value, by_default, meaning);
}

/* ---- the whole ---- */

/* Writes the keys of all kinds, or the further keys of one kind. */
static void write_keys(const struct manual *manual, unsigned kinds)
{
    fputs(manual->page ? ".Bl -tag -width Ds\n"
                       : "\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n",
          manual->stream);
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) == kinds &&
            (kinds == JOB_KINDS_ALL) == (job_keys[i].kinds == JOB_KINDS_ALL))
            write_key(manual, &job_keys[i]);
    if (manual->page)
        fputs(".El\n", manual->stream);
}

static void write_begin(const struct manual *manual)
{
    if (manual->page)
        fputs(".\\\" Generated from the daemon's own table by `make documents`.\n"
              ".Dd November 22, 2026\n.Dt COALESCED-JOB 5\n.Os\n.Sh NAME\n.Nm coalesced-job\n"
              ".Nd job files of the training daemon coalesced\n.Sh DESCRIPTION\n",
              manual->stream);
    else
        fputs("<!-- Generated from the daemon's own table by `make documents`. -->\n# The job file\n",
              manual->stream);
}

static void write_end(const struct manual *manual)
{
    if (manual->page)
        fputs(".Sh EXAMPLES\n"
              "CartPole with ten observers, whose requests are joined in batches:\n"
              ".Bd -literal -offset indent\n"
              "{\n"
              "  \"$schema\": \"/usr/local/share/coalesced/job.schema.json\",\n"
              "  \"kind\": \"reinforce\",\n"
              "  \"observers\": {\"count\": 10},\n"
              "  \"stop\": {\"episodes\": 1000, \"running_reward\": 475}\n"
              "}\n"
              ".Ed\n"
              ".Sh SEE ALSO\n.Xr coalesced 1\n",
              manual->stream);
}

int job_write_manual(FILE *stream, bool page)
{
    struct manual manual = {.stream = stream, .page = page};
    const struct job_key *kind = job_key_at(JOB_KINDS_ALL, "/kind");
    write_begin(&manual);
    write_paragraph(&manual, introduction);
    write_paragraph(&manual, overrides);
    write_paragraph(&manual, notation);
    write_heading(&manual, "Keys of every kind");
    write_keys(&manual, JOB_KINDS_ALL);
    for (int i = 0; kind->names[i] != NULL; i++) {
        char heading[JOB_NAME_BYTES];
        snprintf(heading, sizeof heading, "Keys of the kind %s", kind->names[i]);
        write_heading(&manual, heading);
        if (i == JOB_MODEL_PARALLEL)
            write_paragraph(&manual, messages);
        write_keys(&manual, JOB_KINDS_OF(i));
    }
    write_end(&manual);
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
            fprintf(stream, key->names[n][0] == '\0' ? "" : " %s", key->names[n]);
        fputs(key->type == JOB_BOOLEAN ? " true false\n" : "\n", stream);
    }
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}
