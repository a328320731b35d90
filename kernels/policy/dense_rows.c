/* A general policy's forward and backward over a chunk of rows, as products (kernels/lanes/product_lanes.h).
 *
 * Layer by layer, all rows of a chunk. Observations wider than DENSE_INPUT_BLOCK pass in pieces of so many
 * columns, gathered from their rows; the products take up one after the other where the piece before left
 * off. */
#include "kernels/policy/dense_internal.h"

#include <assert.h>
#include <string.h>

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- forward ---- */

static void normalize(const struct dense_normalizer *n, const float *from, uint32_t first, uint32_t width,
                      float *to)
{
    const float limit = n->limit;
    for (uint32_t i = 0; i < width; i++) {
        float x = (from[i] - n->mean[first + i]) * n->scale[first + i];
        x = x > limit ? limit : x;
        to[i] = x < -limit ? -limit : x;
    }
}

/* A few numbers, which a call of memcpy would take longer to copy. */
static void copy(float *to, const float *from, uint32_t count)
{
    uint32_t i = 0;
    for (; count - i >= 4; i += 4)
        memcpy(to + i, from + i, 4 * sizeof *to);
    for (; i < count; i++)
        to[i] = from[i];
}

/* Columns [first, first + width) of the batch's observations. */
static void gather(const struct dense *dense, const struct dense_work *work, const struct dense_batch *batch,
                   uint32_t first, uint32_t width)
{
    const uint32_t inputs = dense->shape.inputs;
    for (uint32_t r = 0; r < batch->count; r++) {
        float *to = work->inputs.at + r * work->inputs.stride;
        const size_t from = (size_t)batch->row[r] * inputs + first;
        if (batch->observations != NULL && batch->normalizer != NULL)
            normalize(batch->normalizer, batch->observations + from, first, width, to);
        else if (batch->observations != NULL)
            copy(to, batch->observations + from, width);
        else
            for (uint32_t i = 0; i < width; i++)
                to[i] = (float)batch->bytes[from + i] / 255;
    }
}

/* to = x W^T + b of a layer's inputs [first, first + width), which x holds. */
static void layer_forward(const struct dense *dense, const struct dense_layer *layer, struct dense_matrix x,
                          uint32_t rows, uint32_t first, uint32_t width, struct dense_matrix to)
{
    dense->product(&(struct product){.rows = rows,
                                     .depth = width,
                                     .columns = layer->outputs,
                                     .a = x.at,
                                     .a_row = x.stride,
                                     .a_depth = 1,
                                     .b = layer->forward + (size_t)first * PRODUCT_BLOCK,
                                     .b_depth = PRODUCT_BLOCK,
                                     .b_block = (size_t)layer->inputs * PRODUCT_BLOCK,
                                     .begin = first == 0 ? layer->begin : NULL,
                                     .c = to.at,
                                     .c_row = to.stride});
}

/* Which networks' heads are computed. */
struct heads {
    bool of[DENSE_NETWORKS];
};

static const struct heads value_alone = {{[DENSE_VALUE] = true}};

static struct heads heads_of(bool policy, bool value)
{
    return (struct heads){{[DENSE_POLICY] = policy, [DENSE_VALUE] = value}};
}

/* The network whose hidden layers network n's head reads. */
static uint32_t trunk_of(const struct dense *dense, uint32_t n)
{
    return dense->shape.shared ? DENSE_POLICY : n;
}

/* Whether network n's own hidden layers are needed. */
static bool needs_hidden(const struct dense *dense, const struct heads *heads, uint32_t n)
{
    return dense->shape.shared ? n == DENSE_POLICY : heads->of[n];
}

