/* Builds ONNX's messages in one allocation, and encodes them with protobuf-c. Tensors' values are written
 * from where they lie. The thread that exports. */
#include "worker/model/onnx_graph.h"

#include "kernels/base/output.h"

#include <assert.h>
#include <errno.h>
#include <onnx.pb-c.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IR_VERSION = 8, OPERATOR_SET = 17, INTS_MAX = 4 };

struct name {
    char text[ONNX_NAME_BYTES];
};

struct node {
    Onnx__NodeProto proto;
    struct name name, op, output_name, input_names[ONNX_NODE_INPUTS_MAX];
    char *output, *inputs[ONNX_NODE_INPUTS_MAX];
    Onnx__AttributeProto attributes[ONNX_ATTRIBUTES_MAX], *attribute_list[ONNX_ATTRIBUTES_MAX];
    struct name attribute_names[ONNX_ATTRIBUTES_MAX];
    int64_t ints[ONNX_ATTRIBUTES_MAX][INTS_MAX];
};

struct constant {
    Onnx__TensorProto proto;
    struct name name;
    int64_t dims[ONNX_RANK_MAX];
    float scalar;
};

struct value {
    Onnx__ValueInfoProto proto;
    Onnx__TypeProto type;
    Onnx__TypeProto__Tensor tensor;
    Onnx__TensorShapeProto shape;
    Onnx__TensorShapeProto__Dimension dims[ONNX_RANK_MAX], *dim_list[ONNX_RANK_MAX];
    struct name name;
};

struct onnx_graph {
    Onnx__GraphProto proto;
    struct name name;
    struct node nodes[ONNX_NODES_MAX];
    struct constant constants[ONNX_TENSORS_MAX];
    struct value values[ONNX_VALUES_MAX];
    Onnx__NodeProto *node_list[ONNX_NODES_MAX];
    Onnx__TensorProto *constant_list[ONNX_TENSORS_MAX];
    Onnx__ValueInfoProto *input_list[ONNX_VALUES_MAX], *output_list[ONNX_VALUES_MAX];
};

/* protobuf-c takes no const text. */
static char *name_set(struct name *name, const char *text)
{
    assert(strlen(text) < sizeof name->text);
    snprintf(name->text, sizeof name->text, "%s", text);
    return name->text;
}

enum status onnx_graph_new(struct onnx_graph **out, const char *name, struct error *error)
{
    struct onnx_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the graph of %s", name);
    onnx__graph_proto__init(&graph->proto);
    graph->proto.name = name_set(&graph->name, name);
    graph->proto.node = graph->node_list;
    graph->proto.initializer = graph->constant_list;
    graph->proto.input = graph->input_list;
    graph->proto.output = graph->output_list;
    *out = graph;
    return STATUS_OK;
}

void onnx_graph_free(struct onnx_graph *graph)
{
    free(graph);
}

/* ---- inputs and outputs ---- */

static char batch_dimension[] = "batch";

static Onnx__ValueInfoProto *add_value(struct onnx_graph *graph, const char *name, enum onnx_type type,
                                       uint32_t rank, const uint32_t *size)
{
    const size_t count = graph->proto.n_input + graph->proto.n_output;
    assert(count < ONNX_VALUES_MAX && rank < ONNX_RANK_MAX);
    struct value *value = &graph->values[count];
    onnx__value_info_proto__init(&value->proto);
    onnx__type_proto__init(&value->type);
    onnx__type_proto__tensor__init(&value->tensor);
    onnx__tensor_shape_proto__init(&value->shape);
    for (uint32_t d = 0; d <= rank; d++) {
        onnx__tensor_shape_proto__dimension__init(&value->dims[d]);
        value->dims[d].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        value->dims[d].dim_value = d > 0 ? size[d - 1] : 0;
        value->dim_list[d] = &value->dims[d];
    }
    value->dims[0].value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
    value->dims[0].dim_param = batch_dimension;
    value->shape.n_dim = rank + 1;
    value->shape.dim = value->dim_list;
    value->tensor.elem_type = (int32_t)type;
    value->tensor.shape = &value->shape;
    value->type.value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    value->type.tensor_type = &value->tensor;
    value->proto.name = name_set(&value->name, name);
    value->proto.type = &value->type;
    return &value->proto;
}

void onnx_graph_input(struct onnx_graph *graph, const char *name, enum onnx_type type, uint32_t rank,
                      const uint32_t *size)
{
    Onnx__ValueInfoProto *value = add_value(graph, name, type, rank, size);
    graph->input_list[graph->proto.n_input++] = value;
}

