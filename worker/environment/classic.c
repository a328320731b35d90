/* The plug-in of the built-in environments: names, spaces, pictures, memory, resets and saved states.
 * classic_lanes.h steps them. One thread at a time uses an instance; there is no lock. */
#include "worker/environment/classic.h"

#include "kernels/base/rng.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/lanes/isa.h"
#include "worker/environment/acrobot.h"
#include "worker/environment/cartpole.h"
#include "worker/environment/classic_lanes.h"
#include "worker/environment/mountain_car.h"
#include "worker/environment/pendulum.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [CLASSIC_CARTPOLE] = CARTPOLE_NAME,
    [CLASSIC_ACROBOT] = ACROBOT_NAME,
    [CLASSIC_MOUNTAIN_CAR] = MOUNTAIN_CAR_NAME,
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] = MOUNTAIN_CAR_CONTINUOUS_NAME,
    [CLASSIC_PENDULUM] = PENDULUM_NAME,
    [CLASSIC_KINDS] = "CartPoleNoVel-v1",
    "MountainCarNoVel-v0",
    "MountainCarContinuousNoVel-v0",
    "PendulumNoVel-v1",
    NULL,
};

/* Environments without velocities, the names behind the kinds: their physics, and the hidden elements' bits.
 */
static const struct {
    enum classic_kind kind;
    uint32_t hidden;
} without_velocity[] = {{CLASSIC_CARTPOLE, 1 << 1 | 1 << 3},
                        {CLASSIC_MOUNTAIN_CAR, 1 << 1},
                        {CLASSIC_MOUNTAIN_CAR_CONTINUOUS, 1 << 1},
                        {CLASSIC_PENDULUM, 1 << 2}};

/* ---- the canvas: a scene in colours or in letters ----
 *
 * A scene has its own units, with y upwards from the bottom. A cell of the picture, a pixel or a letter,
 * takes the ink of the last bar that covers its middle. */

typedef struct {
    double x, y;
} point;

struct canvas_ink {
    uint8_t colour[3]; /* red, green, blue */
    char letter;
};

struct canvas {
    uint8_t *cells; /* the first row's first cell: the top left one */
    uint32_t columns, rows;
    uint32_t row_bytes;             /* from one row to the next */
    bool letters;                   /* one byte for each cell; else three: red, green, blue */
    double cell_width, cell_height; /* in the scene's units */
};

struct bar {
    point from, along; /* along: of length 1 */
    double length, half_width;
    bool round;
};

static bool bar_covers(const struct bar *bar, point p)
{
    const double x = p.x - bar->from.x, y = p.y - bar->from.y;
    const double along = x * bar->along.x + y * bar->along.y;
    const double across = x * bar->along.y - y * bar->along.x;
    const double beyond = along < 0 ? -along : along > bar->length ? along - bar->length : 0;
    if (bar->round)
        return beyond * beyond + across * across <= bar->half_width * bar->half_width;
    return beyond <= 0 && fabs(across) <= bar->half_width;
}

/* The cell of `place`, within 0 … count. */
static uint32_t clamp_cell(double place, uint32_t count)
{
    return place <= 0 ? 0 : place >= count ? count : (uint32_t)place;
}

/* Paints the bar of `half_width` along the line from `from` to `to`; its ends are cut straight, or round. A
 * round bar from a point to itself is a disc. A bar is painted at least as wide as a cell is high, so that a
 * thin line has no gaps. What lies outside of the picture is left out. */
