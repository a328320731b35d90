/* One reading of a job: job_collect.c gathers, job_check.c and job_check_rules.c judge, in this order. Only
 * job.c and these files include this header. */
#ifndef WORKER_JOB_JOB_READING_H
#define WORKER_JOB_JOB_READING_H

#include "worker/job/job_problems.h"
#include "worker/job/job_table.h"
#include "worker/job/json_document.h"

/* Where the value of one table row comes from. */
struct job_found {
    bool present; /* false: the default stands */
    bool element; /* of a key with an array of one: the node is the element, not the array */
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
 * wherever it stands, for it decides what a key is. Reports what is not JSON and what is no key of this
 * kind; of a job without a kind, what is a key of none. Errors: STATUS_NO_MEMORY. */
enum status job_collect(struct job_reading *reading, const char *text, size_t length);

/* Judges every value found (without a kind, those of keys that all kinds have), and stores the good ones into
 * *reading->job over the defaults. Then requires and judges what is not one value: required keys, the default
 * name out of `origin`, and the rules between keys. */
void job_check(struct job_reading *reading, const char *origin);

/* Makes defaults null where another key says so, and judges the rules between keys of the job's kind. A
 * rule is silent where the value of one of its keys is wrong. Called by job_check. */
void job_check_rules(struct job_reading *reading);

/* Adds a problem about `pointer` at `span` of a document. In an override's line the pointer is left out when
 * the override itself names it. */
void job_report(struct job_reading *reading, uint32_t document, struct json_span span, const char *pointer,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
