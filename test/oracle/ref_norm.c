/* The oracle's batch norm, one channel after the other. */
#include "test/oracle/ref_internal.h"

#include <math.h>

/* One channel of an (n, c, h, w) tensor: its planes begin `stride` elements apart. */
struct channel {
    size_t planes, plane, stride, first;
};

static struct channel channel_of(const struct shape *shape, size_t index)
{
    const size_t plane = (size_t)shape->size[2] * shape->size[3];
    return (struct channel){
        .planes = shape->size[0], .plane = plane, .stride = shape->size[1] * plane, .first = index * plane};
}

static double values_in(const struct channel *channel)
{
    return (double)(channel->planes * channel->plane);
}

/* sum_i (a_i - shift) (b_i - shift_b); with b NULL, sum_i (a_i - shift). */
static double channel_sum(const struct channel *channel, const double *a, double shift, const double *b,
                          double shift_b)
{
    double sum = 0;
    for (size_t n = 0; n < channel->planes; n++)
        for (size_t i = 0; i < channel->plane; i++) {
            const size_t at = channel->first + n * channel->stride + i;
            sum += b != NULL ? (a[at] - shift) * (b[at] - shift_b) : a[at] - shift;
        }
    return sum;
}

/* to = (x - shift) factor + offset */
static void channel_affine(const struct channel *channel, double *to, const double *x, double shift,
                           double factor, double offset)
{
    for (size_t n = 0; n < channel->planes; n++)
        for (size_t i = 0; i < channel->plane; i++) {
            const size_t at = channel->first + n * channel->stride + i;
            to[at] = (x[at] - shift) * factor + offset;
        }
}

/* The memory of y, and in training that of the statistics and of what the backward needs: mean and
 * 1 / sqrt(variance + epsilon), each (c). */
static enum status make_outputs(struct op_call *call, struct error *error)
{
    const struct shape channels = SHAPE1(call->in[0]->shape.size[1]);
    enum status status = ref_make(call, call->out[0], error);
    for (int i = 1; i < 3 && call->attributes.training && status == STATUS_OK; i++)
        status = ref_make(call, call->out[i], error);
    for (int i = 0; i < 2 && call->attributes.training && call->keep && status == STATUS_OK; i++)
        status = tensor_new(&call->saved[i], call->arena, channels, DTYPE_F64, NULL, error);
    return status;
}

enum status ref_batch_norm_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct op_attributes *set = &call->attributes;
    const double *x = call->in[0]->data, *weight = call->in[1]->data, *bias = call->in[2]->data;
    enum status status = make_outputs(call, error);
    if (status != STATUS_OK)
        return status;
    for (size_t c = 0; c < call->in[0]->shape.size[1]; c++) {
        const struct channel channel = channel_of(&call->in[0]->shape, c);
        const double values = values_in(&channel);
        double mean, variance;
        if (set->training) {
            mean = channel_sum(&channel, x, 0, NULL, 0) / values;
            const double squares = channel_sum(&channel, x, mean, x, mean);
            variance = squares / values;
            ref_doubles(call->out[1])[c] = mean;
            ref_doubles(call->out[2])[c] = squares / (values - 1);
        } else {
            mean = ref_doubles(call->in[3])[c];
            variance = ref_doubles(call->in[4])[c];
        }
        const double inverse = 1 / sqrt(variance + set->epsilon);
        channel_affine(&channel, call->out[0]->data, x, mean, inverse * weight[c], bias[c]);
        if (set->training && call->keep) {
            ref_doubles(&call->saved[0])[c] = mean;
            ref_doubles(&call->saved[1])[c] = inverse;
        }
    }
    ref_apply_relu(call, call->out[0]);
    return STATUS_OK;
}

/* With x^ = (x - mean) inverse and m values in the channel:
 *     dbias = sum dz     dweight = sum dz x^     dx = weight inverse (dz - dbias / m - x^ dweight / m) */
enum status ref_batch_norm_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const double *x = call->in[0]->data, *weight = call->in[1]->data;
    double *dz, *dx;
    void *scratch;
    enum status status = ref_begin_backward(call, &dz, &scratch, error);
    if (status != STATUS_OK)
        return status;
    dx = ref_doubles(call->din[0]);
    for (size_t c = 0; c < call->in[0]->shape.size[1]; c++) {
        const struct channel channel = channel_of(&call->in[0]->shape, c);
        const double mean = ref_doubles(&call->saved[0])[c], inverse = ref_doubles(&call->saved[1])[c];
        const double dbias = channel_sum(&channel, dz, 0, NULL, 0);
        const double dweight = channel_sum(&channel, dz, 0, x, mean) * inverse;
        if (call->din[1] != NULL)
            ref_doubles(call->din[1])[c] = dweight;
        if (call->din[2] != NULL)
            ref_doubles(call->din[2])[c] = dbias;
        const double slope = inverse * dweight / values_in(&channel);
        for (size_t n = 0; dx != NULL && n < channel.planes; n++)
            for (size_t i = 0; i < channel.plane; i++) {
                const size_t at = channel.first + n * channel.stride + i;
                dx[at] =
                    weight[c] * inverse * (dz[at] - dbias / values_in(&channel) - (x[at] - mean) * slope);
            }
    }
    arena_release(call->arena, scratch);
    return STATUS_OK;
}
