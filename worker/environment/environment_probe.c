/* Calls a plug-in under test: prepares guard bytes and patterns, makes the call, and checks what it wrote. */
#include "worker/environment/environment_probe.h"

#include "kernels/base/monotime.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_rows.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES_MIN = 256, GUARD_BYTES_MAX = 1 << 16, ERROR_GUARD_BYTES = 64 };

/* Outputs are filled with these before a call; the float is a NaN that nobody computes. */
enum { PATTERN_BYTE = 0xa5 };
static const uint32_t pattern_float = 0x7fa5a5a5;

static const char *const area_names[PROBE_AREAS] = {"observation", "action", "reward",
                                                    "flags",       "mask",   "metrics"};

/* Fails with a sentence that begins with the environment's name and the clause. */
__attribute__((format(printf, 3, 4))) static enum status
probe_broken(const struct environment_trial *trial, struct error *error, const char *format, ...)
{
    char words[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    return error_set(error, STATUS_CORRUPT, "%.64s: %s: %s", trial->name, trial->progress->clause, words);
}

/* ---- one call ---- */

/* What a plug-in may write of its error, with guard bytes behind. */
struct call_error {
    char text[ENVIRONMENT_ERROR_BYTES];
    uint8_t guard[ERROR_GUARD_BYTES];
};

__attribute__((format(printf, 3, 4))) static void call_begin(const struct environment_trial *trial,
                                                             struct call_error *text, const char *format, ...)
{
    struct plugin_call *progress = trial->progress;
    va_list list;
    progress->kind = PLUGIN_CALL_TEXT;
    va_start(list, format);
    vsnprintf(progress->call, sizeof progress->call, format, list);
    va_end(list);
    memset(text, PATTERN_BYTE, sizeof *text);
    atomic_store(&progress->begun_ns, monotime_now().ns);
}

/* Whether a plug-in's sentence is one: ended, not empty, and not our pattern. */
static bool has_sentence(const struct call_error *text)
{
    return memchr(text->text, '\0', sizeof text->text) != NULL && text->text[0] != '\0' &&
           (uint8_t)text->text[0] != PATTERN_BYTE;
}

/* The end of a call that must not write beyond its error. */
static enum status call_end(const struct environment_trial *trial, const struct call_error *text,
                            struct error *error)
{
    atomic_store(&trial->progress->begun_ns, 0);
    for (size_t i = 0; i < sizeof text->guard; i++)
        if (text->guard[i] != PATTERN_BYTE)
            return probe_broken(trial, error, "%s wrote beyond the %d bytes of its error",
                                trial->progress->call, ENVIRONMENT_ERROR_BYTES);
    return STATUS_OK;
}

/* The end of a call that must succeed. */
static enum status call_succeeds(const struct environment_trial *trial, const struct call_error *text,
                                 int failed, struct error *error)
{
    char shown[ENVIRONMENT_ERROR_BYTES];
    const char *call = trial->progress->call;
    const enum status status = call_end(trial, text, error);
    if (status != STATUS_OK || failed == 0)
        return status;
    if (!has_sentence(text))
        return probe_broken(trial, error, "%s returned %d without a sentence in error", call, failed);
    text_show(shown, sizeof shown, text->text, strlen(text->text), sizeof shown);
    return probe_broken(trial, error, "%s failed: %s", call, shown);
}

/* The end of a call that must fail. */
static enum status call_refuses(const struct environment_trial *trial, const struct call_error *text,
                                int failed, struct error *error)
{
    const enum status status = call_end(trial, text, error);
    if (status != STATUS_OK)
        return status;
    if (failed == 0)
        return probe_broken(trial, error, "%s succeeded: expected an error", trial->progress->call);
    if (!has_sentence(text))
        return probe_broken(trial, error, "%s returned %d without a sentence in error", trial->progress->call,
                            failed);
    return STATUS_OK;
}

/* ---- open ---- */

static enum status open_area(struct probe_buffer *area, size_t rows, size_t row_bytes, struct error *error)
{
    const size_t guard = row_bytes < GUARD_BYTES_MIN   ? GUARD_BYTES_MIN
                         : row_bytes < GUARD_BYTES_MAX ? (row_bytes + 63) / 64 * 64
                                                       : GUARD_BYTES_MAX;
    *area = (struct probe_buffer){.bytes = rows * row_bytes, .row_bytes = row_bytes, .guard_bytes = guard};
    const size_t all = (area->bytes + 2 * guard + 63) / 64 * 64;
    area->memory = aligned_alloc(64, all);
    area->before = malloc(all);
    if (area->memory == NULL || area->before == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu rows of %zu bytes", rows, row_bytes);
    memset(area->memory, PATTERN_BYTE, all);
    return STATUS_OK;
}

static void *area_rows(const struct probe_buffer *area)
{
    return area->row_bytes > 0 ? area->memory + area->guard_bytes : NULL;
}

static enum status open_buffers(struct probe *probe, struct error *error)
{
    const struct environment_spec *spec = probe->spec;
    const size_t rows = (size_t)probe->count * spec->agents;
    const size_t row_bytes[PROBE_AREAS] = {environment_space_bytes(&spec->observation),
                                           environment_space_bytes(&spec->action),
                                           sizeof(float),
                                           1,
                                           spec->has_mask ? environment_choices(spec) : 0,
                                           spec->metric_count * sizeof(float)};
    for (int i = 0; i < PROBE_AREAS; i++) {
        const enum status status = open_area(&probe->areas[i], rows, row_bytes[i], error);
        if (status != STATUS_OK)
            return status;
    }
    probe->buffers = (struct environment_buffers){
        area_rows(&probe->areas[PROBE_OBSERVATION]), area_rows(&probe->areas[PROBE_ACTION]),
        area_rows(&probe->areas[PROBE_REWARD]),      area_rows(&probe->areas[PROBE_FLAGS]),
        area_rows(&probe->areas[PROBE_MASK]),        area_rows(&probe->areas[PROBE_METRICS])};
    memset(area_rows(&probe->areas[PROBE_ACTION]), 0, probe->areas[PROBE_ACTION].bytes);
    probe->asked = calloc(probe->count, sizeof *probe->asked);
    probe->which = calloc(probe->count, sizeof *probe->which);
    probe->seeds = calloc(probe->count, sizeof *probe->seeds);
    if (probe->asked == NULL || probe->which == NULL || probe->seeds == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u environments", probe->count);
    return STATUS_OK;
}

enum status probe_open(struct probe *probe, const struct environment_trial *trial, uint32_t count,
                       struct error *error)
{
    struct call_error text;
    struct error why;
    const struct environment_spec *spec = NULL;
    void *self = NULL;
    *probe = (struct probe){.trial = trial, .count = count};
    call_begin(trial, &text, "open of %u environments", count);
    const int failed = trial->plugin->open(&self, &spec, trial->name, trial->options, count, text.text);
    enum status status = call_succeeds(trial, &text, failed, error);
    if (status != STATUS_OK)
        return status;
    if (spec == NULL)
        return probe_broken(trial, error, "open succeeded without a spec: *spec is NULL");
    probe->self = self;
    probe->spec = spec;
    if (environment_spec_check(spec, &why) != STATUS_OK)
        return probe_broken(trial, error, "%s", why.text);
    return open_buffers(probe, error);
}

void probe_close(struct probe *probe)
{
    struct call_error text;
    if (probe->spec != NULL) {
        call_begin(probe->trial, &text, "close");
        probe->trial->plugin->close(probe->self);
        atomic_store(&probe->trial->progress->begun_ns, 0);
    }
    for (int i = 0; i < PROBE_AREAS; i++) {
        free(probe->areas[i].memory);
        free(probe->areas[i].before);
    }
    free(probe->asked);
    free(probe->which);
    free(probe->seeds);
    *probe = (struct probe){0};
}

enum status probe_refuses(const struct environment_trial *trial, const char *name, const char *options,
                          const char *what, struct error *error)
{
    struct call_error text;
    const struct environment_spec *spec = NULL;
    void *self = NULL;
    call_begin(trial, &text, "open with %s", what);
    const int failed = trial->plugin->open(&self, &spec, name, options, 1, text.text);
    if (failed == 0)
        trial->plugin->close(self);
    return call_refuses(trial, &text, failed, error);
}

/* ---- what a call may touch ---- */

void *probe_row(const struct probe *probe, enum probe_area area, uint32_t environment, uint32_t agent)
{
    const struct probe_buffer *of = &probe->areas[area];
    return of->memory + of->guard_bytes + ((size_t)environment * probe->spec->agents + agent) * of->row_bytes;
}

static void fill_float(void *row, size_t bytes)
{
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        memcpy((uint8_t *)row + i, &pattern_float, 4);
}

/* Fills the rows of an environment with the pattern, in the areas of the set `outputs`. */
static void fill_rows(struct probe *probe, uint32_t environment, unsigned outputs)
{
    for (int i = 0; i < PROBE_AREAS; i++) {
        const size_t bytes = probe->areas[i].row_bytes * probe->spec->agents;
        if ((outputs & 1u << i) == 0 || bytes == 0)
            continue;
        const bool floats = i == PROBE_REWARD || i == PROBE_METRICS ||
                            (i == PROBE_OBSERVATION && probe->spec->observation.dtype == ENVIRONMENT_F32);
        void *rows = probe_row(probe, (enum probe_area)i, environment, 0);
        if (floats)
            fill_float(rows, bytes);
        else
            memset(rows, PATTERN_BYTE, bytes);
    }
}

/* Notes which environments a call is for, and the state of everything before it. */
static void note_before(struct probe *probe, uint32_t n, const uint32_t *which,
                        const struct environment_seed *seeds, unsigned outputs)
{
    memset(probe->asked, which == NULL, probe->count * sizeof *probe->asked);
    for (uint32_t i = 0; which != NULL && i < n; i++)
        probe->asked[which[i]] = true;
    for (uint32_t i = 0; i < probe->count; i++)
        if (probe->asked[i])
            fill_rows(probe, i, outputs);
    if (which != NULL)
        memcpy(probe->which, which, n * sizeof *which);
    if (seeds != NULL)
        memcpy(probe->seeds, seeds, n * sizeof *seeds);
    for (int i = 0; i < PROBE_AREAS; i++) {
        const struct probe_buffer *area = &probe->areas[i];
        memcpy(area->before, area->memory, area->bytes + 2 * area->guard_bytes);
    }
}

/* The guard bytes of an area, and all of its rows if the call must not write it. */
static enum status check_area(const struct probe *probe, enum probe_area which, bool output,
                              struct error *error)
{
    const struct probe_buffer *area = &probe->areas[which];
    const char *call = probe->trial->progress->call, *name = area_names[which];
    const size_t guard = area->guard_bytes;
    if (memcmp(area->memory, area->before, guard) != 0)
        return probe_broken(probe->trial, error, "%s wrote in front of the buffer `%s`", call, name);
    if (memcmp(area->memory + guard + area->bytes, area->before + guard + area->bytes, guard) != 0)
        return probe_broken(probe->trial, error, "%s wrote behind the buffer `%s`", call, name);
    if (!output && memcmp(area->memory + guard, area->before + guard, area->bytes) != 0)
        return probe_broken(probe->trial, error, "%s changed the buffer `%s`, which is not its output", call,
                            name);
    for (uint32_t i = 0; output && i < probe->count; i++) {
        const size_t bytes = area->row_bytes * probe->spec->agents, at = guard + i * bytes;
        if (!probe->asked[i] && memcmp(area->memory + at, area->before + at, bytes) != 0)
            return probe_broken(probe->trial, error,
                                "%s changed the %s of environment %u, which was not among its environments",
                                call, name, i);
    }
    return STATUS_OK;
}

static enum status check_untouched(const struct probe *probe, unsigned outputs, struct error *error)
{
    for (int i = 0; i < PROBE_AREAS; i++) {
        const enum status status = check_area(probe, (enum probe_area)i, (outputs & 1u << i) != 0, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status check_lists(const struct probe *probe, uint32_t n, const uint32_t *which,
                               const struct environment_seed *seeds, struct error *error)
{
    if (which != NULL && memcmp(which, probe->which, n * sizeof *which) != 0)
        return probe_broken(probe->trial, error, "%s changed the list `which`", probe->trial->progress->call);
    if (seeds != NULL && memcmp(seeds, probe->seeds, n * sizeof *seeds) != 0)
        return probe_broken(probe->trial, error, "%s changed the list `seeds`", probe->trial->progress->call);
    return STATUS_OK;
}

/* ---- reset, step, load ---- */

enum {
    RESET_OUTPUTS = 1 << PROBE_OBSERVATION | 1 << PROBE_MASK,
    STEP_OUTPUTS = RESET_OUTPUTS | 1 << PROBE_REWARD | 1 << PROBE_FLAGS | 1 << PROBE_METRICS
};

/* Whether the call wrote every float of a row. */
static enum status check_written(const struct probe *probe, enum probe_area area, uint32_t row,
                                 struct error *error)
{
    const struct probe_buffer *of = &probe->areas[area];
    const uint8_t *at = of->memory + of->guard_bytes + row * of->row_bytes;
    for (size_t i = 0; i < of->row_bytes / 4; i++)
        if (memcmp(at + 4 * i, &pattern_float, 4) == 0)
            return error_set(error, STATUS_CORRUPT, "did not write element %zu of the %s of environment %u",
                             i, area_names[area], row / probe->spec->agents);
    return STATUS_OK;
}

typedef enum status row_check(const struct probe *probe, const struct environment_rows *rows, uint32_t row,
                              struct error *error);

/* What reset, step and load write of a row. */
static enum status check_state(const struct probe *probe, const struct environment_rows *rows, uint32_t row,
                               struct error *error)
{
    enum status status = STATUS_OK;
    if (probe->spec->observation.dtype == ENVIRONMENT_F32)
        status = check_written(probe, PROBE_OBSERVATION, row, error);
    if (status == STATUS_OK)
        status = environment_row_check_state(rows, row, error);
    return status == STATUS_OK ? environment_row_check_bounds(rows, row, error) : status;
}

/* All of a row after a step. Nothing but the flags counts of an agent that is absent or has failed. */
static enum status check_stepped(const struct probe *probe, const struct environment_rows *rows, uint32_t row,
                                 struct error *error)
{
    const uint8_t flags = rows->buffers->flags[row];
    const bool ended = (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0;
    if ((flags & (ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED)) != 0)
        return STATUS_OK;
    enum status status = check_written(probe, PROBE_REWARD, row, error);
    if (status == STATUS_OK && ended)
        status = check_written(probe, PROBE_METRICS, row, error);
    if (status == STATUS_OK)
        status = environment_row_check_step(rows, row, error);
    return status == STATUS_OK ? check_state(probe, rows, row, error) : status;
}

static enum status check_flags(const struct probe *probe, const struct environment_rows *rows,
                               uint32_t environment, struct error *error)
{
    const uint32_t agents = probe->spec->agents;
    if (memchr(rows->buffers->flags + (size_t)environment * agents, PATTERN_BYTE, agents) != NULL)
        return error_set(error, STATUS_CORRUPT, "did not write the flags of environment %u", environment);
    return environment_rows_check_flags(rows, 1, &environment, error);
}

/* Checks the rows of the environments that the call was for. */
static enum status check_rows(const struct probe *probe, unsigned outputs, struct error *error)
{
    const struct environment_rows rows = environment_rows_of(probe->spec, &probe->buffers, 0);
    const bool stepped = (outputs & 1u << PROBE_FLAGS) != 0;
    row_check *check = stepped ? check_stepped : check_state;
    const uint32_t agents = probe->spec->agents;
    enum status status = STATUS_OK;
    struct error why;
    for (uint32_t i = 0; i < probe->count && status == STATUS_OK; i++) {
        if (!probe->asked[i])
            continue;
        if (stepped)
            status = check_flags(probe, &rows, i, &why);
        for (uint32_t row = i * agents; row < (i + 1) * agents && status == STATUS_OK; row++)
            status = check(probe, &rows, row, &why);
    }
    return status == STATUS_OK
               ? STATUS_OK
               : probe_broken(probe->trial, error, "%s: %s", probe->trial->progress->call, why.text);
}

/* All that follows a call. */
static enum status check_after(const struct probe *probe, const struct call_error *text, int failed,
                               unsigned outputs, struct error *error)
{
    enum status status = call_succeeds(probe->trial, text, failed, error);
    if (status == STATUS_OK)
        status = check_untouched(probe, outputs, error);
    return status == STATUS_OK ? check_rows(probe, outputs, error) : status;
}

enum status probe_reset(struct probe *probe, uint32_t n, const uint32_t *which,
                        const struct environment_seed *seeds, struct error *error)
{
    struct call_error text;
    note_before(probe, n, which, seeds, RESET_OUTPUTS);
    call_begin(probe->trial, &text, "reset of %u environments", n);
    const int failed = probe->trial->plugin->reset(probe->self, &probe->buffers, n, which, seeds, text.text);
    const enum status status = check_after(probe, &text, failed, RESET_OUTPUTS, error);
    return status == STATUS_OK ? check_lists(probe, n, which, seeds, error) : status;
}

enum status probe_step(struct probe *probe, uint32_t n, const uint32_t *which, struct error *error)
{
    struct call_error text;
    note_before(probe, n, which, NULL, STEP_OUTPUTS);
    call_begin(probe->trial, &text, "step of %u environments", n);
    const int failed = probe->trial->plugin->step(probe->self, &probe->buffers, n, which, text.text);
    const enum status status = check_after(probe, &text, failed, STEP_OUTPUTS, error);
    return status == STATUS_OK ? check_lists(probe, n, which, NULL, error) : status;
}

enum status probe_load(struct probe *probe, uint32_t which, const void *state, size_t size,
                       struct error *error)
{
    struct call_error text;
    note_before(probe, 1, &which, NULL, RESET_OUTPUTS);
    call_begin(probe->trial, &text, "load of environment %u", which);
    const int failed =
        probe->trial->plugin->load(probe->self, &probe->buffers, which, state, size, text.text);
    return check_after(probe, &text, failed, RESET_OUTPUTS, error);
}

enum status probe_refuses_state(struct probe *probe, uint32_t which, const void *state, size_t size,
                                struct error *error)
{
    struct call_error text;
    call_begin(probe->trial, &text, "load of %zu bytes that are no state", size);
    const int failed =
        probe->trial->plugin->load(probe->self, &probe->buffers, which, state, size, text.text);
    return call_refuses(probe->trial, &text, failed, error);
}

/* ---- save and render: a size, then bytes ---- */

struct sized_call {
    const char *name;
    int kind; /* of render; 0: save */
    uint32_t which;
    uint32_t width, height; /* render's */
};

static size_t sized_call_make(const struct probe *probe, struct sized_call *call, void *out, size_t capacity)
{
    const struct environment_plugin *plugin = probe->trial->plugin;
    struct call_error text;
    call_begin(probe->trial, &text, "%s of environment %u", call->name, call->which);
    const size_t bytes = call->kind == 0 ? plugin->save(probe->self, call->which, out, capacity)
                                         : plugin->render(probe->self, call->which, call->kind, &call->width,
                                                          &call->height, out, capacity);
    atomic_store(&probe->trial->progress->begun_ns, 0);
    return bytes;
}

/* Calls for the size, with too little room, and with enough. *out is malloc'ed, of *bytes; NULL of 0. */
static enum status sized_call_run(const struct probe *probe, struct sized_call *call, uint8_t **out,
                                  size_t *bytes, struct error *error)
{
    const struct environment_trial *trial = probe->trial;
    uint8_t few[ERROR_GUARD_BYTES];
    memset(few, PATTERN_BYTE, sizeof few);
    *out = NULL;
    *bytes = sized_call_make(probe, call, few, 0);
    if (*bytes > (size_t)1 << 30)
        return probe_broken(trial, error, "%s returned %zu bytes: expected at most 2^30",
                            trial->progress->call, *bytes);
    for (size_t i = 0; i < sizeof few; i++)
        if (few[i] != PATTERN_BYTE)
            return probe_broken(trial, error, "%s wrote where capacity was 0", trial->progress->call);
    if (*bytes == 0)
        return STATUS_OK;
    uint8_t *memory = malloc(*bytes + ERROR_GUARD_BYTES);
    if (memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu bytes", *bytes);
    memset(memory, PATTERN_BYTE, *bytes + ERROR_GUARD_BYTES);
    const size_t again = sized_call_make(probe, call, memory, *bytes);
    if (again == *bytes && memcmp(memory + *bytes, few, sizeof few) == 0) {
        *out = memory;
        return STATUS_OK;
    }
    free(memory);
    if (again != *bytes)
        return probe_broken(trial, error, "%s returned %zu bytes, and %zu with so much room",
                            trial->progress->call, *bytes, again);
    return probe_broken(trial, error, "%s wrote beyond its %zu bytes", trial->progress->call, *bytes);
}

enum status probe_save(struct probe *probe, uint32_t which, void **state, size_t *size, struct error *error)
{
    struct sized_call call = {.name = "save", .which = which};
    uint8_t *out;
    const enum status status = sized_call_run(probe, &call, &out, size, error);
    *state = out;
    if (status == STATUS_OK && *size == 0)
        return probe_broken(probe->trial, error,
                            "save of environment %u returned 0 bytes: without a state to save, "
                            "expected save = NULL",
                            which);
    return status;
}

static enum status check_picture(const struct probe *probe, const struct sized_call *call, size_t bytes,
                                 struct error *error)
{
    if (bytes == (uint64_t)call->width * call->height * 3)
        return STATUS_OK;
    return probe_broken(probe->trial, error,
                        "%s returned %zu bytes of a picture of %u x %u: expected %" PRIu64,
                        probe->trial->progress->call, bytes, call->width, call->height,
                        (uint64_t)call->width * call->height * 3);
}

static enum status check_text(const struct probe *probe, const uint8_t *text, size_t bytes,
                              struct error *error)
{
    for (size_t at = 0, size; text != NULL && at < bytes; at += size) {
        size = text_character((const char *)text + at, bytes - at);
        if (size == 0 || text[at] == '\0')
            return probe_broken(probe->trial, error, "%s: byte %zu of the text is not UTF-8",
                                probe->trial->progress->call, at);
    }
    return STATUS_OK;
}

enum status probe_render(struct probe *probe, uint32_t which, int kind, size_t *bytes, struct error *error)
{
    struct sized_call call = {.name = "render", .kind = kind, .which = which};
    uint8_t *out;
    enum status status = sized_call_run(probe, &call, &out, bytes, error);
    if (status == STATUS_OK && *bytes > 0)
        status = kind == ENVIRONMENT_TEXT ? check_text(probe, out, *bytes, error)
                                          : check_picture(probe, &call, *bytes, error);
    free(out);
    return status;
}

/* ---- without checks ---- */

enum status probe_bare_reset(struct probe *probe, uint32_t n, const uint32_t *which,
                             const struct environment_seed *seeds, struct error *error)
{
    struct call_error text;
    call_begin(probe->trial, &text, "reset of %u environments", n);
    const int failed = probe->trial->plugin->reset(probe->self, &probe->buffers, n, which, seeds, text.text);
    return call_succeeds(probe->trial, &text, failed, error);
}

/* Neither clears the error nor writes the number of environments: both take longer than a small step. */
enum status probe_bare_step(struct probe *probe, struct error *error)
{
    struct plugin_call *progress = probe->trial->progress;
    struct call_error text;
    text.text[0] = '\0';
    memset(text.guard, PATTERN_BYTE, sizeof text.guard);
    memcpy(progress->call, "step", sizeof "step");
    atomic_store(&progress->begun_ns, monotime_now().ns);
    const int failed =
        probe->trial->plugin->step(probe->self, &probe->buffers, probe->count, NULL, text.text);
    return call_succeeds(probe->trial, &text, failed, error);
}
