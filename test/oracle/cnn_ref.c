/* Layer by layer, one number at a time. */
#include "test/oracle/cnn_ref.h"

#include "test/oracle/dense_ref.h"
#include "test/values.h"

#include <stdlib.h>
#include <string.h>

/* A stack of planes (channels, height, width); frees what it replaces. */
struct planes {
    uint32_t channels, height, width;
    double *at;
};

static struct planes planes_new(uint32_t channels, uint32_t height, uint32_t width)
{
    return (struct planes){channels, height, width,
                           values_memory((size_t)channels * height * width, sizeof(double))};
}

static double relu(double x)
{
    return x > 0 ? x : 0;
}

/* One element of a convolution's output. */
static double tap(const struct planes *x, const double *weight, uint32_t size, uint32_t row, uint32_t column)
{
    double sum = 0;
    for (uint32_t c = 0; c < x->channels; c++)
        for (uint32_t i = 0; i < size; i++)
            for (uint32_t j = 0; j < size; j++)
                sum += weight[(c * size + i) * size + j] *
                       x->at[((size_t)c * x->height + row + i) * x->width + column + j];
    return sum;
}

/* A convolution with its bias and ReLU. Moves *parameters behind its own. */
static struct planes convolve(struct planes x, const double **parameters, uint32_t outputs, uint32_t size,
                              uint32_t stride)
{
    struct planes y = planes_new(outputs, (x.height - size) / stride + 1, (x.width - size) / stride + 1);
    const double *weight = *parameters;
    const size_t each = (size_t)x.channels * size * size;
    const double *bias = weight + outputs * each;
    double *to = y.at;
    for (uint32_t o = 0; o < outputs; o++)
        for (uint32_t row = 0; row < y.height; row++)
            for (uint32_t column = 0; column < y.width; column++)
                *to++ = relu(bias[o] + tap(&x, weight + o * each, size, row * stride, column * stride));
    *parameters = bias + outputs;
    free(x.at);
    return y;
}

/* A linear layer with its bias; its planes have one element. */
static struct planes connect(struct planes x, const double **parameters, uint32_t outputs)
{
    const size_t inputs = (size_t)x.channels * x.height * x.width;
    struct planes y = planes_new(outputs, 1, 1);
    const double *weight = *parameters, *bias = weight + outputs * inputs;
    for (uint32_t o = 0; o < outputs; o++) {
        y.at[o] = bias[o];
        for (size_t i = 0; i < inputs; i++)
            y.at[o] += weight[o * inputs + i] * x.at[i];
    }
    *parameters = bias + outputs;
    free(x.at);
    return y;
}

static struct planes read_image(const struct policy_config *config, const void *observations, uint32_t row)
{
    const uint32_t *size = config->observation.shape;
    struct planes image = planes_new(size[2], size[0], size[1]);
    const size_t begin = (size_t)row * size[0] * size[1] * size[2];
    for (uint32_t y = 0; y < size[0]; y++)
        for (uint32_t x = 0; x < size[1]; x++)
            for (uint32_t c = 0; c < size[2]; c++) {
                const size_t from = begin + ((size_t)y * size[1] + x) * size[2] + c;
                image.at[((size_t)c * size[0] + y) * size[1] + x] =
                    config->observation.dtype == ENVIRONMENT_U8
                        ? ((const uint8_t *)observations)[from] / 255.0
                        : (double)((const float *)observations)[from];
            }
    return image;
}

/* The head as a network without layers whose bias is the outputs. */
static double head_log_probability(const struct dense_shape *shape, const double *log_std,
                                   const double *outputs, const struct policy_rows *rows, uint32_t row)
{
    const uint32_t count = dense_outputs(shape), stds = shape->gaussian ? shape->components : 0;
    const float *zeros = values_memory(row + 1, sizeof *zeros);
    double *parameters = values_memory(stds + 2 * (size_t)count, sizeof *parameters);
    struct dense_ref_row *found = values_memory(1, sizeof *found);
    memcpy(parameters, log_std, stds * sizeof *parameters);
    memcpy(parameters + stds + count, outputs, count * sizeof *parameters);
    const struct dense_batch batch = {.count = 1,
                                      .observations = zeros,
                                      .mask = rows->allowed,
                                      .choices = shape->gaussian ? NULL : rows->actions,
                                      .actions = shape->gaussian ? rows->actions : NULL};
    dense_ref_evaluate(shape, parameters, &batch, row, found);
    const double log_probability = found->log_probability;
    free((void *)(uintptr_t)zeros);
    free(parameters);
    free(found);
    return log_probability;
}

double cnn_ref_log_probability(const struct policy_config *config, const double *parameters,
                               const struct policy_rows *rows, uint32_t row)
{
    struct dense_shape head = policy_dense_shape(config);
    const double *log_std = parameters;
    const uint32_t outputs = dense_outputs(&head);
    head.inputs = 1;
    parameters += head.gaussian ? head.components : 0;
    struct planes x = read_image(config, rows->observations, row);
    x = convolve(x, &parameters, 32, 8, 4);
    x = convolve(x, &parameters, 64, 4, 2);
    x = convolve(x, &parameters, 64, 3, 1);
    x = connect(x, &parameters, POLICY_CNN_FEATURES);
    for (uint32_t i = 0; i < POLICY_CNN_FEATURES; i++)
        x.at[i] = relu(x.at[i]);
    x = connect(x, &parameters, outputs);
    const double log_probability = head_log_probability(&head, log_std, x.at, rows, row);
    free(x.at);
    return log_probability;
}
