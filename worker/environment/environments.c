/* Calls the plug-in, owns the buffers, seeds the resets, stacks frames, and decides where episodes end. The
 * thread that owns the object runs this. */
#include "worker/environment/environments.h"

#include "kernels/base/plugin_call.h"
#include "worker/environment/environment_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct environments {
    struct environments_config config;
    const struct environment_spec *spec;
    struct environment_spec taken; /* the plug-in's, of whatever version */
    void *self;                    /* the plug-in's instance */
    struct environment_buffers buffers;
    struct environment_buffers written; /* by the plug-in: the buffers, or with frames `newest` among them */
    struct environment_rows rows;       /* the buffers, for their checks */
    void *own_observations;             /* buffers.observation; NULL: that is the caller's */
    void *action;                       /* buffers.action */
    size_t observation_bytes;           /* of one row */
    uint32_t *steps;                    /* (count) since the environment's reset */
    struct environment_seed *seeds;     /* (count) of one reset */

    /* With frames: */
    struct environment_spec stacked; /* the plug-in's spec, with the stacks' shape and bounds */
    size_t pixels, pixel_bytes;      /* of one observation: all axes but the last; the last */
    double *low, *high;              /* (elements of a stack) */
    char *newest;                    /* (rows, one observation) what the plug-in writes */
};

const struct error *environments_failure(const struct environments *e)
{
    const struct error *failure =
        e->self != NULL && e->config.failure != NULL ? e->config.failure(e->self) : NULL;
    return failure != NULL && failure->status != STATUS_OK ? failure : NULL;
}

/* ---- calls ---- */

/* Puts the environment's name in front of a check's sentence. */
static enum status name_fault(const struct environments *e, const struct error *why, struct error *error)
{
    return error_set(error, why->status, "%.100s: %s", e->config.name, why->text);
}

/* Notes a call for the n environments `which`. */
static void call_begin(const struct environments *e, enum plugin_call_kind kind, uint32_t n,
                       const uint32_t *which)
{
    static const struct monotime untimed = {1};
    const uint32_t first = e->config.first;
    plugin_call_begin(kind, first + environment_rows_at(which, 0), first + environment_rows_at(which, n - 1),
                      untimed);
}

/* Checks what a reset or a load wrote. */
static enum status check_state(const struct environments *e, uint32_t n, const uint32_t *which,
                               struct error *error)
{
    struct error why;
    return environment_rows_check_state(&e->rows, n, which, &why) == STATUS_OK ? STATUS_OK
                                                                               : name_fault(e, &why, error);
}

/* ---- opening ---- */

/* What a plug-in wrote as its error, up to a zero or the buffer's end. */
struct plugin_error {
    char text[ENVIRONMENT_ERROR_BYTES];
};

static enum status plugin_refuses(const struct environments *e, const char *call, struct plugin_error *why,
                                  struct error *error)
{
    const struct error *failure = environments_failure(e);
    if (failure != NULL)
        return error_set(error, failure->status, "%s", failure->text);
    why->text[sizeof why->text - 1] = '\0';
    return error_set(error, STATUS_INVALID, "%.100s: %s: %s", e->config.name, call,
                     why->text[0] != '\0' ? why->text : "it gave no reason");
}

/* Zeros that begin at a multiple of 64; of no bytes, too. */
static void *buffer_new(size_t count, size_t bytes)
{
    const size_t size = (count * bytes + 64) / 64 * 64;
    void *memory = aligned_alloc(64, size);
    return memory != NULL ? memset(memory, 0, size) : NULL;
}

