/* The bare ResNet-50. Made as a list of steps, run as a loop over it; failures stick while it is made. */
#include "test/baseline/resnet_onednn.h"

#include "test/baseline/chain_onednn.h"

#include <assert.h>
#include <stdlib.h>

enum { LAYERS_MAX = 53, BLOCKS_MAX = 16, PARAMETERS_MAX = 27000000 /* 25.6 million with 1,000 classes */ };

/* A convolution, its batch norm, and the tensors between; all by index. */
struct layer {
    dnnl_primitive_desc_t convolution, norm;
    dnnl_dims_t stride, padding;
    int x, weight, h, scale, shift, mean, variance, positive, y;
    int dweight, dscale, dshift;
    bool relu;
};

struct block {
    struct layer *layer[4]; // the fourth: the shortcut's, or NULL
    int x, y;
};

struct resnet_onednn {
    struct chain chain;
    uint32_t images, layers, blocks;
    struct layer layer[LAYERS_MAX];
    struct block block[BLOCKS_MAX];
    double flops;
};

/* ---- a convolution and its batch norm ---- */

static double convolution_flops(const dnnl_memory_desc_t *weight, const dnnl_memory_desc_t *y)
{
    double flops = 2;
    for (int d = 0; d < 4; d++)
        flops *= (double)weight->dims[d];
    return flops * (double)(y->dims[0] * y->dims[2] * y->dims[3]);
}

static void convolution_forward(struct resnet_onednn *net, struct layer *layer, int64_t outputs,
                                int64_t kernel, int64_t stride)
{
    const dnnl_memory_desc_t *x = &net->chain.tensor[layer->x].desc;
    const int64_t padding = kernel / 2, size = (x->dims[2] + 2 * padding - kernel) / stride + 1;
    const dnnl_memory_desc_t any_x = chain_layout(4, x->dims, dnnl_format_tag_any),
                             weight =
                                 chain_layout(4, (const dnnl_dims_t){outputs, x->dims[1], kernel, kernel},
                                              dnnl_format_tag_any),
                             y = chain_layout(4, (const dnnl_dims_t){x->dims[0], outputs, size, size},
                                              dnnl_format_tag_any);
    dnnl_convolution_desc_t operation;
    for (int d = 0; d < 2; d++) {
        layer->stride[d] = stride;
        layer->padding[d] = padding;
    }
    layer->convolution = chain_describe(
        &net->chain,
        dnnl_convolution_forward_desc_init(&operation, dnnl_forward_training, dnnl_convolution_direct, &any_x,
                                           &weight, NULL, &y, layer->stride, layer->padding, layer->padding),
        &operation, false, NULL);
    const dnnl_memory_desc_t src = chain_query(&net->chain, layer->convolution, dnnl_query_src_md),
                             dst = chain_query(&net->chain, layer->convolution, dnnl_query_dst_md),
                             wei = chain_query(&net->chain, layer->convolution, dnnl_query_weights_md);
    layer->x = chain_in_layout(&net->chain, layer->x, &src);
    layer->weight = chain_parameter(&net->chain, &wei, 0.05, 0, &layer->dweight);
    layer->h = chain_tensor(&net->chain, &dst);
    net->flops += convolution_flops(&wei, &dst);
    chain_step(
        &net->chain, CHAIN_CONVOLUTION, layer->convolution,
        (const struct chain_binding[]){
            {DNNL_ARG_SRC, layer->x}, {DNNL_ARG_WEIGHTS, layer->weight}, {DNNL_ARG_DST, layer->h}, {0, 0}});
}

static unsigned norm_flags(const struct layer *layer)
{
    return (unsigned)dnnl_use_scale | (unsigned)dnnl_use_shift |
           (layer->relu ? (unsigned)dnnl_fuse_norm_relu : 0);
}

