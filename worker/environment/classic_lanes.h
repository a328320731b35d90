/* The built-in environments' steps, a table for each instruction set. worker/environment/classic.c picks one
 * and owns the memory.
 *
 * An environment goes through the same operations in every lane of every set, so its bits depend neither on
 * the set nor on its place nor on the others.
 *
 * Private to classic.c, its tests and its benchmark. Pure functions. */
#ifndef WORKER_ENVIRONMENT_CLASSIC_LANES_H
#define WORKER_ENVIRONMENT_CLASSIC_LANES_H

#include <stddef.h>
#include <stdint.h>

enum classic_kind {
    CLASSIC_CARTPOLE,
    CLASSIC_ACROBOT,
    CLASSIC_MOUNTAIN_CAR,
    CLASSIC_MOUNTAIN_CAR_CONTINUOUS,
    CLASSIC_PENDULUM,
    CLASSIC_KINDS
};

/* Numbers of a state, of an observation. */
enum { CLASSIC_VALUES_MAX = 4, CLASSIC_OBSERVATION_MAX = 6 };

/* A call's n environments, and the rows of all; an environment's number is its column and its row. */
struct classic_call {
    double *states;        /* (values, stride), the values in the order of the kind's struct */
    size_t stride;         /* at least the number of environments */
    uint32_t n;            /* of this call */
    const uint32_t *which; /* (n) ascending, each once; NULL: the first n */
    const void *actions;   /* (stride) int32 of a choice, else float32; NULL: nothing moves */
    float *observations;   /* (stride, the kind's observation) */
    float *rewards;        /* (stride) */
    uint8_t *flags;        /* (stride) enum of environment.h */
};

/* Moves n states by their actions, and writes their observations, rewards and flags. An environment that has
 * ended must not be among them. With actions NULL only the observations are written. */
typedef void classic_step(const struct classic_call *call);

/* The steps of the kinds, on each set of enum isa (kernels/lanes/isa.h). */
extern classic_step *const classic_lanes_baseline[CLASSIC_KINDS],
    *const classic_lanes_avx2[CLASSIC_KINDS], *const classic_lanes_avx512[CLASSIC_KINDS];

#endif
