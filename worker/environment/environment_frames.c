/* Stacks the last observations of each row. A stack is shifted in place, and the newest observation is copied
 * to its end. The plug-in writes that observation into a buffer of one observation for each row, which is all
 * the memory that stacking adds. */
#include "worker/environment/environment_frames.h"

#include "worker/environment/environment_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct environment_frames {
    const struct environment_plugin *plugin;
    void *instance;
    struct environment_plugin table;
    struct environment_spec spec;
    uint32_t count, frames;
    size_t pixels, pixel_bytes; /* of one observation: all axes but the last; the last */
    size_t bytes, stack_bytes;  /* of one observation; of a stack */
    double *bounds;             /* (2, elements of a stack) low, high */
    char *newest;               /* (rows, bytes) what the plug-in writes */
    char *stacks;               /* (rows, stack_bytes) the caller's, from the first call on */
};

/* ---- rows ---- */

/* The plug-in's own view of the caller's buffers. */
static struct environment_buffers inner_buffers(struct environment_frames *f,
                                                const struct environment_buffers *buffers)
{
    struct environment_buffers inner = *buffers;
    inner.observation = f->newest;
    f->stacks = buffers->observation;
    return inner;
}

/* Writes the row's newest observation into place `frame` of its stack. */
static void put_frame(const struct environment_frames *f, size_t row, uint32_t frame)
{
    const size_t bytes = f->pixel_bytes, stride = bytes * f->frames;
    const char *from = f->newest + row * f->bytes;
    char *to = f->stacks + row * f->stack_bytes + frame * bytes;
    if (f->pixels == 1) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t pixel = 0; pixel < f->pixels; pixel++)
        for (size_t i = 0; i < bytes; i++)
            to[pixel * stride + i] = from[pixel * bytes + i];
}

static void fill_row(const struct environment_frames *f, size_t row)
{
    for (uint32_t frame = 0; frame < f->frames; frame++)
        put_frame(f, row, frame);
}

/* Each byte moves one frame to the left. Where a pixel ends, the next one's oldest frame comes in; the newest
 * observation is written over it. */
static void push_row(const struct environment_frames *f, size_t row)
{
    char *stack = f->stacks + row * f->stack_bytes;
    memmove(stack, stack + f->pixel_bytes, f->stack_bytes - f->pixel_bytes);
    put_frame(f, row, f->frames - 1);
}

/* ---- the plug-in's functions ---- */

static void frames_close(void *self)
{
    struct environment_frames *f = self;
    if (f->instance != NULL)
        f->plugin->close(f->instance);
    free(f->bounds);
    free(f->newest);
    free(f);
}

static int frames_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                        const uint32_t *which, const struct environment_seed *seeds,
                        char error[ENVIRONMENT_ERROR_BYTES])
{
    struct environment_frames *f = self;
    const struct environment_buffers inner = inner_buffers(f, buffers);
    const size_t agents = f->spec.agents;
    if (f->plugin->reset(f->instance, &inner, n, which, seeds, error) != 0)
        return 1;
    for (uint32_t i = 0; i < n; i++)
        for (size_t agent = 0; agent < agents; agent++)
            fill_row(f, (which != NULL ? which[i] : i) * agents + agent);
    return 0;
}

static int frames_step(void *self, const struct environment_buffers *buffers, uint32_t n,
                       const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct environment_frames *f = self;
    const struct environment_buffers inner = inner_buffers(f, buffers);
    const size_t agents = f->spec.agents;
    if (f->plugin->step(f->instance, &inner, n, which, error) != 0)
        return 1;
    for (uint32_t i = 0; i < n; i++)
        for (size_t agent = 0; agent < agents; agent++) {
            const size_t row = (which != NULL ? which[i] : i) * agents + agent;
            if ((buffers->flags[row] & ENVIRONMENT_RESTARTED) != 0)
                fill_row(f, row);
            else
                push_row(f, row);
        }
    return 0;
}

static size_t frames_render(void *self, uint32_t which, int kind, uint32_t *width, uint32_t *height,
                            void *out, size_t capacity)
{
    const struct environment_frames *f = self;
    return f->plugin->render(f->instance, which, kind, width, height, out, capacity);
}