/* The sums of the layers that read the observations. */
static void first_layers(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                         const struct heads *heads)
{
    const uint32_t inputs = dense->shape.inputs;
    for (uint32_t first = 0; first < inputs; first += DENSE_INPUT_BLOCK) {
        const uint32_t width = smaller(inputs - first, DENSE_INPUT_BLOCK);
        gather(dense, work, batch, first, width);
        for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
            if (dense->shape.layers == 0 ? heads->of[n] : needs_hidden(dense, heads, n))
                layer_forward(dense, &dense->layer[n][0], work->inputs, batch->count, first, width,
                              work->output[n][0]);
    }
}

static void next_layer(const struct dense *dense, const struct dense_work *work, uint32_t rows, uint32_t n,
                       uint32_t l, struct dense_matrix from)
{
    const struct dense_layer *layer = &dense->layer[n][l];
    layer_forward(dense, layer, from, rows, 0, layer->inputs, work->output[n][l]);
}

/* Fills work->output: the hidden layers' activations and the heads' sums. */
static void forward(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct heads *heads)
{
    const uint32_t rows = batch->count, layers = dense->shape.layers;
    first_layers(dense, work, batch, heads);
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        for (uint32_t l = 0; l < layers && needs_hidden(dense, heads, n); l++) {
            const struct dense_matrix h = work->output[n][l];
            dense->lanes->activate(dense->shape.activation, h, rows, product_blocks(dense->shape.width[l]));
            if (l + 1 < layers)
                next_layer(dense, work, rows, n, l + 1, h);
        }
    for (uint32_t n = 0; n < DENSE_NETWORKS && layers > 0; n++)
        if (heads->of[n])
            next_layer(dense, work, rows, n, layers, work->output[trunk_of(dense, n)][layers - 1]);
}

/* ---- the heads ---- */

/* What the policy's head has read. */
static struct dense_matrix features_of(const struct dense *dense, const struct dense_work *work)
{
    const uint32_t layers = dense->shape.layers;
    return layers == 0 ? work->inputs : work->output[DENSE_POLICY][layers - 1];
}

static struct dense_head head_of(const struct dense *dense, const struct dense_work *work,
                                 const struct dense_batch *batch)
{
    return (struct dense_head){.shape = &dense->shape,
                               .outputs = dense->outputs,
                               .batch = *batch,
                               .z = work->output[DENSE_POLICY][dense->shape.layers],
                               .scratch = work->scratch,
                               .sigma = &dense->sigma,
                               .exploration = dense_explores(&dense->shape) ? &dense->exploration : NULL,
                               .features = dense_features(&dense->shape),
                               .features_at = features_of(dense, work),
                               .variance = work->variance};
}

/* The variances of rows whose forward is done, where they depend on the state. */
static void find_variances(const struct dense *dense, const struct dense_work *work, uint32_t rows)
{
    const struct dense_matrix from = features_of(dense, work), to = work->squares;
    const uint32_t features = dense_features(&dense->shape);
    if (!dense_explores(&dense->shape))
        return;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t f = 0; f < features; f++)
            to.at[r * to.stride + f] = from.at[r * from.stride + f] * from.at[r * from.stride + f];
    dense->product(&(struct product){.rows = rows,
                                     .depth = features,
                                     .columns = dense->shape.components,
                                     .a = to.at,
                                     .a_row = to.stride,
                                     .a_depth = 1,
                                     .b = dense->exploration.panels,
                                     .b_depth = PRODUCT_BLOCK,
                                     .b_block = (size_t)features * PRODUCT_BLOCK,
                                     .begin = dense->exploration.begin,
                                     .c = work->variance.at,
                                     .c_row = work->variance.stride});
}

static void store_values(const struct dense *dense, const struct dense_work *work, uint32_t rows,
                         float *value)
{
    const struct dense_matrix v = work->output[DENSE_VALUE][dense->shape.layers];
    for (uint32_t r = 0; r < rows; r++)
        value[r] = v.at[r * v.stride];
}

/* Rows [first, first + DENSE_CHUNK_ROWS) of the batch. */
static struct dense_batch chunk_of(const struct dense_batch *batch, uint32_t first)
{
    struct dense_batch chunk = *batch;
    chunk.count = smaller(batch->count - first, DENSE_CHUNK_ROWS);
    chunk.row += first;
    return chunk;
}

