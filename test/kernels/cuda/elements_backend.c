/* The threads of our GPU kernels, one after the other on the CPU: see the header. Where the threads of a
 * kernel depend on each other (a reduction's tree, a sort's steps), this file repeats the same steps. */
#include "test/kernels/cuda/elements_backend.h"

#include "kernels/cuda/elements.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 256, TERM_LANES = 128, SORT_TILE = 8 };

static enum status open_host(struct backend *backend, const struct backend_settings *settings,
                             struct error *error)
{
    (void)settings;
    (void)error;
    backend->source = arena_host;
    return STATUS_OK;
}

static void close_host(struct backend *backend)
{
    (void)backend;
}

static enum status upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                          struct error *error)
{
    (void)backend;
    (void)error;
    const double *values = from;
    const size_t count = shape_elements(&to->shape);
    if (dtype == DTYPE_F64)
        for (size_t i = 0; i < count; i++)
            ((float *)to->data)[i] = (float)values[i];
    else
        memcpy(to->data, from, count * sizeof(float));
    return STATUS_OK;
}

static enum status download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                            struct error *error)
{
    (void)backend;
    (void)error;
    double *values = to;
    const size_t count = shape_elements(&from->shape);
    if (dtype == DTYPE_F64)
        for (size_t i = 0; i < count; i++)
            values[i] = (double)((const float *)from->data)[i];
    else
        memcpy(to, from->data, count * sizeof(float));
    return STATUS_OK;
}

static enum status fill(struct backend *backend, struct tensor *tensor, double value, struct error *error)
{
    (void)backend;
    (void)error;
    for (size_t i = 0; i < shape_elements(&tensor->shape); i++)
        ((float *)tensor->data)[i] = (float)value;
    return STATUS_OK;
}

/* A block for a tensor that has none. */
static enum status give(struct op_call *call, struct tensor *tensor, struct error *error)
{
    return tensor->data != NULL
               ? STATUS_OK
               : tensor_new(tensor, call->arena, tensor->shape, tensor->dtype, tensor->name, error);
}

static size_t count_of(const struct tensor *tensor)
{
    return shape_elements(&tensor->shape);
}

/* ---- one thread an element ---- */

static enum status relu(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const float *x = call->in[0]->data;
    float *y = call->out[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        y[i] = element_relu(x[i]);
    return status;
}

static enum status relu_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    const float *y = call->out[0]->data, *dy = call->dout[0]->data;
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_relu_backward(y[i], dy[i]);
    return status;
}

static enum status tanh_op(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const float *x = call->in[0]->data;
    float *y = call->out[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        y[i] = tanhf(x[i]);
    return status;
}

static enum status tanh_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    const float *y = call->out[0]->data, *dy = call->dout[0]->data;
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_tanh_backward(y[i], dy[i]);
    return status;
}

static void drop(const struct op_call *call, const float *x, float *y)
{
    const struct op_attributes *a = &call->attributes;
    const uint32_t rows = call->in[1] != NULL ? call->in[1]->shape.size[0] : 1;
    struct element_dropout dropout = {.seed = a->draw.seed,
                                      .word = {a->draw.word[0], a->draw.word[1], a->draw.word[2]},
                                      .rows = call->in[1] != NULL ? call->in[1]->data : NULL,
                                      .width = (uint32_t)(count_of(call->in[0]) / rows),
                                      .threshold = element_dropout_threshold(a->dropout),
                                      .scale = (float)(1 / (1 - a->dropout))};
    for (size_t i = 0; i < (size_t)rows * element_dropout_blocks(dropout.width); i++)
        element_drop(&dropout, i, x, y);
}

static enum status dropout(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    if (status == STATUS_OK)
        drop(call, call->in[0]->data, call->out[0]->data);
    return status;
}

static enum status dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    if (status == STATUS_OK)
        drop(call, call->dout[0]->data, call->din[0]->data);
    return status;
}

static enum status log_probability(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const uint32_t classes = call->in[0]->shape.size[1];
    const float *x = call->in[0]->data;
    const int32_t *actions = call->in[1]->data;
    float *y = call->out[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->out[0]); i++)
        y[i] = x[i * classes + element_clamp(actions[i], classes)];
    return status;
}

static enum status log_probability_backward(struct backend *backend, struct op_call *call,
                                            struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_log_probability_backward(call->in[1]->data, call->dout[0]->data,
                                                 call->in[0]->shape.size[1], i);
    return status;
}

/* ---- pools ---- */

