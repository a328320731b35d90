/* A plug-in whose environments each break one clause of environment.h: the fault is the environment's name.
 * Faults of the table itself, which has no name yet, are chosen by the variable BROKEN_TABLE. Otherwise it is
 * a token that moves on a line of 19 places. */
#include "worker/environment/environment.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 9, CHOICES = 2 };

struct world {
    uint64_t draws;
    int32_t place;
    uint32_t steps;
};

struct broken {
    const char *fault;
    uint32_t count, calls;
    void *past; /* what it forgets to free */
    struct environment_spec spec;
    struct world worlds[];
};

/* ---- which fault ---- */

static const char *const names[] = {
    "none",
    /* of open */
    "open-fails", "open-fails-silently", "open-without-spec", "open-takes-any-name", "open-takes-any-option",
    "open-refuses-silently", "open-crashes", "open-hangs", "error-overflows",
    /* of the spec */
    "spec-size", "spec-limits", "spec-agents", "observation-rank", "observation-shape", "observation-dtype",
    "observation-bounds", "action-rank", "action-without-choices", "action-no-choice", "action-dtype",
    "action-infinite", "action-reversed", "mask-without-choices", "metric-without-name", "metric-long-name",
    "metric-twice",
    /* of the rows */
    "observation-nan", "observation-out-of-bounds", "observation-unwritten", "reward-infinite",
    "reward-unwritten", "flags-unknown", "flags-unwritten", "flags-restarted", "flags-absent", "flags-life",
    "mask-empty", "mask-two", "metric-nan", "agent-stays", "always-fails", "part-unwritten",
    "part-out-of-bounds",
    /* of memory and output */
    "leaks", "prints",
    /* of other memory */
    "writes-before", "writes-behind", "writes-next-row", "writes-action", "writes-which",
    "reset-writes-reward", "reset-resets-all",
    /* of the bits */
    "draws-clock", "draws-second", "draws-rand", "depends-on-neighbour", "depends-on-row", "depends-on-count",
    "depends-on-past", "depends-on-calls", "shares-state",
    /* of save, load, render */
    "save-forgets", "save-grows", "save-overflows", "save-empty", "load-takes-anything", "load-shows-nothing",
    "render-moves", "render-not-utf8",
    /* of the process */
    "step-fails", "step-fails-silently", "step-hangs", "step-crashes", "step-aborts", "step-exits",
    "reset-crashes", "close-crashes", NULL};

static bool is(const struct broken *broken, const char *fault)
{
    return strcmp(broken->fault, fault) == 0;
}

static void crash(void)
{
    volatile uintptr_t nowhere = 8;
    *(volatile int *)nowhere = 1;
}

static void hang(void)
{
    for (;;)
        sleep(1000);
}

static bool table_is(const char *fault)
{
    const char *chosen = getenv("BROKEN_TABLE");
    return chosen != NULL && strcmp(chosen, fault) == 0;
}

static bool has_parts(const struct broken *b)
{
    return strncmp(b->fault, "part-", 5) == 0;
}

/* ---- open ---- */

static const double low = -LIMIT, high = LIMIT, infinite = INFINITY;
static const uint32_t choices[] = {CHOICES}, no_choice[] = {0};
static const char *const metric[] = {"place"}, *const no_metric[] = {""}, *const twice[] = {"place", "place"},
                         *const long_metric[] = {
                             "0123456789012345678901234567890123456789012345678901234567890123"};

static const struct environment_part parts[] = {
    {"place", {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high}},
    {"eye", {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {1, 2, 1}}},
};
enum { EYE_AT = 4, PARTS_BYTES = 8 };

