/* Whether the values of a job go together: the table's rules and limits, and the sizes of messages. Runs in
 * whatever process reads a job, on the caller's thread. */
#include "worker/job/job_message_limits.h"
#include "worker/job/job_reading.h"

#include <string.h>

static struct job_found *found_at(struct job_reading *reading, const char *pointer)
{
    return &reading->found[job_key_at(reading->kinds, pointer) - job_keys];
}

/* Whether `b` was said after `a`. */
static bool said_later(const struct job_reading *reading, const struct job_found *a,
                       const struct job_found *b)
{
    if (a->item == NULL || b->item == NULL)
        return b->item != NULL;
    const struct problem_place first = job_found_place(reading, a), second = job_found_place(reading, b);
    return second.source > first.source || (second.source == first.source && second.offset > first.offset);
}

/* Of keys that do not go together, the one that was said last. */
static const char *last_said(struct job_reading *reading, const char *const *pointers, size_t count)
{
    const char *last = pointers[0];
    for (size_t i = 1; i < count; i++)
        if (said_later(reading, found_at(reading, last), found_at(reading, pointers[i])))
            last = pointers[i];
    return last;
}

static bool any_wrong(struct job_reading *reading, const char *const *pointers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (found_at(reading, pointers[i])->wrong)
            return true;
    return false;
}

/* Adds a problem about `pointer` where the key `at` is said, or else at the job's first character. */
static void report_at(struct job_reading *reading, const char *at, const char *pointer, const char *text)
{
    job_report(reading, job_found_place(reading, found_at(reading, at)), pointer, "%s", text);
}

static void add_value(char words[JOB_WORDS_BYTES], const struct job_reading *reading, const char *pointer)
{
    const struct job_key *key = job_key_at(reading->kinds, pointer);
    if (key->elements > 0)
        words_add(words, "an array of %.0f", job_value_number(&reading->job, key));
    else
        words_add_value(words, &reading->job, key, true);
}

/* ---- rules ---- */

static void report_rule(struct job_reading *reading, const struct job_rule *rule, const char *at)
{
    const struct job_condition *then = &rule->then;
    char words[JOB_WORDS_BYTES] = "expected ";
    words_add_condition(words, reading->kinds, then);
    if (then->test == JOB_AT_MOST_KEY) {
        words_add(words, ", which is ");
        add_value(words, reading, then->name);
    }
    const char *before = "where";
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        if (strcmp(rule->when[i].pointer, then->pointer) == 0)
            continue;
        words_add(words, " %s %s is ", before, rule->when[i].pointer);
        add_value(words, reading, rule->when[i].pointer);
        before = "and";
    }
    words_add(words, ", got ");
    add_value(words, reading, then->pointer);
    if (rule->why != NULL)
        words_add(words, ": %s", rule->why);
    report_at(reading, at, then->pointer, words);
}

static void check_rule(struct job_reading *reading, const struct job_rule *rule)
{
    const char *pointers[4] = {rule->then.pointer};
    size_t count = 1;
    bool bound = true;
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        pointers[count++] = rule->when[i].pointer;
        bound = bound && job_condition_holds(&reading->job, reading->kinds, &rule->when[i]);
    }
    if (rule->then.test == JOB_AT_MOST_KEY)
        pointers[count++] = rule->then.name;
    if (bound && !any_wrong(reading, pointers, count) &&
        !job_condition_holds(&reading->job, reading->kinds, &rule->then))
        report_rule(reading, rule, last_said(reading, pointers, count));
}

/* ---- limits ---- */

static void report_limit(struct job_reading *reading, const struct job_limit *limit, size_t factors,
                         double product)
{
    char words[JOB_WORDS_BYTES] = "";
    words_add(words, "expected at most %.0f %s, got ", limit->most, limit->of);
    for (size_t i = 0; i < factors; i++) {
        words_add(words, "%s%s ", i == 0 ? "" : " * ", limit->factors[i]);
        add_value(words, reading, limit->factors[i]);
    }
    words_add(words, " = %.0f", product);
    const char *last = last_said(reading, limit->factors, factors);
    report_at(reading, last, last, words);
}

/* A limit of more factors is silent once one of fewer is broken: the first factor counts as wrong. */
static void check_limit(struct job_reading *reading, const struct job_limit *limit)
{
    size_t factors = 0;
    double product = 1;
    for (; factors < JOB_FACTORS_MAX && limit->factors[factors] != NULL; factors++)
        product *= job_value_number(&reading->job, job_key_at(reading->kinds, limit->factors[factors]));
    const bool bound =
        limit->when.test == JOB_ALWAYS || (!any_wrong(reading, &limit->when.pointer, 1) &&
                                           job_condition_holds(&reading->job, reading->kinds, &limit->when));
    if (!bound || product <= limit->most || any_wrong(reading, limit->factors, factors))
        return;
    report_limit(reading, limit, factors, product);
    found_at(reading, limit->factors[0])->wrong = true;
}

/* ---- sizes of messages ---- */

/* A text's vocabulary is not known here: parallel_data_open, which reads the text, judges what depends on it.
 */
static void check_messages(struct job_reading *reading)
{
    static const char *const keys[] = {"/data/steps", "/model/tokens", "/model/embedding", "/model/hidden",
                                       "/model/layers"};
    struct job_message messages[JOB_MESSAGES_MAX];
    if (any_wrong(reading, keys, sizeof keys / sizeof keys[0]))
        return;
    const uint32_t count = job_messages(&reading->job, reading->job.rnn.tokens, messages);
    for (uint32_t i = 0; i < count; i++) {
        const struct job_message *message = &messages[i];
        char words[JOB_WORDS_BYTES] = "";
        if (message->bytes <= WIRE_BODY_BYTES_MAX || any_wrong(reading, message->keys, 2))
            continue;
        words_add(words, "expected at most %d bytes in a message, got %llu for %s: %s", WIRE_BODY_BYTES_MAX,
                  (unsigned long long)message->bytes, message->what, message->how);
        report_at(reading, last_said(reading, message->keys, 2), message->keys[1], words);
    }
}

/* ---- all ---- */

/* A default that is null where another key says so. */
static void make_null_by_rule(struct job_reading *reading, const struct job_key *key)
{
    const struct job_condition *where = &key->null_where;
    if (where->test != JOB_ALWAYS && reading->found[key - job_keys].item == NULL &&
        !found_at(reading, where->pointer)->wrong &&
        job_condition_holds(&reading->job, reading->kinds, where))
        job_value_make_null(&reading->job, key);
}

void job_check_rules(struct job_reading *reading)
{
    if (reading->kinds == JOB_KINDS_ALL)
        return;
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & reading->kinds) != 0)
            make_null_by_rule(reading, &job_keys[i]);
    for (size_t i = 0; i < job_rule_count; i++)
        if ((job_rules[i].kinds & reading->kinds) != 0)
            check_rule(reading, &job_rules[i]);
    if (reading->kinds == JOB_KINDS_OF(JOB_MODEL_PARALLEL))
        check_messages(reading);
    for (size_t i = 0; i < job_limit_count; i++)
        if ((job_limits[i].kinds & reading->kinds) != 0)
            check_limit(reading, &job_limits[i]);
}
