/* The networks of a policy on a backend, as operations of a tape: the CNN, memories and dense layers. Dense
 * layers are also listed for a captured launch.
 *
 * The CNN is that of Mnih et al., "Human-level control through deep reinforcement learning" (Nature 518,
 * 2015). No padding; every layer has a bias; policy_parameters.h lists the parameters.
 *
 *     images (rows, channels, height, width)
 *     -> conv 32 of 8x8, stride 4 -> ReLU -> conv 64 of 4x4, stride 2 -> ReLU -> conv 64 of 3x3 -> ReLU
 *     -> flatten -> linear 512 -> ReLU = the features -> linear: logits or means
 *     features, shared or of a second CNN -> linear: the value
 *
 * Each image among other parts has a CNN of its own, with a linear of 256; dense layers read all parts:
 *
 *     part 0's features, part 1's floats, … -> side by side -> dense layers
 *
 * A memory reads the features, or the observations in front of dense layers, row by row of a grid
 * (policy_sequences.h); the heads or the dense layers read the memory. policy_config.h says what the value
 * reads.
 *
 * kernels/policy/dense.h says what dense layers compute. */
#include "kernels/backend.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <stdio.h>

_Static_assert((int)POLICY_LAUNCH_LAYERS_MAX == DENSE_NETWORKS * ((int)DENSE_LAYERS_MAX + 1),
               "a launch has room for all dense layers");

/* ---- the CNN ---- */

