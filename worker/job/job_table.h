/* The one table of a job file's keys (job_keys.c), and of the rules between keys (job_rules.c).
 *
 * Three readers use it: the check (job_reading.c), the JSON schema and the manual (job_documents.c). A new
 * key is a row here and a member of struct job; a new rule between keys is a row, too. Constant data and pure
 * functions; any thread. */
#ifndef WORKER_JOB_JOB_TABLE_H
#define WORKER_JOB_JOB_TABLE_H

#include "worker/job/job.h"
#include "worker/job/json_document.h"

enum job_type {
    JOB_OBJECT,    /* a group of keys; its members follow it */
    JOB_INTEGER,   /* uint32_t or uint64_t by `bytes`; with a `min` below 0, int32_t */
    JOB_WIDTHS,    /* struct job_widths: an integer, or an array of at most `elements` of them; with `second`
                      two of them, which may be the members pi and `second` of an object */
    JOB_NUMBER,    /* double */
    JOB_BOOLEAN,   /* bool */
    JOB_ENUM,      /* int: the index of a name */
    JOB_NAME,      /* char[]: a string of the key's pattern */
    JOB_PATH,      /* char[]: min..max bytes of text that can be shown as it is */
    JOB_OPTIONS,   /* char[]: an object that only the environment knows, as text of at most max bytes */
    JOB_AUTO,      /* struct job_auto: a number, or a string of the key's pattern that begins with "auto" */
    JOB_FREQUENCY, /* struct job_frequency: an integer of steps, or [an integer, "step" or "episode"] */
    JOB_NUMBERED,  /* struct job_numbered: a string of the key's pattern, one of the names, all but the first
                      with a number behind them */
};

enum {
    JOB_KEYS_MAX = 288,
    JOB_WORDS_BYTES = 4096, /* of the longest value as JSON, and of a paragraph of the manual */
    JOB_FACTORS_MAX = 4,
};

/* What decides which keys a job has: its kind and, of the kind reinforce, the algorithm. The first ones are
 * enum job_kind's, with the algorithm reinforce. */
enum job_variant {
    JOB_VARIANT_PPO = JOB_MODEL_PARALLEL + 1, /* the kind reinforce with the algorithm ppo */
    JOB_VARIANT_A2C,                          /* likewise, a2c; and so on */
    JOB_VARIANT_DQN,
    JOB_VARIANT_SAC,
    JOB_VARIANT_TD3,
    JOB_VARIANTS
};

/* Sets of kinds: one bit for each of enum job_kind and enum job_variant. */
#define JOB_KINDS_OF(kind) (1u << (kind))
#define JOB_KINDS_ALL (JOB_KINDS_OF(JOB_VARIANTS) - 1)

enum job_test {
    JOB_ALWAYS, /* there is no condition */
    JOB_IS,     /* the name `name`; of a boolean, "true" or "false" */
    JOB_IS_NULL,
    JOB_IS_SET,      /* not null; of a path: not empty */
    JOB_AT_LEAST,    /* the number `number` */
    JOB_AT_MOST,     /* likewise */
    JOB_AT_MOST_KEY, /* the value of the key `name`; with `number` 1, below that value */
};

/* A test of one key's value. The number of channels, or of widths, is how many there are. */
struct job_condition {
    const char *pointer;
    enum job_test test;
    const char *name;
    double number;
};

enum { JOB_OTHERWISE_MAX = 4 };

struct job_key {
    const char *pointer; /* JSON pointer; the members of "/a" begin with "/a/" */
    unsigned kinds;      /* the kinds that have the key; no two rows of one pointer share a kind */
    enum job_type type;
    size_t offset, bytes; /* of the value in struct job */
    double min, max; /* of numbers, exact, since integers stay below 2^53; of a path's or of options' bytes */
    bool min_open, max_open;  /* JOB_NUMBER: the bound itself is not allowed */
    bool bounds_only;         /* JOB_INTEGER: min or max, nothing in between */
    uint32_t elements;        /* JOB_WIDTHS; JOB_NUMBER: an array of 1 or 3 numbers, struct job_channels */
    const char *second;       /* JOB_WIDTHS: see there */
    bool nullable;            /* null is allowed, and makes the bool at `offset_present` false */
    size_t offset_present;    /* nullable only */
    const char *const *names; /* of JOB_ENUM, JOB_NUMBERED: ends with NULL; "" is a number
                                 of the enum that this key does not know */
    const char *pattern;      /* of JOB_NAME, JOB_NUMBERED: POSIX extended and ECMA's at once */
    const char *words;        /* the same in words */
    const char *by_default;   /* as JSON; NULL: the key is required, or is the job's name */
    const char *otherwise;    /* the default where any of otherwise_where holds, as JSON; the rest of these is
                                 JOB_ALWAYS */
    struct job_condition otherwise_where[JOB_OTHERWISE_MAX];
    const char *unit;      /* of a number, or NULL */
    const char *shorthand; /* JOB_OBJECT: the member whose value may stand for the whole; or NULL */
    const char *text;      /* what the key means: one or more sentences for every reader */
};

