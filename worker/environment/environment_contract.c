/* The checks of `coalesced try`: first the calls of a plug-in under test, then plays with random actions,
 * then the checks themselves in the order of the output.
 *
 *     probe       an instance under test, and the play that goes on in it
 *     area        a buffer of a probe: guard bytes, rows, guard bytes
 *     subject     an environment whose steps are recorded
 *     neighbour   any other environment of an instance
 *     cast        which environments of an instance are the subjects
 *     record      what one row gave in one step
 *
 * Seeds and actions follow from the trial's seed, the subject's number and its steps. So every play of the
 * same subjects must give the same records, wherever they are placed.
 *
 * The first failure stays in contract.error. From then on no function calls the plug-in, but for close. */
#include "worker/environment/environment_contract.h"

#include "kernels/base/fnv.h"
#include "kernels/base/monotime.h"
#include "kernels/base/rng.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD_BYTES_MIN = 256, GUARD_BYTES_MAX = 1 << 16, ERROR_GUARD_BYTES = 64 };
enum { SUBJECTS_MAX = 5, NEIGHBOURS_FIRST = 1000 };

/* Outputs are filled with these before a call; the float is a NaN that nobody computes. */
enum { PATTERN_BYTE = 0xa5 };
static const uint32_t pattern_float = 0x7fa5a5a5;

enum area_kind { OBSERVATION, ACTION, REWARD, FLAGS, MASK, METRICS, AREAS };

static const char *const area_names[AREAS] = {"observation", "action", "reward", "flags", "mask", "metrics"};

/* What one row gave in one step, and at the reset after it if there was one. The integers are hashes. */
struct record {
    uint64_t observation, mask, metrics;
    uint64_t first;  /* observation and mask after the reset */
    uint32_t reward; /* its bits */
    uint8_t flags;
};

struct contract {
    const struct environment_trial *trial;
    struct error *error;
    bool is_broken;               /* the error is set */
    struct environment_spec spec; /* its pointers are good while an instance is open */
    uint32_t subjects;            /* SUBJECTS_MAX; 1 of a singleton */
    struct record *reference; /* (subjects, steps + 1, agents) of the first play; step 0 is the first reset */
    struct record *found;     /* the same of a later play */
    struct {
        char text[ENVIRONMENT_ERROR_BYTES];
        uint8_t guard[ERROR_GUARD_BYTES];
    } said; /* what a call wrote as its error */
};

struct cast {
    uint32_t places[SUBJECTS_MAX]; /* (subjects) environments of the instance */
    uint32_t subjects;
    uint32_t first;      /* the number of the subject at places[0]; the others follow */
    uint32_t generation; /* the neighbours of two generations differ */
    bool in_turns;       /* a tick steps some of the environments, drawn, and resets some neighbours */
};

struct probe {
    struct contract *contract;
    const struct environment_spec *spec; /* NULL: the probe is not open */
    struct environment_spec taken;       /* the plug-in's, of whatever version */
    void *self;
    uint32_t count;
    struct environment_buffers buffers;
    struct area {
        uint8_t *memory, *before; /* guard, rows, guard; a copy of them from before the call */
        size_t bytes, row_bytes;  /* of the rows alone; of one row. 0: the spec has no such thing */
        size_t guard_bytes;
    } areas[AREAS];
    bool *asked;                                   /* (count) the call was for this environment */
    uint32_t *which, *which_before;                /* (count) the list of a call, and a copy of it */
    struct environment_seed *seeds, *seeds_before; /* (count) the same of seeds */
    struct cast cast;
    struct record *records; /* of this play */
    uint32_t tick;
    struct seat {
        uint32_t number; /* the subject's, or the neighbour's from NEIGHBOURS_FIRST */
        uint32_t step;   /* steps so far */
        uint32_t episode, episode_step;
    } * seats; /* (count) */
    /* Episodes of subjects: ended by the environment, by a failure among these, and at steps_max. */
    uint64_t ended, failed, truncated;
};

/* ---- failures and progress ---- */

