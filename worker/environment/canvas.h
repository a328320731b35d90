/* A small picture of a scene, in colours or in letters. A scene has its own units, with y upwards from the
 * bottom; a cell of the picture, a pixel or a letter, takes the ink of the last bar that covers its middle.
 *
 * Memory is the caller's. Nothing allocates. Pure functions; any thread. */
#ifndef WORKER_ENVIRONMENT_CANVAS_H
#define WORKER_ENVIRONMENT_CANVAS_H

#include <stdbool.h>
#include <stdint.h>

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

/* Makes every cell white, or a blank. */
void canvas_clear(const struct canvas *canvas);

/* Paints the bar of `half_width` along the line from `from` to `to`; its ends are cut straight, or round. A
 * round bar from a point to itself is a disc. A bar is painted at least as wide as a cell is high, so that a
 * thin line has no gaps. What lies outside of the picture is left out. */
void canvas_paint(const struct canvas *canvas, struct canvas_point from, struct canvas_point to,
                  double half_width, bool round, struct canvas_ink ink);

#endif