static void norm_forward(struct resnet_onednn *net, struct layer *layer)
{
    const dnnl_memory_desc_t desc = net->chain.tensor[layer->h].desc,
                             c = chain_layout(1, (const dnnl_dims_t){desc.dims[1]}, dnnl_a);
    dnnl_batch_normalization_desc_t operation;
    layer->norm = chain_describe(&net->chain,
                                 dnnl_batch_normalization_forward_desc_init(&operation, dnnl_forward_training,
                                                                            &desc, 1e-5F, norm_flags(layer)),
                                 &operation, false, NULL);
    const dnnl_memory_desc_t positive = chain_query(&net->chain, layer->norm, dnnl_query_workspace_md);
    layer->scale = chain_parameter(&net->chain, &c, 0, 1, &layer->dscale);
    layer->shift = chain_parameter(&net->chain, &c, 0, 0, &layer->dshift);
    layer->mean = chain_tensor(&net->chain, &c);
    layer->variance = chain_tensor(&net->chain, &c);
    layer->positive = chain_tensor(&net->chain, &positive);
    layer->y = chain_tensor(&net->chain, &desc);
    chain_step(&net->chain, CHAIN_NORM, layer->norm,
               (const struct chain_binding[]){{DNNL_ARG_SRC, layer->h},
                                              {DNNL_ARG_SCALE, layer->scale},
                                              {DNNL_ARG_SHIFT, layer->shift},
                                              {DNNL_ARG_DST, layer->y},
                                              {DNNL_ARG_MEAN, layer->mean},
                                              {DNNL_ARG_VARIANCE, layer->variance},
                                              {layer->relu ? DNNL_ARG_WORKSPACE : 0, layer->positive},
                                              {0, 0}});
}

static struct layer *layer_forward(struct resnet_onednn *net, int x, int64_t outputs, int64_t kernel,
                                   int64_t stride, bool relu)
{
    assert(net->layers < LAYERS_MAX);
    struct layer *layer = &net->layer[net->layers++];
    layer->x = x;
    layer->relu = relu;
    convolution_forward(net, layer, outputs, kernel, stride);
    norm_forward(net, layer);
    return layer;
}

/* Takes dy over; returns the gradient before the batch norm, in the same memory. */
static int norm_backward(struct resnet_onednn *net, const struct layer *layer, int dy)
{
    const dnnl_memory_desc_t *desc = &net->chain.tensor[layer->h].desc;
    dnnl_batch_normalization_desc_t operation;
    dnnl_primitive_desc_t backward =
        chain_describe(&net->chain,
                       dnnl_batch_normalization_backward_desc_init(&operation, dnnl_backward, desc, desc,
                                                                   1e-5F, norm_flags(layer)),
                       &operation, false, layer->norm);
    chain_step(&net->chain, CHAIN_NORM, backward,
               (const struct chain_binding[]){{DNNL_ARG_SRC, layer->h},
                                              {DNNL_ARG_SCALE, layer->scale},
                                              {DNNL_ARG_SHIFT, layer->shift},
                                              {DNNL_ARG_MEAN, layer->mean},
                                              {DNNL_ARG_VARIANCE, layer->variance},
                                              {DNNL_ARG_DIFF_DST, dy},
                                              {DNNL_ARG_DIFF_SRC, dy},
                                              {DNNL_ARG_DIFF_SCALE, layer->dscale},
                                              {DNNL_ARG_DIFF_SHIFT, layer->dshift},
                                              {layer->relu ? DNNL_ARG_WORKSPACE : 0, layer->positive},
                                              {0, 0}});
    return dy;
}

static void weights_backward(struct resnet_onednn *net, const struct layer *layer, int dh)
{
    const dnnl_memory_desc_t *x = &net->chain.tensor[layer->x].desc, *h = &net->chain.tensor[dh].desc,
                             *weight = &net->chain.tensor[layer->weight].desc;
    dnnl_convolution_desc_t operation;
    dnnl_primitive_desc_t backward = chain_describe(
        &net->chain,
        dnnl_convolution_backward_weights_desc_init(&operation, dnnl_convolution_direct, x, weight, NULL, h,
                                                    layer->stride, layer->padding, layer->padding),
        &operation, false, layer->convolution);
    net->flops += convolution_flops(weight, h);
    chain_step(&net->chain, CHAIN_CONVOLUTION, backward,
               (const struct chain_binding[]){{DNNL_ARG_SRC, layer->x},
                                              {DNNL_ARG_DIFF_DST, dh},
                                              {DNNL_ARG_DIFF_WEIGHTS, layer->dweight},
                                              {0, 0}});
}

