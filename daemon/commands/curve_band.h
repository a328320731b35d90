/* The median of several curves, and the band between the least and the greatest. Pure; any thread. */
#ifndef DAEMON_COMMANDS_CURVE_BAND_H
#define DAEMON_COMMANDS_CURVE_BAND_H

#include "daemon/commands/curve.h"

#include <stddef.h>

enum { BAND_POINTS = 512 };

struct band_point {
    double x, median, low, high;
};

/* The median of `values`, which are sorted on return; of an even number the mean of the middle two. At least
 * one. */
double median_of(double *values, size_t count);

/* Fills at most BAND_POINTS points, evenly spread from the curves' first x to their last one, and returns
 * their number. A point is over the curves that reach it, each on its straight line between two of its
 * points; it is left out where fewer than half of the curves do. `scratch`: (count) numbers. */
size_t curve_band(struct band_point points[BAND_POINTS], const struct curve *const *curves, size_t count,
                  double *scratch);

#endif
