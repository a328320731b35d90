/* Values, and what they must be, in the words of messages and of the manual. Pure; any thread. */
#include "kernels/base/text.h"
#include "worker/job/job_table.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { SUGGESTIONS_MAX = 3 };

void words_add(char words[JOB_WORDS_BYTES], const char *format, ...)
{
    const size_t length = strlen(words);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words + length, JOB_WORDS_BYTES - length, format, arguments);
    va_end(arguments);
}

/* ---- values ---- */

void words_add_number(char words[JOB_WORDS_BYTES], double value, bool brief)
{
    char text[32] = "";
    int digits = !brief ? 17 : fabs(value) < 1e15 && value == floor(value) ? 15 : 1;
    do
        snprintf(text, sizeof text, "%.*g", digits, value);
    while (digits++ < 17 && strtod(text, NULL) != value);
    words_add(words, "%s", text);
}

static void add_channels(char words[JOB_WORDS_BYTES], const struct job_channels *channels, bool brief)
{
    for (uint32_t i = 0; i < channels->count; i++) {
        words_add(words, i == 0 ? "[" : ", ");
        words_add_number(words, channels->value[i], brief);
    }
    words_add(words, "]");
}

/* A string without control characters. */
static void add_string(char words[JOB_WORDS_BYTES], const char *text)
{
    words_add(words, "\"");
    for (; *text != '\0'; text++)
        words_add(words, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    words_add(words, "\"");
}

void words_add_value(char words[JOB_WORDS_BYTES], const struct job *job, const struct job_key *key,
                     bool brief)
{
    const void *at = (const char *)job + key->offset;
    const char *name = job_value_name(job, key);
    if (job_value_is_null(job, key))
        words_add(words, "null");
    else if (key->elements > 1)
        add_channels(words, at, brief);
    else if (key->type == JOB_INTEGER)
        words_add(words, key->elements > 0 ? "[%.0f]" : "%.0f", job_value_number(job, key));
    else if (key->type == JOB_NUMBER)
        words_add_number(words, *(const double *)at, brief);
    else if (key->type == JOB_BOOLEAN)
        words_add(words, *(const bool *)at ? "true" : "false");
    else if (key->type == JOB_NUMBERED && strcmp(name, key->names[0]) != 0)
        words_add(words, "\"%s %.0f\"", name, job_value_number(job, key));
    else
        add_string(words, name);
}

/* ---- what a value must be ---- */

static void add_names(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    const char *before = key->names[1] == NULL ? "" : "one of ";
    for (size_t i = 0; key->names[i] != NULL; i++) {
        if (key->names[i][0] == '\0')
            continue;
        words_add(words, "%s\"%s\"", before, key->names[i]);
        before = ", ";
    }
}

static void add_bounds(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    const bool integer = key->type == JOB_INTEGER;
    if (key->max == DBL_MAX) {
        words_add(words, "a number");
        return;
    }
    if (!key->bounds_only)
        words_add(words, integer ? "an integer in " : key->min_open ? "a number in (" : "a number in [");
    words_add_number(words, key->min, true);
    words_add(words, key->bounds_only ? " or " : integer ? ".." : ", ");
    words_add_number(words, key->max, true);
    if (!integer)
        words_add(words, key->max_open ? ")" : "]");
}

void words_add_element(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    if (key->type == JOB_INTEGER || key->type == JOB_NUMBER)
        add_bounds(words, key);
    else if (key->type == JOB_ENUM)
        add_names(words, key);
    else if (key->type == JOB_PATH)
        words_add(words, "a path of %.0f to %.0f bytes, all of them printable UTF-8", key->min, key->max);
    else if (key->type == JOB_BOOLEAN)
        words_add(words, "true or false");
    else
        words_add(words, "%s", key->type == JOB_OBJECT ? "an object" : key->words);
}

void words_add_expected(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    words_add(words, "%s%s", key->nullable ? "null or " : "",
              key->elements == 1  ? "an array of exactly one element, "
              : key->elements > 1 ? "an array of 1 or 3 elements, each "
                                  : "");
    words_add_element(words, key);
}

void words_add_condition(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition)
{
    const struct job_key *key = job_key_at(kinds, condition->pointer);
    switch (condition->test) {
    case JOB_ALWAYS:
        break;
    case JOB_IS:
        words_add(words,
                  key->type == JOB_NUMBERED && strcmp(condition->name, key->names[0]) != 0 ? "\"%s K\""
                                                                                           : "\"%s\"",
                  condition->name);
        break;
    case JOB_IS_NOT:
        words_add(words, "not \"%s\"", condition->name);
        break;
    case JOB_IS_NULL:
        words_add(words, "null");
        break;
    case JOB_IS_SET:
        if (key->type == JOB_PATH)
            words_add(words, "a path");
        else
            words_add_element(words, key);
        break;
    case JOB_AT_LEAST:
        words_add(words, "at least %g", condition->number);
        break;
    case JOB_AT_MOST:
        words_add(words, key->elements > 0 ? "an array of %g element" : "at most %g", condition->number);
        break;
    case JOB_AT_MOST_KEY:
        words_add(words, condition->number > 0 ? "\"server K\" with K below %s" : "at most %s",
                  condition->name);
        break;
    }
}

/* ---- suggestions ---- */

/* The distance of two words, if one may be the other mistyped: by one slip, or by two in a word of five or
 * more letters. Else SIZE_MAX. */
static size_t near_distance(const char *word, const char *name)
{
    const size_t distance = text_distance(word, name);
    const size_t word_bytes = strlen(word), name_bytes = strlen(name);
    const size_t longer = word_bytes > name_bytes ? word_bytes : name_bytes;
    const bool near = distance == 0 || (distance == 1 && longer >= 2) || (distance == 2 && longer >= 5);
    return near ? distance : SIZE_MAX;
}

/* The key beside `pointer` whose name is nearest to its last name, or NULL. */
static const struct job_key *nearest_beside(unsigned kinds, const char *pointer)
{
    const char *name = strrchr(pointer, '/') + 1;
    const struct job_key *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        const size_t group = (size_t)(job_key_name(key) - key->pointer);
        const size_t distance = near_distance(name, job_key_name(key));
        if ((key->kinds & kinds) != 0 && group == (size_t)(name - pointer) &&
            memcmp(key->pointer, pointer, group) == 0 && distance < best_distance) {
            best = key;
            best_distance = distance;
        }
    }
    return best;
}

