/* Whether each value is what its table line wants, and whether all is there that must be. Runs in whatever
 * process reads a job, on the caller's thread. */
#include "kernels/base/text.h"
#include "worker/environment/environment.h"
#include "worker/job/job_reading.h"

#include <stdlib.h>
#include <string.h>

/* ---- one value: each store function returns false, storing nothing, when it does not fit the key ---- */

static bool store_integer(void *at, const struct job_key *key, const struct json_node *node,
                          const cJSON *item)
{
    if (!node->integral || item->valuedouble < key->min || item->valuedouble > key->max ||
        (key->bounds_only && item->valuedouble != key->min && item->valuedouble != key->max))
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
        if (key->names[i][0] != '\0' && strcmp(key->names[i], item->valuestring) == 0) {
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
    if (key->type == JOB_PATH)
        return job_path_valid(text, key->min, key->max);
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
    case JOB_PATH:
        if (node->type != JSON_STRING || strlen(item->valuestring) >= key->bytes ||
            !text_fits(key, item->valuestring))
            return false;
        memset(at, 0, key->bytes); /* so that equal jobs are equal byte for byte */
        memcpy(at, item->valuestring, strlen(item->valuestring));
        return true;
    case JOB_ROUND:
        return node->type == JSON_STRING && job_round_parse(at, item->valuestring);
    case JOB_PLACE:
        return node->type == JSON_STRING && job_place_parse(at, item->valuestring);
    case JOB_CHANNELS: /* check_channels */
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
    const bool numbered = key->type == JOB_ROUND || key->type == JOB_PLACE;
    char word[JOB_NAME_BYTES]; /* of these, the part before the number */
    snprintf(word, sizeof word, "%.*s", (int)strcspn(got, numbered ? " " : ""), got);
    for (size_t i = 0; key->names != NULL && key->names[i] != NULL; i++)
        if (job_is_near(word, key->names[i]) && strcmp(word, key->names[i]) != 0)
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

static void report_element(struct job_reading *reading, const struct job_key *key, uint32_t document,
                           uint32_t node, uint32_t index)
{
    char pointer[JSON_POINTER_BYTES], expected[JOB_EXPECTED_BYTES];
    snprintf(pointer, sizeof pointer, "%s/%u", key->pointer, index);
    job_key_expected_element(expected, key);
    report_value(reading, key, document, node, pointer, expected);
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
    report_element(reading, key, document, node, 0);
    return false;
}

/* Whether the node is an array of one value for all channels or one for each of 3. */
static bool has_channels(const struct json_node *nodes, uint32_t array)
{
    uint32_t count = 0;
    for (uint32_t i = array + 1; i < nodes[array].end; i = nodes[i].end)
        count++;
    return nodes[array].type == JSON_ARRAY && (count == 1 || count == JOB_CHANNELS_MAX);
}

/* Judges each element of such an array. */
static bool check_channels(struct job_reading *reading, const struct job_key *key,
                           const struct job_found *found)
{
    const struct json_document *of = &reading->documents[found->document];
    const struct json_node *nodes = of->scan.nodes;
    struct job_channels *channels = (void *)((char *)reading->job + key->offset);
    uint32_t count = 0;
    bool good = true;
    for (uint32_t i = found->node + 1; i < nodes[found->node].end; i = nodes[i].end, count++) {
        if (nodes[i].flawed) {
            good = false;
        } else if (!store_number(&channels->value[count], key, &nodes[i], of->items[i])) {
            report_element(reading, key, found->document, i, count);
            good = false;
        }
    }
    channels->count = count;
    return good;
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
    if (key->type == JOB_CHANNELS && has_channels(nodes, found->node))
        return check_channels(reading, key, found);
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

/* ---- what is not there ---- */

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
    char expected[JOB_EXPECTED_BYTES], shown[JSON_SHOWN_BYTES];
    job_key_expected(expected, key);
    text_show(shown, sizeof shown, stem, length, 40);
    job_complain(reading, 0, begin, "/name",
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
    if (file->root == NULL || file->scan.nodes[0].type != JSON_OBJECT)
        return;
    struct json_span begin = file->scan.nodes[0].value;
    check_required(reading, begin);
    default_name(reading, begin, origin);
    job_check_rules(reading);
}
