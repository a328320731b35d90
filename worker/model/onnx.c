/* Builds ONNX's messages for a policy or a ResNet, and encodes them with protobuf-c: IR version 8, operator
 * set 17 (ONNX 1.12). Tensors' values are written from where they lie.
 *
 * A value is the graph's input, a constant, or a node's output; it is known by its name. A function that adds
 * nodes takes the name of the value that they read, and returns that of their result. The thread that
 * exports. */
#include "worker/model/onnx.h"

#include "kernels/base/output.h"
#include "worker/environment/environment_spec.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <onnx.pb-c.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IR_VERSION = 8, OPERATOR_SET = 17 };

/* Our own models stay below these (asserted). */
enum {
    NODES_MAX = 1536,
    CONSTANTS_MAX = 1536,
    VALUES_MAX = ENVIRONMENT_PARTS_MAX + 12, // inputs and outputs of the graph, together
    RANK_MAX = 5,
    INPUTS_MAX = ENVIRONMENT_PARTS_MAX, // of a node
    OUTPUTS_MAX = RECURRENT_LAYERS_MAX, // of a node
    ATTRIBUTES_MAX = 3,
    INTS_MAX = 4, // of an attribute
    TEXT_BYTES = 1 << 18,
};

/* TensorProto.DataType */
enum type { TYPE_FLOAT = 1, TYPE_UINT8 = 2, TYPE_INT64 = 7 };

struct node {
    Onnx__NodeProto proto;
    char *outputs[OUTPUTS_MAX], *inputs[INPUTS_MAX];
    Onnx__AttributeProto attributes[ATTRIBUTES_MAX], *attribute_list[ATTRIBUTES_MAX];
    int64_t ints[ATTRIBUTES_MAX][INTS_MAX];
};

struct constant {
    Onnx__TensorProto proto;
    int64_t dims[RANK_MAX];
    float scalar;
};

struct value {
    Onnx__ValueInfoProto proto;
    Onnx__TypeProto type;
    Onnx__TypeProto__Tensor tensor;
    Onnx__TensorShapeProto shape;
    Onnx__TensorShapeProto__Dimension dims[RANK_MAX], *dim_list[RANK_MAX];
};

struct graph {
    Onnx__GraphProto proto;
    struct params *params;
    struct node nodes[NODES_MAX];
    struct constant constants[CONSTANTS_MAX];
    struct value values[VALUES_MAX];
    Onnx__NodeProto *node_list[NODES_MAX];
    Onnx__TensorProto *constant_list[CONSTANTS_MAX];
    Onnx__ValueInfoProto *input_list[VALUES_MAX], *output_list[VALUES_MAX];
    char text[TEXT_BYTES]; // names that print made
    size_t text_used;
    float *scale;   // (policy_normalized) of the normalizer
    float *own;     // what the graph has beside parameters: of what learns from a replay buffer
    int64_t *gates; // (gates * units) of recurrent layers, which rows of PyTorch's weights ONNX has
};