void onnx_graph_output(struct onnx_graph *graph, const char *name, uint32_t rank, const uint32_t *size)
{
    Onnx__ValueInfoProto *value = add_value(graph, name, ONNX_FLOAT, rank, size);
    graph->output_list[graph->proto.n_output++] = value;
}

/* ---- constants ---- */

static struct constant *add_constant(struct onnx_graph *graph, const char *name)
{
    assert(graph->proto.n_initializer < ONNX_TENSORS_MAX);
    struct constant *constant = &graph->constants[graph->proto.n_initializer];
    onnx__tensor_proto__init(&constant->proto);
    constant->proto.name = name_set(&constant->name, name);
    constant->proto.data_type = ONNX_FLOAT;
    constant->proto.dims = constant->dims;
    graph->constant_list[graph->proto.n_initializer++] = &constant->proto;
    return constant;
}

void onnx_graph_tensor(struct onnx_graph *graph, const char *name, uint32_t rank, const uint32_t *size,
                       const float *values)
{
    struct constant *constant = add_constant(graph, name);
    size_t elements = 1;
    assert(rank <= ONNX_RANK_MAX);
    for (uint32_t d = 0; d < rank; d++) {
        constant->dims[d] = size[d];
        elements *= size[d];
    }
    constant->proto.n_dims = rank;
    constant->proto.raw_data.len = elements * sizeof *values;
    constant->proto.raw_data.data = (uint8_t *)(uintptr_t)values; /* read only */
}

void onnx_graph_scalar(struct onnx_graph *graph, const char *name, float value)
{
    struct constant *constant = add_constant(graph, name);
    constant->scalar = value;
    constant->proto.raw_data.len = sizeof constant->scalar;
    constant->proto.raw_data.data = (uint8_t *)&constant->scalar;
}

/* ---- nodes ---- */

void onnx_graph_node(struct onnx_graph *graph, const char *op, const char *name, const char *output,
                     const char *const *inputs)
{
    assert(graph->proto.n_node < ONNX_NODES_MAX);
    struct node *node = &graph->nodes[graph->proto.n_node];
    onnx__node_proto__init(&node->proto);
    node->proto.op_type = name_set(&node->op, op);
    node->proto.name = name_set(&node->name, name);
    node->output = name_set(&node->output_name, output);
    node->proto.output = &node->output;
    node->proto.n_output = 1;
    node->proto.input = node->inputs;
    for (size_t i = 0; inputs[i] != NULL; i++) {
        assert(i < ONNX_NODE_INPUTS_MAX);
        node->inputs[i] = name_set(&node->input_names[i], inputs[i]);
        node->proto.n_input = i + 1;
    }
    node->proto.attribute = node->attribute_list;
    graph->node_list[graph->proto.n_node++] = &node->proto;
}

/* Of the newest node. */
static Onnx__AttributeProto *add_attribute(struct onnx_graph *graph, const char *name,
                                           Onnx__AttributeProto__AttributeType type)
{
    struct node *node = &graph->nodes[graph->proto.n_node - 1];
    const size_t index = node->proto.n_attribute++;
    assert(index < ONNX_ATTRIBUTES_MAX);
    Onnx__AttributeProto *attribute = node->attribute_list[index] = &node->attributes[index];
    onnx__attribute_proto__init(attribute);
    attribute->name = name_set(&node->attribute_names[index], name);
    attribute->type = type;
    attribute->ints = node->ints[index];
    return attribute;
}

void onnx_graph_int(struct onnx_graph *graph, const char *attribute, int64_t value)
{
    add_attribute(graph, attribute, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT)->i = value;
}

void onnx_graph_float(struct onnx_graph *graph, const char *attribute, float value)
{
    add_attribute(graph, attribute, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT)->f = value;
}

void onnx_graph_ints(struct onnx_graph *graph, const char *attribute, uint32_t count, const int64_t *values)
{
    Onnx__AttributeProto *to = add_attribute(graph, attribute, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    assert(count <= INTS_MAX);
    memcpy(to->ints, values, count * sizeof *values);
    to->n_ints = count;
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

enum status onnx_graph_write(struct onnx_graph *graph, const char *path, struct error *error)
{
    char producer[] = "coalesced", version[] = COALESCED_VERSION, domain[] = "";
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__OperatorSetIdProto operators = ONNX__OPERATOR_SET_ID_PROTO__INIT, *list = &operators;
    operators.domain = domain;
    operators.version = OPERATOR_SET;
    model.ir_version = IR_VERSION;
    model.producer_name = producer;
    model.producer_version = version;
    model.graph = &graph->proto;
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
