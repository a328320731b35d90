/* Curves on a common grid. Pure. */
#include "daemon/commands/curve_band.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static double first_x(const struct curve *curve)
{
    return curve->points[0].x;
}

static double last_x(const struct curve *curve)
{
    return curve->points[curve->count - 1].x;
}

static size_t values_at(double *values, const struct curve *const *curves, size_t count, double x)
{
    size_t reached = 0;
    for (size_t i = 0; i < count; i++)
        if (curve_at(curves[i], x, &values[reached]))
            reached++;
    return reached;
}

size_t curve_band(struct band_point points[BAND_POINTS], const struct curve *const *curves, size_t count,
                  double *scratch)
{
    double first = INFINITY, last = -INFINITY;
    size_t filled = 0;
    for (size_t i = 0; i < count; i++)
        if (curves[i]->count > 0) {
            first = fmin(first, first_x(curves[i]));
            last = fmax(last, last_x(curves[i]));
        }
    const unsigned steps = last > first ? BAND_POINTS - 1 : 0;
    for (unsigned i = 0; i <= steps && last >= first; i++) {
        const double x = i == steps ? last : first + (last - first) * i / steps;
        const size_t reached = values_at(scratch, curves, count, x);
        if (reached == 0 || 2 * reached < count)
            continue;
        const double median = median_of(scratch, reached);
        points[filled++] = (struct band_point){x, median, scratch[0], scratch[reached - 1]};
    }
    return filled;
}
