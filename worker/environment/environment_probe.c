/* Guard bytes, patterns, and the look at every row. */
#include "worker/environment/environment_probe.h"

#include "kernels/base/monotime.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN = 0xa5, GUARD_BYTES_MIN = 256, GUARD_BYTES_MAX = 1 << 16, ERROR_GUARD_BYTES = 64 };
static const uint32_t pattern_float = 0x7fa5a5a5; /* a NaN that nobody computes */

static const char *const area_names[PROBE_AREAS] = {"observation", "action", "reward",
                                                    "flags",       "mask",   "metrics"};

/* The sentence's first words are the environment's name and the clause. */
__attribute__((format(printf, 3, 4))) static enum status broken(const struct environment_trial *trial,
                                                                struct error *error, const char *format, ...)
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
    struct environment_progress *progress = trial->progress;
    va_list list;
    va_start(list, format);
    vsnprintf(progress->call, sizeof progress->call, format, list);
    va_end(list);
    memset(text, PATTERN, sizeof *text);
    atomic_store(&progress->begun_ns, monotime_now().ns);
}

/* Whether a plug-in's sentence is one: ended, not empty, and not our pattern. */
static bool has_sentence(const struct call_error *text)
{
    return memchr(text->text, '\0', sizeof text->text) != NULL && text->text[0] != '\0' &&
           (uint8_t)text->text[0] != PATTERN;
}

/* The end of a call that must not write beyond its error. */
static enum status call_end(const struct environment_trial *trial, const struct call_error *text,
                            struct error *error)
{
    atomic_store(&trial->progress->begun_ns, 0);
    for (size_t i = 0; i < sizeof text->guard; i++)
        if (text->guard[i] != PATTERN)
            return broken(trial, error, "%s wrote beyond the %d bytes of its error", trial->progress->call,
                          ENVIRONMENT_ERROR_BYTES);
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
        return broken(trial, error, "%s returned %d without a sentence in error", call, failed);
    text_show(shown, sizeof shown, text->text, strlen(text->text), sizeof shown);
    return broken(trial, error, "%s failed: %s", call, shown);
}

/* The end of a call that must fail. */
static enum status call_refuses(const struct environment_trial *trial, const struct call_error *text,
                                int failed, struct error *error)
{
    const enum status status = call_end(trial, text, error);
    if (status != STATUS_OK)
        return status;
    if (failed == 0)
        return broken(trial, error, "%s succeeded: expected an error", trial->progress->call);
    if (!has_sentence(text))
        return broken(trial, error, "%s returned %d without a sentence in error", trial->progress->call,
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
    memset(area->memory, PATTERN, all);
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
        return broken(trial, error, "open succeeded without a spec: *spec is NULL");
    probe->self = self;
    probe->spec = spec;
    if (environment_spec_check(spec, &why) != STATUS_OK)
        return broken(trial, error, "%s", why.text);
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
            memset(rows, PATTERN, bytes);
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
        return broken(probe->trial, error, "%s wrote in front of the buffer `%s`", call, name);
    if (memcmp(area->memory + guard + area->bytes, area->before + guard + area->bytes, guard) != 0)
        return broken(probe->trial, error, "%s wrote behind the buffer `%s`", call, name);
    if (!output && memcmp(area->memory + guard, area->before + guard, area->bytes) != 0)
        return broken(probe->trial, error, "%s changed the buffer `%s`, which is not its output", call, name);
    for (uint32_t i = 0; output && i < probe->count; i++) {
        const size_t bytes = area->row_bytes * probe->spec->agents, at = guard + i * bytes;
        if (!probe->asked[i] && memcmp(area->memory + at, area->before + at, bytes) != 0)
            return broken(probe->trial, error,
                          "%s changed the %s of environment %u, which was not among its environments", call,
                          name, i);
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
        return broken(probe->trial, error, "%s changed the list `which`", probe->trial->progress->call);
    if (seeds != NULL && memcmp(seeds, probe->seeds, n * sizeof *seeds) != 0)
        return broken(probe->trial, error, "%s changed the list `seeds`", probe->trial->progress->call);
    return STATUS_OK;
}

/* ---- the rows that a call wrote ---- */

/* A row's place in words: "environment 3", or "environment 3, agent 1". */
struct row_name {
    char text[64];
};

static struct row_name name_of(const struct probe *probe, uint32_t environment, uint32_t agent)
{
    struct row_name name;
    const int length = snprintf(name.text, sizeof name.text, "environment %u", environment);
    if (probe->spec->agents > 1)
        snprintf(name.text + length, sizeof name.text - (size_t)length, ", agent %u", agent);
    return name;
}

/* `count` finite numbers at `row`, of an area. */
static enum status check_floats(const struct probe *probe, enum probe_area area, const void *row,
                                size_t count, struct row_name name, struct error *error)
{
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const uint8_t *)row + 4 * i, 4);
        if (isfinite(value))
            continue;
        if (memcmp(&value, &pattern_float, 4) == 0)
            return broken(probe->trial, error, "%s did not write element %zu of the %s of %s",
                          probe->trial->progress->call, i, area_names[area], name.text);
        return broken(probe->trial, error, "%s: element %zu of the %s of %s is %g: expected a finite number",
                      probe->trial->progress->call, i, area_names[area], name.text, (double)value);
    }
    return STATUS_OK;
}