/* Notes a broken clause, with a sentence that begins with the environment's name and the clause. */
__attribute__((format(printf, 2, 3))) static void broken(struct contract *c, const char *format, ...)
{
    char words[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    if (!c->is_broken)
        error_set(c->error, STATUS_CORRUPT, "%.64s: %s: %s", c->trial->name, c->trial->progress->clause,
                  words);
    c->is_broken = true;
}

/* Zeros that begin at a multiple of 64; NULL, and the failure is noted. */
static void *allocate(struct contract *c, size_t count, size_t bytes)
{
    const size_t size = (count * bytes + 64) / 64 * 64;
    void *memory = c->is_broken ? NULL : aligned_alloc(64, size);
    if (memory == NULL && !c->is_broken)
        error_set(c->error, STATUS_NO_MEMORY, "no memory for %zu rows of %zu bytes", count, bytes);
    c->is_broken = memory == NULL;
    return memory != NULL ? memset(memory, 0, size) : NULL;
}

__attribute__((format(printf, 2, 3))) static void tell(const struct contract *c, const char *format, ...)
{
    FILE *report = c->trial->report;
    va_list list;
    if (report == NULL || c->is_broken)
        return;
    va_start(list, format);
    vfprintf(report, format, list);
    va_end(list);
    fputc('\n', report);
    fflush(report);
}

static void set_clause(const struct contract *c, const char *clause)
{
    struct plugin_call *progress = c->trial->progress;
    if (!c->is_broken)
        snprintf(progress->clause, sizeof progress->clause, "%s", clause);
}

/* ---- one call ---- */

static const char *call_name(const struct contract *c)
{
    return c->trial->progress->call;
}

__attribute__((format(printf, 2, 3))) static void call_begin(struct contract *c, const char *format, ...)
{
    struct plugin_call *progress = c->trial->progress;
    va_list list;
    progress->kind = PLUGIN_CALL_TEXT;
    va_start(list, format);
    vsnprintf(progress->call, sizeof progress->call, format, list);
    va_end(list);
    memset(&c->said, PATTERN_BYTE, sizeof c->said);
    atomic_store(&progress->begun_ns, monotime_now().ns);
}

static void call_is_over(const struct contract *c)
{
    atomic_store(&c->trial->progress->begun_ns, 0);
}

/* The end of a call that returned `failed`, and must refuse, or succeed. */
static void call_end(struct contract *c, int failed, bool must_refuse)
{
    char shown[ENVIRONMENT_ERROR_BYTES];
    const char *text = c->said.text;
    /* It has an end, is not empty, and is not our pattern. */
    const bool has_sentence = memchr(text, '\0', sizeof c->said.text) != NULL && text[0] != '\0' &&
                              (uint8_t)text[0] != PATTERN_BYTE;
    call_is_over(c);
    for (size_t i = 0; i < sizeof c->said.guard; i++)
        if (c->said.guard[i] != PATTERN_BYTE)
            broken(c, "%s wrote beyond the %d bytes of its error", call_name(c), ENVIRONMENT_ERROR_BYTES);
    if (failed == 0 && must_refuse)
        broken(c, "%s succeeded: expected an error", call_name(c));
    if (failed != 0 && !has_sentence)
        broken(c, "%s returned %d without a sentence in error", call_name(c), failed);
    if (failed == 0 || must_refuse || c->is_broken)
        return;
    text_show(shown, sizeof shown, text, strlen(text), sizeof shown);
    broken(c, "%s failed: %s", call_name(c), shown);
}

/* ---- open and close ---- */

static void open_area(struct probe *p, struct area *area, size_t row_bytes)
{
    const size_t guard = row_bytes < GUARD_BYTES_MIN   ? GUARD_BYTES_MIN
                         : row_bytes < GUARD_BYTES_MAX ? (row_bytes + 63) / 64 * 64
                                                       : GUARD_BYTES_MAX;
    *area = (struct area){.row_bytes = row_bytes, .guard_bytes = guard};
    area->bytes = (size_t)p->count * p->spec->agents * row_bytes;
    area->memory = allocate(p->contract, 1, area->bytes + 2 * guard);
    area->before = allocate(p->contract, 1, area->bytes + 2 * guard);
    if (!p->contract->is_broken)
        memset(area->memory, PATTERN_BYTE, area->bytes + 2 * guard);
}

static void *area_rows(const struct area *area)
{
    return area->row_bytes > 0 ? area->memory + area->guard_bytes : NULL;
}

static void open_memory(struct probe *p)
{
    const struct environment_spec *spec = p->spec;
    struct contract *c = p->contract;
    const size_t row_bytes[AREAS] = {environment_space_bytes(&spec->observation),
                                     environment_space_bytes(&spec->action),
                                     sizeof(float),
                                     1,
                                     spec->has_mask ? environment_choices(spec) : 0,
                                     spec->metric_count * sizeof(float)};
    for (int i = 0; i < AREAS; i++)
        open_area(p, &p->areas[i], row_bytes[i]);
    p->asked = allocate(c, p->count, sizeof *p->asked);
    p->which = allocate(c, p->count, sizeof *p->which);
    p->which_before = allocate(c, p->count, sizeof *p->which_before);
    p->seeds = allocate(c, p->count, sizeof *p->seeds);
    p->seeds_before = allocate(c, p->count, sizeof *p->seeds_before);
    p->seats = allocate(c, p->count, sizeof *p->seats);
    if (c->is_broken)
        return;
    p->buffers = (struct environment_buffers){
        area_rows(&p->areas[OBSERVATION]), area_rows(&p->areas[ACTION]), area_rows(&p->areas[REWARD]),
        area_rows(&p->areas[FLAGS]),       area_rows(&p->areas[MASK]),   area_rows(&p->areas[METRICS])};
    memset(area_rows(&p->areas[ACTION]), 0, p->areas[ACTION].bytes);
}

/* Opens an instance of `count` environments. probe_close follows, also after a failure. */
static void probe_open(struct probe *p, struct contract *c, uint32_t count)
{
    const struct environment_trial *trial = c->trial;
    struct error why;
    *p = (struct probe){.contract = c, .count = count};
    if (c->is_broken)
        return;
    const struct environment_spec *given = NULL;
    call_begin(c, "open of %u environments", count);
    call_end(c, trial->plugin->open(&p->self, &given, trial->name, trial->options, count, c->said.text),
             false);
    if (given == NULL)
        broken(c, "open succeeded without a spec: *spec is NULL");
    if (c->is_broken || given == NULL)
        return;
    p->spec = &p->taken;
    if (environment_spec_take(&p->taken, given, &why) != STATUS_OK)
        broken(c, "%s", why.text);
    else
        open_memory(p);
}

static void probe_close(struct probe *p)
{
    if (p->spec != NULL) {
        call_begin(p->contract, "close");
        p->contract->trial->plugin->close(p->self);
        call_is_over(p->contract);
    }
    for (int i = 0; i < AREAS; i++) {
        free(p->areas[i].memory);
        free(p->areas[i].before);
    }
    free(p->asked);
    free(p->which);
    free(p->which_before);
    free(p->seeds);
    free(p->seeds_before);
    free(p->seats);
}

/* ---- what a call may touch ---- */

static void *probe_row(const struct probe *p, enum area_kind area, uint32_t environment, uint32_t agent)
{
    const struct area *of = &p->areas[area];
    return of->memory + of->guard_bytes + ((size_t)environment * p->spec->agents + agent) * of->row_bytes;
}

static const uint8_t *probe_flags(const struct probe *p, uint32_t environment)
{
    return probe_row(p, FLAGS, environment, 0);
}

static bool has_floats(const struct probe *p, enum area_kind area)
{
    return area == REWARD || area == METRICS ||
           (area == OBSERVATION && p->spec->observation.dtype == ENVIRONMENT_F32);
}

/* Fills the rows of an environment with the pattern, in the areas of the set `outputs`. */
static void fill_rows(struct probe *p, uint32_t environment, unsigned outputs)
{
    for (enum area_kind area = 0; area < AREAS; area++) {
        const size_t bytes = p->areas[area].row_bytes * p->spec->agents;
        if ((outputs & 1u << area) == 0 || bytes == 0)
            continue;
        uint8_t *rows = probe_row(p, area, environment, 0);
        memset(rows, PATTERN_BYTE, bytes);
        for (size_t i = 0; has_floats(p, area) && i < bytes; i += sizeof pattern_float)
            memcpy(rows + i, &pattern_float, sizeof pattern_float);
    }
}

/* Notes which environments a call is for, and the state of everything before it; then spoils its outputs. */
static void note_before(struct probe *p, uint32_t n, const uint32_t *which, unsigned outputs)
{
    for (int i = 0; i < AREAS; i++)
        memcpy(p->areas[i].before, p->areas[i].memory, p->areas[i].bytes + 2 * p->areas[i].guard_bytes);
    memset(p->asked, which == NULL, p->count * sizeof *p->asked);
    for (uint32_t i = 0; which != NULL && i < n; i++)
        p->asked[which[i]] = true;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->asked[i])
            fill_rows(p, i, outputs);
    memcpy(p->which_before, p->which, p->count * sizeof *p->which);
    memcpy(p->seeds_before, p->seeds, p->count * sizeof *p->seeds);
}

