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

unsigned job_key_kinds(const char *pointer)
{
    unsigned kinds = 0;
    for (size_t i = 0; i < job_key_count; i++)
        if (strcmp(job_keys[i].pointer, pointer) == 0)
            kinds |= job_keys[i].kinds;
    return kinds;
}

const char *job_kind_name(int kind)
{
    return job_key_at(JOB_KINDS_ALL, "/kind")->names[kind];
}
