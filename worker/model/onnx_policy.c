/* Writes a policy's network as a graph, in the three forms that policy.h names. The thread that exports. */
#include "kernels/policy/dense_shape.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/onnx.h"
#include "worker/model/onnx_graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* As the normalizer's (policy.c), and of the variances of state-dependent exploration
 * (kernels/policy/dense.h). */
static const double normalizer_epsilon = 1e-8;
static const float exploration_epsilon = 1e-6F;

struct policy_graph {
    struct onnx_graph *graph;
    const struct policy_config *config;
    struct params *params;
    char x[ONNX_NAME_BYTES]; /* the newest value */
    float *scale;            // (elements of an observation) of the normalizer
};

/* ---- pieces ---- */

static void add_parameter(struct policy_graph *g, const char *name)
{
    const struct tensor *tensor = &params_find(g->params, name)->tensor;
    onnx_graph_tensor(g->graph, name, tensor->shape.rank, tensor->shape.size, tensor->data);
}

static void set_newest(struct policy_graph *g, const char *name)
{
    snprintf(g->x, sizeof g->x, "%s", name);
}

/* The newest value, under this name, comes from the node of the same name. `more`: another input; NULL: none.
 */
static void add_node(struct policy_graph *g, const char *op, const char *name, const char *more)
{
    onnx_graph_node(g->graph, op, name, name, ONNX_INPUTS(g->x, more));
    set_newest(g, name);
}

/* Puts the layer's weight and bias on x; the result is `output`. */
static void add_linear(struct policy_graph *g, const char *x, const char *layer, const char *output)
{
    char weight[ONNX_NAME_BYTES], bias[ONNX_NAME_BYTES];
    snprintf(weight, sizeof weight, "%s.weight", layer);
    snprintf(bias, sizeof bias, "%s.bias", layer);
    add_parameter(g, weight);
    add_parameter(g, bias);
    onnx_graph_node(g->graph, "Gemm", layer, output, ONNX_INPUTS(x, weight, bias));
    onnx_graph_int(g->graph, "transB", 1);
}

/* A hidden layer: the newest value becomes `layer`, and then its activation. */
static void add_hidden(struct policy_graph *g, const char *layer, const char *activation)
{
    char name[ONNX_NAME_BYTES];
    add_linear(g, g->x, layer, layer);
    set_newest(g, layer);
    snprintf(name, sizeof name, "%.80s.activation", layer);
    add_node(g, activation, name, NULL);
}

/* ---- the observation ---- */

static void add_normalizer(struct policy_graph *g)
{
    const struct environment_space *seen = &g->config->observation;
    const float *mean = params_find(g->params, "obs_rms.mean")->tensor.data;
    const float *variance = params_find(g->params, "obs_rms.var")->tensor.data;
    const size_t elements = environment_space_elements(seen);
    for (size_t i = 0; i < elements; i++)
        g->scale[i] = (float)(1 / sqrt((double)variance[i] + normalizer_epsilon));
    onnx_graph_tensor(g->graph, "obs_rms.mean", seen->rank, seen->shape, mean);
    onnx_graph_tensor(g->graph, "obs_rms.scale", seen->rank, seen->shape, g->scale);
    onnx_graph_scalar(g->graph, "obs_rms.low", (float)-g->config->clip);
    onnx_graph_scalar(g->graph, "obs_rms.high", (float)g->config->clip);
    add_node(g, "Sub", "obs_rms.shifted", "obs_rms.mean");
    add_node(g, "Mul", "obs_rms.scaled", "obs_rms.scale");
    onnx_graph_node(g->graph, "Clip", "obs_rms", "obs_rms", ONNX_INPUTS(g->x, "obs_rms.low", "obs_rms.high"));
    set_newest(g, "obs_rms");
}

/* What the network reads: floats, normalized, as a vector or as an image (channels, height, width). */
static void add_observations(struct policy_graph *g)
{
    const struct environment_space *seen = &g->config->observation;
    const bool bytes = seen->dtype == ENVIRONMENT_U8;
    onnx_graph_input(g->graph, "observations", bytes ? ONNX_UINT8 : ONNX_FLOAT, seen->rank, seen->shape);
    set_newest(g, "observations");
    if (bytes) {
        add_node(g, "Cast", "observations.float", NULL);
        onnx_graph_int(g->graph, "to", ONNX_FLOAT);
        onnx_graph_scalar(g->graph, "observations.most", 255);
        add_node(g, "Div", "observations.scaled", "observations.most");
    }
    if (g->config->normalizes)
        add_normalizer(g);
    if (policy_form(g->config) == POLICY_FORM_CNN) {
        add_node(g, "Transpose", "observations.image", NULL);
        onnx_graph_ints(g->graph, "perm", 4, (const int64_t[]){0, 3, 1, 2});
    } else if (seen->rank != 1) {
        add_node(g, "Flatten", "observations.flat", NULL);
    }
}

/* ---- hidden layers ---- */

