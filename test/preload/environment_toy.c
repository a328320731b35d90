/* A good plug-in: one small environment for each thing that environment.h knows. In all of them a token moves
 * on a line, with a push of its own now and then, and an episode ends at +-LIMIT. */
#include "worker/environment/environment.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind {
    WALK,    /* two choices of three and two, masked; metrics; text */
    PUSH,    /* a force; cut after 50 steps; metrics; pictures */
    PAIR,    /* two agents; one that has ended is absent until the other has; metrics */
    PICTURE, /* an image of bytes */
    AGAIN,   /* resets itself */
    FRAIL,   /* fails now and then */
    LONE,    /* one instance of one environment */
    WILD,    /* draws from the clock */
    MIDDLE, /* an image of bytes, large enough for convolutions; rewards what is in its middle; two choices */
    GLIDE,  /* the same image of floats; a force */
    TINY,   /* fails where denormal numbers are not flushed */
    SLOW,   /* PUSH, whose step takes a millisecond */
    LIVES,  /* three of them */
    CAMERA, /* MIDDLE's image among other parts; rewards what is near a goal, which another part tells */
    GAUGES, /* parts that are all floats */
    KINDS
};
enum { AGENTS_MAX = 2, LIMIT = 9, SIDE = 4, LIVES_MAX = 3, PUSH_STEPS = 50, WIDE = 38, BAR = 6 };
enum {
    IMAGE_AT = 8, /* in CAMERA's row, behind two floats; the next multiple of 4 behind the image: */
    GOAL_AT = IMAGE_AT + (WIDE - 1) * WIDE + 2,
    CAMERA_BYTES = GOAL_AT + 4,
    GAUGES_FLOATS = 5,
};

struct token {
    int32_t place;
    uint32_t ended; /* 1: in this episode already */
};

struct world {
    uint64_t draws;
    uint32_t steps, lives_lost;
    int32_t goal; /* CAMERA's */
    struct token tokens[AGENTS_MAX];
};

struct toy {
    enum kind kind;
    const struct environment_spec *spec;
    uint32_t count;
    struct world worlds[];
};

static const char *const names[] = {
    "Walk-v0",   "Push-v0",  "Pair-v0", "Picture-v0", "Again-v0", "Frail-v0",  "Lone-v0",   "Wild-v0",
    "Middle-v0", "Glide-v0", "Tiny-v0", "Slow-v0",    "Lives-v0", "Camera-v0", "Gauges-v0", NULL};

static const double low = -LIMIT, high = LIMIT, lows[2] = {-LIMIT, 0}, highs[2] = {LIMIT, INFINITY};
static const uint32_t choices[2] = {3, 2}, two[1] = {2};
static const double bytes_low[SIDE * SIDE],
    bytes_high[SIDE * SIDE] = {255, 255, 255, 255, 255, 255, 255, 255,
                               255, 255, 255, 255, 255, 255, 255, 255};
static const char *const metrics[] = {"place", "steps"};

static const struct environment_part camera_parts[] = {
    {"motion", {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {2}, .low = lows, .high = highs}},
    {"camera", {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {WIDE - 1, WIDE, 1}}},
    {"goal", {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high}},
};
static const struct environment_part gauges_parts[] = {
    {"place", {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high}},
    {"clocks", {.dtype = ENVIRONMENT_F32, .rank = 2, .shape = {2, 2}}},
};

#define OBSERVATION                                                                                          \
    .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {2}, .low = lows, .high = highs}