/* The guard bytes of an area, and all of its rows if the call must not write it. */
static void check_area(const struct probe *p, enum area_kind kind, bool output)
{
    const struct area *area = &p->areas[kind];
    struct contract *c = p->contract;
    const size_t guard = area->guard_bytes, end = guard + area->bytes;
    if (memcmp(area->memory, area->before, guard) != 0)
        broken(c, "%s wrote in front of the buffer `%s`", call_name(c), area_names[kind]);
    if (memcmp(area->memory + end, area->before + end, guard) != 0)
        broken(c, "%s wrote behind the buffer `%s`", call_name(c), area_names[kind]);
    if (!output && memcmp(area->memory + guard, area->before + guard, area->bytes) != 0)
        broken(c, "%s changed the buffer `%s`, which is not its output", call_name(c), area_names[kind]);
    for (uint32_t i = 0; output && i < p->count; i++) {
        const size_t bytes = area->row_bytes * p->spec->agents, at = guard + i * bytes;
        if (!p->asked[i] && memcmp(area->memory + at, area->before + at, bytes) != 0)
            broken(c, "%s changed the %s of environment %u, which was not among its environments",
                   call_name(c), area_names[kind], i);
    }
}

/* ---- reset, step, load ---- */

enum {
    RESET_OUTPUTS = 1 << OBSERVATION | 1 << MASK,
    STEP_OUTPUTS = RESET_OUTPUTS | 1 << REWARD | 1 << FLAGS | 1 << METRICS
};

/* Whether the call wrote every float of a row. */
static void check_written(const struct probe *p, enum area_kind area, uint32_t row)
{
    const struct area *of = &p->areas[area];
    const uint8_t *at = of->memory + of->guard_bytes + row * of->row_bytes;
    for (size_t i = 0; has_floats(p, area) && i < of->row_bytes / 4; i++)
        if (memcmp(at + 4 * i, &pattern_float, 4) == 0)
            broken(p->contract, "%s: did not write element %zu of the %s of environment %u",
                   call_name(p->contract), i, area_names[area], row / p->spec->agents);
}

/* Whether it wrote every float of the observation's parts, in a row of bytes. */
static void check_parts_written(const struct probe *p, uint32_t row)
{
    const struct environment_spec *spec = p->spec;
    const uint8_t *observation = probe_row(p, OBSERVATION, row / spec->agents, row % spec->agents);
    static const uint8_t unwritten[4] = {PATTERN_BYTE, PATTERN_BYTE, PATTERN_BYTE, PATTERN_BYTE};
    for (uint32_t part = 0; spec->observation.dtype == ENVIRONMENT_U8 && part < spec->part_count; part++) {
        const uint8_t *at = observation + environment_part_offset(spec->parts, part);
        const size_t floats = environment_part_is_image(&spec->parts[part])
                                  ? 0
                                  : environment_space_elements(&spec->parts[part].space);
        for (size_t i = 0; i < floats; i++)
            if (memcmp(at + 4 * i, unwritten, 4) == 0)
                broken(p->contract, "%s: did not write element %zu of the part %s of environment %u",
                       call_name(p->contract), i, spec->parts[part].name, row / spec->agents);
    }
}

/* Nothing but the flags counts of an agent that is absent or has failed. */
static void check_row(const struct probe *p, const struct environment_rows *rows, uint32_t row, bool stepped)
{
    const uint8_t flags = stepped ? rows->buffers->flags[row] : 0;
    struct error why;
    if ((flags & (ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED)) != 0)
        return;
    if (stepped)
        check_written(p, REWARD, row);
    if ((flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0)
        check_written(p, METRICS, row);
    check_written(p, OBSERVATION, row);
    check_parts_written(p, row);
    if (environment_row_check(rows, row, stepped, &why) != STATUS_OK)
        broken(p->contract, "%s: %s", call_name(p->contract), why.text);
}

/* All that follows a call of reset, step or load, which returned `failed`. */
static void check_after(struct probe *p, int failed, unsigned outputs)
{
    struct contract *c = p->contract;
    const struct environment_rows rows = environment_rows_of(p->spec, &p->buffers, 0);
    const bool stepped = (outputs & 1u << FLAGS) != 0;
    const uint32_t agents = p->spec->agents;
    struct error why;
    call_end(c, failed, false);
    for (enum area_kind area = 0; area < AREAS; area++)
        check_area(p, area, (outputs & 1u << area) != 0);
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->asked[i] && stepped && memchr(probe_flags(p, i), PATTERN_BYTE, agents) != NULL)
            broken(c, "%s: did not write the flags of environment %u", call_name(c), i);
        if (p->asked[i] && stepped && environment_rows_check_flags(&rows, 1, &i, &why) != STATUS_OK)
            broken(c, "%s: %s", call_name(c), why.text);
        for (uint32_t row = i * agents; p->asked[i] && row < (i + 1) * agents && !c->is_broken; row++)
            check_row(p, &rows, row, stepped);
    }
    if (memcmp(p->which, p->which_before, p->count * sizeof *p->which) != 0)
        broken(c, "%s changed the list `which`", call_name(c));
    if (memcmp(p->seeds, p->seeds_before, p->count * sizeof *p->seeds) != 0)
        broken(c, "%s changed the list `seeds`", call_name(c));
}

/* Resets, or steps, the n environments of `which`, p->which or NULL. Afterwards the rows hold what the
 * plug-in wrote, and have passed. */
