/* Whether each value is as its table row wants it, and whether every required key is there. Runs in whatever
 * process reads a job, on the caller's thread. */
#include "kernels/base/text.h"
#include "worker/job/did_you_mean.h"
#include "worker/job/job_reading.h"

#include <string.h>

/* ---- one value ---- */

static void report_value(struct job_reading *reading, const struct job_key *key, uint32_t source,
                         const cJSON *item, const char *pointer, const char *expected)
{
    const struct json_document *document = &reading->documents[source];
    const struct problem_place place = {source, json_place_of(document, item)->value};
    char got[JSON_SHOWN_BYTES], question[DID_YOU_MEAN_BYTES] = "";
    json_document_show(got, document, item);
    if (cJSON_IsString(item))
        did_you_mean_value(question, key, item->valuestring);
    job_report(reading, place, pointer, "expected %s, got %s%s", expected, got, question);
}

static void report_elements(struct job_reading *reading, const struct job_key *key,
                            const struct job_found *found)
{
    const struct json_document *document = &reading->documents[found->source];
    char pointer[JSON_POINTER_BYTES], expected[JOB_WORDS_BYTES];
    uint32_t index = 0;
    job_value_expected_element(expected, key);
    for (const cJSON *element = found->item->child; element != NULL; element = element->next, index++) {
        snprintf(pointer, sizeof pointer, "%s/%u", key->pointer, index);
        if (!job_value_store_element(&reading->job, key, document, element, index))
            report_value(reading, key, found->source, element, pointer, expected);
    }
}

static void check_value(struct job_reading *reading, const struct job_key *key, struct job_found *found)
{
    char expected[JOB_WORDS_BYTES];
    if (job_value_store(&reading->job, key, &reading->documents[found->source], found->item))
        return;
    found->wrong = true;
    job_value_expected(expected, key);
    if (job_value_has_elements(key, found->item))
        report_elements(reading, key, found);
    else
        report_value(reading, key, found->source, found->item, key->pointer, expected);
}

/* ---- what is not there ---- */

static void require_kind(struct job_reading *reading)
{
    const struct job_key *key = job_key_at(JOB_KINDS_ALL, "/kind");
    const struct job_found *found = &reading->found[key - job_keys];
    char expected[JOB_WORDS_BYTES];
    job_value_expected(expected, key);
    if (found->item == NULL)
        job_report(reading, job_found_place(reading, found), key->pointer,
                   "this key is required; expected %s", expected);
}

static void default_name(struct job_reading *reading)
{
    const struct job_key *key = job_key_at(JOB_KINDS_ALL, "/name");
    const struct job_found *found = &reading->found[key - job_keys];
    if (found->item != NULL)
        return;
    const char *slash = strrchr(reading->origin, '/');
    const char *stem = slash == NULL ? reading->origin : slash + 1;
    const char *dot = strrchr(stem, '.');
    const size_t length = dot == NULL || dot == stem ? strlen(stem) : (size_t)(dot - stem);
    char *name = reading->job.name, expected[JOB_WORDS_BYTES], shown[JSON_SHOWN_BYTES];
    if (length < JOB_NAME_BYTES)
        memcpy(name, stem, length);
    if (job_name_valid(name))
        return;
    job_value_expected(expected, key);
    text_show(shown, sizeof shown, stem, length, 40);
    job_report(reading, job_found_place(reading, found), key->pointer,
               "this key is required where the file's own name is none; expected %s, got \"%s\"", expected,
               shown);
}

enum status job_check(struct job_reading *reading)
{
    const enum status status = job_defaults(&reading->job, reading->kinds);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < job_key_count; i++)
        if (reading->found[i].item != NULL && (job_keys[i].kinds & reading->kinds) == reading->kinds)
            check_value(reading, &job_keys[i], &reading->found[i]);
    /* Without a file that is an object, what is missing and what clashes is not known. */
    if (!cJSON_IsObject(reading->documents[0].root))
        return STATUS_OK;
    require_kind(reading);
    default_name(reading);
    job_check_rules(reading);
    return STATUS_OK;
}
