/* A figure of curves with bands, drawn by gnuplot: PNG or SVG. gnuplot reads the data and its script from its
 * standard input, and its picture is written to the file when it is whole; no shell runs, and no temporary
 * file is made. One thread, which has no other child with the same purpose; blocks until gnuplot has ended.
 * Included by plot.c. */
#ifndef DAEMON_COMMANDS_FIGURE_H
#define DAEMON_COMMANDS_FIGURE_H

#include "daemon/commands/curve_band.h"
#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct figure_series {
    const char *label;               /* in the legend */
    const struct band_point *points; /* (count), at least one; all finite */
    size_t count;
    bool has_band; /* false: `median` alone is drawn */
};

struct figure {
    const char *title; /* "": none */
    const char *x_label, *y_label;
    const struct figure_series *series; /* (count) */
    size_t count;
};

/* Whether the path's ending is one of a figure's: ".png", ".svg". */
bool figure_is_path(const char *path);

/* Whether PATH has gnuplot. */
bool figure_is_possible(void);

/* Draws the figure into the file `path`, whose ending says the format. STATUS_UNAVAILABLE: gnuplot is not in
 * PATH; STATUS_INTERNAL: gnuplot failed, with its first words; STATUS_IO and others of the file;
 * STATUS_NO_MEMORY. After an error the file is as before, unless the error is of writing it. */
enum status figure_write(const struct figure *figure, const char *path, struct error *error);

#endif