#define DISCRETE .action = {.dtype = ENVIRONMENT_I32, .choices = two}
#define METRICS .metric_count = 2, .metrics = metrics
#define SPEC .size = sizeof(struct environment_spec)
static const struct environment_spec specs[KINDS] = {
    [WALK] = {SPEC, .agents = 1, .has_mask = 1, METRICS, OBSERVATION,
              .action = {.dtype = ENVIRONMENT_I32, .rank = 1, .shape = {2}, .choices = choices}},
    [PUSH] = {SPEC, .agents = 1, .steps_max = PUSH_STEPS, METRICS, OBSERVATION,
              .action = {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high}},
    [PAIR] = {SPEC, .agents = 2, METRICS, OBSERVATION, DISCRETE},
    [PICTURE] = {SPEC, .agents = 1,
                 .observation = {.dtype = ENVIRONMENT_U8,
                                 .rank = 3,
                                 .shape = {SIDE, SIDE, 1},
                                 .low = bytes_low,
                                 .high = bytes_high},
                 DISCRETE},
    [AGAIN] = {SPEC, .agents = 1, OBSERVATION, DISCRETE},
    [FRAIL] = {SPEC, .agents = 1, OBSERVATION, DISCRETE},
    [LONE] = {SPEC, .limits = ENVIRONMENT_SINGLETON, .agents = 1, OBSERVATION, DISCRETE},
    [WILD] = {SPEC, .limits = ENVIRONMENT_CANNOT_SEED, .agents = 1, OBSERVATION, DISCRETE},
    [MIDDLE] = {SPEC, .agents = 1, .steps_max = PUSH_STEPS,
                .observation = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {WIDE, WIDE, 1}}, DISCRETE},
    [GLIDE] = {SPEC, .agents = 1, .steps_max = PUSH_STEPS,
               .observation = {.dtype = ENVIRONMENT_F32, .rank = 3, .shape = {WIDE, WIDE, 1}},
               .action = {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high}},
    [TINY] = {SPEC, .agents = 1, OBSERVATION, DISCRETE},
    [LIVES] = {SPEC, .agents = 1, OBSERVATION, DISCRETE},
    [CAMERA] = {SPEC, .agents = 1, .steps_max = PUSH_STEPS,
                .observation = {.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {CAMERA_BYTES}}, DISCRETE,
                .part_count = 3, .parts = camera_parts},
    [GAUGES] = {SPEC, .agents = 1,
                .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {GAUGES_FLOATS}}, DISCRETE,
                .part_count = 2, .parts = gauges_parts},
    [SLOW] = {SPEC, .agents = 1, .steps_max = PUSH_STEPS, OBSERVATION,
              .action = {.dtype = ENVIRONMENT_F32, .low = &low, .high = &high}},
};

static int toy_open(void **out, const struct environment_spec **spec, const char *name, const char *options,
                    uint32_t count, char error[ENVIRONMENT_ERROR_BYTES])
{
    int kind = 0;
    while (kind < KINDS && strcmp(names[kind], name) != 0)
        kind++;
    if (kind == KINDS || strcmp(options, "{}") != 0 || (kind == LONE && count > 1)) {
        snprintf(error, ENVIRONMENT_ERROR_BYTES,
                 "%.100s with the options %.100s: expected %s of {}, one of Lone-v0", name, options,
                 names[0]);
        return 1;
    }
    struct toy *toy = calloc(1, sizeof *toy + count * sizeof toy->worlds[0]);
    if (toy == NULL) {
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "no memory for %u worlds", count);
        return 1;
    }
    toy->kind = (enum kind)kind;
    toy->spec = &specs[kind];
    toy->count = count;
    *out = toy;
    *spec = toy->spec;
    return 0;
}

static uint32_t draw(struct world *world)
{
    world->draws = world->draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(world->draws >> 33);
}

/* ---- what a row shows ---- */

/* A bright bar over the whole height, at the token's place. */
static void show_bar(const struct toy *toy, const struct environment_buffers *buffers, uint32_t which)
{
    const uint32_t place = (uint32_t)(toy->worlds[which].tokens[0].place + LIMIT);
    const uint32_t first = place * (WIDE - BAR) / (2 * LIMIT);
    for (uint32_t i = 0; i < WIDE * WIDE; i++) {
        const bool lit = i % WIDE - first < BAR;
        const size_t at = (size_t)which * WIDE * WIDE + i;
        if (toy->kind == MIDDLE)
            ((uint8_t *)buffers->observation)[at] = lit ? 255 : 0;
        else
            ((float *)buffers->observation)[at] = lit;
    }
}

static void show_camera(const struct world *world, uint8_t *row)
{
    const uint32_t first = (uint32_t)(world->tokens[0].place + LIMIT) * (WIDE - BAR) / (2 * LIMIT);
    const float motion[] = {(float)world->tokens[0].place, (float)world->steps}, goal = (float)world->goal;
    memcpy(row, motion, sizeof motion);
    for (uint32_t i = 0; i < (WIDE - 1) * WIDE; i++)
        row[IMAGE_AT + i] = i % WIDE - first < BAR ? 255 : 0;
    memset(row + GOAL_AT - 2, 0, 2);
    memcpy(row + GOAL_AT, &goal, sizeof goal);
}