static void canvas_paint(const struct canvas *canvas, point from, point to, double half_width, bool round,
                         struct canvas_ink ink)
{
    const double width = canvas->cell_width, height = canvas->cell_height;
    const double x = to.x - from.x, y = to.y - from.y, length = hypot(x, y);
    const struct bar bar = {.from = from,
                            .along = length > 0 ? (point){x / length, y / length} : (point){1, 0},
                            .length = length,
                            .half_width = fmax(half_width, height / 2),
                            .round = round};
    const size_t cell_bytes = canvas->letters ? 1 : 3;
    const uint8_t *bytes = canvas->letters ? (const uint8_t *)&ink.letter : ink.colour;
    const double top = height * canvas->rows, reach = bar.half_width;
    const uint32_t left = clamp_cell((fmin(from.x, to.x) - reach) / width, canvas->columns);
    const uint32_t right = clamp_cell((fmax(from.x, to.x) + reach) / width + 1, canvas->columns);
    const uint32_t upper = clamp_cell((top - fmax(from.y, to.y) - reach) / height, canvas->rows);
    const uint32_t lower = clamp_cell((top - fmin(from.y, to.y) + reach) / height + 1, canvas->rows);
    for (uint32_t row = upper; row < lower; row++)
        for (uint32_t column = left; column < right; column++)
            if (bar_covers(&bar, (point){(column + 0.5) * width, top - (row + 0.5) * height}))
                memcpy(canvas->cells + (size_t)row * canvas->row_bytes + column * cell_bytes, bytes,
                       cell_bytes);
}

/* ---- scenes: Gymnasium's views, in its pixels ----
 *
 * They lack anti-aliasing, the corners of MountainCar's flag, and the arrow that shows Pendulum's torque. */

static const struct canvas_ink black = {{0, 0, 0}, '#'}, brown = {{202, 152, 101}, '|'},
                               violet = {{129, 132, 203}, 'o'}, cyan = {{0, 204, 204}, '='},
                               yellow = {{204, 204, 0}, 'o'}, grey = {{128, 128, 128}, 'o'},
                               red = {{204, 77, 77}, '='}, line = {{0, 0, 0}, '-'}, hill = {{0, 0, 0}, '.'};

/* `distance` from p in the direction of the unit vector `along`. */
static point move(point p, point along, double distance)
{
    return (point){p.x + distance * along.x, p.y + distance * along.y};
}

static void paint_disc(const struct canvas *canvas, point middle, double radius, struct canvas_ink ink)
{
    canvas_paint(canvas, middle, middle, radius, true, ink);
}

static void paint_line(const struct canvas *canvas, point from, point to, struct canvas_ink ink)
{
    canvas_paint(canvas, from, to, 0.5, false, ink);
}

static void paint_cartpole(const struct canvas *canvas, const double values[CLASSIC_VALUES_MAX])
{
    const double pixels_per_m = 600 / 4.8;
    const point cart = {values[0] * pixels_per_m + 300, 100}, axle = {cart.x, cart.y + 7.5};
    const point up = {sine(values[2]), cosine(values[2])};
    paint_line(canvas, (point){0, cart.y}, (point){600, cart.y}, line);
    canvas_paint(canvas, (point){cart.x - 25, cart.y}, (point){cart.x + 25, cart.y}, 15, false, black);
    canvas_paint(canvas, move(axle, up, -5), move(axle, up, pixels_per_m - 5), 5, false, brown);
    paint_disc(canvas, axle, 5, violet);
}

static void paint_acrobot(const struct canvas *canvas, const double values[CLASSIC_VALUES_MAX])
{
    const double pixels_per_m = 500 / 4.4, theta = values[0] + values[1];
    const point first = {sine(values[0]), -cosine(values[0])}, second = {sine(theta), -cosine(theta)};
    const point pivot = {250, 250}, joint = move(pivot, first, pixels_per_m);
    const double goal = pivot.y + pixels_per_m;
    paint_line(canvas, (point){0, goal}, (point){500, goal}, line);
    canvas_paint(canvas, pivot, joint, 0.1 * pixels_per_m, false, cyan);
    paint_disc(canvas, pivot, 0.1 * pixels_per_m, yellow);
    canvas_paint(canvas, joint, move(joint, second, pixels_per_m), 0.1 * pixels_per_m, false, cyan);
    paint_disc(canvas, joint, 0.1 * pixels_per_m, yellow);
}

/* The valley's surface at a position. */
static point mountain_car_ground(double position)
{
    const double pixels = 600 / (MOUNTAIN_CAR_POSITION_MAX - MOUNTAIN_CAR_POSITION_MIN);
    return (point){(position - MOUNTAIN_CAR_POSITION_MIN) * pixels,
                   (0.45 * sine(3 * position) + 0.55) * pixels};
}

