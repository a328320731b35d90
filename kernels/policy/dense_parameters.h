/* A general policy's parameters: names, shapes, places in one flat array, and first values.
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
#ifndef KERNELS_POLICY_DENSE_PARAMETERS_H
#define KERNELS_POLICY_DENSE_PARAMETERS_H

#include "kernels/policy/dense_shape.h"

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

/* Floats in all parameters. */
size_t dense_parameter_count(const struct dense_shape *shape);

/* The distribution of the first values. */
struct dense_initial {
    bool orthogonal; /* false: PyTorch's default for Linear, and the gains are not read */
    double gain_hidden, gain_policy, gain_value; /* of hidden layers and of the two heads */
    double log_sigma;                            /* of every component */
};

/* Gives `parameters` (dense_parameter_count floats) its first values. Parameter number p of the list above is
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
