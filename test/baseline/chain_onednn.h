/* A hand-made chain of oneDNN primitives: what the bare baselines of a whole model are made with.
 *
 * Tensors, buffers and steps are kept in arrays and named by index. While a chain is made the first failure
 * sticks in `status`, and everything after it does nothing; chain_run then runs the steps in their order.
 * Private to test/baseline/. */
#ifndef TEST_BASELINE_CHAIN_ONEDNN_H
#define TEST_BASELINE_CHAIN_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHAIN_STEPS_MAX = 700,
    CHAIN_TENSORS_MAX = 2200,
    CHAIN_BUFFERS_MAX = 700,
    CHAIN_DESCRIPTORS_MAX = 700,
    CHAIN_ARGUMENTS_MAX = 10,
};

enum chain_kind {
    CHAIN_CONVOLUTION = 1,
    CHAIN_NORM = 2,
    CHAIN_OTHER = 4,
    CHAIN_KINDS = CHAIN_CONVOLUTION | CHAIN_NORM | CHAIN_OTHER
};

struct chain_step {
    enum chain_kind kind;
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[CHAIN_ARGUMENTS_MAX];
};

struct chain_buffer {
    void *data;
    size_t bytes;
    bool free;
};

struct chain_tensor {
    dnnl_memory_desc_t desc;
    dnnl_memory_t memory;
    int buffer; /* -1: in a slab, or another tensor's memory */
};

/* Parameters and their gradients: parallel. */
struct chain_slab {
    float *parameters, *gradients;
    size_t used, count;
};

struct chain {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_status_t status;
    uint32_t steps, tensors, buffers, descriptors;
    struct chain_step step[CHAIN_STEPS_MAX];
    struct chain_tensor tensor[CHAIN_TENSORS_MAX];
    struct chain_buffer buffer[CHAIN_BUFFERS_MAX];
    dnnl_primitive_desc_t descriptor[CHAIN_DESCRIPTORS_MAX];
    struct chain_slab slab;
};

/* `chain` is zero. `parameters`: room in the slabs. */
void chain_open(struct chain *chain, size_t parameters);
void chain_close(struct chain *chain);

dnnl_memory_desc_t chain_layout(int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag);

/* A tensor on memory that is there, or in a buffer of its own, which chain_done lets others have. */
int chain_tensor_at(struct chain *chain, const dnnl_memory_desc_t *desc, void *data, int buffer);
int chain_tensor(struct chain *chain, const dnnl_memory_desc_t *desc);
void chain_done(struct chain *chain, int tensor);

/* A parameter, filled with numbers of value ± spread, and (dparameter) its gradient. */
int chain_parameter(struct chain *chain, const dnnl_memory_desc_t *desc, double spread, double value,
                    int *dparameter);

/* A primitive descriptor from an operation's; `made` is what filling that returned; `relu`: behind it. */
dnnl_primitive_desc_t chain_describe(struct chain *chain, dnnl_status_t made, const void *operation,
                                     bool relu, dnnl_primitive_desc_t hint);
dnnl_memory_desc_t chain_query(const struct chain *chain, dnnl_primitive_desc_t descriptor,
                               dnnl_query_t what);

/* A step with its arguments, ended by argument 0. */
struct chain_binding {
    int argument, tensor;
};
void chain_step(struct chain *chain, enum chain_kind kind, dnnl_primitive_desc_t descriptor,
                const struct chain_binding *bindings);

/* The tensor in that layout: itself, or a copy that a step makes. */
int chain_in_layout(struct chain *chain, int tensor, const dnnl_memory_desc_t *want);

/* A step: a + b, with ReLU or not, into `to`, which may be a or b. */
void chain_sum(struct chain *chain, int a, int b, int to, bool relu);

/* Runs the steps of these kinds. */
dnnl_status_t chain_run(const struct chain *chain, unsigned kinds);

/* Parameters -= 1e-4 gradients. */
void chain_update(struct chain *chain);

#endif
