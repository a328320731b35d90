/* A folder per test with a job file and a run directory, for tests that start the daemon; and suite_run,
 * which ends every test program's main. */
#ifndef TEST_WORKPLACE_H
#define TEST_WORKPLACE_H

#include <check.h>

extern struct workplace {
    char folder[64];
    char job_path[96], run_dir[96]; /* folder/job.json and folder/run; not made at first */
    char log[128], jsonl[128];      /* the run's two logs */
} workplace;

/* Set-up and tear-down of a checked fixture. */
void workplace_open(void);
void workplace_close(void);

void workplace_write_job(const char *text);

/* The part of a log that is equal in two runs of one seed: its lines without events, without `timing`, and
 * without the rates of episodes.log. malloc'ed. */
char *log_numbers(const char *path);

/* Runs the suite with the verbosity CK_VERBOSITY, frees it, and returns the exit code for main. */
int suite_run(Suite *suite);

#endif