void words_suggest_key(char words[JOB_WORDS_BYTES], unsigned kinds, const char *pointer)
{
    const struct job_key *beside = nearest_beside(kinds, pointer);
    size_t count = 0;
    if (beside != NULL) {
        words_add(words, "; did you mean \"%s\"?", job_key_name(beside));
        return;
    }
    for (size_t i = 0; i < job_key_count && count < SUGGESTIONS_MAX; i++) {
        const struct job_key *key = &job_keys[i];
        if (job_key_at(kinds, key->pointer) == key &&
            text_distance(strrchr(pointer, '/') + 1, job_key_name(key)) == 0)
            words_add(words, "%s%s", count++ == 0 ? "; did you mean " : " or ", key->pointer);
    }
    if (count > 0)
        words_add(words, "?");
}

void words_suggest_value(char words[JOB_WORDS_BYTES], const struct job_key *key, const char *got)
{
    const bool numbered = key->type == JOB_NUMBERED;
    char word[JOB_NAME_BYTES]; /* of these, the name before the number */
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(got, numbered ? " " : ""), got);
    for (size_t i = 0; key->names != NULL && key->names[i] != NULL; i++) {
        const size_t distance = near_distance(word, key->names[i]);
        if (distance < best_distance && strcmp(word, key->names[i]) != 0) {
            best = key->names[i];
            best_distance = distance;
        }
    }
    if (best != NULL)
        words_add(words, "; did you mean \"%s\"?", best);
}
