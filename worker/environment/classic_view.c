/* Draws the built-in environments, one function for each scene, in pixels of Gymnasium's view. */
#include "worker/environment/classic_view.h"

#include "worker/environment/acrobot.h"
#include "worker/environment/environment.h"
#include "worker/environment/mountain_car.h"
#include "worker/environment/pendulum.h"
#include "worker/environment/sine.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- the canvas: a scene in colours or in letters ----
 *
 * A scene has its own units, with y upwards from the bottom. A cell of the picture, a pixel or a letter,
 * takes the ink of the last bar that covers its middle. */

struct canvas_point {
    double x, y;
};

struct canvas_ink {
    uint8_t red, green, blue;
    char letter;
};

struct canvas {
    uint8_t *cells; /* the first row's first cell: the top left one */
    uint32_t columns, rows;
    uint32_t row_bytes;             /* from one row to the next */
    bool letters;                   /* one byte for each cell; else three: red, green, blue */
    double cell_width, cell_height; /* in the scene's units */
};

/* Makes every cell white, or a blank; a row of letters ends with its line. */
static void canvas_clear(const struct canvas *canvas)
{
    memset(canvas->cells, canvas->letters ? ' ' : 255, (size_t)canvas->rows * canvas->row_bytes);
    for (uint32_t row = 0; row < canvas->rows && canvas->letters; row++)
        canvas->cells[(size_t)row * canvas->row_bytes + canvas->columns] = '\n';
}

struct bar {
    struct canvas_point from, along; /* along: of length 1 */
    double length, half_width;
    bool round;
};

static bool bar_covers(const struct bar *bar, struct canvas_point p)
{
    const double x = p.x - bar->from.x, y = p.y - bar->from.y;
    const double along = x * bar->along.x + y * bar->along.y;
    const double across = x * bar->along.y - y * bar->along.x;
    const double beyond = along < 0 ? -along : along > bar->length ? along - bar->length : 0;
    if (bar->round)
        return beyond * beyond + across * across <= bar->half_width * bar->half_width;
    return beyond <= 0 && fabs(across) <= bar->half_width;
}

static struct bar bar_make(struct canvas_point from, struct canvas_point to, double half_width, bool round)
{
    const double x = to.x - from.x, y = to.y - from.y, length = hypot(x, y);
    const struct canvas_point along =
        length > 0 ? (struct canvas_point){x / length, y / length} : (struct canvas_point){1, 0};
    return (struct bar){from, along, length, half_width, round};
}

/* The cell of `place`, within 0 … count. */
static uint32_t clamp_cell(double place, uint32_t count)
{
    return place <= 0 ? 0 : place >= count ? count : (uint32_t)place;
}

static void put_ink(const struct canvas *canvas, uint32_t column, uint32_t row, struct canvas_ink ink)
{
    uint8_t *cell = canvas->cells + (size_t)row * canvas->row_bytes;
    if (canvas->letters)
        cell[column] = (uint8_t)ink.letter;
    else
        memcpy(cell + 3 * (size_t)column, (uint8_t[3]){ink.red, ink.green, ink.blue}, 3);
}

/* Paints the bar of `half_width` along the line from `from` to `to`; its ends are cut straight, or round. A
 * round bar from a point to itself is a disc. A bar is painted at least as wide as a cell is high, so that a
 * thin line has no gaps. What lies outside of the picture is left out. */
static void canvas_paint(const struct canvas *canvas, struct canvas_point from, struct canvas_point to,
                         double half_width, bool round, struct canvas_ink ink)
{
    const double width = canvas->cell_width, height = canvas->cell_height;
    const struct bar bar = bar_make(from, to, fmax(half_width, height / 2), round);
    const double top = height * canvas->rows, reach = bar.half_width;
    const uint32_t left = clamp_cell((fmin(from.x, to.x) - reach) / width, canvas->columns);
    const uint32_t right = clamp_cell((fmax(from.x, to.x) + reach) / width + 1, canvas->columns);
    const uint32_t upper = clamp_cell((top - fmax(from.y, to.y) - reach) / height, canvas->rows);
    const uint32_t lower = clamp_cell((top - fmin(from.y, to.y) + reach) / height + 1, canvas->rows);
    for (uint32_t row = upper; row < lower; row++)
        for (uint32_t column = left; column < right; column++)
            if (bar_covers(&bar, (struct canvas_point){(column + 0.5) * width, top - (row + 0.5) * height}))
                put_ink(canvas, column, row, ink);
}

