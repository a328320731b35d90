/* The JSON that a page receives for a run, in addition to the status.
 *
 *     "records":[[STEPS, LINE], …], "events":[[NUMBER, LINE], …]     daemon/log/run_history.h
 *     "checkpoints":[[NUMBER, UNIX_S], …]                            those that are there, oldest first
 *     "job":{…}                                                      job.json, or null
 *
 * Blocks on the run's folder alone. The caller's thread. */
#ifndef DAEMON_WATCH_RUN_DOCUMENT_H
#define DAEMON_WATCH_RUN_DOCUMENT_H

#include "daemon/log/run_history.h"

/* Writes the members above as they stand within an object, on one line. `whole`: with the job and all lines;
 * else without the job, and as run_history_write. `job`: its text, or NULL. */
void run_document_write(struct run_history *history, struct path run, const char *job, size_t job_bytes,
                        bool whole, FILE *out);

#endif
