/* One reading of a job: what job_collect.c gathers, job_check.c and job_rules.c judge. Only job.c and
 * these use it.
 */
#ifndef WORKER_JOB_JOB_READING_H
#define WORKER_JOB_JOB_READING_H

#include "worker/job/job_problems.h"
#include "worker/job/job_table.h"
#include "worker/job/json_document.h"

/* Where the value of one table line comes from. */
struct job_found {
    bool present; /* false: the default stands */
    bool element; /* of a key with an array of one: the node is that one, not the array */
    bool wrong;   /* reported; what follows from this value is not judged */
    uint32_t document, node;
};

struct job_reading {
    struct job *job;
    unsigned kinds;                  /* the bit of the job's kind; JOB_KINDS_ALL while that is not known */
    struct json_document *documents; /* [0] is the file's, [1 + i] that of override i's value */
    const char *const *overrides;
    uint32_t override_count;
    struct job_found found[JOB_KEYS_MAX]; /* by the table's index */
    struct problem_list problems;
};

/* Reads the file's text and every override, and notes where each key's value is. The kind comes first,
 * wherever it is said, for it decides what a key is. Reports what is not JSON and what is no key of this
 * kind; of a job without a kind, what is a key of none. Errors: STATUS_NO_MEMORY. */
enum status job_collect(struct job_reading *reading, const char *text, size_t length);

/* Judges every value found (without a kind, those of keys that all kinds have), stores the good ones into
 * *reading->job over the defaults, and checks the rules that bind several keys. `origin` gives the default
 * name. */
void job_check(struct job_reading *reading, const char *origin);

/* The rules that bind several keys of the job's kind; without a kind there are none. Also settles a default
 * that depends on another key. Called by job_check. */
void job_check_rules(struct job_reading *reading);

/* Adds a problem at `span` of a document, about `pointer`. In an override's line the pointer is left out
 * when the override itself names it. */
void job_complain(struct job_reading *reading, uint32_t document, struct json_span span, const char *pointer,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Whether somebody who wrote `word` may have meant `name`: one slip of the pen, or two in a longer word. */
bool job_is_near(const char *word, const char *name);

#endif
