/* The parameters of a policy on the CPU: flat arrays, in which one parameter stands behind the other as
 * policy_parameters lists them. Private to worker/model and its tests. One thread, but for
 * policy_arrays_step. */
#ifndef WORKER_MODEL_POLICY_ARRAYS_H
#define WORKER_MODEL_POLICY_ARRAYS_H

#include "kernels/adam.h"
#include "worker/model/policy.h"
#include "worker/model/policy_parameters.h"

/* The first member of the `self` of policy_cpu.c, policy_dqn.c and policy_actor_critic.c. */
struct policy_arrays {
    size_t count;                              /* floats in each of the arrays */
    float *values, *gradient, *first, *second; /* the parameters, their gradient, Adam's moments */
    uint64_t steps;                            /* Adam's; with a replay buffer, gradient steps */
    struct team *team;                         /* policy_cpu.c's; NULL: one thread learns */
    adam_lanes_update *adam;
    uint32_t parameter_count;
    struct policy_parameter parameters[POLICY_PARAMETERS_MAX];
};

/* The arrays hold the first values: targets those of their networks. *arrays is all zero before;
 * policy_arrays_close also follows a failure. Errors as policy_begin_parameter. */
enum status policy_arrays_open(struct policy_arrays *arrays, const struct policy_config *config,
                               struct error *error);
void policy_arrays_close(struct policy_arrays *arrays);

/* Adam's step of `count` floats from `offset` on, by their gradient times `scale`, which is at most 1.
 * Several threads may do that at once, each for other floats. */
void policy_arrays_step(const struct policy_arrays *arrays, const struct adam_factors *factors, size_t offset,
                        size_t count, float scale);

/* The first parameter whose share of `array`, which is laid out like the parameters, holds a NaN or an
 * infinity; NULL: none does. */
const char *policy_arrays_lost(const struct policy_arrays *arrays, const float *array);

/* Whether none of them is a NaN or an infinity. */
bool policy_all_finite(const float *values, size_t count);

/* Copy the parameters, Adam's moments and the count of steps, into *values or from there. After a restore the
 * kernels' copies are to be loaded. The first is struct policy_kind's save, too. */
enum status policy_arrays_save(void *arrays, struct policy_values *values, struct error *error);
void policy_arrays_restore(struct policy_arrays *arrays, const struct policy_values *values);

#endif
