/* A graph of ONNX operators that is put together node by node and written as one file: IR version 8, operator
 * set 17 (ONNX 1.12). onnx_policy.c and onnx_resnet.c say what stands in it.
 *
 * Values have names: of an input, a tensor, or a node's output. A node reads values that were added before.
 * Every name is copied, and is shorter than ONNX_NAME_BYTES; a graph has at most ONNX_NODES_MAX nodes and
 * ONNX_TENSORS_MAX tensors (asserted: only our own models come here). One thread. */
#ifndef WORKER_MODEL_ONNX_GRAPH_H
#define WORKER_MODEL_ONNX_GRAPH_H

#include "kernels/base/status.h"
#include "kernels/tensor.h"

#include <stdint.h>

enum {
    ONNX_NAME_BYTES = 96,
    ONNX_NODES_MAX = 320,
    ONNX_TENSORS_MAX = 384,
    ONNX_VALUES_MAX = 4, /* inputs and outputs of the graph, together */
    ONNX_RANK_MAX = 5,
    ONNX_NODE_INPUTS_MAX = 5,
    ONNX_ATTRIBUTES_MAX = 3,
};

/* TensorProto.DataType */
enum onnx_type { ONNX_FLOAT = 1, ONNX_UINT8 = 2 };

struct onnx_graph;

/* `name` is the graph's. STATUS_NO_MEMORY. */
enum status onnx_graph_new(struct onnx_graph **out, const char *name, struct error *error);
void onnx_graph_free(struct onnx_graph *graph); /* NULL is nothing */

/* An input or output (batch, size[0], …) of the whole graph, whose first dimension is free. */
void onnx_graph_input(struct onnx_graph *graph, const char *name, enum onnx_type type, uint32_t rank,
                      const uint32_t *size);
void onnx_graph_output(struct onnx_graph *graph, const char *name, uint32_t rank, const uint32_t *size);

/* A constant float32 tensor, row-major. Its values outlive the graph. */
void onnx_graph_tensor(struct onnx_graph *graph, const char *name, uint32_t rank, const uint32_t *size,
                       const float *values);
/* A constant of rank 0. */
void onnx_graph_scalar(struct onnx_graph *graph, const char *name, float value);

/* A node: the operator `op` with these inputs (a list that ends with NULL; at most ONNX_NODE_INPUTS_MAX) and
 * one output. The attributes of the newest node follow it. */
void onnx_graph_node(struct onnx_graph *graph, const char *op, const char *name, const char *output,
                     const char *const *inputs);
#define ONNX_INPUTS(...) ((const char *const[]){__VA_ARGS__, NULL})

void onnx_graph_int(struct onnx_graph *graph, const char *attribute, int64_t value);
void onnx_graph_float(struct onnx_graph *graph, const char *attribute, float value);
void onnx_graph_ints(struct onnx_graph *graph, const char *attribute, uint32_t count,
                     const int64_t *values); /* at most 4 */

/* Writes the file, which an older one makes room for. Blocks on the disk. STATUS_INVALID: the model is larger
 * than the 2 GiB of a file of protobuf. STATUS_PERMISSION, STATUS_IO and others by errno name the file; it
 * may be there, cut short. */
enum status onnx_graph_write(struct onnx_graph *graph, const char *path, struct error *error);

#endif