/* The features that the extractor `name` finds in the newest value. */
static void add_extractor(struct policy_graph *g, const char *name)
{
    static const char *const convolutions[] = {"cnn.0", "cnn.2", "cnn.4"};
    static const int64_t strides[] = {4, 2, 1};
    char layer[ONNX_NAME_BYTES - 16], other[ONNX_NAME_BYTES];
    for (unsigned l = 0; l < 3; l++) {
        char weight[ONNX_NAME_BYTES], bias[ONNX_NAME_BYTES];
        snprintf(layer, sizeof layer, "%s.%s", name, convolutions[l]);
        snprintf(weight, sizeof weight, "%s.weight", layer);
        snprintf(bias, sizeof bias, "%s.bias", layer);
        add_parameter(g, weight);
        add_parameter(g, bias);
        const int64_t kernel = params_find(g->params, weight)->tensor.shape.size[2];
        onnx_graph_node(g->graph, "Conv", layer, layer, ONNX_INPUTS(g->x, weight, bias));
        onnx_graph_ints(g->graph, "kernel_shape", 2, (const int64_t[]){kernel, kernel});
        onnx_graph_ints(g->graph, "strides", 2, (const int64_t[]){strides[l], strides[l]});
        set_newest(g, layer);
        snprintf(other, sizeof other, "%s.activation", layer);
        add_node(g, "Relu", other, NULL);
    }
    snprintf(other, sizeof other, "%s.flatten", name);
    add_node(g, "Flatten", other, NULL);
    snprintf(layer, sizeof layer, "%s.linear.0", name);
    add_hidden(g, layer, "Relu");
}

/* The hidden dense layers of the network `name`. */
static void add_dense(struct policy_graph *g, const char *name)
{
    for (uint32_t l = 0; l < g->config->layers; l++) {
        char layer[ONNX_NAME_BYTES];
        snprintf(layer, sizeof layer, "mlp_extractor.%s.%u", name, 2 * l);
        add_hidden(g, layer, g->config->activation == POLICY_TANH ? "Tanh" : "Relu");
    }
}

/* From the observations to the features that the policy's head reads, or with `value` the value's. */
static void add_features(struct policy_graph *g, bool value)
{
    const bool apart = value && !g->config->shared_value;
    if (policy_form(g->config) == POLICY_FORM_CNN)
        add_extractor(g, apart ? "vf_features_extractor" : "features_extractor");
    else
        add_dense(g, g->config->shared_value ? "shared_net" : apart ? "value_net" : "policy_net");
}

/* ---- heads ---- */

/* std (batch, components) of a Gaussian over these features: exp(log_std), the same in each row; or, where it
 * depends on the state, sqrt(features^2 exp(log_std)^2 + epsilon). */
static void add_deviation(struct policy_graph *g, const char *features)
{
    struct onnx_graph *graph = g->graph;
    add_parameter(g, "log_std");
    onnx_graph_node(graph, "Exp", "log_std.exp", "log_std.exp", ONNX_INPUTS("log_std"));
    if (!g->config->state_dependent) {
        onnx_graph_node(graph, "Shape", "mean.shape", "mean.shape", ONNX_INPUTS("mean"));
        onnx_graph_node(graph, "Expand", "std", "std", ONNX_INPUTS("log_std.exp", "mean.shape"));
        return;
    }
    onnx_graph_scalar(graph, "std.epsilon", exploration_epsilon);
    onnx_graph_node(graph, "Mul", "std.squares", "std.squares", ONNX_INPUTS(features, features));
    onnx_graph_node(graph, "Mul", "log_std.square", "log_std.square",
                    ONNX_INPUTS("log_std.exp", "log_std.exp"));
    onnx_graph_node(graph, "MatMul", "std.sum", "std.sum", ONNX_INPUTS("std.squares", "log_std.square"));
    onnx_graph_node(graph, "Add", "std.variance", "std.variance", ONNX_INPUTS("std.sum", "std.epsilon"));
    onnx_graph_node(graph, "Sqrt", "std", "std", ONNX_INPUTS("std.variance"));
}

static void add_actor(struct policy_graph *g)
{
    const struct dense_shape shape = policy_dense_shape(g->config);
    const uint32_t outputs = dense_outputs(&shape);
    char features[ONNX_NAME_BYTES];
    snprintf(features, sizeof features, "%s", g->x);
    add_linear(g, features, "action_net", shape.gaussian ? "mean" : "logits");
    onnx_graph_output(g->graph, shape.gaussian ? "mean" : "logits", 1, &outputs);
    if (!shape.gaussian)
        return;
    add_deviation(g, features);
    onnx_graph_output(g->graph, "std", 1, &outputs);
}

static void add_actor_critic(struct policy_graph *g)
{
    static const uint32_t one = 1;
    char observations[ONNX_NAME_BYTES];
    snprintf(observations, sizeof observations, "%s", g->x);
    add_features(g, false);
    add_actor(g);
    if (!g->config->has_value)
        return;
    if (!g->config->shared_value) {
        set_newest(g, observations);
        add_features(g, true);
    }
    add_linear(g, g->x, "value_net", "value");
    onnx_graph_output(g->graph, "value", 1, &one);
}

/* The tutorial's network, without its dropout: that is for training alone. */
static void add_tutorial(struct policy_graph *g)
{
    add_hidden(g, "affine1", "Relu");
    add_linear(g, g->x, "affine2", "logits");
    onnx_graph_output(g->graph, "logits", 1, g->config->action.choices);
}

enum status onnx_write_policy(const char *path, const struct policy_config *config, struct params *params,
                              struct error *error)
{
    const size_t elements = environment_space_elements(&config->observation);
    struct policy_graph g = {.config = config, .params = params, .scale = calloc(elements, sizeof *g.scale)};
    enum status status =
        g.scale != NULL
            ? STATUS_OK
            : error_set(error, STATUS_NO_MEMORY, "no memory for the statistics of %zu elements", elements);
    if (status == STATUS_OK)
        status = onnx_graph_new(&g.graph, "policy", error);
    if (status == STATUS_OK) {
        add_observations(&g);
        if (policy_form(config) == POLICY_FORM_TUTORIAL)
            add_tutorial(&g);
        else
            add_actor_critic(&g);
        status = onnx_graph_write(g.graph, path, error);
    }
    onnx_graph_free(g.graph);
    free(g.scale);
    return status;
}