static struct element_window pool_of(const struct op_call *call)
{
    const struct op_attributes *a = &call->attributes;
    const uint32_t *x = call->in[0]->shape.size, *y = call->out[0]->shape.size;
    return (struct element_window){.size = {x[2], x[3]},
                                   .out = {y[2], y[3]},
                                   .kernel = {a->kernel[0], a->kernel[1]},
                                   .stride = {a->stride[0], a->stride[1]},
                                   .padding = {a->padding[0], a->padding[1]}};
}

static enum status max_pool(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const struct element_window pool = pool_of(call);
    const size_t plane = (size_t)pool.size[0] * pool.size[1], out_plane = (size_t)pool.out[0] * pool.out[1];
    float *y = call->out[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->out[0]); i++) {
        const float *x = (const float *)call->in[0]->data + i / out_plane * plane;
        const uint32_t at = (uint32_t)(i % out_plane);
        y[i] = x[element_first_maximum(&pool, x, at / pool.out[1], at % pool.out[1])];
    }
    return status;
}

static enum status max_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    const struct element_window pool = pool_of(call);
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_max_pool_backward(&pool, call->in[0]->data, call->dout[0]->data, i);
    return status;
}

static enum status avg_pool(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const struct element_window pool = pool_of(call);
    const size_t plane = (size_t)pool.size[0] * pool.size[1], out_plane = (size_t)pool.out[0] * pool.out[1];
    float *y = call->out[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->out[0]); i++) {
        const float *x = (const float *)call->in[0]->data + i / out_plane * plane;
        const uint32_t at = (uint32_t)(i % out_plane);
        uint32_t top, bottom, left, right;
        float sum = 0;
        element_window_inputs(&pool, 0, at / pool.out[1], &top, &bottom);
        element_window_inputs(&pool, 1, at % pool.out[1], &left, &right);
        for (uint32_t r = top; r < bottom; r++)
            for (uint32_t c = left; c < right; c++)
                sum += x[(size_t)r * pool.size[1] + c];
        y[i] = sum / (float)(pool.kernel[0] * pool.kernel[1]);
    }
    return status;
}

static enum status avg_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    const struct element_window pool = pool_of(call);
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_avg_pool_backward(&pool, call->dout[0]->data, i);
    return status;
}

/* ---- sums ---- */

double elements_sum(int term, const float *x, const float *c, size_t count)
{
    double tree[LANES];
    for (size_t lane = 0; lane < LANES; lane++)
        tree[lane] = element_sum_lane((enum element_term)term, x, c, count, lane, LANES);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            tree[lane] += tree[lane + half];
    return tree[0];
}

static enum status sum(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    if (status == STATUS_OK)
        *(float *)call->out[0]->data =
            (float)(call->attributes.scale * elements_sum(ELEMENT_PRODUCT, call->in[0]->data,
                                                          call->in[1] != NULL ? call->in[1]->data : NULL,
                                                          count_of(call->in[0])));
    return status;
}

static enum status sum_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    const float *c = call->in[1] != NULL ? call->in[1]->data : NULL;
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_sum_backward(c, *(float *)call->dout[0]->data, (float)call->attributes.scale, i);
    return status;
}

static enum status mse(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const size_t count = count_of(call->in[0]);
    if (status == STATUS_OK)
        *(float *)call->out[0]->data =
            (float)(elements_sum(ELEMENT_DIFFERENCE, call->in[0]->data, call->in[1]->data, count) /
                    (double)count);
    return status;
}

static enum status mse_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[0], error);
    const size_t count = count_of(call->in[0]);
    const float *x = call->in[0]->data, *target = call->in[1]->data;
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count; i++)
        dx[i] = element_mse_backward(x, target, *(float *)call->dout[0]->data, (float)(2 / (double)count), i);
    return status;
}

/* ---- cross entropy ---- */

static struct element_classes classes_of(const struct tensor *logits)
{
    return (struct element_classes){.classes = logits->shape.size[1],
                                    .inner = logits->shape.rank == 3 ? logits->shape.size[2] : 1};
}

/* The logarithm of the sum of exponentials of one term's logits. */
static double log_sum(const struct element_classes *shape, const float *x)
{
    float highest[TERM_LANES];
    double total[TERM_LANES];
    for (uint32_t lane = 0; lane < TERM_LANES; lane++)
        highest[lane] = element_max_lane(shape, x, lane, TERM_LANES);
    for (uint32_t half = TERM_LANES / 2; half > 0; half /= 2)
        for (uint32_t lane = 0; lane < half; lane++)
            highest[lane] = fmaxf(highest[lane], highest[lane + half]);
    for (uint32_t lane = 0; lane < TERM_LANES; lane++)
        total[lane] = element_exp_lane(shape, x, highest[0], lane, TERM_LANES);
    for (uint32_t half = TERM_LANES / 2; half > 0; half /= 2)
        for (uint32_t lane = 0; lane < half; lane++)
            total[lane] += total[lane + half];
    return (double)highest[0] + log(total[0]);
}

