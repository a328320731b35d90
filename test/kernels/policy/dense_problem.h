/* A general policy's problem to compute, for the tests and the benchmark of kernels/policy/dense.h:
 * parameters, rows and all that a batch points to, made from a seed. */
#ifndef TEST_KERNELS_POLICY_DENSE_PROBLEM_H
#define TEST_KERNELS_POLICY_DENSE_PROBLEM_H

#include "kernels/policy/dense.h"

#include <stdbool.h>

/* A line of a test's table of problems. */
struct dense_case {
    struct dense_shape shape;
    uint32_t rows;
    bool masked; /* half of the choices are forbidden, at random */
};

struct dense_problem {
    struct dense_shape shape;
    uint32_t rows, outputs;
    size_t count; /* parameters */
    float *parameters;
    double *exact; /* the same in double, for the oracle */
    struct dense_batch batch;
    uint32_t *row; /* batch.row: a permutation, so that nothing passes that ignores it */
    float *observations;
    uint8_t *mask;
    uint32_t *environment, *step;
    struct dense_draw draw;
    float *log_probability, *entropy, *value; /* (rows) */
    float *pull[3];                           /* (rows) of those, in this order */
    float *gradient;                          /* (count) */
    struct dense *dense;
    struct dense_work *work;
};

/* Fills everything; the actions are allowed ones, but no policy's. Weights are uniform in ±2 / sqrt(fan-in),
 * biases in ±0.2, log_std in ±0.7, observations and pulls in ±1. Ends the program when memory runs out. */
void dense_problem_init(struct dense_problem *problem, const struct dense_case *one, uint64_t seed);
void dense_problem_fini(struct dense_problem *problem);

/* A dense with the problem's parameters, on instruction set `isa` (NULL: the best), and its work. False when
 * this processor does not have it; any other failure ends the program. */
bool dense_problem_load(struct dense_problem *problem, const char *isa);
void dense_problem_unload(struct dense_problem *problem);

enum { DENSE_ISAS = 3 };
extern const char *const dense_isas[DENSE_ISAS]; /* the best first; every machine has the last */

/* Makes the problem of case i on instruction set j, for a loop test's number i * DENSE_ISAS + j, with seed i
 * + 1. False, and nothing to close, where the processor does not have the set. */
bool dense_problem_open(struct dense_problem *problem, const struct dense_case *cases, int number);
void dense_problem_close(struct dense_problem *problem);

/* The batch's actions: bytes from `*at` on. */
size_t dense_problem_actions(const struct dense_problem *problem, const void **at);

/* What is computed goes to the problem's own arrays. */
struct dense_results dense_problem_results(struct dense_problem *problem);

/* The pulls of the batch's rows from `first` on. */
struct dense_pulls dense_problem_pulls(const struct dense_problem *problem, uint32_t first);

/* Rows [first, first + count) of the batch. */
struct dense_batch dense_problem_piece(const struct dense_problem *problem, uint32_t first, uint32_t count);

/* dense_act on a batch of any size, chunk by chunk. */
void dense_problem_act_rows(const struct dense *dense, struct dense_work *work,
                            const struct dense_batch *batch, const struct dense_draw *draw,
                            const struct dense_results *results);

/* The same on the whole problem. */
void dense_problem_act(struct dense_problem *problem);

/* Zeroes problem->gradient, then evaluates the whole batch and sums its gradient, chunk by chunk. */
void dense_problem_learn(struct dense_problem *problem);

#endif
