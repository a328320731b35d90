/* The oracle of squashed Gaussians. Written for reading beside the formulas in kernels/policy/squashed.h. */
#include "test/oracle/squashed_ref.h"

#include <math.h>

static double deviation(const struct squashed_shape *shape, double log_std)
{
    return shape->expln && log_std > 0 ? log1p(log_std + 1e-6) + 1 : exp(log_std);
}

/* log of the density of normal(0, sqrt(variance)) at e. */
static double log_normal(double e, double variance)
{
    return -e * e / (2 * variance) - log(variance) / 2 - log(2 * M_PI) / 2;
}

double squashed_ref_act(const struct squashed_shape *shape, const struct squashed_ref_row *row,
                        double *action)
{
    const double clip = shape->clip_mean > 0 ? (double)shape->clip_mean : INFINITY;
    double log_probability = 0;
    for (uint32_t d = 0; d < shape->components; d++) {
        const double mean = fmax(-clip, fmin(clip, row->z[d]));
        double e = 0, variance = 1e-6;
        for (uint32_t f = 0; f < shape->features; f++) {
            const uint32_t at = f * shape->components + d;
            const double s = deviation(shape, row->log_std[at]);
            e += row->h[f] * s * row->noise[at];
            variance += row->h[f] * row->h[f] * s * s;
        }
        if (shape->features == 0) {
            const double s = exp(fmax(-20, fmin(2, row->z[shape->components + d])));
            e = s * row->noise[d];
            variance = s * s;
        }
        action[d] = tanh(mean + e);
        log_probability += log_normal(e, variance) - log(1 - action[d] * action[d] + 1e-6);
    }
    return log_probability;
}