static float *behind(float *values, uint32_t first)
{
    return values == NULL ? NULL : values + first;
}

void dense_act(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
               const struct dense_draw *draw, const struct dense_results *results)
{
    const struct heads heads = heads_of(true, results->value != NULL);
    assert(results->value == NULL || dense->shape.value);
    for (uint32_t first = 0; first < batch->count; first += DENSE_CHUNK_ROWS) {
        const struct dense_batch chunk = chunk_of(batch, first);
        const struct dense_head head = head_of(dense, work, &chunk);
        struct dense_draw keys = {0};
        if (draw != NULL)
            keys = (struct dense_draw){.seed = draw->seed,
                                       .episode = draw->episode,
                                       .environment = draw->environment + first,
                                       .step = draw->step + first,
                                       .noise_steps = draw->noise_steps};
        forward(dense, work, &chunk, &heads);
        find_variances(dense, work, chunk.count);
        dense->lanes->act(&head, draw != NULL ? &keys : NULL, behind(results->log_probability, first));
        if (results->value != NULL)
            store_values(dense, work, chunk.count, results->value + first);
    }
}

void dense_value(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                 float *value)
{
    assert(dense->shape.value);
    for (uint32_t first = 0; first < batch->count; first += DENSE_CHUNK_ROWS) {
        const struct dense_batch chunk = chunk_of(batch, first);
        forward(dense, work, &chunk, &value_alone);
        store_values(dense, work, chunk.count, value + first);
    }
}

void dense_evaluate(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct dense_results *results)
{
    assert(batch->count <= DENSE_CHUNK_ROWS && (results->value == NULL || dense->shape.value));
    const struct dense_head head = head_of(dense, work, batch);
    const struct heads heads =
        heads_of(results->log_probability != NULL || results->entropy != NULL, results->value != NULL);
    work->batch = *batch;
    forward(dense, work, batch, &heads);
    if (heads.of[DENSE_POLICY]) {
        find_variances(dense, work, batch->count);
        dense->lanes->evaluate(&head, results->log_probability, results->entropy);
    }
    if (results->value != NULL)
        store_values(dense, work, batch->count, results->value);
}

/* ---- backward ----
 *
 * What is added up goes to where work->adds says: onto the gradient, or in its place. */

/* a's columns as rows of a product, b's columns [n, n + columns) as its columns, over the batch's rows. */
static struct product sums_of(const struct dense_work *work, struct dense_matrix a, uint32_t m, uint32_t rows,
                              struct dense_matrix b, uint32_t n, uint32_t columns)
{
    return (struct product){.rows = rows,
                            .depth = work->batch.count,
                            .columns = columns,
                            .a = a.at + m,
                            .a_row = 1,
                            .a_depth = a.stride,
                            .b = b.at + n,
                            .b_depth = b.stride,
                            .b_block = PRODUCT_BLOCK,
                            .begin = work->zeros};
}

/* to[m * row_step + n * column_step] += sum over rows of a[row][m] b[row][n], for `m_count` by `n_count`
 * numbers. Whole blocks of columns need no piece of memory of their own where nothing is added to. */
static void add_products(const struct dense *dense, const struct dense_work *work, struct dense_matrix a,
                         uint32_t m_count, struct dense_matrix b, uint32_t n_count, float *to,
                         size_t row_step, size_t column_step)
{
    const bool direct = !work->adds && column_step == 1 && n_count % PRODUCT_BLOCK == 0;
    for (uint32_t n = 0; n < n_count; n += DENSE_PIECE_COLUMNS)
        for (uint32_t m = 0; m < m_count; m += DENSE_PIECE_ROWS) {
            const uint32_t rows = smaller(m_count - m, DENSE_PIECE_ROWS);
            const uint32_t columns = smaller(n_count - n, DENSE_PIECE_COLUMNS);
            struct product product = sums_of(work, a, m, rows, b, n, columns);
            float *part = to + m * row_step + n * column_step;
            product.c = direct ? part : work->piece.at;
            product.c_row = direct ? row_step : work->piece.stride;
            dense->product(&product);
            if (!direct)
                dense->lanes->add(part, row_step, column_step, work->piece, rows, columns, work->adds);
        }
}

