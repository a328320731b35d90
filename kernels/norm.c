/* The norm of a flat array, by the sums of kernels/lanes/element_lanes.h. */
#include "kernels/norm.h"

#include "kernels/lanes/element_lanes.h"
#include "kernels/lanes/isa.h"

#include <math.h>

double norm_of(const float *x, size_t count)
{
    static const struct element_lanes *const lanes[ISA_COUNT] = ISA_EACH(&element_lanes);
    return sqrt(lanes[isa_or_baseline()]->square_sum(x, NULL, count));
}