static void show_gauges(const struct world *world, float *row)
{
    row[0] = (float)world->tokens[0].place;
    for (int i = 1; i < GAUGES_FLOATS; i++)
        row[i] = (float)world->steps / (float)i;
}

static void show_row(const struct toy *toy, const struct environment_buffers *buffers, uint32_t which,
                     uint32_t agent)
{
    const struct world *world = &toy->worlds[which];
    const struct token *token = &world->tokens[agent];
    const uint32_t row = which * toy->spec->agents + agent;
    if (toy->kind == MIDDLE || toy->kind == GLIDE) {
        show_bar(toy, buffers, which);
        return;
    }
    if (toy->kind == CAMERA) {
        show_camera(world, (uint8_t *)buffers->observation + (size_t)row * CAMERA_BYTES);
        return;
    }
    if (toy->kind == GAUGES) {
        show_gauges(world, (float *)buffers->observation + (size_t)row * GAUGES_FLOATS);
        return;
    }
    if (toy->kind == PICTURE) {
        uint8_t *image = (uint8_t *)buffers->observation + (size_t)row * SIDE * SIDE;
        memset(image, 0, SIDE * SIDE);
        image[(token->place + LIMIT) % (SIDE * SIDE)] = 255;
        return;
    }
    float *observation = (float *)buffers->observation + (size_t)row * 2;
    observation[0] = (float)token->place;
    observation[1] = (float)world->steps;
    if (toy->kind == WALK) {
        uint8_t *mask = buffers->mask + (size_t)row * 5;
        memset(mask, 1, 5);
        mask[0] = token->place > -3; /* no step to the left far on the left */
    }
}

static void begin(struct toy *toy, uint32_t which, uint64_t seed)
{
    struct world *world = &toy->worlds[which];
    *world = (struct world){.draws = seed};
    for (uint32_t agent = 0; agent < toy->spec->agents; agent++)
        world->tokens[agent].place = (int32_t)(draw(world) % 5) - 2;
    world->goal = toy->kind == CAMERA ? (int32_t)(draw(world) % 9) - 4 : 0;
}

static int toy_reset(void *self, const struct environment_buffers *buffers, uint32_t n, const uint32_t *which,
                     const struct environment_seed *seeds, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct toy *toy = self;
    (void)error;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = which != NULL ? which[i] : i;
        begin(toy, at, environment_seed_mix(seeds[i]));
        for (uint32_t agent = 0; agent < toy->spec->agents; agent++)
            show_row(toy, buffers, at, agent);
    }
    return 0;
}

/* ---- a step ---- */

static int32_t move_of(const struct toy *toy, const void *actions, uint32_t row)
{
    const int32_t *choice = actions;
    if (toy->kind == PUSH || toy->kind == SLOW)
        return (int32_t)lrintf(((const float *)actions)[row] / LIMIT);
    if (toy->kind == GLIDE)
        return (int32_t)lrintf(((const float *)actions)[row]);
    if (toy->kind == WALK)
        return (choice[2 * row] - 1) * (1 + choice[2 * row + 1]);
    return 2 * choice[row] - 1;
}

static unsigned step_token(struct toy *toy, uint32_t which, uint32_t agent, int32_t move)
{
    struct world *world = &toy->worlds[which];
    struct token *token = &world->tokens[agent];
    if (token->ended)
        return ENVIRONMENT_ABSENT;
    if (toy->kind == WILD)
        world->draws += (uint64_t)clock();
    const uint32_t push = draw(world) % 8;
    token->place += move + (push == 0) - (push == 1);
    token->place = token->place > LIMIT ? LIMIT : token->place < -LIMIT ? -LIMIT : token->place;
    token->ended = abs(token->place) == LIMIT;
    if (toy->kind == FRAIL && draw(world) % 50 == 0)
        return ENVIRONMENT_FAILED;
    return token->ended ? ENVIRONMENT_TERMINATED : 0;
}

/* The token that has come to an end, unless that was the last life, begins another one in the middle. */
static unsigned lose_life(struct world *world)
{
    if (++world->lives_lost == LIVES_MAX)
        return ENVIRONMENT_TERMINATED;
    world->tokens[0] = (struct token){0};
    return ENVIRONMENT_LIFE_LOST;
}

