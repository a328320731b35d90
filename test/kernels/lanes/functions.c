/* Picks a table of test/kernels/lanes/function_lanes.h. */
#include "kernels/lanes/isa.h"
#include "test/kernels/lanes/function_lanes.h"

#include <stdio.h>
#include <stdlib.h>

const struct function_lanes *function_lanes_choose(const char *isa)
{
    static const struct function_lanes *const tables[ISA_COUNT] = {[ISA_BASELINE] = &function_lanes_baseline,
                                                                   [ISA_AVX2] = &function_lanes_avx2,
                                                                   [ISA_AVX512] = &function_lanes_avx512};
    enum isa chosen;
    struct error error;
    setenv("COALESCED_ISA", isa, 1);
    if (isa_choose(&chosen, &error) == STATUS_OK)
        return tables[chosen];
    printf("%s is not tested: %s\n", isa, error.text);
    return NULL;
}
