/* One reading of a job: job_collect.c finds the values, job_check.c and job_check_rules.c check them, and
 * job_problems.c lists the problems. Only job.c and these files include this header. */
#ifndef WORKER_JOB_JOB_READING_H
#define WORKER_JOB_JOB_READING_H

#include "worker/job/job_table.h"
#include "worker/job/json_document.h"

enum { PROBLEMS_MAX = 100, PROBLEM_TEXT_BYTES = 1100 };

/* A place in a text. Source 0 is the file; source n is the value of override n - 1. */
struct problem_place {
    uint32_t source, offset;
};

struct job_problem {
    struct problem_place place;
    char text[PROBLEM_TEXT_BYTES];
};

/* Where the value of one table row comes from. */
struct job_found {
    const cJSON *item; /* NULL: the default stands */
    uint32_t source;
    bool wrong; /* reported; what follows from this value is not judged */
};

struct job_reading {
    struct job job;
    unsigned kinds;     /* the bit of the job's kind; JOB_KINDS_ALL while that is not known */
    const char *origin; /* the file's name */
    const char *const *overrides;
    uint32_t override_count;
    struct job_found found[JOB_KEYS_MAX];      /* by the table's index */
    struct job_problem problems[PROBLEMS_MAX]; /* the first ones, in the order of their places */
    uint32_t problem_count;                    /* of all */
    struct json_document documents[];          /* by source; without a text: not read */
};

/* Reads the file's text and every override, and notes where each key's value is. The kind comes first,
 * wherever it stands, for it decides which keys there are. Reports text that is not JSON, and keys that the
 * job's kind does not have; of a job without a kind, keys that no kind has. Errors: STATUS_NO_MEMORY. */
enum status job_collect(struct job_reading *reading, const char *text, size_t length);

/* Judges every value found (without a kind, those of keys that all kinds have), and stores the good ones into
 * reading->job over the defaults. Then requires and judges what is not one value: required keys, the default
 * name out of the origin, and the rules between keys. Errors: STATUS_NO_MEMORY. */
enum status job_check(struct job_reading *reading);

/* Makes defaults null where another key says so, and judges the rules between keys of the job's kind. A
 * rule is silent where the value of one of its keys is wrong. Called by job_check. */
void job_check_rules(struct job_reading *reading);

/* ---- problems: job_problems.c ---- */

/* The place of the key's value; of a key without a value, the place of the whole job. */
struct problem_place job_found_place(const struct job_reading *reading, const struct job_found *found);

bool problem_place_before(struct problem_place a, struct problem_place b);

/* Adds a problem about `pointer` ("": about none). In an override's line the pointer is left out when the
 * override itself names it. */
void job_report(struct job_reading *reading, struct problem_place place, const char *pointer,
                const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Writes the problems as *text (see job_parse), or NULL if there is none. Errors: STATUS_NO_MEMORY. */
enum status job_problems_write(const struct job_reading *reading, char **text);

#endif