/* The only pass that wants the weight otherwise than the forward. */
static int data_backward(struct resnet_onednn *net, const struct layer *layer, int dh)
{
    const dnnl_memory_desc_t *x = &net->chain.tensor[layer->x].desc, *h = &net->chain.tensor[dh].desc;
    const dnnl_memory_desc_t any =
        chain_layout(4, net->chain.tensor[layer->weight].desc.dims, dnnl_format_tag_any);
    dnnl_convolution_desc_t operation;
    dnnl_primitive_desc_t backward = chain_describe(
        &net->chain,
        dnnl_convolution_backward_data_desc_init(&operation, dnnl_convolution_direct, x, &any, h,
                                                 layer->stride, layer->padding, layer->padding),
        &operation, false, layer->convolution);
    const dnnl_memory_desc_t want = chain_query(&net->chain, backward, dnnl_query_weights_md);
    const int weight = chain_in_layout(&net->chain, layer->weight, &want), dx = chain_tensor(&net->chain, x);
    net->flops += convolution_flops(&want, h);
    chain_step(&net->chain, CHAIN_CONVOLUTION, backward,
               (const struct chain_binding[]){
                   {DNNL_ARG_DIFF_DST, dh}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DIFF_SRC, dx}, {0, 0}});
    chain_done(&net->chain, weight);
    return dx;
}

/* Takes dy over; returns dx, or -1 if nobody wants it. */
static int layer_backward(struct resnet_onednn *net, const struct layer *layer, int dy, bool wants_dx)
{
    const int dh = norm_backward(net, layer, dy);
    weights_backward(net, layer, dh);
    const int dx = wants_dx ? data_backward(net, layer, dh) : -1;
    chain_done(&net->chain, dh);
    return dx;
}

/* ---- blocks ---- */

static int block_forward(struct resnet_onednn *net, int x, int64_t width, int64_t stride, bool downsample)
{
    assert(net->blocks < BLOCKS_MAX);
    struct block *block = &net->block[net->blocks++];
    block->x = x;
    block->layer[0] = layer_forward(net, x, width, 1, 1, true);
    block->layer[1] = layer_forward(net, block->layer[0]->y, width, 3, stride, true);
    block->layer[2] = layer_forward(net, block->layer[1]->y, 4 * width, 1, 1, false);
    if (downsample)
        block->layer[3] = layer_forward(net, x, 4 * width, 1, stride, false);
    const int main = block->layer[2]->y;
    block->y = chain_tensor(&net->chain, &net->chain.tensor[main].desc);
    chain_sum(&net->chain, main, downsample ? block->layer[3]->y : x, block->y, true);
    return block->y;
}

/* The block's own ReLU, from dy into a tensor of its own. */
static int relu_backward(struct resnet_onednn *net, int y, int dy)
{
    const dnnl_alg_kind_t kind = dnnl_eltwise_relu_use_dst_for_bwd;
    const dnnl_memory_desc_t desc = net->chain.tensor[y].desc;
    dnnl_eltwise_desc_t forward, backward;
    dnnl_primitive_desc_t hint = chain_describe(
        &net->chain, dnnl_eltwise_forward_desc_init(&forward, dnnl_forward_training, kind, &desc, 0, 0),
        &forward, false, NULL);
    dnnl_primitive_desc_t descriptor =
        chain_describe(&net->chain, dnnl_eltwise_backward_desc_init(&backward, kind, &desc, &desc, 0, 0),
                       &backward, false, hint);
    const int dx = chain_tensor(&net->chain, &desc);
    chain_step(&net->chain, CHAIN_OTHER, descriptor,
               (const struct chain_binding[]){
                   {DNNL_ARG_DST, y}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx}, {0, 0}});
    return dx;
}

/* Both branches begin with the gradient behind the ReLU; the batch norms overwrite theirs, so the second
 * branch masks once more instead of copying. */
static int block_backward(struct resnet_onednn *net, const struct block *block, int dy)
{
    int dx = relu_backward(net, block->y, dy), branch = relu_backward(net, block->y, dy);
    chain_done(&net->chain, dy);
    for (int i = 2; i >= 0; i--)
        branch = layer_backward(net, block->layer[i], branch, true);
    if (block->layer[3] != NULL)
        dx = layer_backward(net, block->layer[3], dx, true);
    chain_sum(&net->chain, branch, dx, dx, false);
    chain_done(&net->chain, branch);
    return dx;
}

/* ---- both ends ---- */

/* Pools of the square kernel; forward and, with the gradient dy, backward. */
struct pool {
    dnnl_primitive_desc_t forward;
    dnnl_alg_kind_t kind;
    dnnl_dims_t kernel, stride, padding;
    int x, y, maxima;
};

