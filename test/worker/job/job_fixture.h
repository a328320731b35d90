/* Shared by the tests of job files: reading and judging texts, and comparing jobs. */
#ifndef TEST_WORKER_JOB_JOB_FIXTURE_H
#define TEST_WORKER_JOB_JOB_FIXTURE_H

#include "kernels/base/text.h"
#include "worker/job/job_table.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const char minimal_reinforce[] = "{\"kind\": \"reinforce\"}";
static const char minimal_ppo[] = "{\"kind\": \"reinforce\", \"algorithm\": {\"name\": \"ppo\"}}";
static const char minimal_a2c[] = "{\"kind\": \"reinforce\", \"algorithm\": {\"name\": \"a2c\"}}";
static const char minimal_dqn[] = "{\"kind\": \"reinforce\", \"algorithm\": {\"name\": \"dqn\"}}";
static const char minimal_sac[] = "{\"kind\": \"reinforce\", \"algorithm\": {\"name\": \"sac\"}}";
static const char minimal_td3[] = "{\"kind\": \"reinforce\", \"algorithm\": {\"name\": \"td3\"}}";
static const char minimal_server[] = "{\"kind\": \"parameter-server\"}";
static const char minimal_parallel[] = "{\"kind\": \"model-parallel\"}";

static inline char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is missing", path);
    char *text = calloc(1, 1 << 19);
    size_t length = fread(text, 1, (1 << 19) - 1, file);
    ck_assert_msg(feof(file), "%s is long", path);
    text[length] = '\0';
    fclose(file);
    return text;
}

/* Parses a text as `job.json`; the result is malloc'ed: the problems, or the job written out. */
static inline char *judge_job(const char *text, const char *const *overrides, size_t override_count)
{
    struct job job;
    char *problems;
    size_t bytes;
    enum status status =
        job_parse(&job, text, strlen(text), "job.json", overrides, override_count, &problems);
    ck_assert(status == STATUS_OK || status == STATUS_INVALID);
    ck_assert((status == STATUS_OK) == (problems == NULL));
    return status == STATUS_OK ? job_format(&job, &bytes) : problems;
}

static inline struct job parse_job(const char *text, const char *const *overrides, size_t override_count)
{
    struct job job;
    char *problems;
    enum status status =
        job_parse(&job, text, strlen(text), "job.json", overrides, override_count, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems);
    return job;
}

/* Bit for bit, but for what lies between the members. */
static inline bool same_job(const struct job *a, const struct job *b)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        const char *left = (const char *)a, *right = (const char *)b;
        if (memcmp(left + key->offset, right + key->offset, key->bytes) != 0 ||
            (key->nullable && left[key->offset_present] != right[key->offset_present]))
            return false;
    }
    return true;
}

/* `problem` is what is said of the override in a job that is good without it, NULL when it is good too. */
static inline void expect_override(const char *text, const char *override, const char *problem)
{
    char expected[512], shown[256];
    char *got = judge_job(text, &override, 1);
    text_show(shown, sizeof shown, override, strlen(override), 80);
    if (problem == NULL) {
        ck_assert_msg(got[0] == '{', "%s", got);
    } else {
        snprintf(expected, sizeof expected, "--set %s: %s\n", shown, problem);
        ck_assert_str_eq(got, expected);
    }
    free(got);
}

#endif
