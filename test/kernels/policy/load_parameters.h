/* Loads all parameters of a policy's layers, one after the other. */
#ifndef TEST_KERNELS_POLICY_LOAD_PARAMETERS_H
#define TEST_KERNELS_POLICY_LOAD_PARAMETERS_H

#include "kernels/policy/dense.h"
#include "kernels/policy/recurrent.h"

static inline void load_dense(struct dense *dense, const struct dense_shape *shape, const float *parameters)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t count = dense_parameters(shape, list);
    for (uint32_t number = 0; number < count; number++)
        dense_load_parameter(dense, parameters, number);
}

static inline void load_recurrent(struct recurrent *recurrent, const struct recurrent_shape *shape,
                                  const float *parameters)
{
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const uint32_t count = recurrent_parameters(shape, list);
    for (uint32_t number = 0; number < count; number++)
        recurrent_load_parameter(recurrent, parameters, number);
}

#endif