static void probe_reset(struct probe *p, uint32_t n, const uint32_t *which)
{
    struct contract *c = p->contract;
    note_before(p, n, which, RESET_OUTPUTS);
    call_begin(c, "reset of %u environments", n);
    check_after(p, c->trial->plugin->reset(p->self, &p->buffers, n, which, p->seeds, c->said.text),
                RESET_OUTPUTS);
}

/* The agents that the step before has ended, while others went on, are absent now. */
static void check_left(const struct probe *p)
{
    const uint32_t agents = p->spec->agents;
    const uint8_t *before = p->areas[FLAGS].before + p->areas[FLAGS].guard_bytes;
    for (uint32_t row = 0; row < p->count * agents; row++) {
        const uint8_t flags = probe_flags(p, 0)[row];
        if (p->asked[row / agents] && p->seats[row / agents].episode_step > 0 &&
            environment_flags_end(before[row]) && (flags & ENVIRONMENT_ABSENT) == 0)
            broken(
                p->contract,
                "%s: environment %u, agent %u: its flags are %#x in the step after its end, while others go "
                "on: expected ABSENT",
                call_name(p->contract), row / agents, row % agents, flags);
    }
}

static void probe_step(struct probe *p, uint32_t n, const uint32_t *which)
{
    struct contract *c = p->contract;
    note_before(p, n, which, STEP_OUTPUTS);
    call_begin(c, "step of %u environments", n);
    check_after(p, c->trial->plugin->step(p->self, &p->buffers, n, which, c->said.text), STEP_OUTPUTS);
    check_left(p);
}

struct saved {
    uint8_t *state;
    size_t size;
};

static void probe_load(struct probe *p, uint32_t which, const struct saved *saved)
{
    struct contract *c = p->contract;
    note_before(p, 1, &which, RESET_OUTPUTS);
    call_begin(c, "load of environment %u", which);
    check_after(p,
                c->trial->plugin->load(p->self, &p->buffers, which, saved->state, saved->size, c->said.text),
                RESET_OUTPUTS);
}

/* load of the first `size` bytes, which are no state. */
static void check_load_refuses(struct probe *p, const struct saved *saved, size_t size)
{
    struct contract *c = p->contract;
    if (c->is_broken)
        return;
    call_begin(c, "load of %zu bytes that are no state", size);
    call_end(c, c->trial->plugin->load(p->self, &p->buffers, 0, saved->state, size, c->said.text), true);
}

/* ---- save and render: a size, then bytes ---- */

/* render of this kind, with the picture's width and height in `size`; kind 0: save. */
static size_t call_sized(const struct probe *p, int kind, uint32_t which, uint32_t size[2], void *out,
                         size_t capacity)
{
    const struct environment_plugin *plugin = p->contract->trial->plugin;
    call_begin(p->contract, "%s of environment %u", kind == 0 ? "save" : "render", which);
    const size_t bytes = kind == 0 ? plugin->save(p->self, which, out, capacity)
                                   : plugin->render(p->self, which, kind, &size[0], &size[1], out, capacity);
    call_is_over(p->contract);
    return bytes;
}

/* Calls for the size, with too little room, and with enough. out->state is malloc'ed; NULL of 0 bytes. */
static void run_sized(const struct probe *p, int kind, uint32_t which, uint32_t size[2], struct saved *out)
{
    struct contract *c = p->contract;
    uint8_t few[ERROR_GUARD_BYTES];
    *out = (struct saved){NULL, 0};
    if (c->is_broken)
        return;
    memset(few, PATTERN_BYTE, sizeof few);
    const size_t bytes = call_sized(p, kind, which, size, few, 0);
    if (bytes > (size_t)1 << 30)
        broken(c, "%s returned %zu bytes: expected at most 2^30", call_name(c), bytes);
    for (size_t i = 0; i < sizeof few; i++)
        if (few[i] != PATTERN_BYTE)
            broken(c, "%s wrote where capacity was 0", call_name(c));
    if (bytes == 0 || (out->state = allocate(c, 1, bytes + sizeof few)) == NULL)
        return;
    memset(out->state, PATTERN_BYTE, bytes + sizeof few);
    out->size = call_sized(p, kind, which, size, out->state, bytes);
    if (out->size != bytes)
        broken(c, "%s returned %zu bytes, and %zu with so much room", call_name(c), bytes, out->size);
    if (memcmp(out->state + bytes, few, sizeof few) != 0)
        broken(c, "%s wrote beyond its %zu bytes", call_name(c), bytes);
}

/* The caller frees saved->state. */
static void probe_save(struct probe *p, uint32_t which, struct saved *saved)
{
    run_sized(p, 0, which, NULL, saved);
    if (saved->size == 0)
        broken(p->contract,
               "save of environment %u returned 0 bytes: without a state to save, expected save = NULL",
               which);
}

/* Adds the bytes that one environment draws as this kind. */
static void probe_render(struct probe *p, uint32_t which, int kind, size_t *drawn)
{
    struct contract *c = p->contract;
    uint32_t size[2] = {0};
    struct saved out;
    run_sized(p, kind, which, size, &out);
    const uint64_t expected = (uint64_t)size[0] * size[1] * 3;
    const char *text = (const char *)out.state;
    for (size_t at = 0, bytes = 1; kind == ENVIRONMENT_TEXT && !c->is_broken && at < out.size; at += bytes) {
        bytes = text[at] != '\0' ? text_character(text + at, out.size - at) : 0;
        if (bytes == 0)
            broken(c, "%s: byte %zu of the text is not UTF-8", call_name(c), at);
    }
    if (kind != ENVIRONMENT_TEXT && out.size > 0 && out.size != expected)
        broken(c, "%s returned %zu bytes of a picture of %u x %u: expected %" PRIu64, call_name(c), out.size,
               size[0], size[1], expected);
    *drawn += out.size;
    free(out.state);
}

/* ---- records ---- */

static struct record *record_at(const struct contract *c, struct record *records, uint32_t subject,
                                uint32_t step, uint32_t agent)
{
    return &records[((size_t)subject * (c->trial->steps + 1) + step) * c->spec.agents + agent];
}

