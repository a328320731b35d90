/* A policy's problem to compute, for the tests and the benchmark of kernels/policy/mlp.h: parameters, rows
 * and all that a batch points to, made from a seed by the same generator that test/golden/policy.py has. */
#ifndef TEST_KERNELS_POLICY_MLP_PROBLEM_H
#define TEST_KERNELS_POLICY_MLP_PROBLEM_H

#include "kernels/policy/mlp.h"

#include <stdbool.h>

struct mlp_problem {
    struct mlp_shape shape;
    double dropout;
    uint64_t seed; /* of the draws */
    uint32_t episode, rows;
    size_t count; /* parameters */
    float *parameters;
    double *exact; /* the same in double, for the oracle */
    struct mlp_batch batch;
    uint32_t *row; /* batch.row: a permutation, so that nothing passes that ignores it */
    uint32_t *environment, *step;
    float *coefficient;
    float *probabilities; /* (rows, actions) */
    float *gradient;      /* (count) */
};

/* The next number of the generator, uniform in [-1, 1) and exact in float32: 64-bit state times Knuth's
 * MMIX multiplier plus his increment, of which the top 24 bits count. */
float mlp_problem_number(uint64_t *state);

/* Fills everything; masks, actions and probabilities are zero until drawn. Weights are uniform in
 * ±1 / sqrt(fan-in), observations in ±1, coefficients in ±2. Ends the program when memory runs out. */
void mlp_problem_init(struct mlp_problem *problem, struct mlp_shape shape, double dropout, uint32_t rows,
                      uint64_t seed);
void mlp_problem_fini(struct mlp_problem *problem);

/* An mlp of the problem's shape with its parameters, on instruction set `isa` (NULL: the best). NULL when
 * this processor does not have it; any other failure ends the program. */
struct mlp *mlp_problem_load(const struct mlp_problem *problem, const char *isa);

/* A line of a test's table of problems. */
struct mlp_case {
    struct mlp_shape shape;
    double dropout;
    uint32_t rows;
};

enum { MLP_ISAS = 3 };
extern const char *const mlp_isas[MLP_ISAS]; /* the best first; every machine has the last */

/* Makes the problem of case i and its mlp on instruction set j, for a loop test's number i * MLP_ISAS + j.
 * The problem's seed is `seed` + i. False, and nothing to close, where the processor does not have the set.
 */
bool mlp_case_open(const struct mlp_case *cases, int number, uint64_t seed, struct mlp_problem *problem,
                   struct mlp **mlp);
void mlp_case_close(struct mlp_problem *problem, struct mlp *mlp);

/* mlp_act on the whole batch. */
void mlp_problem_act(struct mlp_problem *problem, const struct mlp *mlp);

/* Zeroes problem->gradient and sums the whole batch into it, chunk by chunk; returns the loss. */
double mlp_problem_learn(struct mlp_problem *problem, const struct mlp *mlp);

#endif
