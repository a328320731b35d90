/* Lists the problems of a job. The checks find them in any order. The list has them in the file's order, then
 * those of the overrides. It keeps the first PROBLEMS_MAX, so that a hostile file costs no more memory than a
 * short one. The caller's thread. */
#include "kernels/base/text.h"
#include "worker/job/job_reading.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ORIGIN_CHARACTERS = 300, OVERRIDE_CHARACTERS = 80, CHARACTER_BYTES = 10 };

struct problem_place job_found_place(const struct job_reading *reading, const struct job_found *found)
{
    const struct json_document *document = &reading->documents[found->source];
    return (struct problem_place){
        found->source, json_place_of(document, found->item != NULL ? found->item : document->root)->value};
}

bool problem_place_before(struct problem_place a, struct problem_place b)
{
    return a.source != b.source ? a.source < b.source : a.offset < b.offset;
}

/* Makes room for a problem at `place`, behind earlier ones at the same place. NULL: PROBLEMS_MAX problems
 * stand before it. */
static struct job_problem *problem_insert(struct job_reading *reading, struct problem_place place)
{
    struct job_problem *problems = reading->problems;
    const uint32_t kept = reading->problem_count < PROBLEMS_MAX ? reading->problem_count : PROBLEMS_MAX;
    uint32_t at = kept;
    reading->problem_count++;
    while (at > 0 && problem_place_before(place, problems[at - 1].place))
        at--;
    if (at == PROBLEMS_MAX)
        return NULL;
    const uint32_t behind = (kept < PROBLEMS_MAX ? kept : PROBLEMS_MAX - 1) - at;
    memmove(&problems[at + 1], &problems[at], behind * sizeof *problems);
    problems[at].place = place;
    return &problems[at];
}

void job_report(struct job_reading *reading, struct problem_place place, const char *pointer,
                const char *format, ...)
{
    struct job_problem *problem = problem_insert(reading, place);
    const size_t length = strlen(pointer);
    bool named = length > 0;
    if (problem == NULL)
        return;
    if (place.source > 0) {
        const char *override = reading->overrides[place.source - 1];
        named = named && !(strncmp(override, pointer, length) == 0 && override[length] == '=');
    }
    const int begin =
        snprintf(problem->text, PROBLEM_TEXT_BYTES, "%s%s", named ? pointer : "", named ? ": " : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->text + begin, PROBLEM_TEXT_BYTES - (size_t)begin, format, arguments);
    va_end(arguments);
}

static void write_problem(FILE *stream, const struct job_reading *reading, const char *origin,
                          const struct job_problem *problem)
{
    const struct problem_place place = problem->place;
    if (place.source > 0) {
        char shown[OVERRIDE_CHARACTERS * CHARACTER_BYTES + 8];
        const char *override = reading->overrides[place.source - 1];
        text_show(shown, sizeof shown, override, strlen(override), OVERRIDE_CHARACTERS);
        fprintf(stream, "--set %s: %s\n", shown, problem->text);
    } else if (reading->documents[0].text != NULL) {
        const struct json_position at = json_position(reading->documents[0].text, place.offset);
        fprintf(stream, "%s:%u:%u: %s\n", origin, at.line, at.column, problem->text);
    } else {
        fprintf(stream, "%s: %s\n", origin, problem->text);
    }
}

enum status job_problems_write(const struct job_reading *reading, char **text)
{
    char origin[ORIGIN_CHARACTERS * CHARACTER_BYTES + 8];
    size_t bytes;
    *text = NULL;
    if (reading->problem_count == 0)
        return STATUS_OK;
    FILE *stream = open_memstream(text, &bytes);
    if (stream == NULL)
        return STATUS_NO_MEMORY;
    text_show(origin, sizeof origin, reading->origin, strlen(reading->origin), ORIGIN_CHARACTERS);
    for (uint32_t i = 0; i < reading->problem_count && i < PROBLEMS_MAX; i++)
        write_problem(stream, reading, origin, &reading->problems[i]);
    if (reading->problem_count > PROBLEMS_MAX)
        fprintf(stream, "%s: and %u problems more\n", origin, reading->problem_count - PROBLEMS_MAX);
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) == 0 && !failed)
        return STATUS_OK;
    free(*text);
    *text = NULL;
    return STATUS_NO_MEMORY;
}