/* protobuf-c takes no const text, and changes none. */
static char *unconst(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* A name that lives as long as the graph. */
__attribute__((format(printf, 2, 3))) static const char *print(struct graph *g, const char *format, ...)
{
    char *text = g->text + g->text_used;
    const size_t room = TEXT_BYTES - g->text_used;
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(text, room, format, list);
    va_end(list);
    assert(length >= 0 && (size_t)length < room);
    g->text_used += (size_t)length + 1;
    return text;
}

static enum status graph_new(struct graph **out, const char *name, struct params *params, struct error *error)
{
    struct graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the graph of %s", name);
    onnx__graph_proto__init(&g->proto);
    g->proto.name = unconst(name);
    g->proto.node = g->node_list;
    g->proto.initializer = g->constant_list;
    g->proto.input = g->input_list;
    g->proto.output = g->output_list;
    g->params = params;
    *out = g;
    return STATUS_OK;
}

static void graph_free(struct graph *g)
{
    free(g->scale);
    free(g->own);
    free(g->gates);
    free(g);
}

/* ---- inputs and outputs ---- */

/* A value of the sizes size[0], … and, as dimension number `batch`, a batch, which is free. */
static Onnx__ValueInfoProto *add_value(struct graph *g, const char *name, enum type type, uint32_t rank,
                                       const uint32_t *size, uint32_t batch)
{
    const size_t count = g->proto.n_input + g->proto.n_output;
    assert(count < VALUES_MAX && rank < RANK_MAX);
    struct value *value = &g->values[count];
    onnx__value_info_proto__init(&value->proto);
    onnx__type_proto__init(&value->type);
    onnx__type_proto__tensor__init(&value->tensor);
    onnx__tensor_shape_proto__init(&value->shape);
    for (uint32_t d = 0; d <= rank; d++) {
        onnx__tensor_shape_proto__dimension__init(&value->dims[d]);
        value->dim_list[d] = &value->dims[d];
        if (d == batch) {
            value->dims[d].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            value->dims[d].dim_param = unconst("batch");
        } else {
            value->dims[d].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            value->dims[d].dim_value = size[d < batch ? d : d - 1];
        }
    }
    value->shape.n_dim = rank + 1;
    value->shape.dim = value->dim_list;
    value->tensor.elem_type = (int32_t)type;
    value->tensor.shape = &value->shape;
    value->type.value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    value->type.tensor_type = &value->tensor;
    value->proto.name = unconst(name);
    value->proto.type = &value->type;
    return &value->proto;
}

/* An input (size[0], …) with the batch as dimension number `batch`. */
static const char *add_input(struct graph *g, const char *name, enum type type, uint32_t rank,
                             const uint32_t *size, uint32_t batch)
{
    Onnx__ValueInfoProto *value = add_value(g, name, type, rank, size, batch);
    g->input_list[g->proto.n_input++] = value;
    return name;
}

/* An output, likewise. */
static void add_output_of(struct graph *g, const char *name, uint32_t rank, const uint32_t *size,
                          uint32_t batch)
{
    Onnx__ValueInfoProto *value = add_value(g, name, TYPE_FLOAT, rank, size, batch);
    g->output_list[g->proto.n_output++] = value;
}

/* An output (batch, columns). */
static void add_output(struct graph *g, const char *name, uint32_t columns)
{
    add_output_of(g, name, 1, &columns, 0);
}

/* ---- constants ---- */

/* A tensor, row-major, whose values outlive the graph. */
static struct constant *add_tensor(struct graph *g, const char *name, enum type type, uint32_t rank,
                                   const uint32_t *size, const void *values)
{
    assert(g->proto.n_initializer < CONSTANTS_MAX && rank <= RANK_MAX);
    struct constant *constant = &g->constants[g->proto.n_initializer];
    size_t elements = 1;
    onnx__tensor_proto__init(&constant->proto);
    for (uint32_t d = 0; d < rank; d++) {
        constant->dims[d] = size[d];
        elements *= size[d];
    }
    constant->proto.name = unconst(name);
    constant->proto.data_type = (int32_t)type;
    constant->proto.dims = constant->dims;
    constant->proto.n_dims = rank;
    constant->proto.raw_data.len = elements * (type == TYPE_INT64 ? sizeof(int64_t) : sizeof(float));
    constant->proto.raw_data.data = (uint8_t *)(uintptr_t)values; // read only
    g->constant_list[g->proto.n_initializer++] = &constant->proto;
    return constant;
}

static struct constant *add_constant(struct graph *g, const char *name, uint32_t rank, const uint32_t *size,
                                     const float *values)
{
    return add_tensor(g, name, TYPE_FLOAT, rank, size, values);
}

static const char *add_scalar(struct graph *g, const char *name, float value)
{
    struct constant *constant = add_constant(g, name, 0, NULL, NULL);
    constant->scalar = value;
    constant->proto.raw_data.data = (uint8_t *)&constant->scalar;
    return name;
}

static const struct tensor *tensor_of(struct graph *g, const char *name)
{
    return &params_find(g->params, name)->tensor;
}

/* NULL: the module has no such parameter. */
static const char *add_parameter(struct graph *g, const char *module, const char *which)
{
    const char *name = print(g, "%s.%s", module, which);
    if (params_find(g->params, name) == NULL)
        return NULL;
    const struct tensor *tensor = tensor_of(g, name);
    add_constant(g, name, tensor->shape.rank, tensor->shape.size, tensor->data);
    return name;
}

/* ---- nodes ---- */

/* The operator `op` with these inputs, a list that ends with NULL. Attributes of the newest node follow it.
 */
static const char *add_node_to(struct graph *g, const char *op, const char *name, const char *output,
                               const char *const *inputs)
{
    assert(g->proto.n_node < NODES_MAX);
    struct node *node = &g->nodes[g->proto.n_node];
    onnx__node_proto__init(&node->proto);
    node->proto.op_type = unconst(op);
    node->proto.name = unconst(name);
    node->outputs[0] = unconst(output);
    node->proto.output = node->outputs;
    node->proto.n_output = 1;
    node->proto.input = node->inputs;
    for (; inputs[node->proto.n_input] != NULL; node->proto.n_input++) {
        assert(node->proto.n_input < INPUTS_MAX);
        node->inputs[node->proto.n_input] = unconst(inputs[node->proto.n_input]);
    }
    node->proto.attribute = node->attribute_list;
    g->node_list[g->proto.n_node++] = &node->proto;
    return output;
}

/* A node whose output has its name. */
#define add_node(g, op, name, ...) add_node_to(g, op, name, name, (const char *const[]){__VA_ARGS__, NULL})

/* One more output of the newest node. */
static const char *add_node_output(struct graph *g, const char *name)
{
    struct node *node = &g->nodes[g->proto.n_node - 1];
    assert(node->proto.n_output < OUTPUTS_MAX);
    node->outputs[node->proto.n_output++] = unconst(name);
    return name;
}

static Onnx__AttributeProto *add_attribute(struct graph *g, const char *name,
                                           Onnx__AttributeProto__AttributeType type)
{
    struct node *node = &g->nodes[g->proto.n_node - 1];
    const size_t index = node->proto.n_attribute++;
    assert(index < ATTRIBUTES_MAX);
    Onnx__AttributeProto *attribute = node->attribute_list[index] = &node->attributes[index];
    onnx__attribute_proto__init(attribute);
    attribute->name = unconst(name);
    attribute->type = type;
    attribute->ints = node->ints[index];
    return attribute;
}

static void add_int(struct graph *g, const char *name, int64_t value)
{
    add_attribute(g, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT)->i = value;
}

static void add_float(struct graph *g, const char *name, float value)
{
    add_attribute(g, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT)->f = value;
}

static void add_ints(struct graph *g, const char *name, uint32_t count, const int64_t values[INTS_MAX])
{
    Onnx__AttributeProto *to = add_attribute(g, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    memcpy(to->ints, values, count * sizeof *values);
    to->n_ints = count;
}

/* A window's size, stride and padding, the same in both directions; padding below 0: none is written. */
static void add_window(struct graph *g, int64_t kernel, int64_t stride, int64_t padding)
{
    add_ints(g, "kernel_shape", 2, (const int64_t[INTS_MAX]){kernel, kernel});
    add_ints(g, "strides", 2, (const int64_t[INTS_MAX]){stride, stride});
    if (padding >= 0)
        add_ints(g, "pads", 4, (const int64_t[INTS_MAX]){padding, padding, padding, padding});
}

/* ---- layers of both models ---- */

static const char *add_linear(struct graph *g, const char *layer, const char *output, const char *x)
{
    const char *weight = add_parameter(g, layer, "weight"), *bias = add_parameter(g, layer, "bias");
    add_node_to(g, "Gemm", layer, output, (const char *const[]){x, weight, bias, NULL});
    add_int(g, "transB", 1);
    return output;
}

static const char *add_activation(struct graph *g, const char *op, const char *ending, const char *x)
{
    const char *name = print(g, "%s.%s", x, ending);
    return add_node(g, op, name, x);
}

/* ---- the file ---- */

struct sink {
    ProtobufCBuffer base;
    FILE *file;
};

/* output_close asks for errors. */
static void sink_append(ProtobufCBuffer *buffer, size_t bytes, const uint8_t *from)
{
    const struct sink *sink = (const struct sink *)buffer;
    fwrite(from, 1, bytes, sink->file);
}

static enum status write_model(const Onnx__ModelProto *model, const char *path, struct error *error)
{
    struct output output;
    if (!output_open(&output, path))
        return error_set_errno(error, errno, "cannot write %.300s", path);
    struct sink sink = {.base.append = sink_append, .file = output.file};
    onnx__model_proto__pack_to_buffer(model, &sink.base);
    return output_close(&output, true) ? STATUS_OK
                                       : error_set_errno(error, errno, "cannot write %.300s", path);
}

static enum status graph_write(struct graph *g, const char *path, struct error *error)
{
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__OperatorSetIdProto operators = ONNX__OPERATOR_SET_ID_PROTO__INIT, *list = &operators;
    operators.domain = unconst("");
    operators.version = OPERATOR_SET;
    model.ir_version = IR_VERSION;
    model.producer_name = unconst("coalesced");
    model.producer_version = unconst(COALESCED_VERSION);
    model.graph = &g->proto;
    model.opset_import = &list;
    model.n_opset_import = 1;
    const size_t bytes = onnx__model_proto__get_packed_size(&model);
    if (bytes > INT32_MAX)
        return error_set(
            error, STATUS_INVALID,
            "%.300s: the model has %zu bytes: expected at most %d, which a file of ONNX can have", path,
            bytes, INT32_MAX);
    return write_model(&model, path, error);
}

/* ---- a policy's observations ---- */

/* As the normalizer's (policy.c), and of the variances of state-dependent exploration
 * (kernels/policy/dense.h). */
static const double normalizer_epsilon = 1e-8;
static const float exploration_epsilon = 1e-6F;

/* What the graph reads: the observation, or of one with images among its parts, each part. Names of values.
 */
struct seen {
    uint32_t count;
    const char *of[ENVIRONMENT_PARTS_MAX];
};

/* Normalizes x, whose elements have the statistics from number `first` on. */
static const char *add_normalizer(struct graph *g, const struct policy_config *config, const char *name,
                                  const struct environment_space *space, size_t first, const char *x)
{
    const float *mean = (const float *)tensor_of(g, "obs_rms.mean")->data + first;
    const float *variance = (const float *)tensor_of(g, "obs_rms.var")->data + first;
    const size_t elements = environment_space_elements(space);
    for (size_t i = first; i < first + elements; i++)
        g->scale[i] = (float)(1 / sqrt((double)variance[i - first] + normalizer_epsilon));
    const char *middle = print(g, "%s.mean", name), *scale = print(g, "%s.scale", name);
    const char *low = print(g, "%s.low", name), *high = print(g, "%s.high", name);
    add_constant(g, middle, space->rank, space->shape, mean);
    add_constant(g, scale, space->rank, space->shape, g->scale + first);
    add_scalar(g, low, (float)-config->clip);
    add_scalar(g, high, (float)config->clip);
    x = add_node(g, "Sub", print(g, "%s.shifted", name), x, middle);
    x = add_node(g, "Mul", print(g, "%s.scaled", name), x, scale);
    return add_node(g, "Clip", name, x, low, high);
}

/* Bytes as their 255th parts. */
static const char *add_bytes(struct graph *g, const char *name, const char *x)
{
    x = add_node(g, "Cast", print(g, "%s.float", name), x);
    add_int(g, "to", TYPE_FLOAT);
    const char *most = add_scalar(g, print(g, "%s.most", name), 255);
    return add_node(g, "Div", print(g, "%s.scaled", name), x, most);
}

static const char *add_channels_first(struct graph *g, const char *name, const char *x)
{
    x = add_node(g, "Transpose", print(g, "%s.image", name), x);
    add_ints(g, "perm", 4, (const int64_t[INTS_MAX]){0, 3, 1, 2});
    return x;
}

/* An observation that is one thing: floats, normalized, as a vector or as an image (channels, height, width).
 */
static const char *add_whole(struct graph *g, const struct policy_config *config)
{
    const struct environment_space *seen = &config->observation;
    const bool bytes = seen->dtype == ENVIRONMENT_U8;
    const char *x = add_input(g, "observations", bytes ? TYPE_UINT8 : TYPE_FLOAT, seen->rank, seen->shape, 0);
    if (bytes)
        x = add_bytes(g, "observations", x);
    if (config->normalizes)
        x = add_normalizer(g, config, "obs_rms", seen, 0, x);
    if (config->network == POLICY_CNN)
        return add_channels_first(g, "observations", x);
    return seen->rank != 1 ? add_node(g, "Flatten", "observations.flat", x) : x;
}

/* A part, whose floats have the statistics from number `first` on: an image, or a vector. */
static const char *add_part(struct graph *g, const struct policy_config *config, uint32_t part, size_t first)
{
    const struct environment_space *space = &config->parts[part].space;
    const bool is_image = environment_part_is_image(&config->parts[part]);
    const char *name = print(g, "part%u", part);
    const char *x = add_input(g, print(g, "observations.%s", config->parts[part].name),
                              is_image ? TYPE_UINT8 : TYPE_FLOAT, space->rank, space->shape, 0);
    if (is_image)
        return add_channels_first(g, name, add_bytes(g, name, x));
    if (config->normalizes)
        x = add_normalizer(g, config, print(g, "%s.normalized", name), space, first, x);
    return space->rank != 1 ? add_node(g, "Flatten", print(g, "%s.flat", name), x) : x;
}

/* Several values (batch, columns) side by side. */
static const char *add_joined(struct graph *g, const char *name, const struct seen *seen)
{
    const char *inputs[ENVIRONMENT_PARTS_MAX + 1] = {NULL};
    memcpy(inputs, seen->of, seen->count * sizeof *inputs);
    add_node_to(g, "Concat", name, name, inputs);
    add_int(g, "axis", 1);
    return name;
}

static struct seen add_observations(struct graph *g, const struct policy_config *config)
{
    struct seen seen = {.count = config->part_count};
    if (config->part_count == 0)
        return (struct seen){.count = 1, .of = {add_whole(g, config)}};
    for (uint32_t i = 0, first = 0; i < config->part_count; i++) {
        seen.of[i] = add_part(g, config, i, first);
        if (!environment_part_is_image(&config->parts[i]))
            first += (uint32_t)environment_space_elements(&config->parts[i].space);
    }
    return policy_joins_parts(config)
               ? seen
               : (struct seen){.count = 1, .of = {add_joined(g, "observations", &seen)}};
}

/* ---- a policy's memories ----
 *
 * One step of PyTorch's nn.LSTM or nn.GRU by ONNX's operator of the same name. Constants are PyTorch's;
 * Gather puts their gates into ONNX's order. */

/* Which of PyTorch's gates stands where in ONNX: i o f c are i f g o, z r h are r z n. */
static enum status open_gates(struct graph *g, const struct policy_config *config, struct error *error)
{
    static const uint32_t lstm[] = {0, 3, 1, 2}, gru[] = {1, 0, 2};
    const bool is_lstm = config->memory == POLICY_LSTM;
    const uint32_t units = config->memory_units, count = (is_lstm ? 4 : 3) * units;
    if (config->memory == POLICY_NO_MEMORY)
        return STATUS_OK;
    g->gates = calloc(count, sizeof *g->gates);
    if (g->gates == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the gates of %u units", units);
    for (uint32_t i = 0; i < count; i++)
        g->gates[i] = (is_lstm ? lstm : gru)[i / units] * units + i % units;
    add_tensor(g, "gates", TYPE_INT64, 2, (const uint32_t[]){1, count}, g->gates);
    return STATUS_OK;
}

/* The name of a memory's state: `part` is h or c. */
static const char *state_name(struct graph *g, uint32_t memory, char part, const char *ending)
{
    return print(g, "%s%c%s", memory == 0 ? "" : "value_", part, ending);
}

/* The parts of a cell's state. */
static const char *parts_of(const struct recurrent_shape *shape)
{
    return shape->cell == RECURRENT_LSTM ? "hc" : "h";
}

/* A parameter of layer `layer`, with its gates in ONNX's order: (1, gates * units, …). */
static const char *add_gates(struct graph *g, const char *module, const char *which, uint32_t layer)
{
    const char *name = add_parameter(g, module, print(g, "%s_l%u", which, layer));
    return add_node(g, "Gather", print(g, "%s.gates", name), name, "gates");
}

/* The inputs h, and of an LSTM c, (layers, batch, units), and the pieces of each layer (1, batch, units). */
static void add_state_inputs(struct graph *g, const struct recurrent_shape *shape, uint32_t memory,
                             const char *pieces[2][RECURRENT_LAYERS_MAX])
{
    const char *parts = parts_of(shape);
    for (uint32_t p = 0; parts[p] != 0; p++) {
        const char *name = add_input(g, state_name(g, memory, parts[p], ""), TYPE_FLOAT, 2,
                                     (const uint32_t[]){shape->layers, shape->hidden}, 1);
        pieces[p][0] = name;
        if (shape->layers == 1)
            continue;
        pieces[p][0] = print(g, "%s.l0", name);
        add_node_to(g, "Split", print(g, "%s.split", name), pieces[p][0], (const char *const[]){name, NULL});
        for (uint32_t l = 1; l < shape->layers; l++)
            pieces[p][l] = add_node_output(g, print(g, "%s.l%u", name, l));
    }
}

/* The outputs h_out and c_out, of the pieces of each layer; with one layer these are the pieces. */
static void join_states(struct graph *g, const struct recurrent_shape *shape, uint32_t memory,
                        const char *pieces[2][RECURRENT_LAYERS_MAX])
{
    const char *parts = parts_of(shape);
    for (uint32_t p = 0; parts[p] != 0 && shape->layers > 1; p++) {
        const char *inputs[RECURRENT_LAYERS_MAX + 1] = {NULL},
                                                  *name = state_name(g, memory, parts[p], "_out");
        for (uint32_t l = 0; l < shape->layers; l++)
            inputs[l] = pieces[p][l];
        add_node_to(g, "Concat", name, name, inputs);
        add_int(g, "axis", 0);
    }
}

/* Layer `layer` over x (1, batch, inputs). Writes the pieces of the state behind the step in the place of
 * those before it; the result is that of h. */
static const char *add_cell(struct graph *g, const struct recurrent_shape *shape, uint32_t memory,
                            const char *module, uint32_t layer, const char *pieces[2][RECURRENT_LAYERS_MAX],
                            const char *x)
{
    const char *parts = parts_of(shape), *name = print(g, "%s.l%u", module, layer);
    const char *bias = print(g, "%s.bias", name);
    const char *input = add_gates(g, module, "weight_ih", layer);
    const char *state = add_gates(g, module, "weight_hh", layer);
    add_node(g, "Concat", bias, add_gates(g, module, "bias_ih", layer),
             add_gates(g, module, "bias_hh", layer));
    add_int(g, "axis", 1);
    const char *c = shape->cell == RECURRENT_LSTM ? pieces[1][layer] : NULL;
    // no lengths of sequences; and the first output, all steps, is the second one, the last step
    add_node_to(g, shape->cell == RECURRENT_LSTM ? "LSTM" : "GRU", name, "",
                (const char *const[]){x, input, state, bias, "", pieces[0][layer], c, NULL});
    add_int(g, "hidden_size", shape->hidden);
    if (shape->cell == RECURRENT_GRU)
        add_int(g, "linear_before_reset", 1);
    for (uint32_t p = 0; parts[p] != 0; p++)
        pieces[p][layer] = add_node_output(g, shape->layers == 1 ? state_name(g, memory, parts[p], "_out")
                                                                 : print(g, "%s.%c_out", name, parts[p]));
    return pieces[0][layer];
}

/* What memory number `memory` makes of x (batch, inputs): (batch, units). */
static const char *add_memory(struct graph *g, const struct policy_config *config, uint32_t memory,
                              const char *x)
{
    static const int64_t axis = 0;
    const struct recurrent_shape shape = policy_memory_shape(config, memory);
    const char *pieces[2][RECURRENT_LAYERS_MAX];
    const char *module =
        print(g, "%s_%s", shape.cell == RECURRENT_LSTM ? "lstm" : "gru", memory == 0 ? "actor" : "critic");
    const char *first = print(g, "%s.axis", module);
    add_tensor(g, first, TYPE_INT64, 1, (const uint32_t[]){1}, &axis);
    add_state_inputs(g, &shape, memory, pieces);
    x = add_node(g, "Unsqueeze", print(g, "%s.step", module), x, first);
    for (uint32_t l = 0; l < shape.layers; l++)
        x = add_cell(g, &shape, memory, module, l, pieces, x);
    join_states(g, &shape, memory, pieces);
    return add_node(g, "Squeeze", module, x, first);
}

/* The outputs of a memory's state behind the step; a linear layer has none. */
static void add_states(struct graph *g, const struct policy_config *config, uint32_t memory)
{
    const struct recurrent_shape shape = policy_memory_shape(config, memory);
    const char *parts = shape.cell == RECURRENT_LINEAR ? "" : parts_of(&shape);
    for (uint32_t p = 0; parts[p] != 0; p++)
        add_output_of(g, state_name(g, memory, parts[p], "_out"), 2,
                      (const uint32_t[]){shape.layers, shape.hidden}, 1);
}

/* ---- a policy's hidden layers and heads ---- */

static const char *add_hidden(struct graph *g, const char *layer, const char *activation, const char *x)
{
    return add_activation(g, activation, "activation", add_linear(g, layer, layer, x));
}

/* The features that the extractor `name` finds in the images x. */
static const char *add_extractor(struct graph *g, const char *name, const char *x)
{
    static const int64_t strides[] = {4, 2, 1};
    for (unsigned l = 0; l < 3; l++) {
        const char *layer = print(g, "%s.cnn.%u", name, 2 * l), *weight = add_parameter(g, layer, "weight");
        add_node(g, "Conv", layer, x, weight, add_parameter(g, layer, "bias"));
        add_window(g, tensor_of(g, weight)->shape.size[2], strides[l], -1);
        x = add_activation(g, "Relu", "activation", layer);
    }
    const char *flat = print(g, "%s.flatten", name);
    return add_hidden(g, print(g, "%s.linear.0", name), "Relu", add_node(g, "Flatten", flat, x));
}

/* What the extractors `name` find: in the image, or in those among all parts. */
static const char *add_extractors(struct graph *g, const struct policy_config *config, const char *name,
                                  const struct seen *seen)
{
    struct seen found = *seen;
    if (!policy_joins_parts(config))
        return add_extractor(g, name, seen->of[0]);
    for (uint32_t i = 0; i < seen->count; i++)
        if (environment_part_is_image(&config->parts[i]))
            found.of[i] =
                add_extractor(g, print(g, "%s.extractors.%s", name, config->parts[i].name), seen->of[i]);
    return add_joined(g, print(g, "%s.joined", name), &found);
}

/* What the images are for the policy's network, or with `apart` for the value's own; the identity of another
 * network than the CNN. */
static const char *add_images(struct graph *g, const struct policy_config *config, bool apart,
                              const struct seen *seen)
{
    return policy_form(config) == POLICY_FORM_CNN
               ? add_extractors(g, config, apart ? "vf_features_extractor" : "features_extractor", seen)
               : seen->of[0];
}

/* The features that a head reads. */
static const char *add_features(struct graph *g, const struct dense_shape *shape,
                                enum dense_network_kind network, const char *x)
{
    const char *name = shape->shared ? "shared_net" : network == DENSE_POLICY ? "policy_net" : "value_net";
    for (uint32_t l = 0; l < dense_layers(shape, network); l++)
        x = add_hidden(g, print(g, "mlp_extractor.%s.%u", name, 2 * l),
                       shape->activation == DENSE_TANH ? "Tanh" : "Relu", x);
    return x;
}

/* std (batch, components) of a Gaussian over these features: exp(log_std), the same in each row; or, where it
 * depends on the state, sqrt(features^2 exp(log_std)^2 + epsilon). */
static void add_deviation(struct graph *g, const struct policy_config *config, const char *features)
{
    const struct tensor *log_std = tensor_of(g, "log_std");
    add_constant(g, "log_std", log_std->shape.rank, log_std->shape.size, log_std->data);
    add_node(g, "Exp", "log_std.exp", "log_std");
    if (!config->state_dependent) {
        add_node(g, "Shape", "mean.shape", "mean");
        add_node(g, "Expand", "std", "log_std.exp", "mean.shape");
        return;
    }
    add_scalar(g, "std.epsilon", exploration_epsilon);
    add_node(g, "Mul", "std.squares", features, features);
    add_node(g, "Mul", "log_std.square", "log_std.exp", "log_std.exp");
    add_node(g, "MatMul", "std.sum", "std.squares", "log_std.square");
    add_node(g, "Add", "std.variance", "std.sum", "std.epsilon");
    add_node(g, "Sqrt", "std", "std.variance");
}

/* What the value's hidden layers and head read. `images`: what the policy's memory reads, `remembered` what
 * that makes of it. */
static const char *add_value_inputs(struct graph *g, const struct policy_config *config,
                                    const struct seen *seen, const char *images, const char *remembered)
{
    const bool remembers = config->memory != POLICY_NO_MEMORY;
    if (remembers && config->critic == POLICY_CRITIC_DETACHED)
        return remembered;
    if (!config->shared_value)
        images = add_images(g, config, true, seen);
    if (!remembers)
        return images;
    return config->critic == POLICY_CRITIC_LINEAR ? add_linear(g, "critic", "critic", images)
                                                  : add_memory(g, config, 1, images);
}

static void add_actor_critic(struct graph *g, const struct policy_config *config, const struct seen *seen)
{
    const struct dense_shape shape = policy_dense_shape(config);
    const char *images = add_images(g, config, false, seen), *remembered = images;
    if (config->memory != POLICY_NO_MEMORY)
        remembered = add_memory(g, config, 0, images);
    const char *features = add_features(g, &shape, DENSE_POLICY, remembered);
    const char *actor = add_linear(g, "action_net", shape.gaussian ? "mean" : "logits", features);
    add_output(g, actor, dense_outputs(&shape));
    if (shape.gaussian) {
        add_deviation(g, config, features);
        add_output(g, "std", shape.components);
    }
    if (!config->has_value)
        return;
    if (!shape.shared)
        features =
            add_features(g, &shape, DENSE_VALUE, add_value_inputs(g, config, seen, images, remembered));
    add_output(g, add_linear(g, "value_net", "value", features), 1);
    for (uint32_t memory = 0; memory < policy_memories(config); memory++)
        add_states(g, config, memory);
}

/* ---- what learns from a replay buffer ---- */

/* Hidden layers 0 … layers - 1 of a chain of dense layers. */
static const char *add_chain(struct graph *g, const struct policy_config *config, const char *name,
                             const char *x)
{
    for (uint32_t l = 0; l < config->layers; l++)
        x = add_hidden(g, print(g, "%s.%u", name, 2 * l), config->activation == POLICY_TANH ? "Tanh" : "Relu",
                       x);
    return x;
}

/* DQN's values. Those of dueling outputs (V, A_1, …) are their product with a matrix: V + A_a - mean A. */
static enum status add_values(struct graph *g, const struct policy_config *config, const struct seen *seen,
                              struct error *error)
{
    const uint32_t choices = config->action.choices[0];
    const bool cnn = policy_form(config) == POLICY_FORM_Q_CNN;
    const bool alone = cnn && !policy_joins_parts(config);
    const char *last = print(g, "q_net.q_net.%u", alone ? 0 : 2 * config->layers);
    const char *x = cnn ? add_extractors(g, config, "q_net.features_extractor", seen) : seen->of[0];
    x = alone ? x : add_chain(g, config, "q_net.q_net", x);
    if (!config->q.dueling) {
        add_output(g, add_linear(g, last, "values", x), choices);
        return STATUS_OK;
    }
    g->own = calloc((size_t)(choices + 1) * choices, sizeof *g->own);
    if (g->own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u choices", choices);
    for (uint32_t row = 0; row <= choices; row++)
        for (uint32_t a = 0; a < choices; a++)
            g->own[row * choices + a] = row == 0 ? 1 : (float)(row == a + 1) - 1 / (float)choices;
    add_constant(g, "dueling", 2, (const uint32_t[]){choices + 1, choices}, g->own);
    add_output(g, add_node(g, "MatMul", "values", add_linear(g, last, "outputs", x), "dueling"), choices);
    return STATUS_OK;
}

/* An action of -1..1, stretched to the bounds of the environment's, as policy_bound does. */
static enum status add_stretched(struct graph *g, const struct policy_config *config, const char *x,
                                 struct error *error)
{
    static const char *const names[] = {"action.half", "action.middle", "action.low", "action.high"};
    const uint32_t components = policy_components(config);
    g->own = calloc((size_t)4 * components, sizeof *g->own);
    if (g->own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the bounds of an action");
    for (uint32_t c = 0; c < components; c++) {
        const double low = config->action.low[c], high = config->action.high[c];
        const double of[] = {(high - low) / 2, (high + low) / 2, low, high};
        for (uint32_t i = 0; i < 4; i++)
            g->own[i * components + c] = (float)of[i];
    }
    for (uint32_t i = 0; i < 4; i++)
        add_constant(g, names[i], 1, &components, g->own + i * components);
    add_node(g, "Mul", "action.scaled", x, "action.half");
    add_node(g, "Add", "action.shifted", "action.scaled", "action.middle");
    add_node(g, "Max", "action.above", "action.shifted", "action.low");
    add_output(g, add_node(g, "Min", "action", "action.above", "action.high"), components);
    return STATUS_OK;
}

static enum status add_q(struct graph *g, const struct policy_config *config, const struct seen *seen,
                         struct error *error)
{
    if (config->learning == POLICY_DQN)
        return add_values(g, config, seen, error);
    const bool is_sac = config->learning == POLICY_SAC;
    const char *mean = !is_sac                   ? print(g, "actor.mu.%u", 2 * config->layers)
                       : config->state_dependent ? "actor.mu.0"
                                                 : "actor.mu";
    const char *x = add_chain(g, config, is_sac ? "actor.latent_pi" : "actor.mu", seen->of[0]);
    x = add_linear(g, mean, mean, x);
    if (config->state_dependent) {
        add_scalar(g, "mean.low", -POLICY_CLIP_MEAN);
        add_scalar(g, "mean.high", POLICY_CLIP_MEAN);
        x = add_node(g, "Clip", "mean.clipped", x, "mean.low", "mean.high");
    }
    return add_stretched(g, config, add_activation(g, "Tanh", "squashed", x), error);
}

enum status onnx_write_policy(const char *path, const struct policy_config *config, struct params *params,
                              struct error *error)
{
    const size_t elements = policy_normalized(config);
    struct graph *g = NULL;
    enum status status = graph_new(&g, "policy", params, error);
    if (status != STATUS_OK)
        return status;
    g->scale = calloc(elements + 1, sizeof *g->scale);
    if (g->scale == NULL) {
        graph_free(g);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the statistics of %zu elements", elements);
    }
    status = open_gates(g, config, error);
    if (status != STATUS_OK) {
        graph_free(g);
        return status;
    }
    const struct seen seen = add_observations(g, config);
    if (policy_form(config) == POLICY_FORM_TUTORIAL) // its dropout is for training alone
        add_output(g, add_linear(g, "affine2", "logits", add_hidden(g, "affine1", "Relu", seen.of[0])),
                   config->action.choices[0]);
    else if (config->learning != POLICY_ON_ROLLOUTS)
        status = add_q(g, config, &seen, error);
    else
        add_actor_critic(g, config, &seen);
    if (status == STATUS_OK)
        status = graph_write(g, path, error);
    graph_free(g);
    return status;
}

/* ---- a ResNet ----
 *
 * Its blocks are read off the parameters' names, which are torchvision's (resnet.h): a third convolution
 * makes a bottleneck, downsample.0 a shortcut. */

/* A convolution, padded by half its kernel, and its batch norm; `prefix` is empty or ends with a dot. */
static const char *add_layer(struct graph *g, const char *prefix, const char *convolution, const char *norm,
                             int64_t stride, const char *x)
{
    static const char *const entries[] = {"weight", "bias", "running_mean", "running_var"};
    static const float epsilon = 1e-5F;
    const char *conv = print(g, "%s%s", prefix, convolution), *bn = print(g, "%s%s", prefix, norm);
    const char *weight = add_parameter(g, conv, "weight"), *inputs[INPUTS_MAX + 1] = {conv};
    const int64_t kernel = tensor_of(g, weight)->shape.size[2];
    add_node(g, "Conv", conv, x, weight);
    add_window(g, kernel, stride, kernel / 2);
    for (unsigned i = 0; i < 4; i++)
        inputs[1 + i] = add_parameter(g, bn, entries[i]);
    add_node_to(g, "BatchNormalization", bn, bn, inputs);
    add_float(g, "epsilon", epsilon);
    return bn;
}

static const char *add_relu(struct graph *g, const char *x)
{
    return add_activation(g, "Relu", "relu", x);
}

static bool has_module(struct graph *g, const char *prefix, const char *module)
{
    return params_find(g->params, print(g, "%s%s.weight", prefix, module)) != NULL;
}

/* In a bottleneck the stride is on the 3x3. */
static const char *add_block(struct graph *g, const char *prefix, int64_t stride, const char *x)
{
    const bool bottleneck = has_module(g, prefix, "conv3");
    const char *shortcut = x, *sum = print(g, "%sadd", prefix);
    const char *h = add_layer(g, prefix, "conv1", "bn1", bottleneck ? 1 : stride, x);
    h = add_layer(g, prefix, "conv2", "bn2", bottleneck ? stride : 1, add_relu(g, h));
    if (bottleneck)
        h = add_layer(g, prefix, "conv3", "bn3", 1, add_relu(g, h));
    if (has_module(g, prefix, "downsample.0"))
        shortcut = add_layer(g, prefix, "downsample.0", "downsample.1", stride, x);
    return add_relu(g, add_node(g, "Add", sum, h, shortcut));
}

static void add_resnet(struct graph *g, const struct job *job)
{
    const char *x = add_input(g, "images", TYPE_FLOAT, 3,
                              (const uint32_t[]){job->data.channels, job->data.size, job->data.size}, 0);
    x = add_relu(g, add_layer(g, "", "conv1", "bn1", 2, x));
    x = add_node(g, "MaxPool", "maxpool", x);
    add_window(g, 3, 2, 1);
    for (unsigned stage = 1; stage <= 4; stage++)
        for (unsigned i = 0;; i++) {
            const char *prefix = print(g, "layer%u.%u.", stage, i);
            if (!has_module(g, prefix, "conv1"))
                break;
            x = add_block(g, prefix, stage > 1 && i == 0 ? 2 : 1, x);
        }
    add_node(g, "GlobalAveragePool", "avgpool", x);
    add_node(g, "Flatten", "flatten", "avgpool");
    add_output(g, add_linear(g, "fc", "logits", "flatten"), job->model.classes);
}

enum status onnx_write_classifier(const char *path, const struct job *job, struct params *params,
                                  struct error *error)
{
    struct graph *g = NULL;
    enum status status =
        graph_new(&g, job->model.name == JOB_MODEL_RESNET18 ? "resnet18" : "resnet50", params, error);
    if (status != STATUS_OK)
        return status;
    add_resnet(g, job);
    status = graph_write(g, path, error);
    graph_free(g);
    return status;
}