static double element_of(const struct environment_space *space, const uint8_t *row, size_t i)
{
    float value;
    if (space->dtype == ENVIRONMENT_U8)
        return row[i];
    memcpy(&value, row + 4 * i, 4);
    return (double)value;
}

/* The bounds as they are in float32: a plug-in rounds what it writes. */
static enum status check_bounds(const struct probe *probe, const uint8_t *row, struct row_name name,
                                struct error *error)
{
    const struct environment_space *space = &probe->spec->observation;
    const size_t elements = environment_space_elements(space);
    for (size_t i = 0; (space->low != NULL || space->high != NULL) && i < elements; i++) {
        const double value = element_of(space, row, i);
        const double low = space->low != NULL ? (double)(float)space->low[i] : -INFINITY;
        const double high = space->high != NULL ? (double)(float)space->high[i] : INFINITY;
        if (value < low || value > high)
            return broken(probe->trial, error,
                          "%s: element %zu of the observation of %s is %.9g: expected %.9g..%.9g",
                          probe->trial->progress->call, i, name.text, value, low, high);
    }
    return STATUS_OK;
}

static enum status check_observation(const struct probe *probe, uint32_t environment, uint32_t agent,
                                     struct error *error)
{
    const uint8_t *row = probe_row(probe, PROBE_OBSERVATION, environment, agent);
    const struct environment_space *space = &probe->spec->observation;
    const struct row_name name = name_of(probe, environment, agent);
    enum status status = STATUS_OK;
    if (space->dtype == ENVIRONMENT_F32)
        status = check_floats(probe, PROBE_OBSERVATION, row, environment_space_elements(space), name, error);
    return status == STATUS_OK ? check_bounds(probe, row, name, error) : status;
}

static enum status check_mask(const struct probe *probe, uint32_t environment, uint32_t agent,
                              struct error *error)
{
    const uint8_t *mask = probe_row(probe, PROBE_MASK, environment, agent);
    const struct environment_space *action = &probe->spec->action;
    const struct row_name name = name_of(probe, environment, agent);
    const size_t elements = environment_space_elements(action);
    for (size_t element = 0; element < elements; mask += action->choices[element++]) {
        unsigned allowed = 0;
        for (uint32_t choice = 0; choice < action->choices[element]; choice++) {
            if (mask[choice] > 1)
                return broken(probe->trial, error,
                              "%s: the mask of %s is %u at choice %u of element %zu: expected 0 or 1",
                              probe->trial->progress->call, name.text, mask[choice], choice, element);
            allowed += mask[choice];
        }
        if (allowed == 0)
            return broken(probe->trial, error, "%s: the mask of %s allows no choice of element %zu",
                          probe->trial->progress->call, name.text, element);
    }
    return STATUS_OK;
}

