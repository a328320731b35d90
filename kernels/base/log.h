/* The daemon's own messages, on standard error: one line, one write(2).
 *
 * A line reads `coalesced[agent 0]: text`. With JOURNAL_STREAM set (systemd), each line begins with its `<N>`
 * priority. Control characters become '?'. A line over 1,000 bytes is cut. Safe from any thread after
 * log_name. The episode log is daemon/runlog.h. */
#ifndef KERNELS_BASE_LOG_H
#define KERNELS_BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6 };

/* Names this process in its lines ("agent 0"; "" for the supervisor). Call once, before other threads. */
void log_name(const char *name);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)

#endif