static void paint_valley(const struct canvas *canvas, double goal)
{
    enum { PIECES = 99 };
    const double piece = (MOUNTAIN_CAR_POSITION_MAX - MOUNTAIN_CAR_POSITION_MIN) / PIECES;
    for (int i = 0; i < PIECES; i++)
        paint_line(canvas, mountain_car_ground(MOUNTAIN_CAR_POSITION_MIN + i * piece),
                   mountain_car_ground(MOUNTAIN_CAR_POSITION_MIN + (i + 1) * piece), hill);
    const point foot = mountain_car_ground(goal), tip = {foot.x, foot.y + 50};
    paint_line(canvas, foot, tip, black);
    canvas_paint(canvas, (point){tip.x, tip.y - 5}, (point){tip.x + 25, tip.y - 5}, 5, false, yellow);
}

static void paint_mountain_car_at(const struct canvas *canvas, double position, double goal)
{
    const double slope = cosine(3 * position);
    const point along = {cosine(slope), sine(slope)}, up = {-along.y, along.x};
    const point ground = mountain_car_ground(position), base = {ground.x, ground.y + 10};
    const point body = move(base, up, 10);
    paint_valley(canvas, goal);
    canvas_paint(canvas, move(body, along, -20), move(body, along, 20), 10, false, black);
    paint_disc(canvas, move(base, along, 10), 8, grey);
    paint_disc(canvas, move(base, along, -10), 8, grey);
}

static void paint_mountain_car(const struct canvas *canvas, const double values[CLASSIC_VALUES_MAX])
{
    paint_mountain_car_at(canvas, values[0], MOUNTAIN_CAR_GOAL);
}

static void paint_mountain_car_continuous(const struct canvas *canvas,
                                          const double values[CLASSIC_VALUES_MAX])
{
    paint_mountain_car_at(canvas, values[0], MOUNTAIN_CAR_CONTINUOUS_GOAL);
}

static void paint_pendulum(const struct canvas *canvas, const double values[CLASSIC_VALUES_MAX])
{
    const double pixels_per_m = 500 / 4.4;
    const point pivot = {250, 250}, up = {-sine(values[0]), cosine(values[0])};
    canvas_paint(canvas, pivot, move(pivot, up, pixels_per_m), 0.1 * pixels_per_m, true, red);
    paint_disc(canvas, pivot, 0.05 * pixels_per_m, black);
}

/* ---- what a kind is ---- */

static const double cartpole_high[] = {2 * CARTPOLE_X_MAX_M, INFINITY, 2 * CARTPOLE_THETA_MAX_RAD, INFINITY},
                    cartpole_low[] = {-2 * CARTPOLE_X_MAX_M, -INFINITY, -2 * CARTPOLE_THETA_MAX_RAD,
                                      -INFINITY},
                    acrobot_high[] = {1, 1, 1, 1, ACROBOT_THETA1_DOT_MAX, ACROBOT_THETA2_DOT_MAX},
                    acrobot_low[] = {-1, -1, -1, -1, -ACROBOT_THETA1_DOT_MAX, -ACROBOT_THETA2_DOT_MAX},
                    mountain_car_high[] = {MOUNTAIN_CAR_POSITION_MAX, MOUNTAIN_CAR_SPEED_MAX},
                    mountain_car_low[] = {MOUNTAIN_CAR_POSITION_MIN, -MOUNTAIN_CAR_SPEED_MAX},
                    pendulum_high[] = {1, 1, PENDULUM_SPEED_MAX},
                    pendulum_low[] = {-1, -1, -PENDULUM_SPEED_MAX}, force_high[] = {1}, force_low[] = {-1},
                    torque_high[] = {PENDULUM_TORQUE_MAX}, torque_low[] = {-PENDULUM_TORQUE_MAX};

static const uint32_t two_choices[] = {CARTPOLE_ACTIONS}, three_choices[] = {ACROBOT_ACTIONS};