static enum status check_flags(const struct probe *probe, uint8_t flags, struct row_name name,
                               struct error *error)
{
    const unsigned ended = flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED);
    const char *call = probe->trial->progress->call;
    if (flags == PATTERN)
        return broken(probe->trial, error, "%s did not write the flags of %s", call, name.text);
    if ((flags & ~(unsigned)ENVIRONMENT_STEP_FLAGS) != 0)
        return broken(probe->trial, error, "%s: the flags of %s are %#x, which has bits without a meaning",
                      call, name.text, flags);
    if ((flags & ENVIRONMENT_RESTARTED) != 0 && ended == 0)
        return broken(probe->trial, error,
                      "%s: the flags of %s say RESTARTED, and neither TERMINATED nor TRUNCATED", call,
                      name.text);
    if ((flags & ENVIRONMENT_ABSENT) != 0 && ended != 0)
        return broken(probe->trial, error, "%s: the flags of %s say ABSENT, and an end", call, name.text);
    return STATUS_OK;
}

/* Observation and mask: what reset, step and load write. */
static enum status check_state(const struct probe *probe, uint32_t environment, uint32_t agent,
                               struct error *error)
{
    const enum status status = check_observation(probe, environment, agent, error);
    return status == STATUS_OK && probe->spec->has_mask ? check_mask(probe, environment, agent, error)
                                                        : status;
}