static enum status open_buffers(struct environments *e, struct error *error)
{
    const size_t count = e->config.count, rows = count * e->spec->agents;
    struct environment_buffers *buffers = &e->buffers;
    e->rows = environment_rows_of(e->spec, buffers, e->config.first);
    e->observation_bytes = environment_space_bytes(&e->spec->observation);
    buffers->observation = e->own_observations = buffer_new(2 * rows, e->observation_bytes);
    buffers->action = e->action = buffer_new(rows, environment_space_bytes(&e->spec->action));
    buffers->reward = buffer_new(rows, sizeof *buffers->reward);
    buffers->flags = buffer_new(rows, sizeof *buffers->flags);
    buffers->mask = e->rows.choices > 0 ? buffer_new(rows, e->rows.choices) : NULL;
    buffers->metrics =
        e->spec->metric_count > 0 ? buffer_new(rows * e->spec->metric_count, sizeof(float)) : NULL;
    e->steps = buffer_new(count, sizeof *e->steps);
    e->seeds = buffer_new(count, sizeof *e->seeds);
    e->newest = e->config.frames > 1 ? buffer_new(rows, e->observation_bytes / e->config.frames) : NULL;
    if (buffers->observation == NULL || e->action == NULL || buffers->reward == NULL ||
        buffers->flags == NULL || (e->rows.choices > 0 && buffers->mask == NULL) ||
        (e->spec->metric_count > 0 && buffers->metrics == NULL) || e->steps == NULL || e->seeds == NULL ||
        (e->config.frames > 1 && e->newest == NULL))
        return error_set(error, STATUS_NO_MEMORY, "%.100s: no memory for %zu environments", e->config.name,
                         count);
    e->written = *buffers;
    if (e->newest != NULL)
        e->written.observation = e->newest;
    return STATUS_OK;
}

static enum status open_instance(struct environments *e, struct error *error)
{
    const struct environments_config *config = &e->config;
    struct plugin_error text = {""};
    struct error why;
    void *self = NULL;
    if (config->opened != NULL) {
        e->self = config->opened;
        e->spec = config->spec;
        return STATUS_OK;
    }
    const struct environment_spec *given = NULL;
    call_begin(e, PLUGIN_CALL_OPEN, config->count, NULL);
    const int failed =
        config->plugin->open(&self, &given, config->name, config->options, config->count, text.text);
    plugin_call_end();
    if (failed != 0)
        return plugin_refuses(e, "open", &text, error);
    e->self = self;
    if (given == NULL)
        return error_set(error, STATUS_CORRUPT, "%.100s: open wrote no spec", config->name);
    e->spec = &e->taken;
    if (environment_spec_take(&e->taken, given, &why) != STATUS_OK)
        return error_set(error, STATUS_CORRUPT, "%.100s: its spec: %s", config->name, why.text);
    return STATUS_OK;
}

