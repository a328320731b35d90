/* A folder of a test's own with a job file and a run directory, for tests that start the daemon; and what
 * every test program's main does at its end. */
#ifndef TEST_WORKPLACE_H
#define TEST_WORKPLACE_H

#include <check.h>

extern struct workplace {
    char folder[64];
    char job_path[96], run_dir[96]; /* job.json and run, in the folder; nothing is there at first */
    char log[128], jsonl[128];      /* the run's two logs */
} workplace;

/* A checked fixture's two halves. */
void workplace_open(void);
void workplace_close(void);

void workplace_write_job(const char *text);

/* What must not differ between two runs of one seed: a log's lines without its events, `timing` cut off, and
 * without what episodes.log says of speed. malloc'ed. */
char *log_numbers(const char *path);

/* Runs the suite as CK_VERBOSITY says and frees it; the exit code for main. */
int suite_run(Suite *suite);

#endif
