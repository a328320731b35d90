/* Squashed Gaussians, number by number, compiled once per instruction set; any thread. squashed.h has the
 * formulas. */
#include "kernels/policy/lanes_internal.h"

#include "kernels/lanes/exp_log_tanh.h"

#define SQUASHED_EPSILON 1e-6f
#define HALF_LOG_TWO_PI 0.918938533204672742f
#define LOG_STD_MIN (-20.0f)
#define LOG_STD_MAX 2.0f

/* x in [low, high]; a NaN stays. */
LANES_INLINE vf clamp(vf x, float low, float high)
{
    return lanes_min(lanes_set(high), lanes_max(lanes_set(low), x));
}

/* 1 - a^2, the slope of tanh where it is a. */
LANES_INLINE vf slope_of(vf a)
{
    return lanes_fma(-a, a, lanes_set(1.0f));
}

/* Stores tanh(x), and log N with its correction. */
LANES_INLINE void store_action(const struct squashed_numbers *n, size_t i, vf x, vf log_normal)
{
    const vf a = lanes_tanh(x);
    lanes_store(n->action + i, a);
    lanes_store(n->log_probability + i,
                log_normal - lanes_log_full(slope_of(a) + lanes_set(SQUASHED_EPSILON)));
}

static void act(const struct squashed_numbers *n)
{
    for (size_t i = 0; i < n->count; i += LANES_WIDTH) {
        const vf mean = clamp(lanes_load(n->mean + i), -n->clip_mean, n->clip_mean);
        const vf log_std = clamp(lanes_load(n->log_std + i), LOG_STD_MIN, LOG_STD_MAX);
        const vf noise = lanes_load(n->noise + i);
        store_action(n, i, lanes_fma(lanes_exp_full(log_std), noise, mean),
                     lanes_fma(noise * lanes_set(-0.5f), noise, -log_std) - lanes_set(HALF_LOG_TWO_PI));
    }
}

static void act_exploring(const struct squashed_numbers *n)
{
    for (size_t i = 0; i < n->count; i += LANES_WIDTH) {
        const vf mean = clamp(lanes_load(n->mean + i), -n->clip_mean, n->clip_mean);
        const vf noise = lanes_load(n->noise + i), variance = lanes_load(n->variance + i);
        const vf half = lanes_set(0.5f), log_std = half * lanes_log_full(variance);
        store_action(n, i, mean + noise,
                     lanes_fma(-half * noise, noise / variance, -log_std) - lanes_set(HALF_LOG_TWO_PI));
    }
}

/* dL/dx: dL/da (1 - a^2) + dL/dlogP 2 a (1 - a^2) / (1 - a^2 + 1e-6) */
LANES_INLINE vf pull_of_draw(const struct squashed_numbers *n, size_t i)
{
    const vf a = lanes_load(n->action + i), slope = slope_of(a);
    const vf share = slope / (slope + lanes_set(SQUASHED_EPSILON));
    return lanes_fma(lanes_load(n->d_action + i), slope, lanes_set(2 * n->d_log_probability) * a * share);
}

/* Stores dL/d mean by dL/dx. */
LANES_INLINE void store_d_mean(const struct squashed_numbers *n, size_t i, vf dx)
{
    const vf mean = lanes_load(n->mean + i), bound = lanes_set(n->inner_mean);
    lanes_store(n->d_mean + i, lanes_where_not_less(mean, -bound, lanes_where_not_less(bound, mean, dx)));
}

/* dL/dl = dL/dx exp(l) n - dL/dlogP */
static void pull(const struct squashed_numbers *n)
{
    const vf low = lanes_set(LOG_STD_MIN), high = lanes_set(LOG_STD_MAX);
    for (size_t i = 0; i < n->count; i += LANES_WIDTH) {
        const vf log_std = lanes_load(n->log_std + i), dx = pull_of_draw(n, i);
        const vf step = lanes_exp_full(clamp(log_std, LOG_STD_MIN, LOG_STD_MAX)) * lanes_load(n->noise + i);
        const vf d_log_std = lanes_fma(dx, step, lanes_set(-n->d_log_probability));
        store_d_mean(n, i, dx);
        lanes_store(n->d_log_std + i,
                    lanes_where_not_less(log_std, low, lanes_where_not_less(high, log_std, d_log_std)));
    }
}

/* dL/de = dL/dx - dL/dlogP e / v,   2 dL/dv = dL/dlogP (e^2 / v - 1) / v */
static void pull_exploring(const struct squashed_numbers *n)
{
    const vf by = lanes_set(n->d_log_probability);
    for (size_t i = 0; i < n->count; i += LANES_WIDTH) {
        const vf noise = lanes_load(n->noise + i), variance = lanes_load(n->variance + i);
        const vf dx = pull_of_draw(n, i), ratio = noise / variance;
        store_d_mean(n, i, dx);
        lanes_store(n->d_noise + i, lanes_fma(-by, ratio, dx));
        lanes_store(n->d_variance + i, by * lanes_fma(noise, ratio, lanes_set(-1.0f)) / variance);
    }
}

/* exp and its slope where log_std <= 0 or not expln; else log(1 + y) + 1 and 1 / (1 + y), y = log_std + 1e-6
 */
static void deviations(const float *log_std, size_t count, bool expln, float *std, float *slope)
{
    const vf zero = {}, one = lanes_set(1.0f);
    for (size_t i = 0; i < count; i += LANES_WIDTH) {
        const vf x = lanes_load(log_std + i), e = lanes_exp_full(x);
        const vf above = one + (x + lanes_set(SQUASHED_EPSILON));
        lanes_store(std + i, expln ? lanes_choose_less(zero, x, lanes_log_full(above) + one, e) : e);
        lanes_store(slope + i, expln ? lanes_choose_less(zero, x, one / above, e) : e);
    }
}

const struct squashed_lanes LANES_NAME(squashed_lanes) = {
    .act = act,
    .act_exploring = act_exploring,
    .pull = pull,
    .pull_exploring = pull_exploring,
    .deviations = deviations,
};