#define OBSERVATION(size, of)                                                                                \
    .observation = {                                                                                         \
        .dtype = ENVIRONMENT_F32, .rank = 1, .shape = {(size)}, .low = of##_low, .high = of##_high}
#define CHOICE(of) .action = {.dtype = ENVIRONMENT_I32, .choices = (of)}
#define FORCE(of)                                                                                            \
    .action = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {1}, .low = of##_low, .high = of##_high}
#define SPEC(max) .size = sizeof(struct environment_spec), .agents = 1, .steps_max = (max)

/* A value of a state: its name, where it begins, and where it can get to. */
struct value_range {
    const char *name;
    double first_low, first_high;
    double low, high;
};

/* A range around 0: at first, and at most. */
#define WITHIN(first, most) -(first), (first), -(most), (most)
#define STATE(size, ...) .values = (size), .ranges = {__VA_ARGS__}
#define PICTURE(wide, high, places, by) .width = (wide), .height = (high), .digits = (places), .paint = (by)
/* float32 rounds both cars' bounds outwards. */
#define CAR_STATE                                                                                            \
    STATE(MOUNTAIN_CAR_STATE_SIZE,                                                                           \
          {"position", MOUNTAIN_CAR_RESET_MIN, MOUNTAIN_CAR_RESET_MAX, (float)MOUNTAIN_CAR_POSITION_MIN,     \
           (float)MOUNTAIN_CAR_POSITION_MAX},                                                                \
          {"velocity", WITHIN(0, (float)MOUNTAIN_CAR_SPEED_MAX)})

static const struct kind {
    struct environment_spec spec;
    uint32_t values; /* of a state */
    struct value_range ranges[CLASSIC_VALUES_MAX];
    bool first_is_float;    /* a first state is rounded to float32, as Gymnasium's Acrobot does */
    uint32_t width, height; /* of the picture */
    int digits;             /* behind a value's point */
    void (*paint)(const struct canvas *canvas, const double values[CLASSIC_VALUES_MAX]);
} kinds[CLASSIC_KINDS] = {
    [CLASSIC_CARTPOLE] = {{SPEC(CARTPOLE_STEPS_MAX), OBSERVATION(CARTPOLE_STATE_SIZE, cartpole),
                           CHOICE(two_choices)},
                          STATE(CARTPOLE_STATE_SIZE, {"x", WITHIN(CARTPOLE_RESET_MAX, 2 * CARTPOLE_X_MAX_M)},
                                {"x_dot", WITHIN(CARTPOLE_RESET_MAX, 1e3)},
                                {"theta", WITHIN(CARTPOLE_RESET_MAX, 2 * CARTPOLE_THETA_MAX_RAD)},
                                {"theta_dot", WITHIN(CARTPOLE_RESET_MAX, 1e3)}),
                          PICTURE(600, 400, 2, paint_cartpole)},
    [CLASSIC_ACROBOT] = {{SPEC(ACROBOT_STEPS_MAX), OBSERVATION(ACROBOT_OBSERVATION_SIZE, acrobot),
                          CHOICE(three_choices)},
                         STATE(ACROBOT_STATE_SIZE, {"theta1", WITHIN(ACROBOT_RESET_MAX, ACROBOT_PI)},
                               {"theta2", WITHIN(ACROBOT_RESET_MAX, ACROBOT_PI)},
                               {"speed1", WITHIN(ACROBOT_RESET_MAX, ACROBOT_THETA1_DOT_MAX)},
                               {"speed2", WITHIN(ACROBOT_RESET_MAX, ACROBOT_THETA2_DOT_MAX)}),
                         .first_is_float = true,
                         PICTURE(500, 500, 2, paint_acrobot)},
    [CLASSIC_MOUNTAIN_CAR] = {{SPEC(MOUNTAIN_CAR_STEPS_MAX),
                               OBSERVATION(MOUNTAIN_CAR_STATE_SIZE, mountain_car), CHOICE(three_choices)},
                              CAR_STATE,
                              PICTURE(600, 400, 4, paint_mountain_car)},
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] = {{SPEC(MOUNTAIN_CAR_CONTINUOUS_STEPS_MAX),
                                          OBSERVATION(MOUNTAIN_CAR_STATE_SIZE, mountain_car), FORCE(force)},
                                         CAR_STATE,
                                         PICTURE(600, 400, 4, paint_mountain_car_continuous)},
    [CLASSIC_PENDULUM] = {{SPEC(PENDULUM_STEPS_MAX), OBSERVATION(PENDULUM_OBSERVATION_SIZE, pendulum),
                           FORCE(torque)},
                          STATE(PENDULUM_STATE_SIZE,
                                {"theta", WITHIN(PENDULUM_RESET_THETA_MAX, SINE_ANGLE_MAX)},
                                {"theta_dot", WITHIN(PENDULUM_RESET_SPEED_MAX, PENDULUM_SPEED_MAX)}),
                          PICTURE(500, 500, 2, paint_pendulum)},
};

