/* The policy in oneDNN. The only file that includes its header; runs on its caller's thread.
 *
 * Every tensor of both passes is one entry of an enum, with its memory object; every primitive is one step
 * that names the tensors it reads and writes. Making them is most of this file, running them a loop. */
#include "test/baseline/mlp_onednn.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum tensor {
    X,        // (rows, inputs)
    KEEP,     // (rows, hidden)
    W1,       // (hidden, inputs), in the slab
    W1_ASKED, // the same in the forward's own layout
    B1,       // (hidden)
    H,        // (rows, hidden), after ReLU
    W2,       // (actions, hidden)
    W2_ASKED, // for the forward
    W2_BACK,  // for the backward
    B2,       // (actions)
    Z,        // (rows, actions)
    LOG_P,    // (rows, actions)
    D_LOG_P,  // and the gradients of these
    D_Z,
    D_W2,
    D_B2,
    D_H,
    D_A, // of the first layer's output before ReLU; in the end before dropout
    D_W1,
    D_B1,
    TENSORS
};

enum { ARGUMENTS_MAX = 5, FORWARD_STEPS = 3, BACKWARD_STEPS = 6, REORDERS = 3 };

struct step {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t arguments[ARGUMENTS_MAX];
    int count;
};

struct mlp_onednn {
    struct mlp_shape shape;
    uint32_t rows;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_desc_t plain[TENSORS]; // row-major, what the tensors of the caller's are
    dnnl_memory_t memory[TENSORS];
    float *log_p, *d_log_p; // (rows, actions): what the loss is made from
    struct step reorders[REORDERS], forward[FORWARD_STEPS], backward[BACKWARD_STEPS];
};

/* Runs a call of the library inside a function that returns its status. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        dnnl_status_t tried = (call);                                                                        \
        if (tried != dnnl_success)                                                                           \
            return tried;                                                                                    \
    } while (0)

static dnnl_status_t describe(struct mlp_onednn *onednn, enum tensor tensor, int64_t rows, int64_t columns)
{
    const dnnl_dims_t dims = {rows, columns};
    return dnnl_memory_desc_init_by_tag(&onednn->plain[tensor], columns == 0 ? 1 : 2, dims, dnnl_f32,
                                        columns == 0 ? dnnl_a : dnnl_ab);
}

static dnnl_status_t describe_tensors(struct mlp_onednn *onednn)
{
    const int64_t n = onednn->rows, inputs = onednn->shape.inputs, hidden = onednn->shape.hidden,
                  actions = onednn->shape.actions;
    const int64_t dims[TENSORS][2] = {
        [X] = {n, inputs},
        [KEEP] = {n, hidden},
        [W1] = {hidden, inputs},
        [B1] = {hidden, 0},
        [H] = {n, hidden},
        [W2] = {actions, hidden},
        [B2] = {actions, 0},
        [Z] = {n, actions},
        [LOG_P] = {n, actions},
        [D_LOG_P] = {n, actions},
        [D_Z] = {n, actions},
        [D_W2] = {actions, hidden},
        [D_B2] = {actions, 0},
        [D_H] = {n, hidden},
        [D_A] = {n, hidden},
        [D_W1] = {hidden, inputs},
        [D_B1] = {hidden, 0},
        [W1_ASKED] = {hidden, inputs},
        [W2_BACK] = {actions, hidden},
        [W2_ASKED] = {actions, hidden},
    };
    for (int t = 0; t < TENSORS; t++)
        TRY(describe(onednn, (enum tensor)t, dims[t][0], dims[t][1]));
    return dnnl_success;
}

/* A memory object for the tensor: the library's own memory, or (caller) none until a call brings some. */
static dnnl_status_t make_memory(struct mlp_onednn *onednn, enum tensor tensor,
                                 const dnnl_memory_desc_t *layout, bool caller)
{
    return dnnl_memory_create(&onednn->memory[tensor], layout, onednn->engine,
                              caller ? DNNL_MEMORY_NONE : DNNL_MEMORY_ALLOCATE);
}