static void compare_row(struct contract *c, uint32_t subject, uint32_t step, uint32_t agent)
{
    const struct record *a = record_at(c, c->reference, subject, step, agent);
    const struct record *b = record_at(c, c->found, subject, step, agent);
    const char *what = a->flags != b->flags               ? "the flags differ"
                       : a->reward != b->reward           ? "the reward differs"
                       : a->observation != b->observation ? "the observation differs"
                       : a->mask != b->mask               ? "the mask differs"
                       : a->metrics != b->metrics         ? "the metrics differ"
                       : a->first != b->first             ? "the state after the reset that follows differs"
                                                          : NULL;
    char of[32] = "", when[32] = "after its first reset";
    if (what == NULL)
        return;
    if (c->spec.agents > 1)
        snprintf(of, sizeof of, ", agent %u", agent);
    if (step > 0)
        snprintf(when, sizeof when, "in its step %u", step);
    broken(c, "environment %u%s, %s: %s from that of an instance with equal seeds and actions", subject, of,
           when, what);
}

/* Holds the latest play to the reference. */
static void compare(struct contract *c)
{
    if ((c->spec.limits & ENVIRONMENT_CANNOT_SEED) != 0)
        return;
    for (uint32_t step = 0; step <= c->trial->steps && !c->is_broken; step++)
        for (uint32_t subject = 0; subject < c->subjects; subject++)
            for (uint32_t agent = 0; agent < c->spec.agents; agent++)
                compare_row(c, subject, step, agent);
}

static bool is_subject(const struct probe *p, uint32_t environment)
{
    return p->seats[environment].number < NEIGHBOURS_FIRST;
}

static uint64_t row_hash(const struct probe *p, uint64_t hash, enum area_kind area, uint32_t environment,
                         uint32_t agent)
{
    return fnv1a(hash, probe_row(p, area, environment, agent), p->areas[area].row_bytes);
}

/* A row that is absent, or of an environment that failed, holds nothing but its flags. */
static void record_step(const struct probe *p, uint32_t environment)
{
    const struct seat *seat = &p->seats[environment];
    for (uint32_t agent = 0; is_subject(p, environment) && agent < p->spec->agents; agent++) {
        struct record record = {.flags = probe_flags(p, environment)[agent]};
        if ((record.flags & (ENVIRONMENT_ABSENT | ENVIRONMENT_FAILED)) == 0) {
            memcpy(&record.reward, probe_row(p, REWARD, environment, agent), sizeof record.reward);
            record.observation = row_hash(p, FNV1A_BEGIN, OBSERVATION, environment, agent);
            record.mask = row_hash(p, FNV1A_BEGIN, MASK, environment, agent);
        }
        if ((record.flags & (ENVIRONMENT_TERMINATED | ENVIRONMENT_TRUNCATED)) != 0)
            record.metrics = row_hash(p, FNV1A_BEGIN, METRICS, environment, agent);
        *record_at(p->contract, p->records, seat->number, seat->step, agent) = record;
    }
}

/* ---- actions ---- */

/* A choice that the mask allows; any choice without a mask. */
static int32_t draw_choice(const uint32_t words[4], uint32_t choices, const uint8_t *mask)
{
    uint32_t allowed = 0;
    for (uint32_t i = 0; i < choices; i++)
        allowed += mask == NULL || mask[i] != 0;
    uint64_t left = rng_below(words[0], words[1], allowed);
    for (uint32_t i = 0; i < choices; i++)
        if ((mask == NULL || mask[i] != 0) && left-- == 0)
            return (int32_t)i;
    return 0;
}

/* Within low..high; one draw in eight is a bound itself. */
static float draw_number(const uint32_t words[4], double low, double high)
{
    const double uniform = rng_uniform_double(words[0], words[1]);
    const uint32_t edge = words[2] % 16;
    float value = (float)(edge == 0 ? low : edge == 1 ? high : low + uniform * (high - low));
    while ((double)value < low)
        value = nextafterf(value, INFINITY);
    while ((double)value > high)
        value = nextafterf(value, -INFINITY);
    return value;
}

static void draw_row(const struct probe *p, uint32_t environment, uint32_t agent)
{
    const struct seat *seat = &p->seats[environment];
    const struct environment_space *space = &p->spec->action;
    const bool absent =
        seat->episode_step > 0 && (probe_flags(p, environment)[agent] & ENVIRONMENT_ABSENT) != 0;
    const uint8_t *mask = p->spec->has_mask && !absent ? probe_row(p, MASK, environment, agent) : NULL;
    const struct rng_key key = {
        .seed = p->contract->trial->seed, .environment = seat->number, .step = seat->step, .episode = agent};
    uint8_t *row = probe_row(p, ACTION, environment, agent);
    for (uint32_t i = 0; i < environment_space_elements(space); i++) {
        uint32_t words[4];
        rng_block(&key, RNG_ACTION, i, words);
        if (space->choices != NULL) {
            const int32_t choice = draw_choice(words, space->choices[i], mask);
            memcpy(row + sizeof choice * i, &choice, sizeof choice);
            mask = mask != NULL ? mask + space->choices[i] : NULL;
        } else {
            const float number = draw_number(words, space->low[i], space->high[i]);
            memcpy(row + sizeof number * i, &number, sizeof number);
        }
    }
}

/* The next actions of an environment, among those that its mask allows. */
static void draw_actions(const struct probe *p, uint32_t environment)
{
    for (uint32_t agent = 0; agent < p->spec->agents; agent++)
        draw_row(p, environment, agent);
}

/* ---- playing ---- */

/* The seeds of the n environments of p->which, whose next episodes begin. */
static void draw_seeds(struct probe *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct seat *seat = &p->seats[p->which[i]];
        p->seeds[i] =
            (struct environment_seed){p->contract->trial->seed, seat->number, seat->episode++, seat->step};
        seat->episode_step = 0;
    }
}

static void reset_listed(struct probe *p, uint32_t n)
{
    draw_seeds(p, n);
    probe_reset(p, n, p->tick == 0 ? NULL : p->which);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t environment = p->which[i];
        const struct seat *seat = &p->seats[environment];
        for (uint32_t agent = 0; is_subject(p, environment) && agent < p->spec->agents; agent++) {
            const uint64_t observed = row_hash(p, FNV1A_BEGIN, OBSERVATION, environment, agent);
            record_at(p->contract, p->records, seat->number, seat->step, agent)->first =
                row_hash(p, observed, MASK, environment, agent);
        }
    }
}

