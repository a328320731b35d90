/* Whether each value is what its table line wants, and the rules that bind several. Runs in whatever process
 * reads a job, on the caller's thread. */
#include "kernels/base/text.h"
#include "worker/env/environment.h"
#include "worker/job/job_reading.h"

#include <stdlib.h>
#include <string.h>

/* ---- one value: each store function returns false, storing nothing, when it does not fit the key ---- */

static bool store_integer(void *at, const struct job_key *key, const struct json_node *node,
                          const cJSON *item)
{
    if (!node->integral || item->valuedouble < key->min || item->valuedouble > key->max)
        return false;
    if (key->bytes == sizeof(uint32_t))
        *(uint32_t *)at = (uint32_t)item->valuedouble;
    else
        *(uint64_t *)at = (uint64_t)item->valuedouble;
    return true;
}

static bool store_number(void *at, const struct job_key *key, const struct json_node *node, const cJSON *item)
{
    double value = item->valuedouble;
    if (node->type != JSON_NUMBER || value < key->min || value > key->max ||
        (key->min_open && value == key->min) || (key->max_open && value == key->max))
        return false;
    *(double *)at = value;
    return true;
}

static bool store_enum(void *at, const struct job_key *key, const cJSON *item)
{
    for (int i = 0; key->names[i] != NULL; i++)
        if (strcmp(key->names[i], item->valuestring) == 0) {
            *(int *)at = i;
            return true;
        }
    return false;
}

static bool text_fits(const struct job_key *key, const char *text)
{
    if (key->type == JOB_NAME)
        return job_name_valid(text);
    if (key->type == JOB_ENVIRONMENT)
        return environment_find(text) != NULL;
    for (size_t i = 0; key->names[i] != NULL; i++)
        if (strcmp(key->names[i], text) == 0)
            return true;
    return false;
}

static bool store(struct job *job, const struct job_key *key, const struct json_node *node, const cJSON *item)
{
    void *at = (char *)job + key->offset;
    switch (key->type) {
    case JOB_INTEGER:
        return store_integer(at, key, node, item);
    case JOB_NUMBER:
        return store_number(at, key, node, item);
    case JOB_BOOLEAN:
        if (node->type != JSON_TRUE && node->type != JSON_FALSE)
            return false;
        *(bool *)at = node->type == JSON_TRUE;
        return true;
    case JOB_ENUM:
        return node->type == JSON_STRING && store_enum(at, key, item);
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
    case JOB_NAME:
        if (node->type != JSON_STRING || strlen(item->valuestring) >= key->bytes ||
            !text_fits(key, item->valuestring))
            return false;
        memset(at, 0, key->bytes); /* so that equal jobs are equal byte for byte */
        memcpy(at, item->valuestring, strlen(item->valuestring));
        return true;
    case JOB_OBJECT:
        break;
    }
    return false;
}

/* ---- one value: what to say ---- */

/* What follows "got …" when a string is none of the key's names. */
static void suggest_name(char *text, size_t size, const struct job_key *key, const char *got)
{
    text[0] = '\0';
    if (strcmp(key->pointer, "/kind") == 0 && job_kind_planned(got)) {
        snprintf(text, size, "; it is not a kind of this version");
        return;
    }
    for (size_t i = 0; key->names != NULL && key->names[i] != NULL; i++)
        if (job_is_near(got, key->names[i]))
            snprintf(text, size, "; did you mean \"%s\"?", key->names[i]);
}

static void report_value(struct job_reading *reading, const struct job_key *key, uint32_t document,
                         uint32_t node, const char *pointer, const char *expected)
{
    const struct json_document *of = &reading->documents[document];
    char got[JSON_SHOWN_BYTES], suggestion[96] = "";
    json_document_show(got, of, node);
    if (of->scan.nodes[node].type == JSON_STRING)
        suggest_name(suggestion, sizeof suggestion, key, of->items[node]->valuestring);
    job_complain(reading, document, of->scan.nodes[node].value, pointer, "expected %s, got %s%s", expected,
                 got, suggestion);
}

/* The one element of an array. Returns whether it is good. */
static bool check_element(struct job_reading *reading, const struct job_key *key, uint32_t document,
                          uint32_t node)
{
    const struct json_document *of = &reading->documents[document];
    if (of->scan.nodes[node].flawed)
        return false;
    if (store(reading->job, key, &of->scan.nodes[node], of->items[node]))
        return true;
    char pointer[JSON_POINTER_BYTES], expected[JOB_EXPECTED_BYTES];
    snprintf(pointer, sizeof pointer, "%s/0", key->pointer);
    job_key_expected_element(expected, key);
    report_value(reading, key, document, node, pointer, expected);
    return false;
}

static bool check_value(struct job_reading *reading, const struct job_key *key, const struct job_found *found)
{
    const struct json_document *of = &reading->documents[found->document];
    const struct json_node *nodes = of->scan.nodes, *node = &nodes[found->node];
    if (node->flawed)
        return false;
    if (found->element)
        return check_element(reading, key, found->document, found->node);
    if (key->type == JOB_OBJECT && node->type == JSON_OBJECT)
        return true;
    if (key->list_of_one && node->type == JSON_ARRAY && node->end > found->node + 1 &&
        nodes[found->node + 1].end == node->end)
        return check_element(reading, key, found->document, found->node + 1);
    bool *present = (bool *)((char *)reading->job + key->offset_present);
    if (key->nullable && node->type == JSON_NULL) {
        *present = false;
        memset((char *)reading->job + key->offset, 0, key->bytes);
        return true;
    }
    if (!key->list_of_one && store(reading->job, key, node, of->items[found->node])) {
        if (key->nullable)
            *present = true;
        return true;
    }
    char expected[JOB_EXPECTED_BYTES];
    job_key_expected(expected, key);
    report_value(reading, key, found->document, found->node, key->pointer, expected);
    return false;
}