/* Repeats the bounds of an observation for each element of a stack. */
static enum status stack_bounds(const struct environments *e, const double **bounds, double **stacked,
                                struct error *error)
{
    const size_t frames = e->config.frames, all = environment_space_elements(&e->stacked.observation);
    const size_t last = all / (e->pixels * frames);
    if (*bounds == NULL)
        return STATUS_OK;
    *stacked = calloc(all, sizeof **stacked);
    if (*stacked == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%.100s: no memory for %zu frames", e->config.name, frames);
    for (size_t i = 0; i < e->pixels * frames; i++)
        memcpy(*stacked + i * last, *bounds + i / frames * last, last * sizeof **stacked);
    *bounds = *stacked;
    return STATUS_OK;
}

/* Makes the spec that of stacks. */
static enum status stack_spec(struct environments *e, struct error *error)
{
    const uint32_t frames = e->config.frames;
    const size_t bytes = environment_space_bytes(&e->spec->observation);
    struct environment_space *space = &e->stacked.observation;
    if (frames <= 1)
        return STATUS_OK;
    if (e->spec->part_count > 0 && e->spec->observation.dtype == ENVIRONMENT_U8)
        return error_set(error, STATUS_INVALID,
                         "%.100s: /environment/frames: expected 1, got %u: its observation has parts, and an "
                         "image among them",
                         e->config.name, frames);
    if (bytes * frames > ENVIRONMENT_ROW_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "%.100s: %u frames of %zu bytes: expected at most %d bytes",
                         e->config.name, frames, bytes, ENVIRONMENT_ROW_BYTES_MAX);
    e->stacked = *e->spec;
    e->stacked.part_count = 0; /* a stack of vectors is one vector */
    e->spec = &e->stacked;
    if (space->rank == 0)
        space->shape[space->rank++] = 1;
    uint32_t *last = &space->shape[space->rank - 1];
    e->pixel_bytes = *last * (space->dtype == ENVIRONMENT_U8 ? 1 : sizeof(float));
    e->pixels = bytes / e->pixel_bytes;
    *last *= frames;
    const enum status status = stack_bounds(e, &space->low, &e->low, error);
    return status == STATUS_OK ? stack_bounds(e, &space->high, &e->high, error) : status;
}

enum status environments_open(struct environments **out, const struct environments_config *config,
                              struct error *error)
{
    struct environments *e = calloc(1, sizeof *e);
    *out = NULL;
    if (e == NULL) {
        if (config->opened != NULL)
            config->plugin->close(config->opened);
        return error_set(error, STATUS_NO_MEMORY, "no memory for environments");
    }
    e->config = *config;
    enum status status = open_instance(e, error);
    if (status == STATUS_OK)
        status = stack_spec(e, error);
    if (status == STATUS_OK)
        status = open_buffers(e, error);
    if (status == STATUS_OK)
        *out = e;
    else
        environments_close(e);
    return status;
}

void environments_close(struct environments *e)
{
    if (e == NULL)
        return;
    if (e->self != NULL) {
        call_begin(e, PLUGIN_CALL_CLOSE, e->config.count, NULL);
        e->config.plugin->close(e->self);
        plugin_call_end();
    }
    free(e->own_observations);
    free(e->action);
    free(e->buffers.reward);
    free(e->buffers.flags);
    free(e->buffers.mask);
    free(e->buffers.metrics);
    free(e->steps);
    free(e->seeds);
    free(e->low);
    free(e->high);
    free(e->newest);
    free(e);
}

const char *environments_name(const struct environments *e)
{
    return e->config.name;
}

const struct environment_spec *environments_spec(const struct environments *e)
{
    return e->spec;
}

const struct environment_buffers *environments_buffers(const struct environments *e)
{
    return &e->buffers;
}

void *environments_actions(struct environments *e)
{
    return e->action;
}

size_t environments_observation_bytes(const struct environments *e)
{
    return 2 * (size_t)e->config.count * e->spec->agents * e->observation_bytes;
}

void environments_place_observations(struct environments *e, void *memory)
{
    free(e->own_observations);
    e->own_observations = NULL;
    e->buffers.observation = memory;
    if (e->newest == NULL)
        e->written.observation = memory;
}

/* ---- frames ----
 *
 * A stack is shifted in place, and the newest observation is copied to its end. A stack is what the caller
 * sees of a row; so what a row holds before a step is its past. */

/* Writes the row's newest observation into place `frame` of its stack. */
static void put_frame(const struct environments *e, size_t row, uint32_t frame)
{
    const size_t bytes = e->pixel_bytes, stride = bytes * e->config.frames;
    const char *from = e->newest + row * e->pixels * bytes;
    char *to = (char *)e->buffers.observation + row * e->observation_bytes + frame * bytes;
    if (e->pixels == 1) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t pixel = 0; pixel < e->pixels; pixel++)
        for (size_t i = 0; i < bytes; i++)
            to[pixel * stride + i] = from[pixel * bytes + i];
}

/* Puts on the stacks what a reset or a step has written. An episode's or a life's first observation fills its
 * stack. Else each byte moves one frame to the left. Where a pixel ends, the next one's oldest frame comes
 * in; the newest observation is written over it. */
static void stack_frames(const struct environments *e, uint32_t n, const uint32_t *which, bool is_reset)
{
    const uint32_t agents = e->spec->agents;
    for (uint32_t i = 0; i < n; i++)
        for (size_t row = (size_t)environment_rows_at(which, i) * agents, end = row + agents; row < end;
             row++) {
            char *stack = (char *)e->buffers.observation + row * e->observation_bytes;
            const bool fills =
                is_reset || (e->buffers.flags[row] & (ENVIRONMENT_RESTARTED | ENVIRONMENT_LIFE_LOST)) != 0;
            if (!fills)
                memmove(stack, stack + e->pixel_bytes, e->observation_bytes - e->pixel_bytes);
            for (uint32_t frame = fills ? 0 : e->config.frames - 1; frame < e->config.frames; frame++)
                put_frame(e, row, frame);
        }
}

/* ---- reset ---- */

enum status environments_reset(struct environments *e, uint32_t n, const uint32_t *which, uint32_t episode,
                               uint32_t step, struct error *error)
{
    struct plugin_error why = {""};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t index = environment_rows_at(which, i);
        e->seeds[i] = (struct environment_seed){
            .job = e->config.seed, .environment = e->config.first + index, .episode = episode, .step = step};
        e->steps[index] = 0;
    }
    call_begin(e, PLUGIN_CALL_RESET, n, which);
    const int failed = e->config.plugin->reset(e->self, &e->written, n, which, e->seeds, why.text);
    plugin_call_end();
    if (failed != 0)
        return plugin_refuses(e, "reset", &why, error);
    if (e->newest != NULL)
        stack_frames(e, n, which, true);
    return check_state(e, n, which, error);
}