static struct variable *find_parameter(struct params *params, struct tape *tape, const char *layer,
                                       const char *which)
{
    char name[POLICY_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", layer, which);
    return tape_parameter(tape, params_find(params, name));
}

/* ReLU in the place of x. */
static struct variable *activate(struct tape *tape, struct variable *x)
{
    struct variable *y = tape_relu(tape, x);
    tape_drop(tape, x);
    return y;
}

static struct variable *convolve(struct params *params, struct tape *tape, const char *layer, uint32_t stride,
                                 struct variable *x)
{
    struct variable *y = tape_conv2d(tape, x, find_parameter(params, tape, layer, "weight"),
                                     find_parameter(params, tape, layer, "bias"), stride, 0);
    return activate(tape, y);
}

static struct variable *flatten(struct tape *tape, struct variable *x)
{
    if (x == NULL)
        return NULL;
    const uint32_t *size = variable_tensor(x)->shape.size;
    struct variable *y = tape_reshape(tape, x, SHAPE2(size[0], size[1] * size[2] * size[3]));
    tape_drop(tape, x);
    return y;
}

static struct variable *connect(struct params *params, struct tape *tape, const char *layer,
                                struct variable *x)
{
    return tape_linear(tape, x, find_parameter(params, tape, layer, "weight"),
                       find_parameter(params, tape, layer, "bias"));
}

/* The features that the extractor `name` finds in the images. */
static struct variable *extract(struct params *params, struct tape *tape, const char *name,
                                struct variable *images)
{
    static const char *const convolutions[] = {"cnn.0", "cnn.2", "cnn.4"};
    static const uint32_t strides[] = {4, 2, 1};
    char layer[POLICY_LAYER_BYTES];
    struct variable *x = images;
    for (uint32_t l = 0; l < 3; l++) {
        snprintf(layer, sizeof layer, "%s.%s", name, convolutions[l]);
        struct variable *y = convolve(params, tape, layer, strides[l], x);
        if (l > 0)
            tape_drop(tape, x);
        x = y;
    }
    snprintf(layer, sizeof layer, "%s.linear.0", name);
    struct variable *flat = flatten(tape, x), *linear = connect(params, tape, layer, flat);
    tape_drop(tape, flat);
    return activate(tape, linear);
}

/* The features of all parts in one row: each part's are put at their place among zeros, and the rows added
 * up. A product with ones and zeros is exact. `name` is that of all extractors. */
static struct variable *join(struct params *params, struct tape *tape, const char *name,
                             const struct policy_inputs *inputs)
{
    struct variable *sum = NULL;
    for (uint32_t i = 0; i < inputs->count; i++) {
        const struct policy_input *input = &inputs->of[i];
        struct variable *features = input->x, *before = sum;
        if (input->part != NULL) {
            char extractor[POLICY_LAYER_BYTES];
            snprintf(extractor, sizeof extractor, "%s.extractors.%s", name, input->part);
            features = extract(params, tape, extractor, input->x);
        }
        struct variable *placed = tape_linear(tape, features, input->place, NULL);
        if (input->part != NULL)
            tape_drop(tape, features);
        sum = before != NULL ? tape_add(tape, before, placed, false) : placed;
        if (before != NULL) {
            tape_drop(tape, before);
            tape_drop(tape, placed);
        }
    }
    return sum;
}

/* The features of the only image, or of all parts. */
static struct variable *extract_all(struct params *params, struct tape *tape, const char *name,
                                    const struct policy_inputs *inputs)
{
    return inputs->of[0].place != NULL ? join(params, tape, name, inputs)
                                       : extract(params, tape, name, inputs->of[0].x);
}

/* The features that policy and value read. */
static void extract_both(const struct policy_network *network, struct tape *tape,
                         const struct policy_inputs *inputs, unsigned wanted,
                         struct variable *features[DENSE_NETWORKS])
{
    struct params *params = network->params;
    const bool shared = network->shares_extractor;
    if ((wanted & POLICY_ACTION) != 0 || shared)
        features[DENSE_POLICY] = extract_all(params, tape, "features_extractor", inputs);
    if (shared)
        features[DENSE_VALUE] = features[DENSE_POLICY];
    else if ((wanted & POLICY_VALUE) != 0)
        features[DENSE_VALUE] = extract_all(params, tape, "vf_features_extractor", inputs);
}

/* ---- memories ---- */

/* Those of the policy's memory, number 0, or of the value's. */
static void find_cells(const struct policy_network *network, struct tape *tape, uint32_t memory,
                       struct lstm_parameters out[RECURRENT_LAYERS_MAX])
{
    static const char *const lstm[] = {"lstm_actor", "lstm_critic"}, *const gru[] = {"gru_actor",
                                                                                     "gru_critic"};
    const char *of = network->memory.cell == RECURRENT_LSTM ? lstm[memory] : gru[memory];
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const uint32_t count = recurrent_parameters(&network->memory, list);
    struct variable *found[RECURRENT_PARAMETERS_MAX];
    for (uint32_t p = 0; p < count; p++) {
        char name[POLICY_NAME_BYTES];
        snprintf(name, sizeof name, "%s.%.*s", of, RECURRENT_NAME_BYTES, list[p].name);
        found[p] = tape_parameter(tape, params_find(network->params, name));
    }
    for (uint32_t layer = 0; layer < network->memory.layers; layer++)
        out[layer] = (struct lstm_parameters){.weight_ih = found[4 * layer],
                                              .weight_hh = found[4 * layer + 1],
                                              .bias_ih = found[4 * layer + 2],
                                              .bias_hh = found[4 * layer + 3]};
}

/* What memory number `memory` makes of the rows (rows, inputs): (rows, units). */
static struct variable *remember(const struct policy_network *network, struct tape *tape,
                                 struct policy_recurrence *recurrence, uint32_t memory, struct variable *rows)
{
    struct lstm_parameters parameters[RECURRENT_LAYERS_MAX];
    const uint32_t steps = recurrence->steps, sequences = recurrence->sequences;
    if (memory == 1 && network->critic == POLICY_CRITIC_LINEAR)
        return connect(network->params, tape, "critic", rows);
    find_cells(network, tape, memory, parameters);
    struct variable *grid = recurrence->row != NULL
                                ? tape_embedding(tape, recurrence->row, rows)
                                : tape_reshape(tape, rows, SHAPE3(steps, sequences, network->memory.inputs));
    struct variable *y =
        tape_recurrent(tape, network->memory.cell == RECURRENT_LSTM ? OP_LSTM_LAYER : OP_GRU_LAYER, grid,
                       network->memory.layers, parameters, recurrence->state[memory], 0, NULL);
    struct variable *flat = tape_reshape(tape, y, SHAPE2(steps * sequences, network->memory.hidden));
    tape_drop(tape, grid);
    tape_drop(tape, y);
    return recurrence->place != NULL ? tape_embedding(tape, recurrence->place, flat) : flat;
}

/* The same values, through which no gradient goes. */
static struct variable *detach(struct tape *tape, struct variable *x)
{
    if (x == NULL)
        return NULL;
    tape_keep(x);
    return tape_constant(tape, variable_tensor(x));
}

/* Puts what the memories make of them in the place of what policy and value read. */
static void remember_both(const struct policy_network *network, struct tape *tape,
                          struct policy_recurrence *recurrence, unsigned wanted,
                          struct variable *read[DENSE_NETWORKS])
{
    struct variable *policy = NULL;
    if ((wanted & POLICY_ACTION) != 0 || network->memories == 1)
        policy = remember(network, tape, recurrence, 0, read[DENSE_POLICY]);
    if ((wanted & POLICY_VALUE) != 0)
        read[DENSE_VALUE] = network->memories > 1 ? remember(network, tape, recurrence, 1, read[DENSE_VALUE])
                            : network->critic == POLICY_CRITIC_DETACHED ? detach(tape, policy)
                                                                        : policy;
    read[DENSE_POLICY] = policy;
}

/* ---- dense layers: hidden ones and heads ---- */

struct layer {
    uint32_t weight;    // its number; the bias is the next one
    uint32_t from;      // what the layer reads: 0, the observations; else the units of layer from - 1
    enum op activation; // OP_LINEAR: none
    unsigned serves;    // the outputs that need it
    unsigned is;        // the output that it is, or 0
};

/* In the order of the parameters. Returns how many there are. */
static uint32_t list_layers(const struct dense_shape *shape, struct layer out[POLICY_LAUNCH_LAYERS_MAX])
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t parameters = dense_parameters(shape, list);
    const enum op activation = shape->activation == DENSE_TANH ? OP_TANH : OP_RELU;
    uint32_t count = 0, trunk[DENSE_NETWORKS] = {0}; // the last hidden layer so far, counted from 1
    for (uint32_t p = 0; p < parameters; p++) {
        if (list[p].kind != DENSE_WEIGHT)
            continue;
        const bool of_value = list[p].network == DENSE_VALUE;
        const bool head = list[p].layer == dense_layers(shape, list[p].network);
        const unsigned serves = of_value                 ? POLICY_VALUE
                                : head || !shape->shared ? POLICY_ACTION
                                                         : POLICY_ACTION | POLICY_VALUE;
        uint32_t *from = &trunk[of_value && !shape->shared];
        out[count++] = (struct layer){.weight = p,
                                      .from = *from,
                                      .activation = head ? OP_LINEAR : activation,
                                      .serves = serves,
                                      .is = head ? serves : 0};
        if (!head)
            *from = count;
    }
    if (dense_explores(shape))
        out[trunk[DENSE_POLICY] - 1].is = POLICY_FEATURES;
    return count;
}