/* Adds the sums of the columns of x, over the batch's rows. */
static void add_columns(const struct dense *dense, const struct dense_work *work, struct dense_matrix x,
                        uint32_t columns, float *to)
{
    const struct dense_matrix ones = {work->ones, 1};
    add_products(dense, work, ones, 1, x, columns, to, 0, 1);
}

/* Adds the gradient of a weight's columns [first, first + width), whose inputs are x. Either the inputs or
 * the outputs lie across the lanes, whichever leaves fewer lanes idle; the bits are the same. */
static void add_weight(const struct dense *dense, const struct dense_work *work,
                       const struct dense_layer *layer, struct dense_matrix x, uint32_t first, uint32_t width,
                       struct dense_matrix pull, float *gradient)
{
    float *to = gradient + layer->weight + first;
    const uint32_t outputs = layer->outputs;
    if (outputs * product_blocks(width) <= width * product_blocks(outputs))
        add_products(dense, work, pull, outputs, x, width, to, layer->inputs, 1);
    else
        add_products(dense, work, x, width, pull, outputs, to, 1, layer->inputs);
}

/* The first layer's; the inputs are gathered again unless one piece holds them all. */
static void add_first_weight(const struct dense *dense, const struct dense_work *work,
                             const struct dense_layer *layer, struct dense_matrix pull, float *gradient)
{
    for (uint32_t first = 0; first < layer->inputs; first += DENSE_INPUT_BLOCK) {
        const uint32_t width = smaller(layer->inputs - first, DENSE_INPUT_BLOCK);
        if (layer->inputs > DENSE_INPUT_BLOCK)
            gather(dense, work, &work->batch, first, width);
        add_weight(dense, work, layer, work->inputs, first, width, pull, gradient);
    }
}

/* to = dL/d of what `layer` reads, by the pull at its sums; or, `more`, adds that to `to`. */
static void pull_back(const struct dense *dense, const struct dense_work *work,
                      const struct dense_layer *layer, struct dense_matrix pull, struct dense_matrix to,
                      bool more)
{
    dense->product(&(struct product){.rows = work->batch.count,
                                     .depth = layer->outputs,
                                     .columns = layer->inputs,
                                     .a = pull.at,
                                     .a_row = pull.stride,
                                     .a_depth = 1,
                                     .b = layer->backward,
                                     .b_depth = PRODUCT_BLOCK,
                                     .b_block = (size_t)layer->outputs * PRODUCT_BLOCK,
                                     .begin = more ? NULL : work->zeros,
                                     .c = to.at,
                                     .c_row = to.stride});
}

/* dL/d of hidden layer l, in one of two places by turns. */
static struct dense_matrix hidden_pull(const struct dense *dense, const struct dense_work *work, uint32_t l)
{
    return (struct dense_matrix){work->pull[l % 2], product_stride(dense->shape.width[l])};
}

/* The heads' weights and biases, by work->head_pull, and the pull at the last hidden layer of network n: of
 * the policy's head first. */
static void heads_backward(const struct dense *dense, const struct dense_work *work,
                           const struct heads *heads, uint32_t n, float *gradient)
{
    const uint32_t layers = dense->shape.layers;
    bool more = false;
    for (uint32_t head = 0; head < DENSE_NETWORKS; head++) {
        const struct dense_layer *layer = &dense->layer[head][layers];
        const struct dense_matrix pull = work->head_pull[head];
        if (!heads->of[head])
            continue;
        add_columns(dense, work, pull, layer->outputs, gradient + layer->bias);
        if (layers == 0) {
            add_first_weight(dense, work, layer, pull, gradient);
            continue;
        }
        add_weight(dense, work, layer, work->output[n][layers - 1], 0, layer->inputs, pull, gradient);
        pull_back(dense, work, layer, pull, hidden_pull(dense, work, layers - 1), more);
        more = true;
    }
}

