/* ResNet: layers are registered in torchvision's order by resnet_new, and run in the same order by
 * resnet_forward. Everything belongs to the thread that has the params.
 *
 * A layer is a convolution and its batch norm; the ReLU behind them is the batch norm's own, or that of the
 * addition which ends a block. Between two layers there is nothing else, so that a backend sees each as one
 * call. In inference each tensor is dropped as soon as its last reader has run. */
#include "worker/model/resnet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STAGES = 4, BLOCKS_MAX = 16, LAYERS_MAX = 1 + 3 * BLOCKS_MAX + STAGES, NAME_BYTES = 96 };

static const double EPSILON = 1e-5;

struct layer {
    uint32_t stride, padding;
    struct parameter *convolution;                                     // (outputs, inputs, kernel, kernel)
    struct parameter *weight, *bias, *running_mean, *running_variance; // (outputs) each
};

struct block {
    uint32_t layers;
    struct layer *layer;      // the first of them
    struct layer *downsample; // NULL: the block's input is added as it is
};

struct resnet {
    uint32_t layers, blocks;
    struct layer layer[LAYERS_MAX]; // in the order of registration: the stem, then block by block
    struct block block[BLOCKS_MAX];
    struct parameter *fc_weight, *fc_bias;
    struct tensor statistics; // of the last training forward, in the tape's arena: the buffers' slab
};

/* The state of a registration. After the first failure every call does nothing. */
struct builder {
    struct resnet *resnet;
    struct params *params;
    enum status status;
    struct error *error;
};

static const struct init ZERO = {INIT_CONSTANT, 0}, ONE = {INIT_CONSTANT, 1};

/* ---- registration ---- */

/* `prefix` is empty or ends with a dot. */
static struct parameter *add_parameter(struct builder *builder, const char *prefix, const char *module,
                                       const char *name, enum parameter_kind kind, struct shape shape,
                                       struct init init)
{
    struct parameter *parameter = NULL;
    char full[NAME_BYTES];
    if (builder->status != STATUS_OK)
        return NULL;
    snprintf(full, sizeof full, "%s%s.%s", prefix, module, name);
    builder->status = params_add(builder->params, full, kind, shape, init, &parameter, builder->error);
    return parameter;
}

static struct layer *add_layer(struct builder *builder, const char *prefix, const char *convolution,
                               const char *norm, struct shape shape, uint32_t stride)
{
    struct layer *layer = &builder->resnet->layer[builder->resnet->layers++];
    const struct shape channels = SHAPE1(shape.size[0]);
    const double fan_out = (double)shape.size[0] * shape.size[2] * shape.size[3];
    const struct init normal = {INIT_NORMAL, sqrt(2 / fan_out)};
    layer->stride = stride;
    layer->padding = shape.size[2] / 2;
    layer->convolution =
        add_parameter(builder, prefix, convolution, "weight", PARAMETER_TRAINED, shape, normal);
    layer->weight = add_parameter(builder, prefix, norm, "weight", PARAMETER_TRAINED, channels, ONE);
    layer->bias = add_parameter(builder, prefix, norm, "bias", PARAMETER_TRAINED, channels, ZERO);
    layer->running_mean =
        add_parameter(builder, prefix, norm, "running_mean", PARAMETER_BUFFER, channels, ZERO);
    layer->running_variance =
        add_parameter(builder, prefix, norm, "running_var", PARAMETER_BUFFER, channels, ONE);
    add_parameter(builder, prefix, norm, "num_batches_tracked", PARAMETER_COUNTER, SHAPE0(), ZERO);
    return layer;
}

/* Two 3x3 of `width` channels, or 1x1, 3x3, 1x1 that end in four times as many. Returns the block's outputs.
 */
static uint32_t add_block(struct builder *builder, const char *prefix, bool bottleneck, uint32_t inputs,
                          uint32_t width, uint32_t stride)
{
    const uint32_t outputs = bottleneck ? 4 * width : width;
    struct block *block = &builder->resnet->block[builder->resnet->blocks++];
    if (bottleneck) {
        block->layers = 3;
        block->layer = add_layer(builder, prefix, "conv1", "bn1", SHAPE4(width, inputs, 1, 1), 1);
        add_layer(builder, prefix, "conv2", "bn2", SHAPE4(width, width, 3, 3), stride);
        add_layer(builder, prefix, "conv3", "bn3", SHAPE4(outputs, width, 1, 1), 1);
    } else {
        block->layers = 2;
        block->layer = add_layer(builder, prefix, "conv1", "bn1", SHAPE4(width, inputs, 3, 3), stride);
        add_layer(builder, prefix, "conv2", "bn2", SHAPE4(width, width, 3, 3), 1);
    }
    if (stride != 1 || inputs != outputs)
        block->downsample =
            add_layer(builder, prefix, "downsample.0", "downsample.1", SHAPE4(outputs, inputs, 1, 1), stride);
    return outputs;
}