/* ---- open and close ---- */

struct classic {
    const struct kind *kind;
    const char *name;
    classic_step *step;
    uint32_t hidden; /* bits of the observation's elements that read 0 */
    size_t count;
    double states[]; /* (kind->values, count) */
};

__attribute__((format(printf, 2, 3))) static int refuse(char error[ENVIRONMENT_ERROR_BYTES],
                                                        const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(error, ENVIRONMENT_ERROR_BYTES, format, list);
    va_end(list);
    return 1;
}

/* Refuses all but an empty object. */
static int check_options(const char *name, const char *options, char error[ENVIRONMENT_ERROR_BYTES])
{
    char shown[64];
    cJSON *root = cJSON_Parse(options);
    int failed = 0;
    if (!cJSON_IsObject(root)) {
        failed = refuse(error, "%s: options: expected a JSON object", name);
    } else if (root->child != NULL) {
        text_show(shown, sizeof shown, root->child->string, strlen(root->child->string), 40);
        failed = refuse(error, "%s: options: unknown option \"%s\"; %s has no options", name, shown, name);
    }
    cJSON_Delete(root);
    return failed;
}

/* NULL: there are none. */
static classic_step *const *choose_lanes(char error[ENVIRONMENT_ERROR_BYTES])
{
    static classic_step *const *const lanes_of[ISA_COUNT] = {[ISA_BASELINE] = classic_lanes_baseline,
                                                             [ISA_AVX2] = classic_lanes_avx2,
                                                             [ISA_AVX512] = classic_lanes_avx512};
    enum isa isa = ISA_BASELINE;
    struct error why;
    if (isa_choose(&isa, &why) == STATUS_OK)
        return lanes_of[isa];
    refuse(error, "%.*s", ENVIRONMENT_ERROR_BYTES - 1, why.text);
    return NULL;
}

static int classic_open(void **out, const struct environment_spec **spec, const char *name,
                        const char *options, uint32_t count, char error[ENVIRONMENT_ERROR_BYTES])
{
    classic_step *const *lanes = NULL;
    uint32_t at = 0;
    while (names[at] != NULL && strcmp(names[at], name) != 0)
        at++;
    if (names[at] == NULL)
        return refuse(error, "\"%.64s\" is not a built-in environment", name);
    const bool hides = at >= CLASSIC_KINDS;
    const enum classic_kind kind = hides ? without_velocity[at - CLASSIC_KINDS].kind : (enum classic_kind)at;
    if (check_options(name, options, error) != 0 || (lanes = choose_lanes(error)) == NULL)
        return 1;
    struct classic *classic =
        calloc(1, sizeof *classic + (size_t)count * kinds[kind].values * sizeof classic->states[0]);
    if (classic == NULL)
        return refuse(error, "%s: no memory for %u environments", name, count);
    classic->kind = &kinds[kind];
    classic->name = names[at];
    classic->hidden = hides ? without_velocity[at - CLASSIC_KINDS].hidden : 0;
    classic->step = lanes[kind];
    classic->count = count;
    *out = classic;
    *spec = &classic->kind->spec;
    return 0;
}