/* The backward of network n's hidden layers and of the heads that read them. */
static void backward(const struct dense *dense, const struct dense_work *work, const struct heads *heads,
                     uint32_t n, float *gradient)
{
    heads_backward(dense, work, heads, n, gradient);
    for (uint32_t l = dense->shape.layers; l-- > 0;) {
        const struct dense_layer *layer = &dense->layer[n][l];
        const struct dense_matrix pull = hidden_pull(dense, work, l);
        dense->lanes->slope(dense->shape.activation, pull, work->output[n][l], work->batch.count,
                            product_blocks(layer->outputs));
        add_columns(dense, work, pull, layer->outputs, gradient + layer->bias);
        if (l == 0) {
            add_first_weight(dense, work, layer, pull, gradient);
            return;
        }
        add_weight(dense, work, layer, work->output[n][l - 1], 0, layer->inputs, pull, gradient);
        pull_back(dense, work, layer, pull, hidden_pull(dense, work, l - 1), false);
    }
}

/* Adds dL/d log_std (features, components). */
static void add_exploration(const struct dense *dense, const struct dense_work *work, float *gradient)
{
    const uint32_t features = dense_features(&dense->shape), components = dense->shape.components;
    const size_t count = (size_t)features * components;
    float *sums = work->exploration_sums;
    if (work->adds) /* onto these */
        memset(sums, 0, count * sizeof *sums);
    add_products(dense, work, work->squares, features, work->log_sigma, components, sums, components, 1);
    for (size_t i = 0; i < count; i++)
        gradient[i] = (work->adds ? gradient[i] : 0) + dense->exploration.squares[i] * sums[i];
}

/* Fills the pulls at the sums of the policy's head, and takes what log_std pulls. */
static void pull_policy(const struct dense *dense, const struct dense_work *work,
                        const struct dense_pulls *pulls, float *gradient)
{
    const struct dense_head head = head_of(dense, work, &work->batch);
    dense->lanes->pull(&head, pulls, work->head_pull[DENSE_POLICY], work->log_sigma);
    if (dense_explores(&dense->shape))
        add_exploration(dense, work, gradient + dense->log_sigma);
    else if (dense->shape.gaussian)
        add_columns(dense, work, work->log_sigma, dense->shape.components, gradient + dense->log_sigma);
}

static void pull_value(const struct dense_work *work, const struct dense_pulls *pulls)
{
    const struct dense_matrix to = work->head_pull[DENSE_VALUE];
    for (uint32_t r = 0; r < work->batch.count; r++)
        to.at[r * to.stride] = pulls->value[r];
}

void dense_gradient(const struct dense *dense, struct dense_work *work, const struct dense_pulls *pulls,
                    float *gradient, bool adds)
{
    const struct heads heads =
        heads_of(pulls->log_probability != NULL || pulls->entropy != NULL, pulls->value != NULL);
    assert(!heads.of[DENSE_VALUE] || dense->shape.value);
    work->adds = adds;
    if (heads.of[DENSE_POLICY])
        pull_policy(dense, work, pulls, gradient);
    if (heads.of[DENSE_VALUE])
        pull_value(work, pulls);
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
        const struct heads own = heads_of(n == DENSE_POLICY, n == DENSE_VALUE);
        if (!dense->shape.shared && heads.of[n])
            backward(dense, work, &own, n, gradient);
    }
    if (dense->shape.shared && (heads.of[DENSE_POLICY] || heads.of[DENSE_VALUE]))
        backward(dense, work, &heads, DENSE_POLICY, gradient);
}
