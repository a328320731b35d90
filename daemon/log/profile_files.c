/* Writes a profile's table and its trace. Pure; the supervisor's only thread. */
#include "daemon/log/profile_files.h"

#include "kernels/base/text.h"

#include <string.h>

/* ---- the table ---- */

/* The kinds that have a column, PROFILE_OTHER as the last. Returns how many. */
static int choose_columns(const struct profile_row *rows, unsigned count, int kinds[PROFILE_KINDS])
{
    int columns = 0;
    for (int kind = PROFILE_OTHER + 1; kind < PROFILE_KINDS; kind++) {
        bool is_used = false;
        for (unsigned i = 0; i < count; i++)
            is_used |= rows[i].figures != NULL && rows[i].figures->ns[kind] > 0;
        if (is_used)
            kinds[columns++] = kind;
    }
    kinds[columns++] = PROFILE_OTHER;
    return columns;
}

static void write_row(FILE *out, const struct profile_row *row, int width, const int *kinds, int columns)
{
    fprintf(out, "%-*s", width, row->name);
    if (row->figures == NULL) {
        fprintf(out, "%10s\n", "-");
        return;
    }
    const double whole_ns = (double)(row->figures->end_ns - row->figures->begin_ns);
    fprintf(out, "%10.2f  %6.1f", whole_ns * 1e-9,
            whole_ns > 0 ? 100 * (double)row->figures->cpu_ns / whole_ns : 0);
    uint64_t sum_ns = 0;
    for (int kind = 0; kind < PROFILE_KINDS; kind++)
        sum_ns += row->figures->ns[kind];
    for (int i = 0; i < columns; i++)
        fprintf(out, "  %*.1f", (int)strlen(profile_kind_name((enum profile_kind)kinds[i])),
                sum_ns > 0 ? 100 * (double)row->figures->ns[kinds[i]] / (double)sum_ns : 0);
    fputc('\n', out);
}

void profile_write_table(FILE *out, const struct profile_row *rows, unsigned count)
{
    int kinds[PROFILE_KINDS], width = (int)strlen("% of the time");
    const int columns = choose_columns(rows, count, kinds);
    for (unsigned i = 0; i < count; i++)
        if ((int)strlen(rows[i].name) > width)
            width = (int)strlen(rows[i].name);
    fprintf(out, "%-*s%10s  %6s", width, "% of the time", "seconds", "cpu");
    for (int i = 0; i < columns; i++)
        fprintf(out, "  %s", profile_kind_name((enum profile_kind)kinds[i]));
    fputc('\n', out);
    for (unsigned i = 0; i < count; i++)
        write_row(out, &rows[i], width, kinds, columns);
    for (unsigned i = 0; i < count; i++)
        if (rows[i].note[0] != '\0')
            fprintf(out, "%s: %s\n", rows[i].name, rows[i].note);
}

/* ---- the trace ---- */

/* Names the process, and has the processes shown in the order of the workers. */
static void write_process(FILE *out, const struct profile_row *row, unsigned pid)
{
    char piece[TEXT_ESCAPED_BYTES];
    fprintf(out, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,", pid > 1 ? ",\n" : "",
            pid, pid);
    fprintf(out, "\"args\":{\"name\":\"");
    for (const char *at = row->name; *at != '\0'; at++)
        fputs(text_escape(piece, *at), out);
    fprintf(out, "\"}},\n");
    fprintf(out, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,", pid, pid);
    fprintf(out, "\"args\":{\"sort_index\":%u}},\n", pid);
    fprintf(out, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,", pid, pid);
    fprintf(out, "\"args\":{\"name\":\"loop\"}}");
}

void profile_write_trace(FILE *out, const struct profile_row *rows, unsigned count, struct monotime origin)
{
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (unsigned i = 0; i < count; i++) {
        const struct profile_figures *figures = rows[i].figures;
        write_process(out, &rows[i], i + 1);
        for (uint32_t n = 0; figures != NULL && n < figures->kept; n++) {
            const struct profile_span *span = &figures->spans[n];
            const int64_t begin_ns = (int64_t)(span->begin_ns - origin.ns) + figures->ahead_ns;
            fprintf(out, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f}",
                    profile_kind_name((enum profile_kind)span->kind), i + 1, i + 1, (double)begin_ns * 1e-3,
                    (double)span->ns * 1e-3);
        }
    }
    fprintf(out, "\n]}\n");
}
