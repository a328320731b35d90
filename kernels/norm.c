/* The norm of a flat array, by the sums of kernels/lanes/element_lanes.h. */
#include "kernels/norm.h"

#include "kernels/lanes/element_lanes.h"
#include "kernels/lanes/isa.h"

#include <math.h>

double norm_of(const float *x, size_t count)
{
    static const struct element_lanes *const lanes[ISA_COUNT] = {[ISA_BASELINE] = &element_lanes_baseline,
                                                                 [ISA_AVX2] = &element_lanes_avx2,
                                                                 [ISA_AVX512] = &element_lanes_avx512};
    enum isa isa;
    if (isa_choose(&isa, NULL) != STATUS_OK) /* whoever opened a policy has been told */
        isa = ISA_BASELINE;
    return sqrt(lanes[isa]->square_sum(x, NULL, count));
}