static size_t frames_save(void *self, uint32_t which, void *out, size_t capacity)
{
    const struct environment_frames *f = self;
    const size_t head = f->spec.agents * f->stack_bytes, room = capacity > head ? capacity - head : 0;
    const size_t bytes = f->plugin->save(f->instance, which, room > 0 ? (char *)out + head : NULL, room);
    if (bytes > 0 && bytes <= room)
        memcpy(out, f->stacks + which * head, head);
    return bytes > 0 ? head + bytes : 0;
}

static int frames_load(void *self, const struct environment_buffers *buffers, uint32_t which,
                       const void *state, size_t size, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct environment_frames *f = self;
    const struct environment_buffers inner = inner_buffers(f, buffers);
    const size_t head = f->spec.agents * f->stack_bytes;
    if (size <= head) {
        snprintf(error, ENVIRONMENT_ERROR_BYTES,
                 "a saved state of %zu bytes: expected more than the %zu of %u frames", size, head,
                 f->frames);
        return 1;
    }
    if (f->plugin->load(f->instance, &inner, which, (const char *)state + head, size - head, error) != 0)
        return 1;
    memcpy(f->stacks + which * head, state, head);
    return 0;
}

/* ---- opening ---- */

/* The sizes of an observation and of a stack, and the stack's shape. */
static void set_shape(struct environment_frames *f)
{
    struct environment_space *space = &f->spec.observation;
    f->bytes = environment_space_bytes(space);
    f->stack_bytes = f->bytes * f->frames;
    if (space->rank == 0)
        space->shape[space->rank++] = 1;
    f->pixel_bytes = space->shape[space->rank - 1] * (space->dtype == ENVIRONMENT_U8 ? 1 : sizeof(float));
    f->pixels = f->bytes / f->pixel_bytes;
    space->shape[space->rank - 1] *= f->frames;
}

/* The bounds of each element of a stack, from those of an observation. */
static void repeat_bounds(const struct environment_frames *f, double *to, const double *from)
{
    const size_t last = f->spec.observation.shape[f->spec.observation.rank - 1] / f->frames;
    for (size_t pixel = 0; pixel < f->pixels; pixel++)
        for (size_t i = 0; i < f->frames; i++)
            memcpy(to + (pixel * f->frames + i) * last, from + pixel * last, last * sizeof *to);
}

static enum status open_memory(struct environment_frames *f, struct error *error)
{
    struct environment_space *space = &f->spec.observation;
    const size_t elements = environment_space_elements(space), rows = (size_t)f->count * f->spec.agents;
    const bool has_bounds = space->low != NULL || space->high != NULL;
    f->newest = calloc(rows, f->bytes);
    f->bounds = has_bounds ? calloc(2 * elements, sizeof *f->bounds) : NULL;
    if (f->newest == NULL || (has_bounds && f->bounds == NULL))
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u frames of %zu rows", f->frames, rows);
    if (space->low != NULL) {
        repeat_bounds(f, f->bounds, space->low);
        space->low = f->bounds;
    }
    if (space->high != NULL) {
        repeat_bounds(f, f->bounds + elements, space->high);
        space->high = f->bounds + elements;
    }
    return STATUS_OK;
}

static void set_table(struct environment_frames *f)
{
    f->table = *f->plugin;
    f->table.open = NULL;
    f->table.close = frames_close;
    f->table.reset = frames_reset;
    f->table.step = frames_step;
    f->table.render = f->plugin->render != NULL ? frames_render : NULL;
    f->table.save = f->plugin->save != NULL ? frames_save : NULL;
    f->table.load = f->plugin->load != NULL ? frames_load : NULL;
}

enum status environment_frames_open(const struct environment_plugin **plugin, void **instance,
                                    const struct environment_spec **spec, uint32_t count, uint32_t frames,
                                    struct error *error)
{
    const size_t bytes = environment_space_bytes(&(*spec)->observation);
    if (bytes * frames > ENVIRONMENT_ROW_BYTES_MAX)
        return error_set(error, STATUS_INVALID, "%u frames of %zu bytes: expected at most %d bytes", frames,
                         bytes, ENVIRONMENT_ROW_BYTES_MAX);
    struct environment_frames *f = calloc(1, sizeof *f);
    if (f == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u frames", frames);
    *f = (struct environment_frames){.plugin = *plugin, .spec = **spec, .count = count, .frames = frames};
    set_shape(f);
    set_table(f);
    const enum status status = open_memory(f, error);
    if (status != STATUS_OK) {
        frames_close(f);
        return status;
    }
    f->instance = *instance;
    *instance = f;
    *plugin = &f->table;
    *spec = &f->spec;
    return STATUS_OK;
}
