/* The shape of a general policy: dense layers, what they read, and the actions that they choose. */
#ifndef KERNELS_POLICY_DENSE_SHAPE_H
#define KERNELS_POLICY_DENSE_SHAPE_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DENSE_INPUTS_MAX = 65536,
    DENSE_LAYERS_MAX = 8, /* hidden ones */
    DENSE_WIDTH_MAX = 1024,
    DENSE_COMPONENTS_MAX = 256,
    DENSE_OUTPUTS_MAX = 1024, /* all choices of all components */
};

enum dense_activation { DENSE_TANH, DENSE_RELU };

struct dense_shape {
    uint32_t inputs;                  /* floats of an observation */
    uint32_t layers;                  /* hidden layers; 0: the head reads the observation */
    uint32_t width[DENSE_LAYERS_MAX]; /* (layers) units of each */
    enum dense_activation activation;
    bool value;           /* has a value network: the same hidden layers once more, and one output */
    bool shared;          /* with `value`: its output reads the policy's hidden layers, and it has none */
    bool gaussian;        /* an action is floats of a diagonal Gaussian; else choices of Categoricals */
    bool state_dependent; /* the Gaussian's deviations depend on the last hidden layer, of which there is one
                           */
    uint32_t components;  /* of an action */
    uint32_t choices[DENSE_COMPONENTS_MAX]; /* (components) of each Categorical; not read for a Gaussian */
};

/* STATUS_INVALID names the bound that the shape breaks. */
enum status dense_check_shape(const struct dense_shape *shape, struct error *error);

/* The policy network's outputs: the sum of all choices, or a Gaussian's means. Also the bytes of a row's
 * mask.
 */
uint32_t dense_outputs(const struct dense_shape *shape);

/* What the heads read: units of the last hidden layer, or the inputs. */
uint32_t dense_features(const struct dense_shape *shape);

/* Whether the policy is a Gaussian whose deviations depend on the state. */
bool dense_explores(const struct dense_shape *shape);

#endif
