/* Paints bars into a picture, cell by cell. */
#include "worker/environment/canvas.h"

#include <math.h>
#include <string.h>

void canvas_clear(const struct canvas *canvas)
{
    const size_t bytes = (size_t)canvas->columns * (canvas->letters ? 1 : 3);
    for (uint32_t row = 0; row < canvas->rows; row++)
        memset(canvas->cells + (size_t)row * canvas->row_bytes, canvas->letters ? ' ' : 255, bytes);
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

void canvas_paint(const struct canvas *canvas, struct canvas_point from, struct canvas_point to,
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