static void step_world(struct toy *toy, const struct environment_buffers *buffers, uint32_t which)
{
    toy->worlds[which].steps++;
    for (uint32_t agent = 0; agent < toy->spec->agents; agent++) {
        const uint32_t row = which * toy->spec->agents + agent;
        unsigned flags = step_token(toy, which, agent, move_of(toy, buffers->action, row));
        const int32_t place = toy->worlds[which].tokens[agent].place;
        const bool middle = toy->kind == MIDDLE || toy->kind == GLIDE || toy->kind == CAMERA;
        buffers->reward[row] = (float)(middle ? LIMIT - abs(place - toy->worlds[which].goal) : place);
        if (toy->kind == LIVES && flags != 0)
            flags = lose_life(&toy->worlds[which]);
        if (toy->kind == AGAIN && flags != 0) {
            flags |= ENVIRONMENT_RESTARTED;
            begin(toy, which, toy->worlds[which].draws);
        }
        buffers->flags[row] = (uint8_t)flags;
        show_row(toy, buffers, which, agent);
        if (toy->spec->metric_count > 0 && (flags != 0 || toy->worlds[which].steps == PUSH_STEPS)) {
            buffers->metrics[2 * row] = (float)toy->worlds[which].tokens[agent].place;
            buffers->metrics[2 * row + 1] = (float)toy->worlds[which].steps;
        }
    }
}

/* By the bits: a denormal number compares as 0 where it counts as 0. */
static bool keeps_denormals(void)
{
    volatile double least = DBL_MIN;
    const double half = least * 0.5;
    uint64_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits != 0;
}

static int toy_step(void *self, const struct environment_buffers *buffers, uint32_t n, const uint32_t *which,
                    char error[ENVIRONMENT_ERROR_BYTES])
{
    if (((struct toy *)self)->kind == TINY && keeps_denormals()) {
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "denormal numbers are kept");
        return 1;
    }
    if (((struct toy *)self)->kind == SLOW)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (uint32_t i = 0; i < n; i++)
        step_world(self, buffers, which != NULL ? which[i] : i);
    return 0;
}

/* ---- the rest ---- */

static size_t toy_render(void *self, uint32_t which, int kind, uint32_t *width, uint32_t *height, void *out,
                         size_t capacity)
{
    const struct toy *toy = self;
    const int32_t place = toy->worlds[which].tokens[0].place + LIMIT;
    enum { CELLS = 2 * LIMIT + 1 };
    const bool picture = toy->kind == PUSH;
    if (kind != (picture ? ENVIRONMENT_RGB : ENVIRONMENT_TEXT))
        return 0;
    const size_t bytes = picture ? (size_t)CELLS * 3 : CELLS + 1;
    if (capacity < bytes)
        return bytes;
    memset(out, picture ? 0 : '.', bytes);
    if (picture) {
        *width = CELLS;
        *height = 1;
        memset((uint8_t *)out + place * 3, 255, 3);
    } else {
        ((char *)out)[place] = 'o';
        ((char *)out)[CELLS] = '\n';
    }
    return bytes;
}

static size_t toy_save(void *self, uint32_t which, void *out, size_t capacity)
{
    const struct toy *toy = self;
    if (capacity >= sizeof toy->worlds[which])
        memcpy(out, &toy->worlds[which], sizeof toy->worlds[which]);
    return sizeof toy->worlds[which];
}

static int toy_load(void *self, const struct environment_buffers *buffers, uint32_t which, const void *state,
                    size_t size, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct toy *toy = self;
    if (size != sizeof toy->worlds[which]) {
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "a state of %zu bytes: expected %zu", size,
                 sizeof toy->worlds[which]);
        return 1;
    }
    memcpy(&toy->worlds[which], state, size);
    for (uint32_t agent = 0; agent < toy->spec->agents; agent++)
        show_row(toy, buffers, which, agent);
    return 0;
}

const struct environment_plugin *environment_plugin(void)
{
    static const struct environment_plugin plugin = {
        ENVIRONMENT_VERSION, sizeof plugin, names,      toy_open, free,
        toy_reset,           toy_step,      toy_render, toy_save, toy_load};
    return &plugin;
}
