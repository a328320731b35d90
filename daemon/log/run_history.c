/* Keeps a curve that is thinned as it grows, and a ring of marks. Supervisor process; its only thread. */
#include "daemon/log/run_history.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

static void thin(struct run_history *history)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < history->point_count; i += 2)
        history->points[kept++] = history->points[i];
    history->point_count = kept;
    history->stride *= 2;
}

void run_history_add(struct run_history *history, const struct control_message *record)
{
    const bool is_episode = record->kind == CONTROL_EPISODE;
    if (!is_episode && record->kind != CONTROL_UPDATE)
        return;
    const struct history_point point = {(double)control_record_number(record),
                                        is_episode ? record->body.episode.running_reward
                                                   : record->body.update.loss};
    history->newest = point;
    if (history->stride == 0)
        history->stride = 1;
    if (history->told >= point.number)
        history->told = point.number - 1;
    while (history->point_count > 0 && history->points[history->point_count - 1].number >= point.number)
        history->point_count--;
    if (history->records++ % history->stride != 0)
        return;
    if (history->point_count == HISTORY_POINTS)
        thin(history);
    history->points[history->point_count++] = point;
}

void run_history_mark(struct run_history *history, const char *text)
{
    const uint64_t i = history->mark_count++ % HISTORY_MARKS;
    history->marks[i].number = history->newest.number;
    snprintf(history->marks[i].text, sizeof history->marks[i].text, "%s", text);
}

/* JSON has no infinity, and no number that is none. */
static void write_pair(FILE *out, const char *before, const struct history_point *point)
{
    if (isfinite(point->value))
        fprintf(out, "%s[%.17g,%.9g]", before, point->number, point->value);
    else
        fprintf(out, "%s[%.17g,null]", before, point->number);
}

void run_history_write_points(const struct run_history *history, bool is_first, FILE *out)
{
    const uint32_t count = history->point_count;
    uint32_t first = count;
    while (first > 0 && (is_first || history->points[first - 1].number > history->told))
        first--;
    fputc('[', out);
    for (uint32_t i = first; i < count; i++)
        write_pair(out, i > first ? "," : "", &history->points[i]);
    if (history->records > 0 && (count == 0 || history->points[count - 1].number != history->newest.number))
        write_pair(out, count > first ? "," : "", &history->newest);
    fputc(']', out);
}

void run_history_write_string(FILE *out, const char *text)
{
    cJSON *string = cJSON_CreateStringReference(text);
    char *quoted = cJSON_PrintUnformatted(string);
    cJSON_Delete(string);
    fputs(quoted != NULL ? quoted : "\"\"", out);
    cJSON_free(quoted);
}

void run_history_write_marks(const struct run_history *history, FILE *out)
{
    const uint64_t count = history->mark_count, first = count > HISTORY_MARKS ? count - HISTORY_MARKS : 0;
    fputc('[', out);
    for (uint64_t i = first; i < count; i++) {
        fprintf(out, "%s[%.17g,", i > first ? "," : "", history->marks[i % HISTORY_MARKS].number);
        run_history_write_string(out, history->marks[i % HISTORY_MARKS].text);
        fputc(']', out);
    }
    fputc(']', out);
}