static void classic_close(void *self)
{
    free(self);
}

/* ---- reset and step ---- */

/* Moves the n environments, or without actions observes them; then clears what is hidden of the observations.
 */
static void move_and_observe(struct classic *self, const struct environment_buffers *buffers,
                             const void *actions, uint32_t n, const uint32_t *which)
{
    const uint32_t elements = self->kind->spec.observation.shape[0];
    self->step(&(struct classic_call){.states = self->states,
                                      .stride = self->count,
                                      .n = n,
                                      .which = which,
                                      .actions = actions,
                                      .observations = buffers->observation,
                                      .rewards = buffers->reward,
                                      .flags = buffers->flags});
    for (uint32_t i = 0; i < n && self->hidden != 0; i++) {
        float *observation =
            (float *)buffers->observation + (size_t)(which != NULL ? which[i] : i) * elements;
        for (uint32_t e = 0; e < elements; e++)
            if ((self->hidden >> e & 1) != 0)
                observation[e] = 0;
    }
}

static void draw_state(struct classic *self, uint32_t environment, const struct environment_seed *seed)
{
    const struct kind *kind = self->kind;
    const struct rng_key key = {seed->job, seed->environment, seed->step, seed->episode};
    uint32_t words[4] = {0};
    for (uint32_t v = 0; v < kind->values; v++) {
        const struct value_range *range = &kind->ranges[v];
        if (v % 2 == 0)
            rng_block(&key, RNG_RESET, v / 2, words);
        const double uniform = rng_uniform_double(words[v % 2 * 2], words[v % 2 * 2 + 1]);
        const double value = range->first_low + (range->first_high - range->first_low) * uniform;
        self->states[v * self->count + environment] = kind->first_is_float ? (double)(float)value : value;
    }
}

static int classic_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                         const uint32_t *which, const struct environment_seed *seeds,
                         char error[ENVIRONMENT_ERROR_BYTES])
{
    struct classic *classic = self;
    (void)error;
    for (uint32_t i = 0; i < n; i++)
        draw_state(classic, which != NULL ? which[i] : i, &seeds[i]);
    move_and_observe(classic, buffers, NULL, n, which);
    return 0;
}

static int classic_step_environments(void *self, const struct environment_buffers *buffers, uint32_t n,
                                     const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    (void)error;
    move_and_observe(self, buffers, buffers->action, n, which);
    return 0;
}

/* ---- render, save, load ---- */

static void read_values(const struct classic *self, uint32_t which, double values[CLASSIC_VALUES_MAX])
{
    for (uint32_t v = 0; v < self->kind->values; v++)
        values[v] = self->states[v * self->count + which];
}

enum { TEXT_COLUMNS = 60, TEXT_ROW_BYTES = TEXT_COLUMNS + 1 };

/* A canvas without its cells. A letter is twice as high as wide. */
static struct canvas canvas_of(const struct kind *kind, bool letters)
{
    const double cell_width = letters ? (double)kind->width / TEXT_COLUMNS : 1;
    return (struct canvas){.columns = letters ? TEXT_COLUMNS : kind->width,
                           .rows = letters ? kind->height * TEXT_COLUMNS / (2 * kind->width) : kind->height,
                           .row_bytes = letters ? TEXT_ROW_BYTES : kind->width * 3,
                           .letters = letters,
                           .cell_width = cell_width,
                           .cell_height = letters ? 2 * cell_width : 1};
}

/* "x +0.01 x_dot -0.20 …", cut to a row. */
static void write_numbers(uint8_t *out, const struct kind *kind, const double values[CLASSIC_VALUES_MAX])
{
    char words[2 * TEXT_ROW_BYTES] = "";
    size_t length = 0;
    for (uint32_t i = 0; i < kind->values && length < TEXT_COLUMNS; i++)
        length += (size_t)snprintf(words + length, sizeof words - length, "%s %+.*f ", kind->ranges[i].name,
                                   kind->digits, values[i]);
    memset(out, ' ', TEXT_COLUMNS);
    memcpy(out, words, length < TEXT_COLUMNS ? length : TEXT_COLUMNS);
    out[TEXT_COLUMNS] = '\n';
}