/* Resets all environments, for steps that go into `records`. */
static void play_begin(struct probe *p, struct record *records, const struct cast *cast)
{
    if (p->contract->is_broken)
        return;
    p->cast = *cast;
    p->records = records;
    p->tick = 0;
    p->ended = p->failed = p->truncated = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        p->seats[i] = (struct seat){.number = NEIGHBOURS_FIRST * (cast->generation + 1) + i};
        p->which[i] = i;
    }
    for (uint32_t i = 0; i < cast->subjects; i++)
        p->seats[cast->places[i]].number = cast->first + i;
    reset_listed(p, p->count);
}

/* Whether every subject has `steps` steps. */
static bool play_has(const struct probe *p, uint32_t steps)
{
    for (uint32_t i = 0; i < p->cast.subjects; i++)
        if (p->seats[p->cast.places[i]].step < steps)
            return false;
    return true;
}

/* One in `of`, drawn for this tick. */
static bool draw_one_in(const struct probe *p, uint32_t environment, uint32_t purpose, uint32_t of)
{
    const struct rng_key key = {
        .seed = p->contract->trial->seed, .environment = environment, .step = p->tick, .episode = purpose};
    uint32_t words[4];
    rng_block(&key, RNG_SHUFFLE, 0, words);
    return rng_below(words[0], words[1], of) == 0;
}

static uint32_t list_turns(struct probe *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const bool finished = is_subject(p, i) && p->seats[i].step == p->contract->trial->steps;
        if (!finished && (!p->cast.in_turns || draw_one_in(p, i, 1, 2)))
            p->which[n++] = i;
    }
    return n;
}

/* Counts the step that an environment has made. Whether it waits for a reset now. */
static bool count_step(struct probe *p, uint32_t environment)
{
    const struct environment_spec *spec = p->spec;
    struct seat *seat = &p->seats[environment];
    const uint8_t *flags = probe_flags(p, environment);
    const bool over = environment_is_over(flags, spec->agents);
    const bool restarted = (flags[0] & ENVIRONMENT_RESTARTED) != 0;
    seat->step++;
    seat->episode_step = restarted ? 0 : seat->episode_step + 1;
    record_step(p, environment);
    const bool cut = !over && spec->steps_max > 0 && seat->episode_step >= spec->steps_max;
    if (is_subject(p, environment)) {
        p->ended += over || restarted;
        p->truncated += cut;
        bool failed = false;
        for (uint32_t agent = 0; agent < spec->agents; agent++)
            failed = failed || (flags[agent] & ENVIRONMENT_FAILED) != 0;
        p->failed += failed;
    }
    return over || cut;
}

/* One step of all environments, or of those whose turn it is, and the resets that follow. */
static void play_tick(struct probe *p)
{
    uint32_t n = list_turns(p), resets = 0;
    const bool all = n == p->count && p->tick % 2 == 0;
    p->tick++;
    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        draw_actions(p, p->which[i]);
    probe_step(p, n, all ? NULL : p->which);
    for (uint32_t i = 0; i < n && !p->contract->is_broken; i++) {
        const uint32_t environment = p->which[i];
        const bool midway =
            p->cast.in_turns && !is_subject(p, environment) && draw_one_in(p, environment, 2, 16);
        if (count_step(p, environment) || midway)
            p->which[resets++] = environment;
    }
    if (resets > 0)
        reset_listed(p, resets);
}

static void play_to(struct probe *p, uint32_t steps)
{
    while (!p->contract->is_broken && !play_has(p, steps))
        play_tick(p);
}

/* Plays in a new instance of `count` environments. */
static void play_new(struct contract *c, uint32_t count, const struct cast *cast)
{
    struct probe probe;
    probe_open(&probe, c, count);
    play_begin(&probe, c->found, cast);
    play_to(&probe, c->trial->steps);
    probe_close(&probe);
}

static struct cast cast_in_order(const struct contract *c)
{
    return (struct cast){.places = {0, 1, 2, 3, 4}, .subjects = c->subjects};
}

/* ---- what it says of itself ---- */

static void describe(const struct contract *c)
{
    char observation[80], action[80];
    const struct environment_spec *spec = &c->spec;
    environment_space_show(observation, sizeof observation, &spec->observation);
    const size_t length = environment_space_show(action, sizeof action, &spec->action);
    if (spec->action.choices != NULL)
        snprintf(action + length, sizeof action - length, " of %zu choices%s", environment_choices(spec),
                 spec->has_mask ? ", masked" : "");
    char end[48] = "the environment alone ends episodes";
    if (spec->steps_max > 0)
        snprintf(end, sizeof end, "at most %u steps", spec->steps_max);
    tell(c, "%s: %u agent%s, observation %s, action %s, %s", c->trial->name, spec->agents,
         spec->agents > 1 ? "s" : "", observation, action, end);
    for (uint32_t i = 0; i < spec->part_count; i++) {
        environment_space_show(observation, sizeof observation, &spec->parts[i].space);
        tell(c, "      part %s: %s", spec->parts[i].name, observation);
    }
}

static void check_spec(struct contract *c)
{
    struct probe probe;
    set_clause(c, "open gives a good spec");
    probe_open(&probe, c, 1);
    if (!c->is_broken) {
        c->spec = *probe.spec;
        c->subjects = (c->spec.limits & ENVIRONMENT_SINGLETON) != 0 ? 1 : SUBJECTS_MAX;
        describe(c);
    }
    probe_close(&probe);
    const size_t records = (size_t)c->subjects * (c->trial->steps + 1) * c->spec.agents;
    c->reference = allocate(c, records, sizeof *c->reference);
    c->found = allocate(c, records, sizeof *c->found);
}

/* `what` names what is wrong with the arguments. */
static void check_open_refuses(struct contract *c, const char *name, const char *options, const char *what)
{
    const struct environment_plugin *plugin = c->trial->plugin;
    const struct environment_spec *spec = NULL;
    void *self = NULL;
    if (c->is_broken)
        return;
    call_begin(c, "open with %s", what);
    const int failed = plugin->open(&self, &spec, name, options, 1, c->said.text);
    if (failed == 0)
        plugin->close(self);
    call_end(c, failed, true);
}

static void check_refusals(struct contract *c)
{
    set_clause(c, "open refuses what it does not know");
    check_open_refuses(c, "no such environment", c->trial->options, "an unknown name");
    check_open_refuses(c, c->trial->name, "{\"no such option\":1}", "an unknown option");
    tell(c, "  ok  open refuses an unknown name and an unknown option");
}