static struct environment_spec spec_of(const struct broken *b)
{
    struct environment_spec spec = {
        .size = sizeof spec,
        .agents = 1,
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {1}, .low = &low, .high = &high},
        .action = {.dtype = ENVIRONMENT_I32, .choices = choices}};
    struct environment_space *observation = &spec.observation, *action = &spec.action;
    const struct environment_space box = {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high};
    if (strncmp(b->fault, "action-", 7) == 0 && !is(b, "action-no-choice") && !is(b, "action-rank"))
        *action = box;
    if (table_is("older"))
        spec.size = offsetof(struct environment_spec, part_count);
    spec.size -= is(b, "spec-size") ? 4 : 0;
    spec.limits = is(b, "spec-limits") ? 64 : 0;
    spec.agents = is(b, "spec-agents") ? 0 : is(b, "agent-stays") ? 2 : 1;
    observation->rank = is(b, "observation-rank") ? 4 : 1;
    observation->shape[0] = is(b, "observation-shape") ? 0 : 1;
    observation->dtype = is(b, "observation-dtype") ? ENVIRONMENT_I32 : ENVIRONMENT_F32;
    observation->low = is(b, "observation-bounds") ? &infinite : &low;
    if (has_parts(b)) {
        *observation = (struct environment_space){.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {PARTS_BYTES}};
        spec.part_count = sizeof parts / sizeof parts[0];
        spec.parts = parts;
    }
    action->rank = is(b, "action-rank") ? 2 : 0;
    action->dtype = is(b, "action-without-choices") ? ENVIRONMENT_I32
                    : is(b, "action-dtype")         ? 77
                                                    : action->dtype;
    action->choices = is(b, "action-no-choice") ? no_choice : action->choices;
    action->high = is(b, "action-infinite") ? &infinite : is(b, "action-reversed") ? &low : action->high;
    action->low = is(b, "action-reversed") ? &high : action->low;
    spec.has_mask = strncmp(b->fault, "mask-", 5) == 0;
    if (is(b, "mask-without-choices"))
        *action = box;
    spec.metric_count = strncmp(b->fault, "metric-", 7) == 0;
    spec.metric_count += is(b, "metric-twice");
    spec.metrics = is(b, "metric-without-name") ? no_metric
                   : is(b, "metric-long-name")  ? long_metric
                   : is(b, "metric-twice")      ? twice
                                                : metric;
    return spec;
}

static int refuse(char *error, const char *fault, const char *why)
{
    if (strcmp(fault, "open-refuses-silently") != 0)
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "%s", why);
    return 1;
}

static const char *fault_of(const char *name)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0)
            return names[i];
    return NULL;
}

static const char *latest_fault = ""; /* of the latest instance: a name that is none has no fault */

static const volatile size_t too_many_bytes = ENVIRONMENT_ERROR_BYTES + 8;

static int broken_open(void **out, const struct environment_spec **spec, const char *name,
                       const char *options, uint32_t count, char error[ENVIRONMENT_ERROR_BYTES])
{
    const char *fault = fault_of(name);
    if (fault == NULL && strcmp(latest_fault, "open-takes-any-name") != 0)
        return refuse(error, latest_fault, "no such environment here");
    latest_fault = fault != NULL ? fault : latest_fault;
    if (strcmp(options, "{}") != 0 && strcmp(latest_fault, "open-takes-any-option") != 0)
        return refuse(error, latest_fault, "no such option here");
    struct broken *b = calloc(1, sizeof *b + count * sizeof b->worlds[0]);
    if (b == NULL)
        return 1;
    *b = (struct broken){.fault = latest_fault, .count = count};
    b->spec = spec_of(b);
    *out = b;
    *spec = is(b, "open-without-spec") ? NULL : &b->spec;
    if (is(b, "open-crashes"))
        crash();
    if (is(b, "open-hangs"))
        hang();
    if (is(b, "error-overflows"))
        memset(error, 'e', too_many_bytes);
    if (is(b, "open-fails"))
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "the licence has expired");
    if (!is(b, "open-fails") && !is(b, "open-fails-silently"))
        return 0;
    free(b);
    *out = NULL;
    return 1;
}

static void broken_close(void *self)
{
    if (is(self, "close-crashes"))
        crash();
    free(self);
}

/* ---- rows ---- */

static uint32_t draw(struct world *world)
{
    world->draws = world->draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(world->draws >> 33);
}

static void show_parts(const struct broken *b, const struct environment_buffers *buffers, uint32_t at)
{
    uint8_t *row = (uint8_t *)buffers->observation + (size_t)at * PARTS_BYTES;
    const bool late = b->worlds[at].steps >= 3;
    const float place = is(b, "part-out-of-bounds") && late ? LIMIT + 1 : (float)b->worlds[at].place;
    if (!(is(b, "part-unwritten") && late))
        memcpy(row, &place, sizeof place);
    memset(row + EYE_AT, 0, PARTS_BYTES - EYE_AT);
}

