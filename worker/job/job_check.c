/* Whether each value is as its table row wants it, and whether every required key is there. Runs in whatever
 * process reads a job, on the caller's thread. */
#include "kernels/base/text.h"
#include "worker/job/did_you_mean.h"
#include "worker/job/job_reading.h"

#include <string.h>

/* ---- one value ---- */

static void report_value(struct job_reading *reading, const struct job_key *key, uint32_t document,
                         uint32_t node, const char *pointer, const char *expected)
{
    const struct json_document *of = &reading->documents[document];
    char got[JSON_SHOWN_BYTES], question[DID_YOU_MEAN_BYTES] = "";
    json_document_show(got, of, node);
    if (of->nodes[node].type == JSON_STRING)
        did_you_mean_value(question, key, of->nodes[node].string);
    job_report(reading, document, of->nodes[node].value, pointer, "expected %s, got %s%s", expected, got,
               question);
}

/* Judges element `index` of a key's array, and stores it at `at`. */
static bool check_element(struct job_reading *reading, const struct job_key *key, uint32_t document,
                          uint32_t node, uint32_t index, void *at)
{
    const struct json_node *element = &reading->documents[document].nodes[node];
    char pointer[JSON_POINTER_BYTES], expected[JOB_WORDS_BYTES];
    if (element->flawed)
        return false;
    if (job_value_store(at, key, element))
        return true;
    snprintf(pointer, sizeof pointer, "%s/%u", key->pointer, index);
    job_value_expected_element(expected, key);
    report_value(reading, key, document, node, pointer, expected);
    return false;
}

static bool check_channels(struct job_reading *reading, const struct job_key *key,
                           const struct job_found *found)
{
    const struct json_node *nodes = reading->documents[found->document].nodes;
    struct job_channels *channels = (void *)((char *)reading->job + key->offset);
    bool good = true;
    channels->count = 0;
    for (uint32_t i = found->node + 1; i < nodes[found->node].end; i = nodes[i].end, channels->count++)
        good &= check_element(reading, key, found->document, i, channels->count,
                              &channels->value[channels->count]);
    return good;
}

static bool check_value(struct job_reading *reading, const struct job_key *key, const struct job_found *found)
{
    const struct json_document *of = &reading->documents[found->document];
    const struct json_node *node = &of->nodes[found->node];
    const uint32_t elements = node->type == JSON_ARRAY ? json_document_elements(of, found->node) : 0;
    void *at = (char *)reading->job + key->offset;
    char expected[JOB_WORDS_BYTES];
    if (node->flawed)
        return false;
    if (found->element)
        return check_element(reading, key, found->document, found->node, 0, at);
    if (key->type == JOB_OBJECT && node->type == JSON_OBJECT)
        return true;
    if (key->list_of_one && elements == 1)
        return check_element(reading, key, found->document, found->node + 1, 0, at);
    if (key->type == JOB_CHANNELS && (elements == 1 || elements == JOB_CHANNELS_MAX))
        return check_channels(reading, key, found);
    if (key->nullable && node->type == JSON_NULL) {
        job_value_make_null(reading->job, key);
        return true;
    }
    if (!key->list_of_one && key->type != JOB_CHANNELS && job_value_store(at, key, node)) {
        if (key->nullable)
            *(bool *)((char *)reading->job + key->offset_present) = true;
        return true;
    }
    job_value_expected(expected, key);
    report_value(reading, key, found->document, found->node, key->pointer, expected);
    return false;
}

/* ---- what is not there ---- */

static void require_kind(struct job_reading *reading, struct json_span begin)
{
    const struct job_key *key = job_key_at(JOB_KINDS_ALL, "/kind");
    char expected[JOB_WORDS_BYTES];
    job_value_expected(expected, key);
    if (!reading->found[key - job_keys].present)
        job_report(reading, 0, begin, key->pointer, "this key is required; expected %s", expected);
}

static void default_name(struct job_reading *reading, struct json_span begin, const char *origin)
{
    const struct job_key *key = job_key_at(JOB_KINDS_ALL, "/name");
    if (reading->found[key - job_keys].present)
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
    char expected[JOB_WORDS_BYTES], shown[JSON_SHOWN_BYTES];
    job_value_expected(expected, key);
    text_show(shown, sizeof shown, stem, length, 40);
    job_report(reading, 0, begin, "/name",
               "this key is required where the file's own name is none; expected %s, got \"%s\"", expected,
               shown);
}

void job_check(struct job_reading *reading, const char *origin)
{
    job_defaults(reading->job, reading->kinds);
    for (size_t i = 0; i < job_key_count; i++) {
        struct job_found *found = &reading->found[i];
        if (found->present && (job_keys[i].kinds & reading->kinds) == reading->kinds)
            found->wrong = !check_value(reading, &job_keys[i], found);
    }
    /* Without a file that is an object, what is missing and what clashes is not known. */
    const struct json_document *file = &reading->documents[0];
    if (file->count == 0 || file->nodes[0].type != JSON_OBJECT)
        return;
    struct json_span begin = file->nodes[0].value;
    require_kind(reading, begin);
    default_name(reading, begin, origin);
    job_check_rules(reading);
}