/* ---- the first play ---- */

/* The same instance plays twice: a reset with the seeds of the first one leaves nothing of what was. */
static void check_reference(struct contract *c)
{
    struct probe probe;
    const struct cast cast = cast_in_order(c);
    set_clause(c, "random steps");
    probe_open(&probe, c, c->subjects);
    play_begin(&probe, c->reference, &cast);
    play_to(&probe, c->trial->steps);
    tell(c,
         "  ok  %u random steps of %u environments: numbers, bounds, flags, masks; nothing else is touched",
         c->trial->steps, c->subjects);
    tell(c, "      %" PRIu64 " episodes ended, %" PRIu64 " of them failed; %" PRIu64 " were cut at steps_max",
         probe.ended, probe.failed, probe.truncated);
    if (probe.ended >= c->subjects && probe.failed == probe.ended && probe.truncated == 0)
        broken(c, "each of the %" PRIu64 " episodes that ended has failed (FAILED): nothing can be learned",
               probe.ended);
    set_clause(c, "a reset depends on its seed alone");
    play_begin(&probe, c->found, &cast);
    play_to(&probe, c->trial->steps);
    compare(c);
    if ((c->spec.limits & ENVIRONMENT_CANNOT_SEED) == 0)
        tell(c, "  ok  a reset depends on its seed alone, not on what was before");
    probe_close(&probe);
}

/* ---- the same bits ---- */

/* A plug-in that draws from the second of the day gives other draws in the next one. time(2) may lag a few
 * milliseconds behind clock_gettime(2): this waits until both clocks show the next second. */
static void check_seeds(struct contract *c)
{
    const struct cast cast = cast_in_order(c);
    struct timespec begun;
    set_clause(c, "equal seeds give equal bits");
    clock_gettime(CLOCK_REALTIME, &begun);
    while (time(NULL) <= begun.tv_sec)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    play_new(c, c->subjects, &cast);
    compare(c);
    tell(c, "  ok  equal seeds give equal bits, in another instance and another second");
}

/* Alone, in instances of one environment. */
static void check_count(struct contract *c)
{
    set_clause(c, "the bits depend on no count");
    for (uint32_t i = 0; i < c->subjects; i++)
        play_new(c, 1, &(struct cast){.subjects = 1, .first = i});
    compare(c);
    tell(c, "  ok  an environment alone gives the bits that it gave among %u", c->subjects);
}

/* Among others, which are reset midway; in other rows; not all of them in each call. */
static void check_company(struct contract *c)
{
    enum { COMPANY = 21 };
    struct cast cast = {.places = {20, 9, 8, 2, 13}, .subjects = c->subjects, .generation = 1};
    set_clause(c, "the bits depend on neither row nor neighbours");
    play_new(c, COMPANY, &cast);
    compare(c);
    set_clause(c, "a call is for the environments that it names");
    cast.in_turns = true;
    cast.generation = 2;
    play_new(c, COMPANY, &cast);
    compare(c);
    tell(c, "  ok  rows, neighbours, turns, and resets of neighbours change no bit (%d environments)",
         COMPANY);
}

/* Two instances are played in turn; the other one's environments are all neighbours. */
static void check_instances(struct contract *c)
{
    const struct cast cast = cast_in_order(c), none = {.generation = 3};
    struct probe probe, other;
    set_clause(c, "two instances share nothing");
    probe_open(&probe, c, c->subjects);
    probe_open(&other, c, 3);
    play_begin(&other, c->found, &none);
    play_begin(&probe, c->found, &cast);
    while (!c->is_broken && !play_has(&probe, c->trial->steps)) {
        play_tick(&other);
        if (!c->is_broken)
            play_tick(&probe);
    }
    probe_close(&other);
    probe_close(&probe);
    compare(c);
    tell(c, "  ok  two instances at a time share nothing");
}

static void check_bits(struct contract *c)
{
    if ((c->spec.limits & ENVIRONMENT_CANNOT_SEED) != 0) {
        tell(c, "  --  CANNOT_SEED: no two plays are compared");
        return;
    }
    check_seeds(c);
    if ((c->spec.limits & ENVIRONMENT_SINGLETON) != 0) {
        tell(c, "  --  SINGLETON: one instance, of one environment");
        return;
    }
    check_count(c);
    check_company(c);
    check_instances(c);
}

/* ---- save and load ---- */

/* Moves a subject's state, its seat, and what the caller keeps of its last step. */
static void load_subject(struct probe *to, uint32_t place, const struct probe *from, uint32_t was,
                         const struct saved *saved)
{
    const uint32_t agents = from->spec->agents;
    to->seats[place] = from->seats[was];
    memcpy(probe_row(to, FLAGS, place, 0), probe_flags(from, was), agents);
    probe_load(to, place, saved);
    for (uint32_t agent = 0; agent < agents; agent++)
        for (enum area_kind area = OBSERVATION; area <= MASK; area += MASK - OBSERVATION)
            if (memcmp(probe_row(to, area, place, agent), probe_row(from, area, was, agent),
                       to->areas[area].row_bytes) != 0 &&
                (probe_flags(to, place)[agent] & ENVIRONMENT_ABSENT) == 0)
                broken(to->contract, "load wrote another %s than the one at the time of save",
                       area_names[area]);
}

/* Saves the subjects of a play that has half of its steps, and gives the rest to other environments of a new
 * instance. */
static void continue_elsewhere(struct probe *from, struct probe *to)
{
    struct contract *c = from->contract;
    const struct cast cast = {.places = {6, 3, 4, 0, 2}, .subjects = c->subjects, .generation = 4};
    struct saved saved[SUBJECTS_MAX] = {{0}};
    for (uint32_t i = 0; i < c->subjects; i++)
        probe_save(from, i, &saved[i]);
    probe_open(to, c, 7);
    play_begin(to, c->found, &cast);
    check_load_refuses(to, &saved[0], 0);
    check_load_refuses(to, &saved[0], saved[0].size - 1);
    for (uint32_t i = 0; i < c->subjects && !c->is_broken; i++)
        load_subject(to, cast.places[i], from, i, &saved[i]);
    play_to(to, c->trial->steps);
    probe_close(to);
    for (uint32_t i = 0; i < SUBJECTS_MAX; i++)
        free(saved[i].state);
}

