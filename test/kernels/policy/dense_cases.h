/* Shapes that the general policy's tests compute: CartPole's and HalfCheetah's, no hidden layer and eight,
 * ones and primes and both sides of a multiple of 16, several pieces of inputs, every head with and without a
 * value network, or with a value that has other hidden layers, or none, or shares the policy's, and rows that
 * end within a tile, a register and a chunk. */
#ifndef TEST_KERNELS_POLICY_DENSE_CASES_H
#define TEST_KERNELS_POLICY_DENSE_CASES_H

#include "test/kernels/policy/dense_problem.h"

#define DENSE_CATEGORICALS(...)                                                                              \
    .components = sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), .choices = {__VA_ARGS__}
#define DENSE_COUNT(...) (sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
/* Of both networks, or of one of them. */
#define DENSE_HIDDEN(...) DENSE_POLICY_HIDDEN(__VA_ARGS__), DENSE_VALUE_HIDDEN(__VA_ARGS__)
#define DENSE_POLICY_HIDDEN(...) .layers = DENSE_COUNT(__VA_ARGS__), .width = {__VA_ARGS__}
#define DENSE_VALUE_HIDDEN(...) .value_layers = DENSE_COUNT(__VA_ARGS__), .value_width = {__VA_ARGS__}

static const struct dense_case dense_cases[] = {
    {{.inputs = 4, DENSE_HIDDEN(64, 64), .value = true, DENSE_CATEGORICALS(2)}, 300, false},
    {{.inputs = 17, DENSE_HIDDEN(64, 64), .value = true, .gaussian = true, .components = 6}, 300, false},
    {{.inputs = 1, DENSE_HIDDEN(1), .activation = DENSE_RELU, DENSE_CATEGORICALS(1)}, 3, false},
    {{.inputs = 3, .value = true, DENSE_CATEGORICALS(5)}, 37, true},
    {{.inputs = 300, .gaussian = true, .components = 1}, 9, false},
    {{.inputs = 5, DENSE_HIDDEN(15, 16, 17), .activation = DENSE_RELU, DENSE_CATEGORICALS(3, 1, 4)},
     50,
     true},
    {{.inputs = 7, DENSE_HIDDEN(31, 33), .value = true, .gaussian = true, .components = 5}, 257, false},
    {{.inputs = 600, DENSE_HIDDEN(18), .value = true, DENSE_CATEGORICALS(2, 2)}, 21, false},
    {{.inputs = 2, DENSE_HIDDEN(8, 7, 6, 5, 4, 3, 2, 9), .value = true, DENSE_CATEGORICALS(2, 3, 2)},
     40,
     true},
    {{.inputs = 16, DENSE_HIDDEN(129), .activation = DENSE_RELU, .value = true, DENSE_CATEGORICALS(90, 3)},
     33,
     true},
    {{.inputs = 9, DENSE_HIDDEN(40, 300), .activation = DENSE_RELU, .gaussian = true, .components = 19},
     18,
     false},
    {{.inputs = 17,
      DENSE_HIDDEN(64, 64),
      .value = true,
      .gaussian = true,
      .state_dependent = true,
      .components = 6},
     300,
     false},
    {{.inputs = 3,
      DENSE_HIDDEN(21),
      .activation = DENSE_RELU,
      .gaussian = true,
      .state_dependent = true,
      .components = 1},
     37,
     false},
    {{.inputs = 5, DENSE_HIDDEN(9, 2), .gaussian = true, .state_dependent = true, .components = 18},
     20,
     false},
    {{.inputs = 4,
      DENSE_HIDDEN(128),
      .activation = DENSE_RELU,
      .value = true,
      .shared = true,
      DENSE_CATEGORICALS(2)},
     300,
     false},
    {{.inputs = 6, DENSE_HIDDEN(33, 7), .value = true, .shared = true, .gaussian = true, .components = 3},
     37,
     false},
    {{.inputs = 3,
      DENSE_HIDDEN(8, 16),
      .value = true,
      .shared = true,
      .gaussian = true,
      .state_dependent = true,
      .components = 2},
     21,
     false},
    {{.inputs = 5, .value = true, .shared = true, DENSE_CATEGORICALS(3, 2)}, 20, true},
    {{.inputs = 300,
      DENSE_POLICY_HIDDEN(7),
      DENSE_VALUE_HIDDEN(33, 20, 65),
      .value = true,
      DENSE_CATEGORICALS(4, 2)},
     270,
     true},
    {{.inputs = 6,
      DENSE_POLICY_HIDDEN(40, 300),
      DENSE_VALUE_HIDDEN(18),
      .activation = DENSE_RELU,
      .value = true,
      .gaussian = true,
      .components = 3},
     50,
     false},
    {{.inputs = 9, DENSE_VALUE_HIDDEN(31, 5), .value = true, .gaussian = true, .components = 4}, 37, false},
    {{.inputs = 4,
      DENSE_POLICY_HIDDEN(16, 21),
      .value = true,
      .gaussian = true,
      .state_dependent = true,
      .components = 2},
     40,
     false},
};
enum { DENSE_CASES = sizeof dense_cases / sizeof *dense_cases };

#endif