static struct policy_outputs record_dense(const struct policy_network *network, struct tape *tape,
                                          struct variable *const read[DENSE_NETWORKS], unsigned wanted)
{
    struct layer layers[POLICY_LAUNCH_LAYERS_MAX];
    struct variable *y[1 + POLICY_LAUNCH_LAYERS_MAX] = {0};
    struct policy_outputs outputs = {0};
    const uint32_t count = list_layers(&network->shape, layers);
    for (uint32_t l = 0; l < count; l++) {
        const struct layer *layer = &layers[l];
        struct variable **units = &y[l + 1];
        if ((layer->serves & wanted) == 0)
            continue;
        y[0] = read[layer->serves == POLICY_VALUE ? DENSE_VALUE : DENSE_POLICY];
        const uint32_t weight = network->extractor_parameters + layer->weight;
        *units = tape_linear(tape, y[layer->from], tape_parameter(tape, params_at(network->params, weight)),
                             tape_parameter(tape, params_at(network->params, weight + 1)));
        if (layer->activation != OP_LINEAR)
            *units = layer->activation == OP_TANH ? tape_tanh(tape, *units) : tape_relu(tape, *units);
        if (layer->is == POLICY_ACTION)
            outputs.action = *units;
        else if (layer->is == POLICY_VALUE)
            outputs.value = *units;
        else if (layer->is == POLICY_FEATURES)
            outputs.features = *units;
    }
    return outputs;
}