static enum status cross_entropy(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct element_classes shape = classes_of(call->in[0]);
    const size_t count = count_of(call->in[1]);
    const float *logits = call->in[0]->data;
    enum status status = give(call, call->out[0], error);
    if (status == STATUS_OK)
        status =
            tensor_new(&call->saved[0], call->arena, SHAPE1((uint32_t)count), DTYPE_F64, "log-sums", error);
    if (status != STATUS_OK)
        return status;
    double total = 0, *log_sums = call->saved[0].data;
    for (size_t term = 0; term < count; term++) {
        log_sums[term] = log_sum(&shape, logits + element_term_begin(&shape, term));
        total += element_cross_entropy(&shape, logits, call->in[1]->data, log_sums[term], term);
    }
    *(float *)call->out[0]->data = (float)(total / (double)count);
    return STATUS_OK;
}

static enum status cross_entropy_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct element_classes shape = classes_of(call->in[0]);
    enum status status = give(call, call->din[0], error);
    const float pull = *(float *)call->dout[0]->data * (float)(1 / (double)count_of(call->in[1]));
    float *dx = call->din[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->in[0]); i++)
        dx[i] = element_cross_entropy_backward(&shape, call->in[0]->data, call->in[1]->data,
                                               call->saved[0].data, pull, i);
    return status;
}

/* ---- batch norm ---- */

static struct element_channels channels_of(const struct tensor *x)
{
    const uint32_t *size = x->shape.size, plane = size[2] * size[3];
    return (struct element_channels){.channels = size[1], .plane = plane, .values = size[0] * plane};
}

static struct element_sums add_lanes(struct element_sums tree[LANES])
{
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t lane = 0; lane < half; lane++)
            element_sums_add(&tree[lane], &tree[lane + half]);
    return tree[0];
}

static struct element_norm batch_statistics(struct op_call *call, const struct element_channels *shape,
                                            uint32_t channel)
{
    const float *x = call->in[0]->data;
    struct element_sums tree[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++)
        tree[lane] = element_norm_lane(shape, x, channel, lane, LANES);
    const struct element_sums sums = add_lanes(tree);
    return element_norm_of(shape, x, channel, &sums, call->attributes.epsilon,
                           (float *)call->out[1]->data + channel, (float *)call->out[2]->data + channel);
}

static enum status batch_norm(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct element_channels shape = channels_of(call->in[0]);
    const bool training = call->attributes.training;
    enum status status = STATUS_OK;
    for (int i = 0; i < (training ? 3 : 1) && status == STATUS_OK; i++)
        status = give(call, call->out[i], error);
    if (status != STATUS_OK)
        return status;
    struct element_norm *norms = arena_take(call->arena, shape.channels * sizeof *norms);
    call->saved[0].data = norms;
    for (uint32_t c = 0; c < shape.channels; c++) {
        norms[c] =
            training ? batch_statistics(call, &shape, c)
                     : element_norm_running(((const float *)call->in[3]->data)[c],
                                            ((const float *)call->in[4]->data)[c], call->attributes.epsilon);
        for (uint32_t lane = 0; lane < LANES; lane++)
            element_normalize_lane(&shape, &norms[c], call->in[0]->data,
                                   ((const float *)call->in[1]->data)[c],
                                   ((const float *)call->in[2]->data)[c], call->attributes.relu, c, lane,
                                   LANES, call->out[0]->data);
    }
    return STATUS_OK;
}

static enum status batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct element_channels shape = channels_of(call->in[0]);
    const struct element_norm *norms = call->saved[0].data;
    const float *x = call->in[0]->data, *y = call->attributes.relu ? call->out[0]->data : NULL;
    const float *dy = call->dout[0]->data, *weight = call->in[1]->data;
    struct element_sums tree[LANES];
    enum status status = STATUS_OK;
    for (int i = 0; i < 3 && status == STATUS_OK; i++)
        status = give(call, call->din[i], error);
    for (uint32_t c = 0; status == STATUS_OK && c < shape.channels; c++) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            tree[lane] = element_norm_gradient_lane(&shape, &norms[c], x, y, dy, c, lane, LANES);
        const struct element_sums sums = add_lanes(tree);
        ((float *)call->din[1]->data)[c] = (float)(sums.second * (double)norms[c].inverse);
        ((float *)call->din[2]->data)[c] = (float)sums.first;
        for (uint32_t lane = 0; lane < LANES; lane++)
            element_norm_backward_lane(&shape, &norms[c], &sums, x, y, dy, weight[c], c, lane, LANES,
                                       call->din[0]->data);
    }
    return status;
}