/* ---- rules that bind several keys, or none that is there ---- */

static struct job_found *found_at(struct job_reading *reading, const char *group, const char *name)
{
    const struct job_key *parent = group == NULL ? NULL : job_key_member(NULL, group);
    return &reading->found[job_key_member(parent, name) - job_keys];
}

/* Complains of two values that do not go together: behind the one that was said last, or else at the
 * job's first character. */
static void complain_of_two(struct job_reading *reading, const struct job_found *a, const struct job_found *b,
                            const char *pointer, const char *text)
{
    const struct job_found *last = a;
    if (!a->present ||
        (b->present && (b->document > a->document || (b->document == a->document && b->node > a->node))))
        last = b;
    const struct json_document *of = &reading->documents[last->present ? last->document : 0];
    job_complain(reading, last->present ? last->document : 0,
                 of->scan.nodes[last->present ? last->node : 0].value, pointer, "%s", text);
}

static void check_environments(struct job_reading *reading)
{
    struct job_found *count = found_at(reading, "observers", "count");
    struct job_found *environments = found_at(reading, "observers", "environments");
    uint64_t product = (uint64_t)reading->job->observers.count * reading->job->observers.environments;
    if (count->wrong || environments->wrong || product <= JOB_ENVIRONMENTS_MAX)
        return;
    char text[128];
    snprintf(text, sizeof text, "expected at most %d environments in all, got %u * %u = %llu",
             JOB_ENVIRONMENTS_MAX, reading->job->observers.count, reading->job->observers.environments,
             (unsigned long long)product);
    complain_of_two(reading, count, environments, "/observers", text);
}

/* A rollout is kept whole until it is learned from, so its size is a promise of memory. */
static void check_rollout(struct job_reading *reading)
{
    const struct job *job = reading->job;
    struct job_found *environments = found_at(reading, "observers", "environments");
    struct job_found *steps = found_at(reading, "rollout", "steps");
    uint64_t all = (uint64_t)job->observers.count * job->observers.environments;
    uint64_t rows = all * job->rollout.steps;
    if (found_at(reading, "observers", "count")->wrong || environments->wrong || steps->wrong ||
        found_at(reading, "rollout", "mode")->wrong || job->rollout.mode != JOB_ROLLOUT_STEPS ||
        all > JOB_ENVIRONMENTS_MAX || rows <= JOB_ROLLOUT_ROWS_MAX)
        return;
    char text[128];
    snprintf(text, sizeof text,
             "expected at most %d rows in a rollout, got %llu environments * %u steps = %llu",
             JOB_ROLLOUT_ROWS_MAX, (unsigned long long)all, job->rollout.steps, (unsigned long long)rows);
    complain_of_two(reading, environments, steps, "/rollout/steps", text);
}

static void check_stop(struct job_reading *reading)
{
    struct job_found *episodes = found_at(reading, "stop", "episodes");
    struct job_found *reward = found_at(reading, "stop", "running_reward");
    if (episodes->wrong || reward->wrong || reading->job->stop.has_episodes ||
        reading->job->stop.has_running_reward)
        return;
    complain_of_two(
        reading, episodes, reward, "/stop",
        "expected a limit, got null for both episodes and running_reward: the job would never end");
}

static void check_required(struct job_reading *reading, struct json_span begin)
{
    for (size_t i = 0; i < job_key_count; i++) {
        if (!job_keys[i].required || reading->found[i].present)
            continue;
        char expected[JOB_EXPECTED_BYTES];
        job_key_expected(expected, &job_keys[i]);
        job_complain(reading, 0, begin, job_keys[i].pointer, "this key is required; expected %s", expected);
    }
}

static void default_name(struct job_reading *reading, struct json_span begin, const char *origin)
{
    if (found_at(reading, NULL, "name")->present)
        return;
    const char *slash = strrchr(origin, '/');
    const char *stem = slash == NULL ? origin : slash + 1;
    const char *dot = strrchr(stem, '.');
    size_t length = dot == NULL || dot == stem ? strlen(stem) : (size_t)(dot - stem);
    char name[JOB_NAME_BYTES] = "";
    if (length < sizeof name)
        memcpy(name, stem, length);
    if (job_name_valid(name)) {
        memcpy(reading->job->name, name, sizeof name);
        return;
    }
    char expected[JOB_EXPECTED_BYTES], shown[JSON_SHOWN_BYTES];
    job_key_expected(expected, &job_keys[found_at(reading, NULL, "name") - reading->found]);
    text_show(shown, sizeof shown, stem, length, 40);
    job_complain(reading, 0, begin, "/name",
                 "this key is required where the file's own name is none; expected %s, got \"%s\"", expected,
                 shown);
}

void job_check(struct job_reading *reading, const char *origin)
{
    job_defaults(reading->job);
    for (size_t i = 0; i < job_key_count; i++) {
        struct job_found *found = &reading->found[i];
        if (found->present)
            found->wrong = !check_value(reading, &job_keys[i], found);
    }
    /* Without a file that is an object, what is missing and what clashes is not known. */
    const struct json_document *file = &reading->documents[0];
    if (file->root == NULL || file->scan.nodes[0].type != JSON_OBJECT)
        return;
    struct json_span begin = file->scan.nodes[0].value;
    check_required(reading, begin);
    default_name(reading, begin, origin);
    check_environments(reading);
    check_rollout(reading);
    check_stop(reading);
}