void policy_network_layers(const struct policy_network *network, struct policy_launch_settings *settings)
{
    struct layer layers[POLICY_LAUNCH_LAYERS_MAX];
    settings->inputs = network->shape.inputs;
    settings->layers = list_layers(&network->shape, layers);
    for (uint32_t l = 0; l < settings->layers; l++)
        settings->layer[l] = (struct policy_launch_layer){
            .weight = params_at(network->params, layers[l].weight)->tensor,
            .bias = params_at(network->params, layers[l].weight + 1)->tensor,
            .from = layers[l].from,
            .activation = layers[l].activation,
            .result = layers[l].is != 0 ? POLICY_LAUNCH_FLOATS : POLICY_LAUNCH_INNER};
}

/* ---- all of a network ---- */

struct variable *policy_network_record_q(struct params *params, struct tape *tape, const char *name,
                                         enum policy_activation activation,
                                         const struct policy_inputs *inputs)
{
    char layer[POLICY_LAYER_BYTES], next[POLICY_NAME_BYTES];
    snprintf(layer, sizeof layer, "%s.features_extractor", name);
    struct variable *x = extract_all(params, tape, layer, inputs);
    for (uint32_t l = 0;; l++) {
        snprintf(layer, sizeof layer, "%s.q_net.%u", name, 2 * l);
        snprintf(next, sizeof next, "%s.q_net.%u.weight", name, 2 * l + 2);
        struct variable *y = connect(params, tape, layer, x);
        tape_drop(tape, x);
        if (params_find(params, next) == NULL)
            return y;
        x = activation == POLICY_TANH ? tape_tanh(tape, y) : tape_relu(tape, y);
        tape_drop(tape, y);
    }
}

struct policy_network policy_network_of(const struct policy_config *config)
{
    struct policy_network network = {.form = policy_form(config),
                                     .shape = policy_dense_shape(config),
                                     .shares_extractor = !config->has_value || config->shared_value,
                                     .memories = policy_memories(config),
                                     .critic = config->critic};
    if (network.memories > 0)
        network.memory = policy_memory_shape(config, 0);
    if (network.form == POLICY_FORM_CNN && !policy_joins_parts(config))
        network.extractor_parameters = POLICY_EXTRACTOR_PARAMETERS * (network.shares_extractor ? 1 : 2);
    return network;
}

struct policy_outputs policy_network_record(const struct policy_network *network, struct tape *tape,
                                            const struct policy_inputs *inputs,
                                            struct policy_recurrence *recurrence, unsigned wanted)
{
    struct variable *read[DENSE_NETWORKS] = {inputs->of[0].x, inputs->of[0].x};
    if (network->form == POLICY_FORM_CNN)
        extract_both(network, tape, inputs, wanted, read);
    if (recurrence != NULL)
        remember_both(network, tape, recurrence, wanted, read);
    return record_dense(network, tape, read, wanted);
}
