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

enum { STAGES = 4, BLOCK_LAYERS_MAX = 3, BLOCKS_MAX = 16, NAME_BYTES = 96 };
enum { WIDTH_MAX = 1 << 16 }; // so that the last stage's outputs, 32 times as many, do not overflow

static const double EPSILON = 1e-5;

struct layer {
    uint32_t stride, padding;
    struct parameter *convolution;                                     // (outputs, inputs, kernel, kernel)
    struct parameter *weight, *bias, *running_mean, *running_variance; // (outputs) each
    struct batch_statistics statistics; // of the last training forward; NULL: none that was not read yet
};

struct block {
    uint32_t layers;
    struct layer layer[BLOCK_LAYERS_MAX];
    bool has_downsample; // otherwise the block's input is added as it is
    struct layer downsample;
};

struct resnet {
    struct layer stem;
    uint32_t blocks;
    struct block block[BLOCKS_MAX];
    struct parameter *fc_weight, *fc_bias;
};

/* Where registration stands. The first failure sticks, and everything after it does nothing. */
struct builder {
    struct params *params;
    enum status status;
    struct error *error;
};

static const struct init ZERO = {INIT_CONSTANT, 0}, ONE = {INIT_CONSTANT, 1};

/* ---- registration ---- */

static struct parameter *add_parameter(struct builder *builder, const char *prefix, const char *name,
                                       enum parameter_kind kind, struct shape shape, struct init init)
{
    struct parameter *parameter = NULL;
    char full[NAME_BYTES];
    if (builder->status != STATUS_OK)
        return NULL;
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    builder->status = params_add(builder->params, full, kind, shape, init, &parameter, builder->error);
    return parameter;
}

static void add_layer(struct builder *builder, struct layer *layer, const char *convolution, const char *norm,
                      struct shape shape, uint32_t stride)
{
    const struct shape channels = SHAPE1(shape.size[0]);
    const double fan_out = (double)shape.size[0] * shape.size[2] * shape.size[3];
    layer->stride = stride;
    layer->padding = shape.size[2] / 2;
    layer->convolution = add_parameter(builder, convolution, "weight", PARAMETER_TRAINED, shape,
                                       (struct init){INIT_NORMAL, sqrt(2 / fan_out)});
    layer->weight = add_parameter(builder, norm, "weight", PARAMETER_TRAINED, channels, ONE);
    layer->bias = add_parameter(builder, norm, "bias", PARAMETER_TRAINED, channels, ZERO);
    layer->running_mean = add_parameter(builder, norm, "running_mean", PARAMETER_BUFFER, channels, ZERO);
    layer->running_variance = add_parameter(builder, norm, "running_var", PARAMETER_BUFFER, channels, ONE);
    add_parameter(builder, norm, "num_batches_tracked", PARAMETER_COUNTER, SHAPE0(), ZERO);
}

/* Layer `number` (from 1 on) of the block whose name is `prefix`. */
static void add_block_layer(struct builder *builder, struct block *block, const char *prefix,
                            struct shape shape, uint32_t stride)
{
    char convolution[NAME_BYTES / 2], norm[NAME_BYTES / 2];
    const uint32_t number = ++block->layers;
    snprintf(convolution, sizeof convolution, "%s.conv%u", prefix, number);
    snprintf(norm, sizeof norm, "%s.bn%u", prefix, number);
    add_layer(builder, &block->layer[number - 1], convolution, norm, shape, stride);
}

static void add_downsample(struct builder *builder, struct block *block, const char *prefix, uint32_t outputs,
                           uint32_t inputs, uint32_t stride)
{
    char convolution[NAME_BYTES / 2], norm[NAME_BYTES / 2];
    snprintf(convolution, sizeof convolution, "%s.downsample.0", prefix);
    snprintf(norm, sizeof norm, "%s.downsample.1", prefix);
    block->has_downsample = true;
    add_layer(builder, &block->downsample, convolution, norm, SHAPE4(outputs, inputs, 1, 1), stride);
}

/* Two 3x3 of `width` channels, or 1x1, 3x3, 1x1 that end in four times as many. Returns the block's outputs.
 */
static uint32_t add_block(struct builder *builder, struct block *block, const char *prefix, bool bottleneck,
                          uint32_t inputs, uint32_t width, uint32_t stride)
{
    const uint32_t outputs = bottleneck ? 4 * width : width;
    if (bottleneck) {
        add_block_layer(builder, block, prefix, SHAPE4(width, inputs, 1, 1), 1);
        add_block_layer(builder, block, prefix, SHAPE4(width, width, 3, 3), stride);
        add_block_layer(builder, block, prefix, SHAPE4(outputs, width, 1, 1), 1);
    } else {
        add_block_layer(builder, block, prefix, SHAPE4(width, inputs, 3, 3), stride);
        add_block_layer(builder, block, prefix, SHAPE4(width, width, 3, 3), 1);
    }
    if (stride != 1 || inputs != outputs)
        add_downsample(builder, block, prefix, outputs, inputs, stride);
    return outputs;
}

