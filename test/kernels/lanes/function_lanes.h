/* Functions of kernels/lanes/lanes.h and exp_log_tanh.h, 16 numbers at a time, for tests of their rounding.
 */
#ifndef TEST_KERNELS_LANES_FUNCTION_LANES_H
#define TEST_KERNELS_LANES_FUNCTION_LANES_H

enum { FUNCTION_LANES = 16 };

typedef void function_of_16(const float x[FUNCTION_LANES], float y[FUNCTION_LANES]);

struct function_lanes {
    function_of_16 *exp, *log, *tanh;      /* of any float: lanes_exp_full, lanes_log_full, lanes_tanh */
    function_of_16 *short_exp, *short_log; /* lanes_exp, of at most 0; lanes_log, of positive numbers */
    void (*fma)(const float a[FUNCTION_LANES], const float b[FUNCTION_LANES], const float c[FUNCTION_LANES],
                float y[FUNCTION_LANES]);
};

extern const struct function_lanes function_lanes_baseline, function_lanes_avx2, function_lanes_avx512;

/* The table of a set ("avx512"), or NULL, and a line that says so, where this processor cannot run it. Leaves
 * COALESCED_ISA as the set's name. */
const struct function_lanes *function_lanes_choose(const char *isa);

#endif