extern const struct job_key job_keys[];
extern const size_t job_key_count; /* at most JOB_KEYS_MAX */

/* Where all of `when` hold, `then` must hold, or else the job is wrong. */
struct job_rule {
    unsigned kinds;
    struct job_condition when[2], then;
    const char *why; /* a sentence without its full stop, or NULL */
};

extern const struct job_rule job_rules[];
extern const size_t job_rule_count;

/* Where `when` holds, the product of the factors is at most `most`. */
struct job_limit {
    unsigned kinds;
    const char *factors[JOB_FACTORS_MAX]; /* keys; ends with NULL unless full */
    double most;
    const char *of; /* what the product is a number of */
    struct job_condition when;
};

extern const struct job_limit job_limits[];
extern const size_t job_limit_count;

/* ---- lookups ---- */

/* The key at `pointer` in any of `kinds`, or NULL. */
const struct job_key *job_key_at(unsigned kinds, const char *pointer);

/* Whether `key` is a member of the group `parent`, a pointer ("": of the job itself). */
bool job_key_is_member(const struct job_key *key, const char *parent);

/* The last name in the key's pointer. */
const char *job_key_name(const struct job_key *key);

/* Whether a key is allowed everywhere and ignored: "$schema", and every name that begins with _. */
bool job_key_ignored(const char *name);

/* The name of a kind of job; the kind's, of a variant. */
const char *job_kind_name(int kind);

/* The name of the variant's algorithm, or NULL. */
const char *job_variant_algorithm(int variant);

/* The job's variant: its kind, or one of enum job_variant. */
int job_variant(const struct job *job);

/* ---- values: job_value.c ---- */

/* Stores a value of the document in the form of the key's type. False: the value does not fit the key. */
bool job_value_store(struct job *job, const struct job_key *key, const struct json_document *document,
                     const cJSON *value);

/* Whether the value is an array of as many elements as the key's array may have; and stores one of these. */
bool job_value_has_elements(const struct job_key *key, const cJSON *value);
bool job_value_store_element(struct job *job, const struct job_key *key, const struct json_document *document,
                             const cJSON *element, uint32_t index);

/* Fills *job with the defaults of all keys that all of `kinds` have; members of other kinds become zero, and
 * `name` is left empty. Defaults that depend on another key (otherwise) stay as they are. Errors:
 * STATUS_NO_MEMORY. */
enum status job_defaults(struct job *job, unsigned kinds);

/* Gives the key the default that it has where another key says so (otherwise). STATUS_NO_MEMORY. */
enum status job_value_otherwise(struct job *job, const struct job_key *key);

/* The number that the key's value stands for (see struct job_condition), or 0. */
double job_value_number(const struct job *job, const struct job_key *key);

/* Whether the condition holds for the job, whose kind is the one of `kinds`. */
bool job_condition_holds(const struct job *job, unsigned kinds, const struct job_condition *condition);

/* Whether `text` is of the key's pattern. */
bool job_pattern_matches(const struct job_key *key, const char *text);

/* ---- values in words: job_value.c ---- */

/* Appends to `words`, which is terminated; what does not fit is cut. */
void words_add(char words[JOB_WORDS_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number with 17 digits, or with as few as read back to the same double (brief); and the key's value as
 * JSON, its numbers likewise. */
void words_add_number(char words[JOB_WORDS_BYTES], double value, bool brief);
void words_add_value(char words[JOB_WORDS_BYTES], const struct job *job, const struct job_key *key,
                     bool brief);

/* What a value must be: "an integer in 1..1024", "one of \"auto\", \"cpu\", \"gpu\""; and what one element
 * must be, where the key stands in an array. */
void words_add_expected(char words[JOB_WORDS_BYTES], const struct job_key *key);
void words_add_element(char words[JOB_WORDS_BYTES], const struct job_key *key);

/* What the condition's key must be: "null", "\"all\"", "at most /trainers/count". */
void words_add_condition(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition);

#endif
