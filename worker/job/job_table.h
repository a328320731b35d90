/* The one table of a job file's keys.
 *
 * Parsing, checking, defaults, writing a job back, the JSON schema and the suggestions for misspelt keys are
 * all driven by it: a new key is a line here and a member of struct job. Constant data and pure functions;
 * any thread. */
#ifndef WORKER_JOB_JOB_TABLE_H
#define WORKER_JOB_JOB_TABLE_H

#include "worker/job/job.h"

enum job_type {
    JOB_OBJECT,      /* a group of keys; its members follow it */
    JOB_INTEGER,     /* uint32_t or uint64_t by `bytes` */
    JOB_NUMBER,      /* double */
    JOB_BOOLEAN,     /* bool */
    JOB_ENUM,        /* int: the index of a name */
    JOB_CHOICE,      /* char[JOB_NAME_BYTES]: one of the names */
    JOB_ENVIRONMENT, /* char[JOB_NAME_BYTES]: a name that environment_find knows; the names are for people */
    JOB_NAME,        /* char[JOB_NAME_BYTES]: a name that is safe as a file's, job_name_valid */
};

enum { JOB_KEYS_MAX = 64, JOB_EXPECTED_BYTES = 200 };

struct job_key {
    const char *pointer; /* JSON pointer; the members of "/a" begin with "/a/" */
    enum job_type type;
    size_t offset, bytes;     /* of the value in struct job */
    double min, max;          /* JOB_INTEGER, JOB_NUMBER; exact, since integers stay below 2^53 */
    bool min_open, max_open;  /* JOB_NUMBER: the bound itself is not allowed */
    bool required;            /* has no default */
    bool list_of_one;         /* stands in an array of exactly one */
    bool nullable;            /* null is allowed, and makes the bool at `offset_present` false */
    bool null_by_default;     /* nullable only */
    size_t offset_present;    /* nullable only */
    const char *const *names; /* JOB_ENUM, JOB_CHOICE, JOB_ENVIRONMENT: ends with NULL */
    double default_number;    /* JOB_BOOLEAN: 0 or 1; where there are names: the index of one */
    const char *description;
    const char *schema_rule; /* JOB_OBJECT: more members for its schema, as JSON text, or NULL */
};

extern const struct job_key job_keys[];
extern const size_t job_key_count; /* at most JOB_KEYS_MAX */

/* The member `name` of the group `parent` (NULL: of the job), or NULL. */
const struct job_key *job_key_member(const struct job_key *parent, const char *name);

/* The group that `key` belongs to, or NULL for the job itself. */
const struct job_key *job_key_parent(const struct job_key *key);

/* The last part of the key's pointer. */
const char *job_key_name(const struct job_key *key);

/* Whether a key is allowed everywhere and means nothing to us: "$schema", and what begins with _. */
bool job_key_ignored(const char *name);

/* Whether `pointer` names a key that later versions of this program are meant to have. */
bool job_key_planned(const char *pointer);

/* Whether `name` is a kind of job that later versions are meant to have. */
bool job_kind_planned(const char *name);

/* Whether `name` is 1..63 of A-Z a-z 0-9 . _ - and begins with neither . nor -. */
bool job_name_valid(const char *name);

/* Writes what a value must be: "an integer in 1..1024", "one of \"auto\", \"cpu\", \"gpu\"". */
void job_key_expected(char text[JOB_EXPECTED_BYTES], const struct job_key *key);

/* The same of one element, where the key is a list_of_one. */
void job_key_expected_element(char text[JOB_EXPECTED_BYTES], const struct job_key *key);

/* Fills *job with every default; `name` is left empty. */
void job_defaults(struct job *job);

/* Writes a number with as few digits as read back to the same double. */
void job_number_show(char text[32], double value);

#endif
