/* Adam's update of a range of a slab. Threads may update ranges that do not overlap. */
#include "kernels/adam.h"

#include "kernels/lanes/isa.h"

#include <math.h>

enum status adam_check(const struct adam_settings *settings, struct error *error)
{
    if (!(settings->lr > 0) || !isfinite(settings->lr))
        return error_set(error, STATUS_INVALID, "adam: expected a finite lr > 0, got %g", settings->lr);
    if (!(settings->beta1 >= 0 && settings->beta1 < 1))
        return error_set(error, STATUS_INVALID, "adam: expected 0 <= beta1 < 1, got %g", settings->beta1);
    if (!(settings->beta2 >= 0 && settings->beta2 < 1))
        return error_set(error, STATUS_INVALID, "adam: expected 0 <= beta2 < 1, got %g", settings->beta2);
    if (!(settings->epsilon > 0) || !isfinite(settings->epsilon))
        return error_set(error, STATUS_INVALID, "adam: expected a finite epsilon > 0, got %g",
                         settings->epsilon);
    return STATUS_OK;
}

/* By squaring, so that the rounding does not depend on the libm's pow. */
static double power(double base, uint64_t exponent)
{
    double result = 1;
    for (; exponent != 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}

void adam_factors(const struct adam_settings *settings, uint64_t step, struct adam_factors *out)
{
    const bool corrected = !settings->uncorrected;
    *out = (struct adam_factors){
        .step_size = (float)(corrected ? settings->lr / (1 - power(settings->beta1, step)) : settings->lr),
        .root_correction = (float)(corrected ? sqrt(1 - power(settings->beta2, step)) : 1),
        .keep_m = (float)settings->beta1,
        .add_m = (float)(1 - settings->beta1),
        .keep_v = (float)settings->beta2,
        .add_v = (float)(1 - settings->beta2),
        .epsilon = (float)settings->epsilon,
    };
}

adam_lanes_update *adam_choose(void)
{
    static adam_lanes_update *const updates[ISA_COUNT] = ISA_EACH(adam_lanes_update);
    return updates[isa_or_baseline()];
}

void adam_update(const struct adam_settings *settings, uint64_t step, float *parameters, float *first,
                 float *second, const float *gradient, size_t count)
{
    struct adam_factors factors;
    adam_factors(settings, step, &factors);
    adam_choose()(&factors, parameters, first, second, gradient, count);
}
