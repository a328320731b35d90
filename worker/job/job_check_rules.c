/* Checks that the values of a job go together: the table's rules and limits, and the sizes of messages. The
 * caller's thread. */
#include "worker/job/job_message_limits.h"
#include "worker/job/job_reading.h"

#include <string.h>

static struct job_found *found_at(struct job_reading *reading, const char *pointer)
{
    return &reading->found[job_key_at(reading->kinds, pointer) - job_keys];
}

/* Keys whose values may not go together. */
struct clash {
    struct problem_place last; /* the place of the one that comes last */
    const char *last_pointer;
    bool wrong; /* a value is wrong by itself */
};

static void clash_add(struct clash *clash, struct job_reading *reading, const char *pointer)
{
    const struct job_found *found = found_at(reading, pointer);
    const struct problem_place place = job_found_place(reading, found);
    clash->wrong = clash->wrong || found->wrong;
    if (clash->last_pointer == NULL || problem_place_before(clash->last, place)) {
        clash->last = place;
        clash->last_pointer = pointer;
    }
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

static void report_rule(struct job_reading *reading, const struct job_rule *rule, struct problem_place place)
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
    job_report(reading, place, then->pointer, "%s", words);
}

static void check_rule(struct job_reading *reading, const struct job_rule *rule)
{
    struct clash clash = {.last_pointer = NULL};
    bool broken = !job_condition_holds(&reading->job, reading->kinds, &rule->then);
    clash_add(&clash, reading, rule->then.pointer);
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        clash_add(&clash, reading, rule->when[i].pointer);
        broken = broken && job_condition_holds(&reading->job, reading->kinds, &rule->when[i]);
    }
    if (rule->then.test == JOB_AT_MOST_KEY)
        clash_add(&clash, reading, rule->then.name);
    if (broken && !clash.wrong)
        report_rule(reading, rule, clash.last);
}

/* ---- limits ---- */

/* The first factor of a broken limit counts as wrong from then on: a limit with the same factors and more
 * does not report the clash again. */
static void check_limit(struct job_reading *reading, const struct job_limit *limit)
{
    struct clash clash = {.last_pointer = NULL};
    double product = 1;
    char words[JOB_WORDS_BYTES] = "";
    words_add(words, "expected at most %.0f %s, got ", limit->most, limit->of);
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++) {
        product *= job_value_number(&reading->job, job_key_at(reading->kinds, limit->factors[i]));
        clash_add(&clash, reading, limit->factors[i]);
        words_add(words, "%s%s ", i == 0 ? "" : " * ", limit->factors[i]);
        add_value(words, reading, limit->factors[i]);
    }
    words_add(words, " = %.0f", product);
    const bool applies =
        limit->when.test == JOB_ALWAYS || (!found_at(reading, limit->when.pointer)->wrong &&
                                           job_condition_holds(&reading->job, reading->kinds, &limit->when));
    if (!applies || product <= limit->most || clash.wrong)
        return;
    job_report(reading, clash.last, clash.last_pointer, "%s", words);
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
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (found_at(reading, keys[i])->wrong)
            return;
    const uint32_t count = job_messages(&reading->job, reading->job.rnn.tokens, messages);
    for (uint32_t i = 0; i < count; i++) {
        const struct job_message *message = &messages[i];
        struct clash clash = {.last_pointer = NULL};
        clash_add(&clash, reading, message->keys[0]);
        clash_add(&clash, reading, message->keys[1]);
        if (message->bytes > WIRE_BODY_BYTES_MAX && !clash.wrong)
            job_report(reading, clash.last, message->keys[1],
                       "expected at most %d bytes in a message, got %llu for %s: %s", WIRE_BODY_BYTES_MAX,
                       (unsigned long long)message->bytes, message->what, message->how);
    }
}

/* ---- all ---- */

/* A default that is null where another key says so. */
static void make_null_by_rule(struct job_reading *reading, const struct job_key *key)
{
    if (reading->found[key - job_keys].item != NULL)
        return;
    for (size_t i = 0; i < JOB_NULLS_MAX && key->null_where[i].test != JOB_ALWAYS; i++) {
        const struct job_condition *where = &key->null_where[i];
        if (!found_at(reading, where->pointer)->wrong &&
            job_condition_holds(&reading->job, reading->kinds, where))
            job_value_make_null(&reading->job, key);
    }
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
