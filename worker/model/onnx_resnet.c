/* A ResNet as a graph. Its blocks are read off the parameters' names, which are torchvision's (resnet.h): a
 * third convolution makes a bottleneck, downsample.0 a shortcut. The thread that exports. */
#include "worker/model/onnx.h"
#include "worker/model/onnx_graph.h"

#include <stdbool.h>
#include <stdio.h>

static const float epsilon = 1e-5F;

enum { STAGES = 4, MODULE_BYTES = 32, VALUE_BYTES = ONNX_NAME_BYTES - 16 };

/* The name of the value that the newest node made. */
struct value_name {
    char text[VALUE_BYTES];
};

static struct value_name value_of(const char *prefix, const char *name)
{
    struct value_name value;
    snprintf(value.text, sizeof value.text, "%.43s%.36s", prefix, name);
    return value;
}

static void add_parameter(struct onnx_graph *graph, struct params *params, const char *name)
{
    const struct tensor *tensor = &params_find(params, name)->tensor;
    onnx_graph_tensor(graph, name, tensor->shape.rank, tensor->shape.size, tensor->data);
}

static struct value_name add_relu(struct onnx_graph *graph, struct value_name x)
{
    const struct value_name y = value_of(x.text, ".relu");
    onnx_graph_node(graph, "Relu", y.text, y.text, ONNX_INPUTS(x.text));
    return y;
}

/* A convolution, padded by half its kernel, and its batch norm; `prefix` is empty or ends with a dot. */
static struct value_name add_layer(struct onnx_graph *graph, struct params *params, const char *prefix,
                                   const char *convolution, const char *norm, int64_t stride,
                                   struct value_name x)
{
    static const char *const entries[] = {"weight", "bias", "running_mean", "running_var"};
    const struct value_name conv = value_of(prefix, convolution), bn = value_of(prefix, norm);
    const struct value_name weight = value_of(conv.text, ".weight");
    char names[4][ONNX_NAME_BYTES];
    add_parameter(graph, params, weight.text);
    const int64_t kernel = params_find(params, weight.text)->tensor.shape.size[2], padding = kernel / 2;
    onnx_graph_node(graph, "Conv", conv.text, conv.text, ONNX_INPUTS(x.text, weight.text));
    onnx_graph_ints(graph, "kernel_shape", 2, (const int64_t[]){kernel, kernel});
    onnx_graph_ints(graph, "strides", 2, (const int64_t[]){stride, stride});
    onnx_graph_ints(graph, "pads", 4, (const int64_t[]){padding, padding, padding, padding});
    for (unsigned i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "%s.%s", bn.text, entries[i]);
        add_parameter(graph, params, names[i]);
    }
    onnx_graph_node(graph, "BatchNormalization", bn.text, bn.text,
                    ONNX_INPUTS(conv.text, names[0], names[1], names[2], names[3]));
    onnx_graph_float(graph, "epsilon", epsilon);
    return bn;
}

static bool has_module(struct params *params, const char *prefix, const char *module)
{
    const struct value_name name = value_of(prefix, module);
    return params_find(params, value_of(name.text, ".weight").text) != NULL;
}

/* In a bottleneck the stride is on the 3x3. */
static struct value_name add_block(struct onnx_graph *graph, struct params *params, const char *prefix,
                                   int64_t stride, struct value_name x)
{
    const bool bottleneck = has_module(params, prefix, "conv3");
    struct value_name shortcut = x;
    struct value_name h = add_layer(graph, params, prefix, "conv1", "bn1", bottleneck ? 1 : stride, x);
    h = add_layer(graph, params, prefix, "conv2", "bn2", bottleneck ? stride : 1, add_relu(graph, h));
    if (bottleneck)
        h = add_layer(graph, params, prefix, "conv3", "bn3", 1, add_relu(graph, h));
    if (has_module(params, prefix, "downsample.0"))
        shortcut = add_layer(graph, params, prefix, "downsample.0", "downsample.1", stride, x);
    const struct value_name sum = value_of(prefix, "add");
    onnx_graph_node(graph, "Add", sum.text, sum.text, ONNX_INPUTS(h.text, shortcut.text));
    return add_relu(graph, sum);
}

static struct value_name add_blocks(struct onnx_graph *graph, struct params *params, struct value_name x)
{
    for (unsigned stage = 0; stage < STAGES; stage++)
        for (unsigned i = 0;; i++) {
            char prefix[MODULE_BYTES];
            snprintf(prefix, sizeof prefix, "layer%u.%u.", stage + 1, i);
            if (!has_module(params, prefix, "conv1"))
                break;
            x = add_block(graph, params, prefix, stage > 0 && i == 0 ? 2 : 1, x);
        }
    return x;
}

static void add_resnet(struct onnx_graph *graph, const struct job *job, struct params *params)
{
    onnx_graph_input(graph, "images", ONNX_FLOAT, 3,
                     (const uint32_t[]){job->data.channels, job->data.size, job->data.size});
    struct value_name x = add_layer(graph, params, "", "conv1", "bn1", 2, value_of("images", ""));
    x = add_relu(graph, x);
    onnx_graph_node(graph, "MaxPool", "maxpool", "maxpool", ONNX_INPUTS(x.text));
    onnx_graph_ints(graph, "kernel_shape", 2, (const int64_t[]){3, 3});
    onnx_graph_ints(graph, "strides", 2, (const int64_t[]){2, 2});
    onnx_graph_ints(graph, "pads", 4, (const int64_t[]){1, 1, 1, 1});
    x = add_blocks(graph, params, value_of("maxpool", ""));
    onnx_graph_node(graph, "GlobalAveragePool", "avgpool", "avgpool", ONNX_INPUTS(x.text));
    onnx_graph_node(graph, "Flatten", "flatten", "flatten", ONNX_INPUTS("avgpool"));
    add_parameter(graph, params, "fc.weight");
    add_parameter(graph, params, "fc.bias");
    onnx_graph_node(graph, "Gemm", "fc", "logits", ONNX_INPUTS("flatten", "fc.weight", "fc.bias"));
    onnx_graph_int(graph, "transB", 1);
    onnx_graph_output(graph, "logits", 1, (const uint32_t[]){job->model.classes});
}

enum status onnx_write_classifier(const char *path, const struct job *job, struct params *params,
                                  struct error *error)
{
    struct onnx_graph *graph;
    enum status status =
        onnx_graph_new(&graph, job->model.name == JOB_MODEL_RESNET18 ? "resnet18" : "resnet50", error);
    if (status != STATUS_OK)
        return status;
    add_resnet(graph, job, params);
    status = onnx_graph_write(graph, path, error);
    onnx_graph_free(graph);
    return status;
}