static dnnl_status_t make_memories(struct mlp_onednn *onednn)
{
    static const bool own[TENSORS] = {[H] = true, [Z] = true, [D_Z] = true, [D_H] = true, [D_A] = true};
    for (int t = 0; t < TENSORS; t++)
        if (t != W1_ASKED && t != W2_ASKED && t != W2_BACK)
            TRY(make_memory(onednn, (enum tensor)t, &onednn->plain[t], !own[t]));
    return dnnl_success;
}

static void step_argument(struct mlp_onednn *onednn, struct step *step, int argument, enum tensor tensor)
{
    step->arguments[step->count++] = (dnnl_exec_arg_t){argument, onednn->memory[tensor]};
}

/* The weights in the layout that `descriptor` asks for, and the step that brings them there. */
static dnnl_status_t make_reorder(struct mlp_onednn *onednn, struct step *step,
                                  const_dnnl_primitive_desc_t asking, enum tensor from, enum tensor to)
{
    dnnl_primitive_desc_t descriptor;
    const dnnl_memory_desc_t *layout = dnnl_primitive_desc_query_md(asking, dnnl_query_weights_md, 0);
    TRY(make_memory(onednn, to, layout, false));
    TRY(dnnl_reorder_primitive_desc_create(&descriptor, &onednn->plain[from], onednn->engine, layout,
                                           onednn->engine, NULL));
    dnnl_status_t status = dnnl_primitive_create(&step->primitive, descriptor);
    dnnl_primitive_desc_destroy(descriptor);
    step_argument(onednn, step, DNNL_ARG_FROM, from);
    step_argument(onednn, step, DNNL_ARG_TO, to);
    return status;
}

static dnnl_memory_desc_t any_layout(const dnnl_memory_desc_t *plain)
{
    dnnl_memory_desc_t any;
    dnnl_memory_desc_init_by_tag(&any, plain->ndims, plain->dims, dnnl_f32, dnnl_format_tag_any);
    return any;
}

/* dst = src weights^T + bias, then what `attributes` fuses behind it. */
static dnnl_status_t inner_product(struct mlp_onednn *onednn, enum tensor src, enum tensor weights,
                                   enum tensor bias, enum tensor dst, const_dnnl_primitive_attr_t attributes,
                                   dnnl_primitive_desc_t *descriptor)
{
    dnnl_inner_product_desc_t operation;
    dnnl_memory_desc_t any = any_layout(&onednn->plain[weights]);
    TRY(dnnl_inner_product_forward_desc_init(&operation, dnnl_forward_training, &onednn->plain[src], &any,
                                             &onednn->plain[bias], &onednn->plain[dst]));
    return dnnl_primitive_desc_create(descriptor, &operation, attributes, onednn->engine, NULL);
}

static dnnl_status_t make_first_layer(struct mlp_onednn *onednn, dnnl_primitive_desc_t *descriptor)
{
    dnnl_post_ops_t fused;
    dnnl_primitive_attr_t attributes;
    TRY(dnnl_post_ops_create(&fused));
    TRY(dnnl_post_ops_append_binary(fused, dnnl_binary_mul, &onednn->plain[KEEP]));
    TRY(dnnl_post_ops_append_eltwise(fused, 1, dnnl_eltwise_relu, 0, 0));
    TRY(dnnl_primitive_attr_create(&attributes));
    TRY(dnnl_primitive_attr_set_post_ops(attributes, fused));
    TRY(inner_product(onednn, X, W1, B1, H, attributes, descriptor));
    dnnl_post_ops_destroy(fused);
    dnnl_primitive_attr_destroy(attributes);
    TRY(make_reorder(onednn, &onednn->reorders[0], *descriptor, W1, W1_ASKED));
    struct step *step = &onednn->forward[0];
    step_argument(onednn, step, DNNL_ARG_SRC, X);
    step_argument(onednn, step, DNNL_ARG_WEIGHTS, W1_ASKED);
    step_argument(onednn, step, DNNL_ARG_BIAS, B1);
    step_argument(onednn, step, DNNL_ARG_DST, H);
    step_argument(onednn, step, DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, KEEP);
    return dnnl_primitive_create(&step->primitive, *descriptor);
}

