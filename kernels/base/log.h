/* The daemon's own messages, on standard error: one line, one write(2).
 *
 * A line reads `coalesced[agent 0]: text`. With JOURNAL_STREAM set (systemd), each line begins with its `<N>`
 * priority. Control characters become '?'. A line over 1,000 bytes is cut.
 *
 * Where JOURNAL_STREAM names standard error, a message goes to systemd's journal instead, in one datagram
 * with fields: MESSAGE ("agent 0: text"), PRIORITY, SYSLOG_IDENTIFIER, COALESCED_RUN and COALESCED_WORKER
 * ("agent 0"; the supervisor has none). Sending does not wait; a message that the journal does not take goes
 * to standard error.
 *
 * Safe from any thread after log_name and log_run. The episode log is daemon/log/runlog.h. */
#ifndef KERNELS_BASE_LOG_H
#define KERNELS_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6 };

/* Names this process in its messages ("agent 0"; "" for the supervisor). A worker's run is its supervisor's.
 * Call before other threads. */
void log_name(const char *name);

/* Names the run in the messages of this process, and of workers that start later (by the environment variable
 * COALESCED_RUN): the last component of the run directory's path. Call before other threads. */
void log_run(const char *path);

/* Sends a line that was meant for standard output, newline included, to the journal, with the same fields.
 * False: standard output is not the journal's, or the journal does not take the line: the caller writes it.
 */
bool log_output(const char *line, size_t bytes);

/* From now on `take` also gets each message of this process, without a name or a newline. NULL: none does.
 * `take` is called by the thread that sends the message, and sends none itself. */
void log_listen(void (*take)(void *arg, enum log_level level, const char *text), void *arg);

/* For tests: the journal's socket lies at `path`, which must stay. */
void log_journal_at(const char *path);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)

#endif