static size_t classic_render(void *self, uint32_t which, int picture, uint32_t *width, uint32_t *height,
                             void *out, size_t capacity)
{
    const struct classic *classic = self;
    const struct kind *kind = classic->kind;
    const bool letters = picture == ENVIRONMENT_TEXT;
    double values[CLASSIC_VALUES_MAX] = {0};
    if (!letters && picture != ENVIRONMENT_RGB)
        return 0;
    const size_t head = letters ? TEXT_ROW_BYTES : 0; /* the numbers stand above the letters */
    struct canvas canvas = canvas_of(kind, letters);
    const size_t bytes = head + (size_t)canvas.rows * canvas.row_bytes;
    if (!letters) {
        *width = kind->width;
        *height = kind->height;
    }
    if (bytes > capacity)
        return bytes;
    read_values(classic, which, values);
    canvas.cells = (uint8_t *)out + head;
    if (letters)
        write_numbers(out, kind, values);
    memset(canvas.cells, letters ? ' ' : 255, (size_t)canvas.rows * canvas.row_bytes); /* blank, or white */
    for (uint32_t row = 0; row < canvas.rows && letters; row++)
        canvas.cells[(size_t)row * canvas.row_bytes + canvas.columns] = '\n';
    kind->paint(&canvas, values);
    return bytes;
}

struct classic_saved {
    char name[32]; /* filled up with zeros */
    double values[CLASSIC_VALUES_MAX];
};

/* Bytes of a saved state: without the values that the kind lacks. */
static size_t saved_bytes(const struct kind *kind)
{
    return offsetof(struct classic_saved, values) + kind->values * sizeof(double);
}

static size_t classic_save(void *self, uint32_t which, void *out, size_t capacity)
{
    const struct classic *classic = self;
    const size_t bytes = saved_bytes(classic->kind);
    struct classic_saved saved = {0};
    if (bytes > capacity)
        return bytes;
    memcpy(saved.name, classic->name, strlen(classic->name));
    read_values(classic, which, saved.values);
    memcpy(out, &saved, bytes);
    return bytes;
}

static int check_saved(const struct classic *self, const struct classic_saved *saved, size_t size,
                       char error[ENVIRONMENT_ERROR_BYTES])
{
    const struct kind *kind = self->kind;
    const char *name = self->name;
    struct classic_saved expected = {0};
    memcpy(expected.name, name, strlen(name));
    if (size != saved_bytes(kind))
        return refuse(error, "a saved state of %s has %zu bytes: expected %zu", name, size,
                      saved_bytes(kind));
    if (memcmp(saved->name, expected.name, sizeof saved->name) != 0)
        return refuse(error, "the saved state is not of %s", name);
    for (uint32_t v = 0; v < kind->values; v++) {
        const struct value_range *range = &kind->ranges[v];
        if (!(saved->values[v] >= range->low && saved->values[v] <= range->high))
            return refuse(error, "value %u of a saved state of %s is %g: expected %g..%g", v, name,
                          saved->values[v], range->low, range->high);
    }
    return 0;
}

static int classic_load(void *self, const struct environment_buffers *buffers, uint32_t which,
                        const void *state, size_t size, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct classic *classic = self;
    struct classic_saved saved = {0};
    memcpy(&saved, state, size < sizeof saved ? size : sizeof saved);
    if (check_saved(classic, &saved, size, error) != 0)
        return 1;
    for (uint32_t v = 0; v < classic->kind->values; v++)
        classic->states[v * classic->count + which] = saved.values[v];
    move_and_observe(classic, buffers, NULL, 1, &which);
    return 0;
}

const struct environment_plugin classic_environments = {
    .version = ENVIRONMENT_VERSION,
    .size = sizeof(struct environment_plugin),
    .names = names,
    .open = classic_open,
    .close = classic_close,
    .reset = classic_reset,
    .step = classic_step_environments,
    .render = classic_render,
    .save = classic_save,
    .load = classic_load,
};