static dnnl_status_t make_second_layer(struct mlp_onednn *onednn, dnnl_primitive_desc_t *descriptor)
{
    TRY(inner_product(onednn, H, W2, B2, Z, NULL, descriptor));
    TRY(make_reorder(onednn, &onednn->reorders[1], *descriptor, W2, W2_ASKED));
    struct step *step = &onednn->forward[1];
    step_argument(onednn, step, DNNL_ARG_SRC, H);
    step_argument(onednn, step, DNNL_ARG_WEIGHTS, W2_ASKED);
    step_argument(onednn, step, DNNL_ARG_BIAS, B2);
    step_argument(onednn, step, DNNL_ARG_DST, Z);
    return dnnl_primitive_create(&step->primitive, *descriptor);
}

static dnnl_status_t make_softmax(struct mlp_onednn *onednn)
{
    dnnl_logsoftmax_desc_t operation;
    dnnl_primitive_desc_t forward, backward;
    TRY(dnnl_logsoftmax_forward_desc_init(&operation, dnnl_forward_training, &onednn->plain[Z], 1));
    TRY(dnnl_primitive_desc_create(&forward, &operation, NULL, onednn->engine, NULL));
    struct step *step = &onednn->forward[2];
    TRY(dnnl_primitive_create(&step->primitive, forward));
    step_argument(onednn, step, DNNL_ARG_SRC, Z);
    step_argument(onednn, step, DNNL_ARG_DST, LOG_P);
    TRY(dnnl_logsoftmax_backward_desc_init(&operation, &onednn->plain[D_Z], &onednn->plain[LOG_P], 1));
    TRY(dnnl_primitive_desc_create(&backward, &operation, NULL, onednn->engine, forward));
    step = &onednn->backward[0];
    TRY(dnnl_primitive_create(&step->primitive, backward));
    step_argument(onednn, step, DNNL_ARG_DST, LOG_P);
    step_argument(onednn, step, DNNL_ARG_DIFF_DST, D_LOG_P);
    step_argument(onednn, step, DNNL_ARG_DIFF_SRC, D_Z);
    dnnl_primitive_desc_destroy(forward);
    return dnnl_primitive_desc_destroy(backward);
}

static dnnl_status_t make_weights_gradient(struct mlp_onednn *onednn, struct step *step,
                                           const enum tensor tensors[4], const_dnnl_primitive_desc_t forward)
{
    static const int arguments[4] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS,
                                     DNNL_ARG_DIFF_DST};
    dnnl_inner_product_desc_t operation;
    dnnl_primitive_desc_t descriptor;
    TRY(dnnl_inner_product_backward_weights_desc_init(&operation, &onednn->plain[tensors[0]],
                                                      &onednn->plain[tensors[1]], &onednn->plain[tensors[2]],
                                                      &onednn->plain[tensors[3]]));
    TRY(dnnl_primitive_desc_create(&descriptor, &operation, NULL, onednn->engine, forward));
    TRY(dnnl_primitive_create(&step->primitive, descriptor));
    for (int i = 0; i < 4; i++)
        step_argument(onednn, step, arguments[i], tensors[i]);
    return dnnl_primitive_desc_destroy(descriptor);
}

static dnnl_status_t make_data_gradient(struct mlp_onednn *onednn, struct step *step,
                                        const_dnnl_primitive_desc_t forward)
{
    dnnl_inner_product_desc_t operation;
    dnnl_primitive_desc_t descriptor;
    dnnl_memory_desc_t any = any_layout(&onednn->plain[W2]);
    TRY(dnnl_inner_product_backward_data_desc_init(&operation, &onednn->plain[D_H], &any,
                                                   &onednn->plain[D_Z]));
    TRY(dnnl_primitive_desc_create(&descriptor, &operation, NULL, onednn->engine, forward));
    TRY(dnnl_primitive_create(&step->primitive, descriptor));
    TRY(make_reorder(onednn, &onednn->reorders[2], descriptor, W2, W2_BACK));
    step_argument(onednn, step, DNNL_ARG_DIFF_DST, D_Z);
    step_argument(onednn, step, DNNL_ARG_WEIGHTS, W2_BACK);
    step_argument(onednn, step, DNNL_ARG_DIFF_SRC, D_H);
    return dnnl_primitive_desc_destroy(descriptor);
}