/* ---- embedding ---- */

static enum status embedding(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->out[0], error);
    const uint32_t *table = call->in[1]->shape.size;
    const int32_t *indices = call->in[0]->data;
    const float *weight = call->in[1]->data;
    float *y = call->out[0]->data;
    for (size_t i = 0; status == STATUS_OK && i < count_of(call->out[0]); i++)
        y[i] = weight[element_clamp(indices[i / table[1]], table[0]) * (size_t)table[1] + i % table[1]];
    return status;
}

/* As a block does it: steps whose elements stand less than a tile apart. */
static void sort_tile(uint64_t *keys, size_t base, size_t tile, size_t run_begin, size_t run_end)
{
    for (size_t run = run_begin; run <= run_end; run *= 2)
        for (size_t apart = (run < tile ? run : tile) / 2; apart > 0; apart /= 2)
            for (size_t pair = 0; pair < tile / 2; pair++)
                element_sort_pair(keys + base, pair, apart, run, base);
}

void elements_sort(uint64_t *keys, size_t padded)
{
    const size_t tile = padded < SORT_TILE ? padded : (size_t)SORT_TILE;
    for (size_t base = 0; base < padded; base += tile)
        sort_tile(keys, base, tile, 2, tile);
    for (size_t run = 2 * tile; run <= padded; run *= 2) {
        for (size_t apart = run / 2; apart >= tile; apart /= 2)
            for (size_t pair = 0; pair < padded / 2; pair++)
                element_sort_pair(keys, pair, apart, run, 0);
        for (size_t base = 0; base < padded; base += tile)
            sort_tile(keys, base, tile, run, run);
    }
}

static enum status embedding_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = give(call, call->din[1], error);
    const uint32_t vocabulary = call->in[1]->shape.size[0], width = call->in[1]->shape.size[1];
    const size_t count = count_of(call->in[0]);
    size_t padded = 2;
    while (padded < count)
        padded *= 2;
    uint64_t *keys = arena_take(call->arena, padded * sizeof *keys);
    if (status != STATUS_OK || keys == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu keys", padded);
    for (size_t i = 0; i < padded; i++)
        keys[i] = i < count ? element_sort_key(call->in[0]->data, i, vocabulary) : UINT64_MAX;
    elements_sort(keys, padded);
    float *dtable = call->din[1]->data;
    memset(dtable, 0, (size_t)vocabulary * width * sizeof *dtable);
    for (size_t i = 0; i < count; i++)
        for (uint32_t column = 0; column < width && element_run_begins(keys, i); column++)
            dtable[(keys[i] >> 32) * width + column] =
                element_embedding_backward(keys, count, i, call->dout[0]->data, width, column);
    arena_release(call->arena, keys);
    return STATUS_OK;
}

const struct backend_ops elements_ops = {
    .name = "elements",
    .dtype = DTYPE_F32,
    .host = true,
    .open = open_host,
    .close = close_host,
    .upload = upload,
    .download = download,
    .fill = fill,
    .forward = {[OP_BATCH_NORM] = batch_norm,
                [OP_RELU] = relu,
                [OP_TANH] = tanh_op,
                [OP_DROPOUT] = dropout,
                [OP_LOG_PROBABILITY] = log_probability,
                [OP_MAX_POOL] = max_pool,
                [OP_AVG_POOL] = avg_pool,
                [OP_SUM] = sum,
                [OP_MSE] = mse,
                [OP_CROSS_ENTROPY] = cross_entropy,
                [OP_EMBEDDING] = embedding},
    .backward = {[OP_BATCH_NORM] = batch_norm_backward,
                 [OP_RELU] = relu_backward,
                 [OP_TANH] = tanh_backward,
                 [OP_DROPOUT] = dropout_backward,
                 [OP_LOG_PROBABILITY] = log_probability_backward,
                 [OP_MAX_POOL] = max_pool_backward,
                 [OP_AVG_POOL] = avg_pool_backward,
                 [OP_SUM] = sum_backward,
                 [OP_MSE] = mse_backward,
                 [OP_CROSS_ENTROPY] = cross_entropy_backward,
                 [OP_EMBEDDING] = embedding_backward},
};