static void add_model(struct builder *builder, struct resnet *resnet, const struct resnet_config *config)
{
    static const uint32_t basic[STAGES] = {2, 2, 2, 2}, deep[STAGES] = {3, 4, 6, 3};
    const bool bottleneck = config->depth == 50;
    uint32_t channels = config->width;
    add_layer(builder, &resnet->stem, "conv1", "bn1", SHAPE4(channels, config->channels, 7, 7), 2);
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        for (uint32_t i = 0; i < (bottleneck ? deep : basic)[stage]; i++) {
            char prefix[NAME_BYTES / 4];
            snprintf(prefix, sizeof prefix, "layer%u.%u", stage + 1, i);
            channels = add_block(builder, &resnet->block[resnet->blocks++], prefix, bottleneck, channels,
                                 config->width << stage, stage > 0 && i == 0 ? 2 : 1);
        }
    }
    const struct init uniform = {INIT_UNIFORM, 1 / sqrt(channels)};
    resnet->fc_weight =
        add_parameter(builder, "fc", "weight", PARAMETER_TRAINED, SHAPE2(config->classes, channels), uniform);
    resnet->fc_bias =
        add_parameter(builder, "fc", "bias", PARAMETER_TRAINED, SHAPE1(config->classes), uniform);
}

static enum status config_check(const struct resnet_config *config, struct error *error)
{
    if (config->depth != 18 && config->depth != 50)
        return error_set(error, STATUS_INVALID, "a ResNet has a depth of 18 or 50, got %u", config->depth);
    if (config->channels == 0)
        return error_set(error, STATUS_INVALID, "a ResNet's images have at least 1 channel, got 0");
    if (config->classes == 0)
        return error_set(error, STATUS_INVALID, "a ResNet has at least 1 class, got 0");
    if (config->width == 0 || config->width > WIDTH_MAX)
        return error_set(error, STATUS_INVALID, "a ResNet's first stage has 1..%d channels, got %u",
                         WIDTH_MAX, config->width);
    return STATUS_OK;
}

enum status resnet_new(struct resnet **out, const struct resnet_config *config, struct params *params,
                       struct error *error)
{
    struct builder builder = {.params = params, .status = config_check(config, error), .error = error};
    if (builder.status != STATUS_OK)
        return builder.status;
    struct resnet *resnet = calloc(1, sizeof *resnet);
    if (resnet == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a ResNet-%u", config->depth);
    add_model(&builder, resnet, config);
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

static struct variable *layer_forward(struct layer *layer, struct tape *tape, struct variable *x,
                                      bool training, bool relu)
{
    layer->statistics = (struct batch_statistics){0};
    struct variable *h = tape_conv2d(tape, x, tape_parameter(tape, layer->convolution), NULL, layer->stride,
                                     layer->padding, false);
    struct variable *y =
        tape_batch_norm(tape, h, tape_parameter(tape, layer->weight), tape_parameter(tape, layer->bias),
                        tape_constant(tape, &layer->running_mean->tensor),
                        tape_constant(tape, &layer->running_variance->tensor), training, EPSILON, relu,
                        training ? &layer->statistics : NULL);
    tape_drop(tape, h);
    return y;
}

/* Takes x over: nobody reads it afterwards. */
static struct variable *block_forward(struct block *block, struct tape *tape, struct variable *x,
                                      bool training)
{
    struct variable *h = x;
    for (uint32_t i = 0; i < block->layers; i++) {
        struct variable *y = layer_forward(&block->layer[i], tape, h, training, i + 1 < block->layers);
        if (i > 0)
            tape_drop(tape, h);
        h = y;
    }
    struct variable *shortcut = x;
    if (block->has_downsample) {
        shortcut = layer_forward(&block->downsample, tape, x, training, false);
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
    struct variable *h = layer_forward(&resnet->stem, tape, images, training, true);
    struct variable *x = tape_max_pool(tape, h, 3, 2, 1);
    tape_drop(tape, h);
    for (uint32_t i = 0; i < resnet->blocks; i++)
        x = block_forward(&resnet->block[i], tape, x, training);
    struct variable *pooled = tape_global_avg_pool(tape, x);
    tape_drop(tape, x);
    struct variable *logits = tape_linear(tape, pooled, tape_parameter(tape, resnet->fc_weight),
                                          tape_parameter(tape, resnet->fc_bias), false);
    tape_drop(tape, pooled);
    return logits;
}

/* ---- running statistics ---- */

/* Uses up the layer's statistics. */
static enum status read_layer(struct layer *layer, struct backend *backend, float *statistics,
                              struct error *error)
{
    const struct batch_statistics of_batch = layer->statistics;
    layer->statistics = (struct batch_statistics){0};
    if (of_batch.mean == NULL)
        return error_set(error, STATUS_INVALID, "%s: no training forward has left statistics to move it by",
                         layer->running_mean->name);
    enum status status = backend_download(backend, variable_tensor(of_batch.mean), DTYPE_F32,
                                          statistics + layer->running_mean->offset, error);
    if (status == STATUS_OK)
        status = backend_download(backend, variable_tensor(of_batch.variance), DTYPE_F32,
                                  statistics + layer->running_variance->offset, error);
    return status;
}

static enum status read_block(struct block *block, struct backend *backend, float *statistics,
                              struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < block->layers && status == STATUS_OK; i++)
        status = read_layer(&block->layer[i], backend, statistics, error);
    if (status == STATUS_OK && block->has_downsample)
        status = read_layer(&block->downsample, backend, statistics, error);
    return status;
}

enum status resnet_read_statistics(struct resnet *resnet, struct tape *tape, float *statistics,
                                   struct error *error)
{
    struct backend *backend = tape_backend(tape);
    enum status status = tape_status(tape, error);
    if (status == STATUS_OK)
        status = read_layer(&resnet->stem, backend, statistics, error);
    for (uint32_t i = 0; i < resnet->blocks && status == STATUS_OK; i++)
        status = read_block(&resnet->block[i], backend, statistics, error);
    return status;
}