static void pool_forward(struct resnet_onednn *net, struct pool *pool, int64_t outputs)
{
    const dnnl_memory_desc_t *x = &net->chain.tensor[pool->x].desc;
    const dnnl_memory_desc_t y =
        chain_layout(4, (const dnnl_dims_t){x->dims[0], x->dims[1], outputs, outputs}, dnnl_format_tag_any);
    dnnl_pooling_desc_t operation;
    pool->forward = chain_describe(&net->chain,
                                   dnnl_pooling_forward_desc_init(&operation, dnnl_forward_training,
                                                                  pool->kind, x, &y, pool->stride,
                                                                  pool->kernel, pool->padding, pool->padding),
                                   &operation, false, NULL);
    const dnnl_memory_desc_t dst = chain_query(&net->chain, pool->forward, dnnl_query_dst_md),
                             maxima = chain_query(&net->chain, pool->forward, dnnl_query_workspace_md);
    pool->y = chain_tensor(&net->chain, &dst);
    pool->maxima = chain_tensor(&net->chain, &maxima);
    const int workspace = pool->kind == dnnl_pooling_max ? DNNL_ARG_WORKSPACE : 0;
    chain_step(&net->chain, CHAIN_OTHER, pool->forward,
               (const struct chain_binding[]){
                   {DNNL_ARG_SRC, pool->x}, {DNNL_ARG_DST, pool->y}, {workspace, pool->maxima}, {0, 0}});
}

static int pool_backward(struct resnet_onednn *net, const struct pool *pool, int dy)
{
    const dnnl_memory_desc_t x = net->chain.tensor[pool->x].desc, *y = &net->chain.tensor[pool->y].desc;
    dnnl_pooling_desc_t operation;
    dnnl_primitive_desc_t backward =
        chain_describe(&net->chain,
                       dnnl_pooling_backward_desc_init(&operation, pool->kind, &x, y, pool->stride,
                                                       pool->kernel, pool->padding, pool->padding),
                       &operation, false, pool->forward);
    const int dx = chain_tensor(&net->chain, &x);
    const int workspace = pool->kind == dnnl_pooling_max ? DNNL_ARG_WORKSPACE : 0;
    chain_step(&net->chain, CHAIN_OTHER, backward,
               (const struct chain_binding[]){
                   {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx}, {workspace, pool->maxima}, {0, 0}});
    chain_done(&net->chain, dy);
    return dx;
}

/* The classifier on pooled images (n, c, 1, 1): forward, a made-up gradient of the logits, backward. */
static int classifier(struct resnet_onednn *net, int x, int64_t classes)
{
    const dnnl_memory_desc_t *src = &net->chain.tensor[x].desc;
    const dnnl_dim_t n = src->dims[0], c = src->dims[1];
    const dnnl_memory_desc_t rows = chain_layout(2, (const dnnl_dims_t){n, c}, dnnl_ab),
                             weight = chain_layout(2, (const dnnl_dims_t){classes, c}, dnnl_ab),
                             weight_t = chain_layout(2, (const dnnl_dims_t){c, classes}, dnnl_ba),
                             bias = chain_layout(1, (const dnnl_dims_t){classes}, dnnl_a),
                             bias_row = chain_layout(2, (const dnnl_dims_t){1, classes}, dnnl_ab),
                             logits = chain_layout(2, (const dnnl_dims_t){n, classes}, dnnl_ab);
    int dw, db;
    const int w = chain_parameter(&net->chain, &weight, 0.02, 0, &dw),
              b = chain_parameter(&net->chain, &bias, 0, 0, &db);
    const int y = chain_tensor(&net->chain, &logits), dy = chain_tensor(&net->chain, &logits);
    const int flat =
        chain_tensor_at(&net->chain, &rows, net->chain.buffer[net->chain.tensor[x].buffer].data, -1);
    const int dx = chain_tensor(&net->chain, src);
    const int dflat =
        chain_tensor_at(&net->chain, &rows, net->chain.buffer[net->chain.tensor[dx].buffer].data, -1);
    float *made_up = net->chain.buffer[net->chain.tensor[dy].buffer].data;
    for (dnnl_dim_t i = 0; made_up != NULL && i < n * classes; i++)
        made_up[i] = (float)(i % 7 - 3) * 0.001F;
    dnnl_matmul_desc_t forward;
    dnnl_inner_product_desc_t product;
    chain_step(
        &net->chain, CHAIN_OTHER,
        chain_describe(&net->chain, dnnl_matmul_desc_init(&forward, &rows, &weight_t, &bias_row, &logits),
                       &forward, false, NULL),
        (const struct chain_binding[]){
            {DNNL_ARG_SRC, flat}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_BIAS, b}, {DNNL_ARG_DST, y}, {0, 0}});
    dnnl_primitive_desc_t hint = chain_describe(
        &net->chain,
        dnnl_inner_product_forward_desc_init(&product, dnnl_forward_training, &rows, &weight, &bias, &logits),
        &product, false, NULL);
    chain_step(&net->chain, CHAIN_OTHER,
               chain_describe(
                   &net->chain,
                   dnnl_inner_product_backward_weights_desc_init(&product, &rows, &weight, &bias, &logits),
                   &product, false, hint),
               (const struct chain_binding[]){{DNNL_ARG_SRC, flat},
                                              {DNNL_ARG_DIFF_DST, dy},
                                              {DNNL_ARG_DIFF_WEIGHTS, dw},
                                              {DNNL_ARG_DIFF_BIAS, db},
                                              {0, 0}});
    chain_step(&net->chain, CHAIN_OTHER,
               chain_describe(&net->chain,
                              dnnl_inner_product_backward_data_desc_init(&product, &rows, &weight, &logits),
                              &product, false, hint),
               (const struct chain_binding[]){
                   {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dflat}, {0, 0}});
    net->flops += 6.0 * (double)(n * c * classes);
    return dx;
}

