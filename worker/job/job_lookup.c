/* Looks up keys, kinds and algorithms in the table of a job file's keys. The rows are in job_keys.c, the
 * rules between keys in job_rules.c. Pure; any thread. */
#include "worker/job/job_table.h"

#include <string.h>

const char *job_key_name(const struct job_key *key)
{
    return strrchr(key->pointer, '/') + 1;
}

const struct job_key *job_key_at(unsigned kinds, const char *pointer)
{
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) != 0 && strcmp(job_keys[i].pointer, pointer) == 0)
            return &job_keys[i];
    return NULL;
}

bool job_key_is_member(const struct job_key *key, const char *parent)
{
    const size_t length = strlen(parent);
    return strlen(key->pointer) - strlen(job_key_name(key)) == length + 1 &&
           memcmp(key->pointer, parent, length) == 0;
}

bool job_key_ignored(const char *name)
{
    return name[0] == '_' || strcmp(name, "$schema") == 0;
}

const char *job_kind_name(int kind)
{
    return job_key_at(JOB_KINDS_ALL, "/kind")->names[kind < JOB_VARIANT_PPO ? kind : JOB_REINFORCE];
}

static const int algorithms[JOB_VARIANTS] = {[JOB_REINFORCE] = JOB_ALGORITHM_REINFORCE,
                                             [JOB_VARIANT_PPO] = JOB_ALGORITHM_PPO,
                                             [JOB_VARIANT_A2C] = JOB_ALGORITHM_A2C};

const char *job_variant_algorithm(int variant)
{
    if (variant != JOB_REINFORCE && variant < JOB_VARIANT_PPO)
        return NULL;
    return job_key_at(JOB_KINDS_OF(JOB_REINFORCE), "/algorithm/name")->names[algorithms[variant]];
}

int job_variant(const struct job *job)
{
    for (int variant = JOB_VARIANT_PPO; variant < JOB_VARIANTS; variant++)
        if (job->kind == JOB_REINFORCE && job->algorithm.name == algorithms[variant])
            return variant;
    return job->kind;
}
