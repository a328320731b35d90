/* Writes the two files of a run that was profiled (/log/profile): profile.txt, a table for people, and
 * profile.json, a trace for Perfetto. Pure: writes to a FILE. The supervisor's only thread. */
#ifndef DAEMON_LOG_PROFILE_FILES_H
#define DAEMON_LOG_PROFILE_FILES_H

#include "kernels/base/profile.h"

#include <stdio.h>

/* What a worker has reported of itself: struct control_profile's members, and all its spans. */
struct profile_figures {
    uint64_t begin_ns, end_ns, cpu_ns;
    uint64_t ns[PROFILE_KINDS];
    uint64_t span_count; /* all that were long enough */
    uint32_t kept;
    struct profile_span spans[PROFILE_SPANS_MAX]; /* (kept) */
    int64_t ahead_ns; /* of this process's clock before the worker's: of another host, else 0 */
};

struct profile_row {
    char name[96];  /* "observer 3" */
    char note[320]; /* a line below the table: what the figures leave out; "": nothing */
    const struct profile_figures *figures; /* NULL: there are none */
};

/* A row for each worker: its seconds, and in per cent of them the processor time of its process (above 100
 * with several threads), and the share of each kind of work of its first thread. Kinds that no worker has
 * spent time on have no column. The notes follow. */
void profile_write_table(FILE *out, const struct profile_row *rows, unsigned count);

/* One JSON object in the trace event format: a process for each row, numbered from 1, and a complete event
 * ("ph": "X") for each span, in microseconds since `origin`. */
void profile_write_trace(FILE *out, const struct profile_row *rows, unsigned count, struct monotime origin);

#endif