/* Through ReLU by its result, then through dropout's factors, the latter in place. */
static dnnl_status_t make_hidden_gradient(struct mlp_onednn *onednn, struct step *relu, struct step *dropout)
{
    dnnl_eltwise_desc_t operation;
    dnnl_binary_desc_t product;
    dnnl_primitive_desc_t hint, descriptor;
    const dnnl_alg_kind_t kind = dnnl_eltwise_relu_use_dst_for_bwd;
    TRY(dnnl_eltwise_forward_desc_init(&operation, dnnl_forward_training, kind, &onednn->plain[H], 0, 0));
    TRY(dnnl_primitive_desc_create(&hint, &operation, NULL, onednn->engine, NULL));
    TRY(dnnl_eltwise_backward_desc_init(&operation, kind, &onednn->plain[D_A], &onednn->plain[H], 0, 0));
    TRY(dnnl_primitive_desc_create(&descriptor, &operation, NULL, onednn->engine, hint));
    TRY(dnnl_primitive_create(&relu->primitive, descriptor));
    dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_desc_destroy(descriptor);
    step_argument(onednn, relu, DNNL_ARG_DST, H);
    step_argument(onednn, relu, DNNL_ARG_DIFF_DST, D_H);
    step_argument(onednn, relu, DNNL_ARG_DIFF_SRC, D_A);
    TRY(dnnl_binary_desc_init(&product, dnnl_binary_mul, &onednn->plain[D_A], &onednn->plain[KEEP],
                              &onednn->plain[D_A]));
    TRY(dnnl_primitive_desc_create(&descriptor, &product, NULL, onednn->engine, NULL));
    TRY(dnnl_primitive_create(&dropout->primitive, descriptor));
    step_argument(onednn, dropout, DNNL_ARG_SRC_0, D_A);
    step_argument(onednn, dropout, DNNL_ARG_SRC_1, KEEP);
    step_argument(onednn, dropout, DNNL_ARG_DST, D_A);
    return dnnl_primitive_desc_destroy(descriptor);
}

static dnnl_status_t make_all(struct mlp_onednn *onednn)
{
    dnnl_primitive_desc_t first, second;
    TRY(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0));
    TRY(dnnl_stream_create(&onednn->stream, onednn->engine, dnnl_stream_default_flags));
    TRY(describe_tensors(onednn));
    TRY(make_memories(onednn));
    TRY(make_first_layer(onednn, &first));
    TRY(make_second_layer(onednn, &second));
    TRY(make_softmax(onednn));
    TRY(make_weights_gradient(onednn, &onednn->backward[1], (const enum tensor[]){H, D_W2, D_B2, D_Z},
                              second));
    TRY(make_data_gradient(onednn, &onednn->backward[2], second));
    TRY(make_hidden_gradient(onednn, &onednn->backward[3], &onednn->backward[4]));
    TRY(make_weights_gradient(onednn, &onednn->backward[5], (const enum tensor[]){X, D_W1, D_B1, D_A},
                              first));
    TRY(dnnl_primitive_desc_destroy(first));
    return dnnl_primitive_desc_destroy(second);
}

/* The library brings an OpenMP of its own choice, so the function is looked up instead of linked. */
static void use_one_thread(void)
{
    void (*set_threads)(int) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    memcpy(&set_threads, &symbol, sizeof symbol);
    if (set_threads != NULL)
        set_threads(1);
}

