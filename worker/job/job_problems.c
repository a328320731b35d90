/* The list of what is wrong with a job; see the header. Runs in whatever process reads a job. */
#include "worker/job/job_problems.h"

#include "kernels/base/text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ORIGIN_CHARACTERS = 300, OVERRIDE_CHARACTERS = 80, CHARACTER_BYTES = 10 };

struct problem {
    struct problem_place place;
    char text[PROBLEM_TEXT_BYTES];
};

static bool place_before(struct problem_place a, struct problem_place b)
{
    if (a.source != b.source)
        return a.source < b.source;
    return a.line != b.line ? a.line < b.line : a.column < b.column;
}

void problem_list_add(struct problem_list *list, struct problem_place place, const char *format, ...)
{
    list->total++;
    if (list->problems == NULL)
        list->problems = malloc(PROBLEMS_MAX * sizeof *list->problems);
    if (list->problems == NULL) {
        list->out_of_memory = true;
        return;
    }
    /* Found in the same place, the one found first comes first. */
    uint32_t at = list->kept;
    while (at > 0 && place_before(place, list->problems[at - 1].place))
        at--;
    if (at == PROBLEMS_MAX)
        return;
    uint32_t behind = (list->kept < PROBLEMS_MAX ? list->kept : PROBLEMS_MAX - 1) - at;
    memmove(&list->problems[at + 1], &list->problems[at], behind * sizeof *list->problems);
    list->kept = at + 1 + behind;
    list->problems[at].place = place;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(list->problems[at].text, PROBLEM_TEXT_BYTES, format, arguments);
    va_end(arguments);
}

static void write_one(FILE *stream, const struct problem *problem, const char *origin,
                      const char *const *overrides)
{
    if (problem->place.source > 0) {
        char shown[OVERRIDE_CHARACTERS * CHARACTER_BYTES + 8];
        const char *override = overrides[problem->place.source - 1];
        text_show(shown, sizeof shown, override, strlen(override), OVERRIDE_CHARACTERS);
        fprintf(stream, "--set %s: %s\n", shown, problem->text);
    } else if (problem->place.line > 0) {
        fprintf(stream, "%s:%u:%u: %s\n", origin, problem->place.line, problem->place.column, problem->text);
    } else {
        fprintf(stream, "%s: %s\n", origin, problem->text);
    }
}

enum status problem_list_write(const struct problem_list *list, const char *origin,
                               const char *const *overrides, struct job_problems *problems)
{
    *problems = (struct job_problems){0};
    if (list->out_of_memory)
        return STATUS_NO_MEMORY;
    if (list->total == 0)
        return STATUS_OK;
    char shown[ORIGIN_CHARACTERS * CHARACTER_BYTES + 8];
    text_show(shown, sizeof shown, origin, strlen(origin), ORIGIN_CHARACTERS);
    FILE *stream = open_memstream(&problems->text, &problems->bytes);
    if (stream == NULL)
        return STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < list->kept; i++)
        write_one(stream, &list->problems[i], shown, overrides);
    if (list->total > list->kept)
        fprintf(stream, "%s: and %u problems more\n", shown, list->total - list->kept);
    problems->count = list->kept + (list->total > list->kept);
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed) {
        job_problems_fini(problems);
        return STATUS_NO_MEMORY;
    }
    return STATUS_OK;
}

void job_problems_fini(struct job_problems *problems)
{
    free(problems->text);
    *problems = (struct job_problems){0};
}

void problem_list_fini(struct problem_list *list)
{
    free(list->problems);
    *list = (struct problem_list){0};
}