/* ---- scenes ---- */

typedef struct canvas_point point;

static const struct canvas_ink black = {0, 0, 0, '#'}, brown = {202, 152, 101, '|'},
                               violet = {129, 132, 203, 'o'}, cyan = {0, 204, 204, '='},
                               yellow = {204, 204, 0, 'o'}, grey = {128, 128, 128, 'o'},
                               red = {204, 77, 77, '='}, line = {0, 0, 0, '-'}, hill = {0, 0, 0, '.'};

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

/* ---- text and RGB ---- */

static const struct view {
    uint32_t width, height;
    const char *names[CLASSIC_VALUES_MAX]; /* of the values; NULL: there are no more */
    int digits;                            /* behind a value's point */
    void (*paint)(const struct canvas *canvas, const double values[CLASSIC_VALUES_MAX]);
} views[CLASSIC_KINDS] = {
    [CLASSIC_CARTPOLE] = {600, 400, {"x", "x_dot", "theta", "theta_dot"}, 2, paint_cartpole},
    [CLASSIC_ACROBOT] = {500, 500, {"theta1", "theta2", "speed1", "speed2"}, 2, paint_acrobot},
    [CLASSIC_MOUNTAIN_CAR] = {600, 400, {"position", "velocity"}, 4, paint_mountain_car},
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] =
        {600, 400, {"position", "velocity"}, 4, paint_mountain_car_continuous},
    [CLASSIC_PENDULUM] = {500, 500, {"theta", "theta_dot"}, 2, paint_pendulum},
};

enum { TEXT_COLUMNS = 60, TEXT_ROW_BYTES = TEXT_COLUMNS + 1 };

/* A canvas without its cells. A letter is twice as high as wide. */
static struct canvas canvas_of(const struct view *view, bool letters)
{
    const double cell_width = letters ? (double)view->width / TEXT_COLUMNS : 1;
    return (struct canvas){.columns = letters ? TEXT_COLUMNS : view->width,
                           .rows = letters ? view->height * TEXT_COLUMNS / (2 * view->width) : view->height,
                           .row_bytes = letters ? TEXT_ROW_BYTES : view->width * 3,
                           .letters = letters,
                           .cell_width = cell_width,
                           .cell_height = letters ? 2 * cell_width : 1};
}

/* "x +0.01 x_dot -0.20 …", cut to a row. */
static void write_numbers(uint8_t *out, const struct view *view, const double values[CLASSIC_VALUES_MAX])
{
    char words[2 * TEXT_ROW_BYTES] = "";
    size_t length = 0;
    for (int i = 0; i < CLASSIC_VALUES_MAX && view->names[i] != NULL && length < TEXT_COLUMNS; i++)
        length += (size_t)snprintf(words + length, sizeof words - length, "%s %+.*f ", view->names[i],
                                   view->digits, values[i]);
    memset(out, ' ', TEXT_COLUMNS);
    memcpy(out, words, length < TEXT_COLUMNS ? length : TEXT_COLUMNS);
    out[TEXT_COLUMNS] = '\n';
}

size_t classic_view(enum classic_kind kind, const double values[CLASSIC_VALUES_MAX], int picture,
                    uint32_t *width, uint32_t *height, void *out, size_t capacity)
{
    const struct view *view = &views[kind];
    const bool letters = picture == ENVIRONMENT_TEXT;
    if (!letters && picture != ENVIRONMENT_RGB)
        return 0;
    const size_t head = letters ? TEXT_ROW_BYTES : 0; /* the numbers stand above the letters */
    struct canvas canvas = canvas_of(view, letters);
    const size_t bytes = head + (size_t)canvas.rows * canvas.row_bytes;
    if (!letters) {
        *width = view->width;
        *height = view->height;
    }
    if (bytes > capacity)
        return bytes;
    canvas.cells = (uint8_t *)out + head;
    if (letters)
        write_numbers(out, view, values);
    canvas_clear(&canvas);
    view->paint(&canvas, values);
    return bytes;
}