static void show(const struct broken *b, const struct environment_buffers *buffers, uint32_t at)
{
    const struct world *world = &b->worlds[at];
    if (has_parts(b)) {
        show_parts(b, buffers, at);
        return;
    }
    const uint32_t row = at * b->spec.agents;
    float *observation = (float *)buffers->observation + row;
    const bool late = world->steps >= 3;
    if (!(is(b, "observation-unwritten") && late))
        *observation = is(b, "observation-nan") && late             ? NAN
                       : is(b, "observation-out-of-bounds") && late ? LIMIT + 1
                                                                    : (float)world->place;
    if (is(b, "agent-stays"))
        observation[1] = observation[0];
    if (is(b, "writes-before"))
        ((float *)buffers->observation)[-1] = 1;
    if (is(b, "writes-behind"))
        ((float *)buffers->observation)[b->count] = 1;
    if (is(b, "writes-next-row"))
        ((float *)buffers->observation)[(at + 1) % b->count] = 1;
    if (buffers->mask != NULL)
        for (uint32_t i = 0; i < CHOICES; i++)
            buffers->mask[at * CHOICES + i] = is(b, "mask-empty") && late ? 0 : is(b, "mask-two") ? 2 : 1;
}

static void begin(struct broken *b, uint32_t at, uint64_t seed)
{
    static uint64_t past;
    struct timespec now;
    struct world *world = &b->worlds[at];
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t extra = is(b, "draws-clock")        ? (uint64_t)now.tv_nsec
                           : is(b, "draws-second")     ? (uint64_t)now.tv_sec
                           : is(b, "draws-rand")       ? (uint64_t)rand()
                           : is(b, "depends-on-row")   ? at
                           : is(b, "depends-on-count") ? b->count
                           : is(b, "depends-on-past")  ? world->draws
                           : is(b, "shares-state")     ? past
                                                       : 0;
    past = is(b, "shares-state") ? b->count : 0;
    *world = (struct world){.draws = (seed ^ extra << 20) + extra};
    world->place = (int32_t)(draw(world) % 5) - 2;
}

static int broken_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                        const uint32_t *which, const struct environment_seed *seeds,
                        char error[ENVIRONMENT_ERROR_BYTES])
{
    struct broken *b = self;
    (void)error;
    if (is(b, "reset-crashes"))
        crash();
    if (is(b, "reset-writes-reward"))
        buffers->reward[0] = 0;
    for (uint32_t i = 0; is(b, "reset-resets-all") && i < b->count; i++)
        begin(b, i, i);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = which != NULL ? which[i] : i;
        begin(b, at, environment_seed_mix(seeds[i]));
        show(b, buffers, at);
    }
    return 0;
}

/* ---- a step ---- */

static int32_t move_of(const struct broken *b, const void *actions, uint32_t at)
{
    return b->spec.action.choices != NULL ? 2 * ((const int32_t *)actions)[at] - 1 : 0;
}

static int32_t push_of(struct broken *b, uint32_t at)
{
    static uint32_t calls;
    const uint32_t drawn = draw(&b->worlds[at]) % 8;
    int32_t push = (drawn == 0) - (drawn == 1);
    if (is(b, "depends-on-neighbour") && at > 0)
        push += b->worlds[at - 1].place > 3;
    if (is(b, "depends-on-calls"))
        push += calls++ % 7 == 0;
    return push;
}

static unsigned flags_of(const struct broken *b, const struct world *world)
{
    const unsigned ended = abs(world->place) == LIMIT ? ENVIRONMENT_TERMINATED : 0;
    return is(b, "flags-unknown")           ? ended | 64
           : is(b, "always-fails") && ended ? ENVIRONMENT_FAILED
           : is(b, "flags-restarted")       ? ENVIRONMENT_RESTARTED
           : is(b, "flags-absent")          ? ENVIRONMENT_ABSENT
           : is(b, "flags-life")            ? ENVIRONMENT_ABSENT | ENVIRONMENT_LIFE_LOST
                                            : ended;
}

