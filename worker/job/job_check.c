/* Checks each value against its row of the table, and that every required key is there. The caller's thread.
 */
#include "kernels/base/text.h"
#include "worker/job/job_reading.h"

#include <math.h>
#include <string.h>

/* ---- one value ---- */

/* `words` says what was expected; this adds what was found. */
static void report_value(struct job_reading *reading, const struct job_key *key, uint32_t source,
                         const cJSON *item, const char *pointer, char words[JOB_WORDS_BYTES])
{
    const struct json_document *document = &reading->documents[source];
    const struct problem_place place = {source, json_place_of(document, item)->value};
    char got[JSON_SHOWN_BYTES];
    json_document_show(got, document, item);
    words_add(words, ", got %s", got);
    if (cJSON_IsString(item))
        words_suggest_value(words, key, item->valuestring);
    job_report(reading, place, pointer, "%s", words);
}

static void report_elements(struct job_reading *reading, const struct job_key *key,
                            const struct job_found *found)
{
    const struct json_document *document = &reading->documents[found->source];
    uint32_t index = 0;
    for (const cJSON *element = found->item->child; element != NULL; element = element->next, index++) {
        char pointer[JSON_POINTER_BYTES], words[JOB_WORDS_BYTES] = "expected ";
        if (job_value_store_element(&reading->job, key, document, element, index))
            continue;
        snprintf(pointer, sizeof pointer, "%s/%u", key->pointer, index);
        words_add_element(words, key);
        report_value(reading, key, found->source, element, pointer, words);
    }
}

static void check_value(struct job_reading *reading, const struct job_key *key, struct job_found *found)
{
    char words[JOB_WORDS_BYTES] = "expected ";
    if (job_value_store(&reading->job, key, &reading->documents[found->source], found->item))
        return;
    found->wrong = true;
    words_add_expected(words, key);
    if (job_value_has_elements(key, found->item))
        report_elements(reading, key, found);
    else
        report_value(reading, key, found->source, found->item, key->pointer, words);
}

/* ---- what is not there ---- */

static void require_kind(struct job_reading *reading)
{
    const struct job_key *key = job_key_at(JOB_KINDS_ALL, "/kind");
    const struct job_found *found = &reading->found[key - job_keys];
    char words[JOB_WORDS_BYTES] = "this key is required; expected ";
    words_add_expected(words, key);
    if (found->item == NULL)
        job_report(reading, job_found_place(reading, found), key->pointer, "%s", words);
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
    char *name = reading->job.name, shown[JSON_SHOWN_BYTES];
    char words[JOB_WORDS_BYTES] = "this key is required where the file's own name is none; expected ";
    if (length < JOB_NAME_BYTES)
        memcpy(name, stem, length);
    if (job_pattern_matches(key, name))
        return;
    words_add_expected(words, key);
    text_show(shown, sizeof shown, stem, length, 40);
    job_report(reading, job_found_place(reading, found), key->pointer, "%s, got \"%s\"", words, shown);
}

/* What the algorithms ppo and a2c have no key for. a2c is ppo with one minibatch: the whole rollout, once. */
static void imply(struct job *job)
{
    if (!job_is_actor_critic(job))
        return;
    job->rollout.mode = JOB_ROLLOUT_STEPS;
    job->rollout.begin = JOB_BEGIN_CONTINUE;
    job->optimizer.beta1 = 0.9;
    job->optimizer.beta2 = 0.999;
    job->running_reward.of = JOB_OF_MEAN;
    job->running_reward.weight = 1;
    if (job->algorithm.name != JOB_ALGORITHM_A2C)
        return;
    job->algorithm.n_epochs = 1;
    job->algorithm.batch_size = JOB_ROLLOUT_ROWS_MAX;
    job->algorithm.clip_range = (double)INFINITY;
}

enum status job_check(struct job_reading *reading)
{
    const enum status status = job_defaults(&reading->job, reading->kinds);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < job_key_count; i++)
        if (reading->found[i].item != NULL && (job_keys[i].kinds & reading->kinds) == reading->kinds)
            check_value(reading, &job_keys[i], &reading->found[i]);
    /* A file that is no object has been reported. Which keys it lacks, and which clash, is not known. */
    if (!cJSON_IsObject(reading->documents[0].root))
        return STATUS_OK;
    require_kind(reading);
    default_name(reading);
    imply(&reading->job);
    job_check_rules(reading);
    return STATUS_OK;
}
