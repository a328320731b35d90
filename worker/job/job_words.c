/* Words values, and what they must be, for messages and for the manual. Pure; any thread. */
#include "worker/job/job_table.h"

#include "kernels/base/text.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

static void add_widths(char words[JOB_WORDS_BYTES], const struct job_widths *widths)
{
    words_add(words, "[");
    for (uint32_t i = 0; i < widths->count; i++)
        words_add(words, "%s%u", i == 0 ? "" : ", ", widths->value[i]);
    words_add(words, "]");
}

static void add_string(char words[JOB_WORDS_BYTES], const char *text)
{
    char piece[TEXT_ESCAPED_BYTES];
    words_add(words, "\"");
    for (; *text != '\0'; text++)
        words_add(words, "%s", text_escape(piece, *text));
    words_add(words, "\"");
}

void words_add_value(char words[JOB_WORDS_BYTES], const struct job *job, const struct job_key *key,
                     bool brief)
{
    const void *at = (const char *)job + key->offset;
    const char *name = job_value_name(job, key);
    if (job_value_is_null(job, key))
        words_add(words, "null");
    else if (key->type == JOB_WIDTHS)
        add_widths(words, at);
    else if (key->elements > 0)
        add_channels(words, at, brief);
    else if (key->type == JOB_INTEGER)
        words_add(words, "%.0f", job_value_number(job, key));
    else if (key->type == JOB_NUMBER)
        words_add_number(words, *(const double *)at, brief);
    else if (key->type == JOB_BOOLEAN)
        words_add(words, *(const bool *)at ? "true" : "false");
    else if (key->type == JOB_OPTIONS)
        words_add(words, "%s", name);
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
    const bool integer = key->type != JOB_NUMBER;
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
    if (key->type == JOB_INTEGER || key->type == JOB_NUMBER || key->type == JOB_WIDTHS)
        add_bounds(words, key);
    else if (key->type == JOB_ENUM)
        add_names(words, key);
    else if (key->type == JOB_PATH)
        words_add(words, "a path of %.0f to %.0f bytes, all of them printable UTF-8", key->min, key->max);
    else if (key->type == JOB_OPTIONS)
        words_add(words, "an object of at most %.0f bytes", key->max);
    else if (key->type == JOB_BOOLEAN)
        words_add(words, "true or false");
    else
        words_add(words, "%s", key->type == JOB_OBJECT ? "an object" : key->words);
}

void words_add_expected(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    const bool channels = key->elements > 0 && key->type != JOB_WIDTHS;
    words_add(words, "%s%s", key->nullable ? "null or " : "",
              channels ? "an array of 1 or 3 elements, each " : "");
    words_add_element(words, key);
    if (key->type == JOB_WIDTHS)
        words_add(words, ", or an array of 0 to %u of them", key->elements);
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
