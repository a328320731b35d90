/* The conditions of the table's rules: whether one holds, and the same in words. Pure; any thread. */
#include "worker/job/job_table.h"

#include <string.h>

static const struct job_key *key_of(unsigned kinds, const struct job_condition *condition)
{
    return job_key_at(kinds, condition->pointer);
}

bool job_condition_holds(const struct job *job, unsigned kinds, const struct job_condition *condition)
{
    if (condition->test == JOB_ALWAYS)
        return true;
    const struct job_key *key = key_of(kinds, condition);
    const double number = job_value_number(job, key);
    switch (condition->test) {
    case JOB_IS:
        return strcmp(job_value_name(job, key), condition->name) == 0;
    case JOB_IS_NOT:
        return strcmp(job_value_name(job, key), condition->name) != 0;
    case JOB_IS_NULL:
        return job_value_is_null(job, key);
    case JOB_IS_SET:
        return !job_value_is_null(job, key) && (key->type != JOB_PATH || job_value_name(job, key)[0] != '\0');
    case JOB_AT_LEAST:
        return number >= condition->number;
    case JOB_AT_MOST:
        return number <= condition->number;
    case JOB_AT_MOST_KEY:
        return number <= job_value_number(job, job_key_at(kinds, condition->name));
    case JOB_BELOW_KEY:
        return number < job_value_number(job, job_key_at(kinds, condition->name));
    case JOB_ALWAYS:
        break;
    }
    return true;
}

void job_condition_expected(char text[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition)
{
    const struct job_key *key = key_of(kinds, condition);
    const bool numbered = key->type == JOB_PLACE && strcmp(condition->name, key->names[0]) != 0;
    char words[JOB_WORDS_BYTES];
    switch (condition->test) {
    case JOB_ALWAYS:
        text[0] = '\0';
        break;
    case JOB_IS:
    case JOB_IS_NOT:
        snprintf(text, JOB_WORDS_BYTES, "%s\"%s%s\"", condition->test == JOB_IS ? "" : "not ",
                 condition->name, numbered ? " K" : "");
        break;
    case JOB_IS_NULL:
        snprintf(text, JOB_WORDS_BYTES, "null");
        break;
    case JOB_IS_SET:
        job_value_expected_element(words, key);
        snprintf(text, JOB_WORDS_BYTES, "%s", key->type == JOB_PATH ? "a path" : words);
        break;
    case JOB_AT_LEAST:
    case JOB_AT_MOST:
        snprintf(text, JOB_WORDS_BYTES,
                 key->elements > 1                 ? "an array of %g element"
                 : condition->test == JOB_AT_LEAST ? "at least %g"
                                                   : "at most %g",
                 condition->number);
        break;
    case JOB_AT_MOST_KEY:
    case JOB_BELOW_KEY:
        snprintf(text, JOB_WORDS_BYTES, "%s%s %s", key->type == JOB_PLACE ? "\"server K\" with K " : "",
                 condition->test == JOB_AT_MOST_KEY ? "at most" : "below", condition->name);
        break;
    }
}

void job_condition_clause(char text[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition)
{
    char words[JOB_WORDS_BYTES];
    if (condition->test == JOB_IS_SET && key_of(kinds, condition)->type != JOB_PATH)
        snprintf(words, sizeof words, "set");
    else
        job_condition_expected(words, kinds, condition);
    snprintf(text, JOB_WORDS_BYTES, "%s is %.100s", condition->pointer, words);
}
