/* Which key is where in the table. Runs in whatever process reads or writes a job. */
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

bool job_key_is_member(const struct job_key *key, const struct job_key *parent)
{
    size_t length = (size_t)(job_key_name(key) - key->pointer) - 1;
    return parent == NULL
               ? length == 0
               : strlen(parent->pointer) == length && memcmp(parent->pointer, key->pointer, length) == 0;
}

const struct job_key *job_key_member(unsigned kinds, const struct job_key *parent, const char *name)
{
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) != 0 && job_key_is_member(&job_keys[i], parent) &&
            strcmp(job_key_name(&job_keys[i]), name) == 0)
            return &job_keys[i];
    return NULL;
}

bool job_key_ignored(const char *name)
{
    return name[0] == '_' || strcmp(name, "$schema") == 0;
}

unsigned job_key_kinds(const struct job_key *key)
{
    unsigned kinds = 0;
    for (size_t i = 0; i < job_key_count; i++)
        if (strcmp(job_keys[i].pointer, key->pointer) == 0)
            kinds |= job_keys[i].kinds;
    return kinds;
}

const char *job_kind_name(int kind)
{
    return job_key_at(JOB_KINDS_ALL, "/kind")->names[kind];
}
