/* The list in which everything that is wrong with a job is put in the order of its text.
 *
 * Problems are found in the order that suits the checks (first the scanner's, then the keys', table line by
 * table line) and told in the order in which a person goes through the file, then the overrides. The list
 * keeps the first PROBLEMS_MAX of that order, so that a hostile file costs no more memory than a short one.
 */
#ifndef WORKER_JOB_JOB_PROBLEMS_H
#define WORKER_JOB_JOB_PROBLEMS_H

#include "worker/job/job.h"

enum { PROBLEMS_MAX = 100, PROBLEM_TEXT_BYTES = 1100 };

/* Where a problem is. Source 0 is the file; source n is override n - 1, whose places are not told. */
struct problem_place {
    uint32_t source, line, column;
};

struct problem_list {
    struct problem *problems; /* malloc'ed at the first one */
    uint32_t kept, total;
    bool out_of_memory;
};

/* Adds one problem. The sentence must be fit to show (kernels/base/text.h); it is copied. */
void problem_list_add(struct problem_list *list, struct problem_place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes the list as *problems (see job.h), one line each, with `origin` and the override at fault before
 * each; both are made fit to show here. Errors: STATUS_NO_MEMORY, problems->text is then NULL. */
enum status problem_list_write(const struct problem_list *list, const char *origin,
                               const char *const *overrides, struct job_problems *problems);

void problem_list_fini(struct problem_list *list);

#endif