static void make_chain(struct resnet_onednn *net, int64_t size, int64_t classes)
{
    static const struct {
        int64_t blocks, width, stride;
    } stages[] = {{3, 64, 1}, {4, 128, 2}, {6, 256, 2}, {3, 512, 2}};
    const dnnl_memory_desc_t images =
        chain_layout(4, (const dnnl_dims_t){net->images, 3, size, size}, dnnl_nchw);
    const int input = chain_tensor(&net->chain, &images);
    float *pixels = net->chain.buffer[net->chain.tensor[input].buffer].data;
    for (int64_t i = 0; pixels != NULL && i < (int64_t)net->images * 3 * size * size; i++)
        pixels[i] = (float)(i % 13 - 6) * 0.1F;
    const struct layer *stem = layer_forward(net, input, 64, 7, 2, true);
    struct pool first = {.kind = dnnl_pooling_max, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    first.x = stem->y;
    const int64_t half = (net->chain.tensor[stem->y].desc.dims[2] - 1) / 2 + 1;
    pool_forward(net, &first, half);
    int x = first.y;
    for (int s = 0; s < 4; s++)
        for (int64_t b = 0; b < stages[s].blocks; b++)
            x = block_forward(net, x, stages[s].width, b == 0 ? stages[s].stride : 1, b == 0);
    const int64_t left = net->chain.tensor[x].desc.dims[2];
    struct pool last = {.kind = dnnl_pooling_avg_include_padding, .kernel = {left, left}, .stride = {1, 1}};
    last.x = x;
    pool_forward(net, &last, 1);
    int dx = pool_backward(net, &last, classifier(net, last.y, classes));
    for (uint32_t b = net->blocks; b-- > 0;)
        dx = block_backward(net, &net->block[b], dx);
    layer_backward(net, stem, pool_backward(net, &first, dx), false);
}

enum status resnet_onednn_new(struct resnet_onednn **out, uint32_t images, uint32_t size, uint32_t classes,
                              struct error *error)
{
    struct resnet_onednn *net = calloc(1, sizeof *net);
    if (net == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a chain");
    net->images = images;
    chain_open(&net->chain, PARAMETERS_MAX);
    if (net->chain.status == dnnl_success)
        make_chain(net, size, classes);
    if (net->chain.status != dnnl_success) {
        const int result = (int)net->chain.status;
        resnet_onednn_free(net);
        return error_set(error, result == dnnl_out_of_memory ? STATUS_NO_MEMORY : STATUS_INTERNAL,
                         "oneDNN cannot make a ResNet-50 of %ux3x%ux%u: its status is %d", images, size, size,
                         result);
    }
    *out = net;
    return STATUS_OK;
}

void resnet_onednn_free(struct resnet_onednn *net)
{
    if (net == NULL)
        return;
    chain_close(&net->chain);
    free(net);
}

enum status resnet_onednn_step(struct resnet_onednn *net, enum resnet_onednn_part part, struct error *error)
{
    const bool all = part == RESNET_ONEDNN_ALL;
    const dnnl_status_t status = chain_run(&net->chain, all ? CHAIN_KINDS : CHAIN_CONVOLUTION | CHAIN_NORM);
    if (status != dnnl_success)
        return error_set(error, STATUS_INTERNAL, "oneDNN's status is %d in a step of the chain", (int)status);
    if (all)
        chain_update(&net->chain);
    return STATUS_OK;
}

double resnet_onednn_flops(const struct resnet_onednn *net)
{
    return net->flops;
}