enum status mlp_onednn_new(struct mlp_onednn **out, const struct mlp_shape *shape, uint32_t rows,
                           struct error *error)
{
    struct mlp_onednn *onednn = calloc(1, sizeof *onednn);
    if (onednn == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for oneDNN's policy");
    onednn->shape = *shape;
    onednn->rows = rows;
    onednn->log_p = calloc((size_t)rows * shape->actions, sizeof(float));
    onednn->d_log_p = calloc((size_t)rows * shape->actions, sizeof(float));
    use_one_thread();
    dnnl_status_t status = dnnl_out_of_memory;
    if (onednn->log_p != NULL && onednn->d_log_p != NULL)
        status = make_all(onednn);
    if (status != dnnl_success) {
        mlp_onednn_free(onednn);
        return error_set(error, status == dnnl_out_of_memory ? STATUS_NO_MEMORY : STATUS_INTERNAL,
                         "oneDNN %s cannot make a policy of %u rows: its status is %d", mlp_onednn_version(),
                         rows, (int)status);
    }
    *out = onednn;
    return STATUS_OK;
}

static void free_steps(struct step *steps, int count)
{
    for (int i = 0; i < count; i++)
        dnnl_primitive_destroy(steps[i].primitive);
}

void mlp_onednn_free(struct mlp_onednn *onednn)
{
    if (onednn == NULL)
        return;
    free_steps(onednn->reorders, REORDERS);
    free_steps(onednn->forward, FORWARD_STEPS);
    free_steps(onednn->backward, BACKWARD_STEPS);
    for (int t = 0; t < TENSORS; t++)
        dnnl_memory_destroy(onednn->memory[t]);
    dnnl_stream_destroy(onednn->stream);
    dnnl_engine_destroy(onednn->engine);
    free(onednn->log_p);
    free(onednn->d_log_p);
    free(onednn);
}

static dnnl_status_t run(struct mlp_onednn *onednn, const struct step *steps, int count)
{
    for (int i = 0; i < count; i++)
        TRY(dnnl_primitive_execute(steps[i].primitive, onednn->stream, steps[i].count, steps[i].arguments));
    return dnnl_stream_wait(onednn->stream);
}

/* The library takes pointers to what it only reads without const. */
static void point(struct mlp_onednn *onednn, enum tensor tensor, const float *data)
{
    dnnl_memory_set_data_handle(onednn->memory[tensor], (void *)(uintptr_t)data);
}

static enum status told(dnnl_status_t status)
{
    return status == dnnl_success ? STATUS_OK : STATUS_INTERNAL;
}

enum status mlp_onednn_load(struct mlp_onednn *onednn, const float *parameters)
{
    const struct mlp_shape *shape = &onednn->shape;
    const float *b1 = parameters + (size_t)shape->hidden * shape->inputs, *w2 = b1 + shape->hidden;
    point(onednn, W1, parameters);
    point(onednn, B1, b1);
    point(onednn, W2, w2);
    point(onednn, B2, w2 + (size_t)shape->actions * shape->hidden);
    return told(run(onednn, onednn->reorders, REORDERS));
}

enum status mlp_onednn_forward(struct mlp_onednn *onednn, const float *observations, const float *keep,
                               float *log_probabilities)
{
    point(onednn, X, observations);
    point(onednn, KEEP, keep);
    point(onednn, LOG_P, log_probabilities);
    return told(run(onednn, onednn->forward, FORWARD_STEPS));
}

enum status mlp_onednn_gradient(struct mlp_onednn *onednn, const float *observations, const float *keep,
                                const int32_t *actions, const float *coefficient, float *gradient,
                                double *loss)
{
    const struct mlp_shape *shape = &onednn->shape;
    enum status status = mlp_onednn_forward(onednn, observations, keep, onednn->log_p);
    if (status != STATUS_OK)
        return status;
    *loss = 0;
    memset(onednn->d_log_p, 0, (size_t)onednn->rows * shape->actions * sizeof(float));
    for (uint32_t i = 0; i < onednn->rows; i++) {
        const size_t taken = (size_t)i * shape->actions + (uint32_t)actions[i];
        onednn->d_log_p[taken] = -coefficient[i];
        *loss -= (double)coefficient[i] * (double)onednn->log_p[taken];
    }
    float *d_b1 = gradient + (size_t)shape->hidden * shape->inputs, *d_w2 = d_b1 + shape->hidden;
    point(onednn, D_LOG_P, onednn->d_log_p);
    point(onednn, D_W1, gradient);
    point(onednn, D_B1, d_b1);
    point(onednn, D_W2, d_w2);
    point(onednn, D_B2, d_w2 + (size_t)shape->actions * shape->hidden);
    return told(run(onednn, onednn->backward, BACKWARD_STEPS));
}

enum status mlp_onednn_sgemm(uint32_t n, const float *a, const float *b, float *c)
{
    return told(dnnl_sgemm('N', 'N', n, n, n, 1, a, n, b, n, 0, c, n));
}

const char *mlp_onednn_version(void)
{
    static char text[32];
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", version->major, version->minor, version->patch);
    return text;
}