static void add_model(struct builder *builder, const struct resnet_config *config)
{
    static const uint32_t basic[STAGES] = {2, 2, 2, 2}, deep[STAGES] = {3, 4, 6, 3};
    const bool bottleneck = config->depth == 50;
    struct resnet *resnet = builder->resnet;
    uint32_t channels = config->width;
    add_layer(builder, "", "conv1", "bn1", SHAPE4(channels, config->channels, 7, 7), 2);
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        for (uint32_t i = 0; i < (bottleneck ? deep : basic)[stage]; i++) {
            char prefix[NAME_BYTES / 4];
            snprintf(prefix, sizeof prefix, "layer%u.%u.", stage + 1, i);
            channels = add_block(builder, prefix, bottleneck, channels, config->width << stage,
                                 stage > 0 && i == 0 ? 2 : 1);
        }
    }
    const struct init uniform = {INIT_UNIFORM, 1 / sqrt(channels)};
    resnet->fc_weight = add_parameter(builder, "", "fc", "weight", PARAMETER_TRAINED,
                                      SHAPE2(config->classes, channels), uniform);
    resnet->fc_bias =
        add_parameter(builder, "", "fc", "bias", PARAMETER_TRAINED, SHAPE1(config->classes), uniform);
}

enum status resnet_new(struct resnet **out, const struct resnet_config *config, struct params *params,
                       struct error *error)
{
    struct resnet *resnet = calloc(1, sizeof *resnet);
    struct builder builder = {.resnet = resnet, .params = params, .error = error};
    if (resnet == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a ResNet-%u", config->depth);
    add_model(&builder, config);
    if (builder.status != STATUS_OK) {
        resnet_free(resnet);
        return builder.status;
    }
    *out = resnet;
    return STATUS_OK;
}

void resnet_free(struct resnet *resnet)
{
    free(resnet);
}

/* ---- forward ---- */

/* Takes the memory of the batch's statistics, which is zero in the gaps between them. */
static enum status take_statistics(struct resnet *resnet, struct tape *tape)
{
    struct backend *backend = tape_backend(tape);
    struct error error = {0};
    const uint32_t elements = (uint32_t)params_buffer_elements(resnet->layer[0].running_mean->params);
    enum status status = tensor_new(&resnet->statistics, tape_arena(tape), SHAPE1(elements),
                                    backend->ops->dtype, "batch statistics", &error);
    if (status == STATUS_OK)
        status = backend_fill(backend, &resnet->statistics, 0, &error);
    if (status != STATUS_OK)
        tape_fail(tape, status, "%s", error.text);
    return status;
}

/* Where a running statistic stands in its slab, the batch's own stands in `slab`. */
static struct tensor statistic_in(const struct tensor *slab, const struct parameter *running)
{
    return tensor_part(slab, running->offset, running->tensor.shape);
}

/* `statistics`: the slab for those of the batch. NULL: outside of training. */
static struct variable *layer_forward(struct layer *layer, struct tape *tape, struct variable *x,
                                      const struct tensor *statistics, bool relu)
{
    struct batch_statistics batch;
    if (statistics != NULL)
        batch = (struct batch_statistics){statistic_in(statistics, layer->running_mean),
                                          statistic_in(statistics, layer->running_variance)};
    struct variable *h =
        tape_conv2d(tape, x, tape_parameter(tape, layer->convolution), NULL, layer->stride, layer->padding);
    struct variable *y =
        tape_batch_norm(tape, h, tape_parameter(tape, layer->weight), tape_parameter(tape, layer->bias),
                        tape_constant(tape, &layer->running_mean->tensor),
                        tape_constant(tape, &layer->running_variance->tensor), statistics != NULL, EPSILON,
                        relu, statistics != NULL ? &batch : NULL);
    tape_drop(tape, h);
    return y;
}

/* Drops x, which nothing reads after the block. */
static struct variable *block_forward(struct block *block, struct tape *tape, struct variable *x,
                                      const struct tensor *statistics)
{
    struct variable *h = x;
    for (uint32_t i = 0; i < block->layers; i++) {
        struct variable *y = layer_forward(&block->layer[i], tape, h, statistics, i + 1 < block->layers);
        if (i > 0)
            tape_drop(tape, h);
        h = y;
    }
    struct variable *shortcut = x;
    if (block->downsample != NULL) {
        shortcut = layer_forward(block->downsample, tape, x, statistics, false);
        tape_drop(tape, x);
    }
    struct variable *y = tape_add(tape, h, shortcut, true);
    tape_drop(tape, h);
    tape_drop(tape, shortcut);
    return y;
}

struct variable *resnet_forward(struct resnet *resnet, struct tape *tape, struct variable *images,
                                bool training)
{
    const struct tensor *statistics = training ? &resnet->statistics : NULL;
    if (training && take_statistics(resnet, tape) != STATUS_OK)
        return NULL;
    struct variable *h = layer_forward(&resnet->layer[0], tape, images, statistics, true);
    struct variable *x = tape_max_pool(tape, h, 3, 2, 1);
    tape_drop(tape, h);
    for (uint32_t i = 0; i < resnet->blocks; i++)
        x = block_forward(&resnet->block[i], tape, x, statistics);
    struct variable *pooled = tape_global_avg_pool(tape, x);
    tape_drop(tape, x);
    struct variable *logits = tape_linear(tape, pooled, tape_parameter(tape, resnet->fc_weight),
                                          tape_parameter(tape, resnet->fc_bias));
    tape_drop(tape, pooled);
    return logits;
}

/* ---- running statistics ---- */

enum status resnet_read_statistics(struct resnet *resnet, struct tape *tape, float *statistics,
                                   struct error *error)
{
    if (tape_status(tape, NULL) == STATUS_OK)
        tape_read_later(tape, tape_constant(tape, &resnet->statistics), DTYPE_F32, statistics);
    return tape_status(tape, error);
}