static void check_save(struct contract *c)
{
    struct probe probe, rest;
    const struct cast cast = cast_in_order(c);
    const bool can_save = c->trial->plugin->save != NULL;
    const bool singleton = (c->spec.limits & ENVIRONMENT_SINGLETON) != 0;
    const bool can_seed = (c->spec.limits & ENVIRONMENT_CANNOT_SEED) == 0;
    const char *loss = environment_loss(can_seed, can_save);
    if (loss != NULL)
        tell(c, "  --  %s %s", c->trial->name, loss);
    if (can_save && singleton)
        tell(c, "  --  save and load are not checked: SINGLETON, and it needs two instances");
    if (!can_save || singleton)
        return;
    set_clause(c, "a saved state continues with the same bits");
    probe_open(&probe, c, c->subjects);
    play_begin(&probe, c->found, &cast);
    play_to(&probe, c->trial->steps / 2);
    continue_elsewhere(&probe, &rest);
    compare(c);
    tell(c, "  ok  a saved state continues%s in another instance and another row",
         can_seed ? " with the same bits," : "");
    probe_close(&probe);
}

/* ---- render ---- */

/* Renders after every tick of the beginning of a play, which must go as the reference did. */
static void check_render(struct contract *c)
{
    enum { TICKS = 20 };
    const struct cast cast = cast_in_order(c);
    struct probe probe;
    size_t text = 0, picture = 0;
    if (c->trial->plugin->render == NULL) {
        tell(c, "  --  render is not checked: there is none");
        return;
    }
    set_clause(c, "render draws, and changes nothing");
    probe_open(&probe, c, c->subjects);
    play_begin(&probe, c->found, &cast);
    for (uint32_t tick = 0; tick < TICKS && !c->is_broken && !play_has(&probe, c->trial->steps); tick++) {
        play_tick(&probe);
        for (uint32_t i = 0; i < c->subjects; i++) {
            probe_render(&probe, i, ENVIRONMENT_TEXT, &text);
            probe_render(&probe, i, ENVIRONMENT_RGB, &picture);
        }
    }
    play_to(&probe, c->trial->steps);
    compare(c);
    tell(c, "  ok  render draws%s%s%s%s, and changes nothing", text > 0 ? " text" : "",
         text > 0 && picture > 0 ? " and" : "", picture > 0 ? " pictures" : "",
         text + picture == 0 ? " nothing" : "");
    probe_close(&probe);
}

/* ---- speed and memory: without any check ---- */

/* What the process has allocated and not freed. A sanitizer's allocator says 0. */
static double allocated_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return (double)info.uordblks + (double)info.hblkhd;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Neither clears the error nor writes the number of environments: both take longer than a small step. */
static void step_unchecked(struct probe *p)
{
    struct contract *c = p->contract;
    struct plugin_call *progress = c->trial->progress;
    c->said.text[0] = '\0';
    memcpy(progress->call, "step", sizeof "step");
    atomic_store(&progress->begun_ns, monotime_now().ns);
    call_end(c, c->trial->plugin->step(p->self, &p->buffers, p->count, NULL, c->said.text), false);
}

/* At most `ticks` steps, for about a second. Returns how many. Only step and reset are timed. */
static uint32_t measure_steps(struct probe *p, uint32_t ticks, double *seconds)
{
    enum { WHOLE_US = 1000000 };
    const struct monotime until = monotime_add_us(monotime_now(), WHOLE_US);
    struct contract *c = p->contract;
    uint32_t done = 0;
    for (; done < ticks && !c->is_broken && monotime_before(monotime_now(), until); done++) {
        for (uint32_t i = 0; i < p->count; i++)
            draw_actions(p, i);
        const double begun = cpu_seconds();
        step_unchecked(p);
        *seconds += cpu_seconds() - begun;
        uint32_t ended = 0;
        for (uint32_t i = 0; i < p->count && !c->is_broken; i++)
            if (count_step(p, i))
                p->which[ended++] = i;
        draw_seeds(p, ended);
        if (ended == 0)
            continue;
        const double stepped = cpu_seconds();
        call_begin(c, "reset of %u environments", ended);
        call_end(c, c->trial->plugin->reset(p->self, &p->buffers, ended, p->which, p->seeds, c->said.text),
                 false);
        *seconds += cpu_seconds() - stepped;
    }
    return done;
}

static void measure(struct contract *c)
{
    enum { COUNT = 256, TICKS_MAX = 1000 };
    const uint32_t count = c->subjects == 1 ? 1 : COUNT;
    const uint32_t ticks = c->trial->steps < TICKS_MAX ? c->trial->steps : TICKS_MAX;
    struct probe probe;
    double seconds = 0;
    set_clause(c, "steps per CPU second");
    probe_open(&probe, c, count);
    play_begin(&probe, c->found, &(struct cast){.generation = 5});
    uint32_t steps = measure_steps(&probe, ticks / 2, &seconds); /* what it allocates once, it has now */
    const double before = allocated_bytes();
    const uint32_t more = measure_steps(&probe, ticks / 2, &seconds);
    const double leaked = (allocated_bytes() - before) / fmax(more, 1);
    steps += more;
    tell(c, "      %.3g steps per CPU second, resets included (%u environments, %u steps of each)",
         seconds > 0 ? (double)count * steps / seconds : 0.0, count, steps);
    if (leaked >= 1) /* an allocation has 24 bytes at least: a block in 24 steps is no accident */
        tell(c,
             "  !!  it keeps %.0f bytes more with each step of %u environments: a long run has no memory for "
             "that",
             leaked, count);
    probe_close(&probe);
}

/* ---- all of it ---- */

enum status environment_contract(const struct environment_trial *trial, struct error *error)
{
    static void (*const checks[])(struct contract *) = {
        check_spec, check_refusals, check_reference, check_bits, check_save, check_render, measure};
    struct contract contract = {.trial = trial, .error = error};
    *error = (struct error){0};
    for (size_t i = 0; i < sizeof checks / sizeof checks[0] && !contract.is_broken; i++)
        checks[i](&contract);
    free(contract.reference);
    free(contract.found);
    return error->status;
}
