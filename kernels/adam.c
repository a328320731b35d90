/* Adam. Runs on the thread that holds the parameters: the agent's learner. */
#include "kernels/adam.h"

#include <math.h>
#include <stdlib.h>

struct adam {
    struct adam_settings settings;
    size_t count;
    uint64_t steps;
    float *m, *v; // (count) each, in one piece
};

static enum status check_settings(const struct adam_settings *settings, struct error *error)
{
    if (!(settings->lr >= 0) || !isfinite(settings->lr))
        return error_set(error, STATUS_INVALID, "adam: expected a finite lr >= 0, got %g", settings->lr);
    if (!(settings->beta1 >= 0 && settings->beta1 < 1))
        return error_set(error, STATUS_INVALID, "adam: expected 0 <= beta1 < 1, got %g", settings->beta1);
    if (!(settings->beta2 >= 0 && settings->beta2 < 1))
        return error_set(error, STATUS_INVALID, "adam: expected 0 <= beta2 < 1, got %g", settings->beta2);
    if (!(settings->epsilon >= 0) || !isfinite(settings->epsilon))
        return error_set(error, STATUS_INVALID, "adam: expected a finite epsilon >= 0, got %g",
                         settings->epsilon);
    return STATUS_OK;
}

enum status adam_new(struct adam **out, const struct adam_settings *settings, size_t count,
                     struct error *error)
{
    enum status status = check_settings(settings, error);
    if (status != STATUS_OK)
        return status;
    struct adam *adam = calloc(1, sizeof *adam);
    float *moments = calloc(2 * count, sizeof *moments);
    if (adam == NULL || moments == NULL) {
        free(adam);
        free(moments);
        return error_set(error, STATUS_NO_MEMORY, "no memory for adam's moments of %zu parameters", count);
    }
    *adam = (struct adam){.settings = *settings, .count = count, .m = moments, .v = moments + count};
    *out = adam;
    return STATUS_OK;
}

void adam_free(struct adam *adam)
{
    if (adam == NULL)
        return;
    free(adam->m);
    free(adam);
}

/* By squaring, so that the rounding is ours and not that of some libm's pow. */
static double power(double base, uint64_t exponent)
{
    double result = 1;
    for (; exponent != 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}

void adam_step(struct adam *adam, float *parameters, const float *gradient)
{
    const struct adam_settings *set = &adam->settings;
    adam->steps++;
    const float step_size = (float)(set->lr / (1 - power(set->beta1, adam->steps)));
    const float root_correction = (float)sqrt(1 - power(set->beta2, adam->steps));
    const float keep_m = (float)set->beta1, add_m = (float)(1 - set->beta1);
    const float keep_v = (float)set->beta2, add_v = (float)(1 - set->beta2);
    const float epsilon = (float)set->epsilon;
    for (size_t i = 0; i < adam->count; i++) {
        const float g = gradient[i];
        adam->m[i] = keep_m * adam->m[i] + add_m * g;
        adam->v[i] = keep_v * adam->v[i] + add_v * g * g;
        parameters[i] -= step_size * adam->m[i] / (sqrtf(adam->v[i]) / root_correction + epsilon);
    }
}

uint64_t adam_steps(const struct adam *adam)
{
    return adam->steps;
}
