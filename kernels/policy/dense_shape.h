/* The shape of a policy of dense layers, and its parameters: names, shapes, places in one flat array, first
 * values.
 *
 * The names and their order are those of the state_dict of Stable-Baselines3's ActorCriticPolicy, with a
 * hidden layer every other number as torch.nn.Sequential counts them:
 *
 *     log_std                              (components)           Gaussian only; (last width, components)
 *                                                                 where the deviations depend on the state
 *     mlp_extractor.policy_net.0.weight    (width, inputs)        … .0.bias, .2.weight, .2.bias, …
 *     mlp_extractor.value_net.0.weight     (width, inputs)        … with a value network of its own
 *     action_net.weight                    (outputs, last width)  action_net.bias (outputs)
 *     value_net.weight                     (1, last width)        value_net.bias (1); with a value network
 *
 * Where policy and value share the hidden layers, these are mlp_extractor.shared_net.0.weight … alone, as
 * Stable-Baselines3 called them until 1.7. Pure functions; dense_begin alone allocates. */

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

/* ---- parameters ---- */

enum dense_network_kind { DENSE_POLICY, DENSE_VALUE, DENSE_NETWORKS };
enum dense_parameter_kind { DENSE_WEIGHT, DENSE_BIAS, DENSE_LOG_SIGMA };

enum { DENSE_PARAMETERS_MAX = 1 + DENSE_NETWORKS * (DENSE_LAYERS_MAX + 1) * 2, DENSE_NAME_BYTES = 48 };

struct dense_parameter {
    char name[DENSE_NAME_BYTES];
    enum dense_parameter_kind kind;
    enum dense_network_kind network;
    uint32_t layer;          /* 0 …; that of the head is shape.layers */
    uint32_t rank, shape[2]; /* as PyTorch has it */
    uint32_t inputs;         /* of the layer, for its weight and bias: PyTorch's fan_in */
    size_t offset, count;    /* floats: where it begins in the flat array, and how many it has */
};

/* Fills `out`, ascending by offset and without gaps; returns how many there are. */
uint32_t dense_parameters(const struct dense_shape *shape, struct dense_parameter out[DENSE_PARAMETERS_MAX]);

/* The distribution of the first values. */
struct dense_initial {
    bool orthogonal; /* false: PyTorch's default for Linear, and the gains are not read */
    double gain_hidden, gain_policy, gain_value; /* of hidden layers and of the two heads */
    double log_sigma;                            /* of every component */
};

/* Gives `parameters`, the flat array, its first values. Parameter number p of the list above is
 * drawn as follows, with the same bits on every machine.
 *
 * PyTorch's default: weight and bias uniform in ±1 / sqrt(inputs), element e by rng_initial_uniform(seed, p,
 * e).
 *
 * Orthogonal: a weight by orthogonal_draw (kernels/policy/orthogonal.h) with its gain and number p; biases
 * are 0. STATUS_NO_MEMORY; errors as isa_choose. */
enum status dense_begin(float *parameters, const struct dense_shape *shape,
                        const struct dense_initial *initial, uint64_t seed, struct error *error);

#endif