/* ---- step ---- */

/* All flags of the rows in one. */
static uint8_t flags_of(const struct environments *e, uint32_t n, const uint32_t *which)
{
    const uint32_t agents = e->spec->agents;
    uint8_t flags = 0;
    for (size_t row = 0; which == NULL && row < (size_t)n * agents; row++)
        flags |= e->buffers.flags[row];
    for (uint32_t i = 0; which != NULL && i < n; i++)
        for (uint32_t agent = 0; agent < agents; agent++)
            flags |= e->buffers.flags[environment_rows_at(which, i) * agents + agent];
    return flags;
}

bool environments_is_over(const struct environments *e, uint32_t index)
{
    return environment_is_over(e->buffers.flags + (size_t)index * e->spec->agents, e->spec->agents);
}

static void blank_row(struct environments *e, uint32_t row)
{
    memset((char *)e->buffers.observation + row * e->observation_bytes, 0, e->observation_bytes);
    e->buffers.reward[row] = 0;
    if (e->rows.choices > 0)
        memset(e->buffers.mask + row * e->rows.choices, 1, e->rows.choices);
}

/* What a step's flags mean for the whole environment. */
static void settle(struct environments *e, uint32_t index, bool is_cut)
{
    const uint32_t agents = e->spec->agents;
    uint8_t *flags = e->buffers.flags + (size_t)index * agents, all = 0;
    for (uint32_t agent = 0; agent < agents; agent++)
        all |= flags[agent];
    if ((all & ENVIRONMENT_RESTARTED) != 0)
        e->steps[index] = 0;
    const uint8_t more =
        (uint8_t)((all & ENVIRONMENT_FAILED) |
                  (is_cut && (all & ENVIRONMENT_RESTARTED) == 0 ? ENVIRONMENT_TRUNCATED : 0));
    for (uint32_t agent = 0; agent < agents; agent++)
        flags[agent] |= (flags[agent] & ENVIRONMENT_ABSENT) != 0 ? 0 : more;
    const bool is_over = environment_is_over(flags, agents);
    for (uint32_t agent = 0; agent < agents; agent++) {
        const bool has_ended = environment_flags_end(flags[agent]);
        if ((flags[agent] & ENVIRONMENT_FAILED) != 0 || (flags[agent] & ENVIRONMENT_ABSENT) != 0)
            blank_row(e, index * agents + agent);
        if (has_ended && !is_over)
            flags[agent] |= ENVIRONMENT_ABSENT;
    }
}

enum status environments_step(struct environments *e, uint32_t n, const uint32_t *which, struct error *error)
{
    const uint32_t steps_max = e->spec->steps_max > 0 ? e->spec->steps_max : UINT32_MAX;
    struct plugin_error refusal = {""};
    struct error why;
    if (environment_rows_check_actions(&e->rows, n, which, &why) != STATUS_OK)
        return name_fault(e, &why, error);
    call_begin(e, PLUGIN_CALL_STEP, n, which);
    const int failed = e->config.plugin->step(e->self, &e->written, n, which, refusal.text);
    plugin_call_end();
    if (failed != 0)
        return plugin_refuses(e, "step", &refusal, error);
    if (e->newest != NULL)
        stack_frames(e, n, which, false);
    const uint8_t flags = flags_of(e, n, which);
    if (flags != 0 && environment_rows_check_flags(&e->rows, n, which, &why) != STATUS_OK)
        return name_fault(e, &why, error);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t index = environment_rows_at(which, i);
        const bool is_cut = ++e->steps[index] == steps_max;
        if (is_cut || flags != 0)
            settle(e, index, is_cut);
    }
    if (environment_rows_check_step(&e->rows, n, which, &why) != STATUS_OK)
        return name_fault(e, &why, error);
    return check_state(e, n, which, error);
}

/* ---- saved states ----
 *
 * A state is the uint32 of the steps since the reset, the rows' flags of the last step, with frames the rows'
 * stacks, and the plug-in's bytes. */

/* The bytes of an environment's stacks. */
static size_t stack_bytes(const struct environments *e)
{
    return e->newest != NULL ? e->spec->agents * e->observation_bytes : 0;
}

