/* How far the logs of a run that is to be resumed can be trusted: to their first wrong line.
 *
 * Supervisor process, before it opens the logs; blocks on the disk. Included by commands.c. */
#ifndef DAEMON_RUNLOG_COVERAGE_H
#define DAEMON_RUNLOG_COVERAGE_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <stdint.h>

/* Reads episodes.jsonl and episodes.log in the directory `dir_fd` (named `path` in messages) of a run whose
 * data has `epoch_updates` updates to an epoch (0: none). *covered: the last episode or update after which no
 * line is missing; UINT64_MAX: there are no lines, because the logs were moved away.
 *
 * A line that does not follow the line before it (daemon/runlog_sequence.h), that is no line of a log, or
 * that episodes.log has beyond episodes.jsonl, is named in a warning: file, line, what was found, what was
 * expected. It is moved to the end of the file NAME.cut with all lines behind it, and the run goes on from a
 * checkpoint that is not later than *covered. STATUS_IO and STATUS_PERMISSION name the file. */
enum status runlog_covered(int dir_fd, const char *path, const struct job *job, uint64_t epoch_updates,
                           uint64_t *covered, struct error *error);

#endif
