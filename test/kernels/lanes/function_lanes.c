/* Calls each function for 16 numbers; compiled once per instruction set. */
#include "test/kernels/lanes/function_lanes.h"

#include "kernels/lanes/exp_log_tanh.h"

#define OF_16(name, function)                                                                                \
    static void name(const float x[FUNCTION_LANES], float y[FUNCTION_LANES])                                 \
    {                                                                                                        \
        for (uint32_t i = 0; i < LANES_COUNT; i += LANES_WIDTH)                                              \
            lanes_store(y + i, function(lanes_load(x + i)));                                                 \
    }

OF_16(exp_16, lanes_exp_full)
OF_16(log_16, lanes_log_full)
OF_16(tanh_16, lanes_tanh)
OF_16(short_exp_16, lanes_exp)
OF_16(short_log_16, lanes_log)

static void fma_16(const float a[FUNCTION_LANES], const float b[FUNCTION_LANES],
                   const float c[FUNCTION_LANES], float y[FUNCTION_LANES])
{
    for (uint32_t i = 0; i < LANES_COUNT; i += LANES_WIDTH)
        lanes_store(y + i, lanes_fma(lanes_load(a + i), lanes_load(b + i), lanes_load(c + i)));
}

const struct function_lanes LANES_NAME(function_lanes) = {.exp = exp_16,
                                                          .log = log_16,
                                                          .tanh = tanh_16,
                                                          .short_exp = short_exp_16,
                                                          .short_log = short_log_16,
                                                          .fma = fma_16};