static size_t state_head(const struct environments *e)
{
    return sizeof *e->steps + e->spec->agents + stack_bytes(e);
}

bool environments_can_save(const struct environments *e)
{
    return e->config.plugin->save != NULL && e->config.plugin->load != NULL;
}

size_t environments_save(struct environments *e, uint32_t index, void *out, size_t capacity)
{
    const size_t head = state_head(e), room = capacity > head ? capacity - head : 0;
    call_begin(e, PLUGIN_CALL_SAVE, 1, &index);
    const size_t bytes = e->config.plugin->save(e->self, index, room > 0 ? (char *)out + head : NULL, room);
    plugin_call_end();
    if (bytes > 0 && bytes <= room) {
        const size_t agents = e->spec->agents, stacks = stack_bytes(e);
        memcpy(out, &e->steps[index], sizeof *e->steps);
        memcpy((char *)out + sizeof *e->steps, e->buffers.flags + index * agents, agents);
        memcpy((char *)out + head - stacks, (char *)e->buffers.observation + index * stacks, stacks);
    }
    return bytes > 0 ? head + bytes : 0;
}

/* Reads the head of a state: the steps and the flags. */
static enum status load_head(struct environments *e, uint32_t index, const uint8_t *state, size_t bytes,
                             struct error *error)
{
    uint32_t steps;
    if (bytes <= state_head(e))
        return error_set(error, STATUS_INVALID, "%.100s: a saved state of %zu bytes: expected more than %zu",
                         e->config.name, bytes, state_head(e));
    memcpy(&steps, state, sizeof steps);
    if (e->spec->steps_max > 0 && steps >= e->spec->steps_max)
        return error_set(error, STATUS_INVALID,
                         "%.100s: a saved state after %" PRIu32 " steps: expected fewer than %" PRIu32,
                         e->config.name, steps, e->spec->steps_max);
    for (uint32_t agent = 0; agent < e->spec->agents; agent++)
        if ((state[sizeof steps + agent] & ~(unsigned)ENVIRONMENT_STEP_FLAGS) != 0)
            return error_set(error, STATUS_INVALID, "%.100s: a saved state has flags %#x without a meaning",
                             e->config.name, state[sizeof steps + agent]);
    e->steps[index] = steps;
    memcpy(e->buffers.flags + (size_t)index * e->spec->agents, state + sizeof steps, e->spec->agents);
    return STATUS_OK;
}

enum status environments_load(struct environments *e, uint32_t index, const void *state, size_t bytes,
                              struct error *error)
{
    struct plugin_error why = {""};
    const size_t head = state_head(e), stacks = stack_bytes(e);
    if (!environments_can_save(e))
        return error_set(error, STATUS_INVALID, "%.100s: a saved state, and it cannot load states",
                         e->config.name);
    enum status status = load_head(e, index, state, bytes, error);
    if (status != STATUS_OK)
        return status;
    call_begin(e, PLUGIN_CALL_LOAD, 1, &index);
    const int failed = e->config.plugin->load(e->self, &e->written, index, (const char *)state + head,
                                              bytes - head, why.text);
    plugin_call_end();
    if (failed != 0)
        return plugin_refuses(e, "load", &why, error);
    memcpy((char *)e->buffers.observation + index * stacks, (const char *)state + head - stacks, stacks);
    /* The plug-in may have shown absent agents. A row that the last step ended still shows its last
     * observation. An environment that was over has been reset since: none is absent. */
    const uint32_t agents = e->spec->agents;
    for (uint32_t row = index * agents; row < (index + 1) * agents && !environments_is_over(e, index); row++)
        if ((e->buffers.flags[row] & ENVIRONMENT_ABSENT) != 0 &&
            !environment_flags_end(e->buffers.flags[row]))
            blank_row(e, row);
    return check_state(e, 1, &index, error);
}

/* ---- pictures ---- */

size_t environments_render(struct environments *e, uint32_t index, int kind, uint32_t *width,
                           uint32_t *height, void *out, size_t capacity)
{
    if (e->config.plugin->render == NULL)
        return 0;
    call_begin(e, PLUGIN_CALL_RENDER, 1, &index);
    const size_t bytes = e->config.plugin->render(e->self, index, kind, width, height, out, capacity);
    plugin_call_end();
    return bytes;
}