static void step_world(struct broken *b, const struct environment_buffers *buffers, uint32_t at)
{
    struct world *world = &b->worlds[at];
    const uint32_t row = at * b->spec.agents;
    world->place += move_of(b, buffers->action, row) + push_of(b, at);
    world->place = world->place > LIMIT ? LIMIT : world->place < -LIMIT ? -LIMIT : world->place;
    world->steps++;
    if (!is(b, "reward-unwritten"))
        buffers->reward[row] = is(b, "reward-infinite") ? INFINITY : 1;
    if (!is(b, "flags-unwritten"))
        buffers->flags[row] = (uint8_t)flags_of(b, world);
    if (is(b, "agent-stays")) { /* the second one never ends, and the first one ends more than once */
        buffers->reward[row + 1] = 1;
        buffers->flags[row + 1] = 0;
    }
    if (buffers->metrics != NULL)
        buffers->metrics[at] = NAN;
    show(b, buffers, at);
}

static int broken_step(void *self, const struct environment_buffers *buffers, uint32_t n,
                       const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct broken *b = self;
    const bool late = ++b->calls > 3;
    if (is(b, "leaks"))
        b->past = memset(malloc(100), (int)b->calls, 100);
    if (is(b, "prints") && b->calls == 1)
        puts("hello from the joint");
    for (uint32_t i = 0; i < n; i++)
        step_world(b, buffers, which != NULL ? which[i] : i);
    if (is(b, "writes-action"))
        memset((void *)(uintptr_t)buffers->action, 0x11, 4);
    if (is(b, "writes-which") && which != NULL)
        *(uint32_t *)(uintptr_t)which = 77;
    if (is(b, "step-crashes") && late)
        crash();
    if (is(b, "step-hangs") && late)
        hang();
    if (is(b, "step-aborts") && late)
        abort();
    if (is(b, "step-exits") && late)
        exit(3);
    if (is(b, "step-fails") && late)
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "the joint %d came off", 4);
    return late && (is(b, "step-fails") || is(b, "step-fails-silently"));
}

/* ---- the rest ---- */

static size_t broken_render(void *self, uint32_t which, int kind, uint32_t *width, uint32_t *height,
                            void *out, size_t capacity)
{
    struct broken *b = self;
    if (kind == ENVIRONMENT_RGB) {
        *width = *height = 2;
        return 0;
    }
    if (is(b, "render-moves"))
        draw(&b->worlds[which]);
    if (capacity >= 2)
        memcpy(out, is(b, "render-not-utf8") ? "\xff\n" : "o\n", 2);
    return 2;
}

static size_t broken_save(void *self, uint32_t which, void *out, size_t capacity)
{
    struct broken *b = self;
    struct world world = b->worlds[which];
    const size_t more = is(b, "save-grows") ? ++b->calls : is(b, "save-overflows") ? 1 : 0;
    if (is(b, "save-forgets"))
        world.draws = 0;
    if (capacity >= sizeof world)
        memcpy(out, &world, sizeof world);
    if (is(b, "save-overflows") && capacity >= sizeof world)
        ((char *)out)[capacity] = 1;
    return is(b, "save-empty") ? 0 : sizeof world + more;
}

static int broken_load(void *self, const struct environment_buffers *buffers, uint32_t which,
                       const void *state, size_t size, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct broken *b = self;
    if (size < sizeof b->worlds[which] && !is(b, "load-takes-anything")) {
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "a state of %zu bytes", size);
        return 1;
    }
    memcpy(&b->worlds[which], state, size < sizeof b->worlds[which] ? size : sizeof b->worlds[which]);
    if (!is(b, "load-shows-nothing"))
        show(b, buffers, which);
    return 0;
}

/* ---- the table ---- */

__attribute__((constructor)) static void crash_when_loaded(void)
{
    if (table_is("crashes"))
        crash();
    if (table_is("hangs"))
        hang();
}

const struct environment_plugin *environment_plugin(void)
{
    static const char *const nothing[] = {NULL};
    static struct environment_plugin plugin;
    plugin =
        (struct environment_plugin){.version = ENVIRONMENT_VERSION + table_is("version") - table_is("older"),
                                    .size = sizeof plugin - (table_is("size") ? 8 : 0),
                                    .names = table_is("names") ? nothing : names,
                                    .open = table_is("open") ? NULL : broken_open,
                                    .close = table_is("close") ? NULL : broken_close,
                                    .reset = table_is("reset") ? NULL : broken_reset,
                                    .step = table_is("step") ? NULL : broken_step,
                                    .render = broken_render,
                                    .save = broken_save,
                                    .load = table_is("load") ? NULL : broken_load};
    return table_is("table") ? NULL : &plugin;
}
