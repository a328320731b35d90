/* The one table of a job file's keys.
 *
 * Parsing, checking, defaults, writing a job back, the JSON schema and the suggestions for misspelt keys are
 * all driven by it: a new key is a line here and a member of struct job. A line says which kinds of job have
 * the key; a pointer that means another thing, or has another default, in another kind has a line for each.
 * Constant data and pure functions; any thread. */
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
    JOB_PATH,        /* char[JOB_PATH_BYTES]: min..max bytes of text that can be shown as it is */
    JOB_ROUND,       /* struct job_round_rule; the names are those of enum job_round */
    JOB_PLACE,       /* struct job_place */
    JOB_CHANNELS,    /* struct job_channels: an array of 1 or 3 numbers */
};

enum {
    JOB_KEYS_MAX = 192,
    JOB_EXPECTED_BYTES = 200,
    JOB_STALENESS_MAX = 64, /* S of "async S" */
    JOB_ROUND_BYTES = 16,   /* of a round's rule as text */
    JOB_PLACE_BYTES = 16,   /* of a part's place as text */
};

/* Sets of kinds: one bit for each of enum job_kind. */
#define JOB_KINDS_OF(kind) (1u << (kind))
#define JOB_KINDS_ALL                                                                                        \
    (JOB_KINDS_OF(JOB_REINFORCE) | JOB_KINDS_OF(JOB_PARAMETER_SERVER) | JOB_KINDS_OF(JOB_MODEL_PARALLEL))

struct job_key {
    const char *pointer; /* JSON pointer; the members of "/a" begin with "/a/" */
    unsigned kinds;      /* the kinds that have the key; no two lines of one pointer share a kind */
    enum job_type type;
    size_t offset, bytes;     /* of the value in struct job */
    double min, max;          /* of numbers, exact, since integers stay below 2^53; of a path's bytes */
    bool min_open, max_open;  /* JOB_NUMBER, JOB_CHANNELS: the bound itself is not allowed */
    bool bounds_only;         /* JOB_INTEGER: min or max, nothing in between */
    bool required;            /* has no default */
    bool list_of_one;         /* stands in an array of exactly one */
    bool nullable;            /* null is allowed, and makes the bool at `offset_present` false */
    bool null_by_default;     /* nullable only */
    size_t offset_present;    /* nullable only */
    const char *const *names; /* JOB_ENUM, JOB_CHOICE, JOB_ENVIRONMENT, JOB_ROUND, JOB_PLACE: ends with NULL;
                                 "": a number of the enum that this key does not know */
    double default_number;    /* JOB_BOOLEAN: 0 or 1; where there are names: the index of one */
    const char *description;
    const char *schema_rule; /* JOB_OBJECT: more members for its schema, as JSON text, or NULL */
};

extern const struct job_key job_keys[];
extern const size_t job_key_count; /* at most JOB_KEYS_MAX */

/* The key at `pointer` in any of `kinds`, or NULL. */
const struct job_key *job_key_at(unsigned kinds, const char *pointer);

/* Whether `key` is a member of the group `parent` (NULL: of the job itself), by their pointers. */
bool job_key_is_member(const struct job_key *key, const struct job_key *parent);

/* The member `name` of the group `parent` (NULL: of the job) in any of `kinds`, or NULL. */
const struct job_key *job_key_member(unsigned kinds, const struct job_key *parent, const char *name);

/* The last part of the key's pointer. */
const char *job_key_name(const struct job_key *key);

/* Whether a key is allowed everywhere and means nothing to us: "$schema", and what begins with _. */
bool job_key_ignored(const char *name);

/* The kinds that have a key at that key's pointer, be it this line or another. */
unsigned job_key_kinds(const struct job_key *key);

/* Whether `pointer` names a key that later versions of this program are meant to have. */
bool job_key_planned(const char *pointer);

/* The name of a kind of job. */
const char *job_kind_name(int kind);

/* Whether `name` is 1..63 of A-Z a-z 0-9 . _ - and begins with neither . nor -. */
bool job_name_valid(const char *name);

/* Whether `text` has min..max bytes, all of them well-formed UTF-8 that text_show (kernels/base/text.h) would
 * leave alone: nothing in a path may move a cursor or hide. */
bool job_path_valid(const char *text, double min, double max);

/* Reads "all", "first K" or "async S", K and S in decimal without leading zeros. False: it is none of them.
 */
bool job_round_parse(struct job_round_rule *round, const char *text);
void job_round_show(char text[JOB_ROUND_BYTES], const struct job_round_rule *round);

/* Reads "trainer" or "server K", K in decimal without leading zeros. False: it is neither. */
bool job_place_parse(struct job_place *place, const char *text);
void job_place_show(char text[JOB_PLACE_BYTES], const struct job_place *place);

/* Writes what a value must be: "an integer in 1..1024", "one of \"auto\", \"cpu\", \"gpu\"". */
void job_key_expected(char text[JOB_EXPECTED_BYTES], const struct job_key *key);

/* The same of one element, where the key stands in an array. */
void job_key_expected_element(char text[JOB_EXPECTED_BYTES], const struct job_key *key);

/* Fills *job with every default of the keys that all of `kinds` have; members of other kinds become zero, and
 * `name` is left empty. */
void job_defaults(struct job *job, unsigned kinds);

/* Writes `text`, which holds no control character, as a JSON string. */
void job_write_string(FILE *stream, const char *text);

/* Writes a number with as few digits as read back to the same double. */
void job_number_show(char text[32], double value);

#endif