static enum status check_stepped_row(const struct probe *probe, uint32_t environment, uint32_t agent,
                                     struct error *error)
{
    const struct row_name name = name_of(probe, environment, agent);
    const uint8_t flags = *(const uint8_t *)probe_row(probe, PROBE_FLAGS, environment, agent);
    enum status status = check_flags(probe, flags, name, error);
    if (status != STATUS_OK || (flags & (ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED)) != 0)
        return status;
    status =
        check_floats(probe, PROBE_REWARD, probe_row(probe, PROBE_REWARD, environment, agent), 1, name, error);
    if (status == STATUS_OK)
        status = check_state(probe, environment, agent, error);
    const bool ended = (flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0;
    if (status == STATUS_OK && ended && probe->spec->metric_count > 0)
        status = check_floats(probe, PROBE_METRICS, probe_row(probe, PROBE_METRICS, environment, agent),
                              probe->spec->metric_count, name, error);
    return status;
}

static enum status check_present(const struct probe *probe, uint32_t environment, struct error *error)
{
    const uint8_t *flags = probe_row(probe, PROBE_FLAGS, environment, 0);
    for (uint32_t agent = 0; agent < probe->spec->agents; agent++)
        if ((flags[agent] & ENVIRONMENT_ABSENT) == 0)
            return STATUS_OK;
    return broken(probe->trial, error,
                  "%s: no agent of environment %u is present: expected an end in the step before",
                  probe->trial->progress->call, environment);
}

/* ---- reset, step, load ---- */

enum {
    RESET_OUTPUTS = 1 << PROBE_OBSERVATION | 1 << PROBE_MASK,
    STEP_OUTPUTS = RESET_OUTPUTS | 1 << PROBE_REWARD | 1 << PROBE_FLAGS | 1 << PROBE_METRICS
};

typedef enum status row_check(const struct probe *probe, uint32_t environment, uint32_t agent,
                              struct error *error);

static enum status check_rows(const struct probe *probe, row_check *check, struct error *error)
{
    for (uint32_t i = 0; i < probe->count; i++)
        for (uint32_t agent = 0; probe->asked[i] && agent < probe->spec->agents; agent++) {
            const enum status status = check(probe, i, agent, error);
            if (status != STATUS_OK)
                return status;
        }
    return STATUS_OK;
}

/* All that follows a call. */
static enum status check_after(const struct probe *probe, const struct call_error *text, int failed,
                               unsigned outputs, row_check *check, struct error *error)
{
    enum status status = call_succeeds(probe->trial, text, failed, error);
    if (status == STATUS_OK)
        status = check_untouched(probe, outputs, error);
    return status == STATUS_OK ? check_rows(probe, check, error) : status;
}

enum status probe_reset(struct probe *probe, uint32_t n, const uint32_t *which,
                        const struct environment_seed *seeds, struct error *error)
{
    struct call_error text;
    note_before(probe, n, which, seeds, RESET_OUTPUTS);
    call_begin(probe->trial, &text, "reset of %u environments", n);
    const int failed = probe->trial->plugin->reset(probe->self, &probe->buffers, n, which, seeds, text.text);
    const enum status status = check_after(probe, &text, failed, RESET_OUTPUTS, check_state, error);
    return status == STATUS_OK ? check_lists(probe, n, which, seeds, error) : status;
}

enum status probe_step(struct probe *probe, uint32_t n, const uint32_t *which, struct error *error)
{
    struct call_error text;
    note_before(probe, n, which, NULL, STEP_OUTPUTS);
    call_begin(probe->trial, &text, "step of %u environments", n);
    const int failed = probe->trial->plugin->step(probe->self, &probe->buffers, n, which, text.text);
    enum status status = check_after(probe, &text, failed, STEP_OUTPUTS, check_stepped_row, error);
    if (status == STATUS_OK)
        status = check_lists(probe, n, which, NULL, error);
    for (uint32_t i = 0; status == STATUS_OK && i < probe->count; i++)
        if (probe->asked[i])
            status = check_present(probe, i, error);
    return status;
}

enum status probe_load(struct probe *probe, uint32_t which, const void *state, size_t size,
                       struct error *error)
{
    struct call_error text;
    note_before(probe, 1, &which, NULL, RESET_OUTPUTS);
    call_begin(probe->trial, &text, "load of environment %u", which);
    const int failed =
        probe->trial->plugin->load(probe->self, &probe->buffers, which, state, size, text.text);
    return check_after(probe, &text, failed, RESET_OUTPUTS, check_state, error);
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
    memset(few, PATTERN, sizeof few);
    *out = NULL;
    *bytes = sized_call_make(probe, call, few, 0);
    if (*bytes > (size_t)1 << 30)
        return broken(trial, error, "%s returned %zu bytes: expected at most 2^30", trial->progress->call,
                      *bytes);
    for (size_t i = 0; i < sizeof few; i++)
        if (few[i] != PATTERN)
            return broken(trial, error, "%s wrote where capacity was 0", trial->progress->call);
    if (*bytes == 0)
        return STATUS_OK;
    uint8_t *memory = malloc(*bytes + ERROR_GUARD_BYTES);
    if (memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu bytes", *bytes);
    memset(memory, PATTERN, *bytes + ERROR_GUARD_BYTES);
    const size_t again = sized_call_make(probe, call, memory, *bytes);
    if (again == *bytes && memcmp(memory + *bytes, few, sizeof few) == 0) {
        *out = memory;
        return STATUS_OK;
    }
    free(memory);
    if (again != *bytes)
        return broken(trial, error, "%s returned %zu bytes, and %zu with so much room", trial->progress->call,
                      *bytes, again);
    return broken(trial, error, "%s wrote beyond its %zu bytes", trial->progress->call, *bytes);
}

enum status probe_save(struct probe *probe, uint32_t which, void **state, size_t *size, struct error *error)
{
    struct sized_call call = {.name = "save", .which = which};
    uint8_t *out;
    const enum status status = sized_call_run(probe, &call, &out, size, error);
    *state = out;
    if (status == STATUS_OK && *size == 0)
        return broken(probe->trial, error,
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
    return broken(probe->trial, error, "%s returned %zu bytes of a picture of %u x %u: expected %" PRIu64,
                  probe->trial->progress->call, bytes, call->width, call->height,
                  (uint64_t)call->width * call->height * 3);
}

static enum status check_text(const struct probe *probe, const uint8_t *text, size_t bytes,
                              struct error *error)
{
    for (size_t at = 0, size; at < bytes; at += size) {
        size = text_character((const char *)text + at, bytes - at);
        if (size == 0 || text[at] == '\0')
            return broken(probe->trial, error, "%s: byte %zu of the text is not UTF-8",
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
    struct environment_progress *progress = probe->trial->progress;
    struct call_error text;
    text.text[0] = '\0';
    memset(text.guard, PATTERN, sizeof text.guard);
    memcpy(progress->call, "step", sizeof "step");
    atomic_store(&progress->begun_ns, monotime_now().ns);
    const int failed =
        probe->trial->plugin->step(probe->self, &probe->buffers, probe->count, NULL, text.text);
    return call_succeeds(probe->trial, &text, failed, error);
}
