/* The work of one thread in each of our own GPU kernels, as plain functions.
 *
 * A kernel of a .cu file computes its thread's number and calls one of these. So gcc compiles the same
 * arithmetic as C, and a test runs it on the CPU against test/oracle
 * (test/kernels/cuda/test_cuda_elements.c). Pure; the caller bounds the indices.
 *
 * Nothing is contracted to an fma on either side (-fmad=false, -ffp-contract=off), and division and square
 * root are correctly rounded on both, so that draws, Adam, SGD and the order of sums give the same bits.
 * expf, logf and tanhf are each side's own. */
#ifndef KERNELS_CUDA_ELEMENTS_H
#define KERNELS_CUDA_ELEMENTS_H

#include "kernels/adam.h"
#include "kernels/base/rng.h"

#include <Random123/philox.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ELEMENT static inline __host__ __device__
#else
#define ELEMENT static inline
#endif

/* ---- element by element ---- */

/* A NaN stays, as PyTorch has it. */
ELEMENT float element_relu(float x)
{
    return x < 0 ? 0 : x;
}

/* The gradient at 0 is 0; y is relu's output, which is above 0 where its input was. */
ELEMENT float element_relu_backward(float y, float dy)
{
    return y > 0 ? dy : 0;
}

ELEMENT float element_tanh_backward(float y, float dy)
{
    return dy * (1 - y * y);
}

/* The bias of a convolution, where cuDNN does not fuse it: element i of (n, channels, plane). */
ELEMENT float element_bias(float x, const float *bias, size_t i, uint32_t channels, uint32_t plane)
{
    return x + bias[i / plane % channels];
}

/* ---- draws (kernels/op.h, "Draws") ---- */

/* kernels/base/rng.h's rng_block, where a GPU can call it. word: (environment, step, episode). */
ELEMENT void element_philox(uint64_t seed, const uint32_t word[3], uint32_t stream, uint32_t block,
                            uint32_t drawn[4])
{
    philox4x32_ctr_t counter = {{stream << RNG_STREAM_SHIFT | block, word[0], word[1], word[2]}};
    philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    philox4x32_ctr_t result = philox4x32(counter, key);
    for (int i = 0; i < 4; i++)
        drawn[i] = result.v[i];
}

enum { ELEMENT_GROUP = 128 }; /* elements that 16 Philox blocks draw for */

/* Philox blocks that draw for `width` elements. */
ELEMENT uint32_t element_dropout_blocks(uint32_t width)
{
    return (width + ELEMENT_GROUP - 1) / ELEMENT_GROUP * 16;
}

/* round(65536 p), at which an element's 16 bits begin to keep it. */
ELEMENT uint32_t element_dropout_threshold(double p)
{
    return (uint32_t)lrint(65536 * p);
}

/* The element for which half v of a block draws. */
ELEMENT uint32_t element_dropout_index(uint32_t block, uint32_t v)
{
    return block / 16 * ELEMENT_GROUP + 16 * v + block % 16;
}

/* Bit v: element_dropout_index(block, v) is kept. */
ELEMENT uint32_t element_keep_bits(uint64_t seed, const uint32_t word[3], uint32_t block, uint32_t threshold)
{
    uint32_t drawn[4], bits = 0;
    element_philox(seed, word, RNG_DROPOUT, block, drawn);
    for (uint32_t v = 0; v < 8; v++)
        bits |= (uint32_t)((drawn[v / 2] >> 16 * (v % 2) & 0xffff) >= threshold) << v;
    return bits;
}

struct element_dropout {
    uint64_t seed;
    uint32_t word[3];    /* where `rows` is NULL */
    const int32_t *rows; /* (R, 3) or NULL */
    uint32_t width;      /* elements of a row; of the whole tensor where `rows` is NULL */
    uint32_t threshold;
    float scale; /* 1 / (1 - p) */
    bool relu;   /* of x, before the mask */
};

/* Thread i of R * element_dropout_blocks(width): the up to 8 elements for which one block draws. The gradient
 * is the same function of the output's gradient: the mask is drawn again. */
ELEMENT void element_drop(const struct element_dropout *d, size_t i, const float *x, float *y)
{
    const uint32_t blocks = element_dropout_blocks(d->width), block = (uint32_t)(i % blocks);
    const size_t row = i / blocks;
    uint32_t word[3];
    for (int k = 0; k < 3; k++)
        word[k] = d->rows != NULL ? (uint32_t)d->rows[3 * row + k] : d->word[k];
    const uint32_t bits = element_keep_bits(d->seed, word, block, d->threshold);
    for (uint32_t v = 0; v < 8; v++) {
        const uint32_t j = element_dropout_index(block, v);
        if (j >= d->width)
            continue;
        const float from = x[row * d->width + j];
        y[row * d->width + j] = bits >> v & 1 ? (d->relu ? element_relu(from) : from) * d->scale : 0;
    }
}

/* The policy's action for one row, by the softmax of z (classes): the smallest a with u < P(0) + … + P(a),
 * else the last. row: (environment, step, episode). */
ELEMENT uint32_t element_policy_action(uint64_t seed, const int32_t *row, const float *z, uint32_t classes)
{
    const uint32_t word[3] = {(uint32_t)row[0], (uint32_t)row[1], (uint32_t)row[2]};
    uint32_t drawn[4], action = 0;
    float highest = z[0], total = 0;
    for (uint32_t a = 1; a < classes; a++)
        highest = fmaxf(highest, z[a]);
    for (uint32_t a = 0; a < classes; a++)
        total += expf(z[a] - highest);
    element_philox(seed, word, RNG_ACTION, 0, drawn);
    const float uniform = (float)(drawn[0] >> 8) * 0x1p-24f;
    float cumulated = expf(z[0] - highest) / total;
    while (action + 1 < classes && !(uniform < cumulated))
        cumulated += expf(z[++action] - highest) / total;
    return action;
}

/* ---- sums ----
 *
 * Lane `lane` of `lanes` takes every lanes-th term, ascending; the lanes are added in a tree. */

/* One term of a sum; c may be NULL. */
enum element_term {
    ELEMENT_PRODUCT,    /* x c, or x */
    ELEMENT_DIFFERENCE, /* (x - c)^2 */
    ELEMENT_SQUARE,     /* x^2 */
};

ELEMENT double element_sum_lane(enum element_term term, const float *x, const float *c, size_t count,
                                size_t lane, size_t lanes)
{
    double sum = 0;
    for (size_t i = lane; i < count; i += lanes) {
        double value = (double)x[i];
        if (term == ELEMENT_SQUARE)
            value = value * value;
        else if (term == ELEMENT_DIFFERENCE)
            value = (value - (double)c[i]) * (value - (double)c[i]);
        else if (c != NULL)
            value = value * (double)c[i];
        sum += value;
    }
    return sum;
}

/* Gradients of a sum and of a mean of squares, by the scalar's gradient dy. */
ELEMENT float element_sum_backward(const float *c, float dy, float scale, size_t i)
{
    return dy * scale * (c != NULL ? c[i] : 1.0f);
}

ELEMENT float element_mse_backward(const float *x, const float *target, float dy, float scale, size_t i)
{
    return dy * scale * (x[i] - target[i]);
}

/* The first index of the lane whose element is not finite, or SIZE_MAX. */
ELEMENT size_t element_not_finite_lane(const float *x, size_t count, size_t lane, size_t lanes)
{
    for (size_t i = lane; i < count; i += lanes)
        if (!(fabsf(x[i]) <= 3.40282347e38f))
            return i;
    return SIZE_MAX;
}

/* ---- batch norm ----
 *
 * A block computes one channel; its lanes take every lanes-th of the channel's values. */

/* Images (n, channels, plane); a channel has `values` = n plane. */
struct element_channels {
    uint32_t channels, plane, values;
};

/* Where a lane stands: value i of the channel, in column `column` of a plane, at `at` in the tensor. */
struct element_walk {
    uint32_t i, column;
    size_t at;
};

ELEMENT struct element_walk element_walk_begin(const struct element_channels *s, uint32_t channel,
                                               uint32_t lane)
{
    struct element_walk walk;
    walk.i = lane;
    walk.column = lane % s->plane;
    walk.at = ((size_t)(lane / s->plane) * s->channels + channel) * s->plane + walk.column;
    return walk;
}

/* Without a division of its own: a compiler takes those by `lanes` out of the loop. */
ELEMENT void element_walk_on(const struct element_channels *s, struct element_walk *walk, uint32_t lanes)
{
    walk->i += lanes;
    walk->column += lanes % s->plane;
    walk->at += (size_t)(lanes / s->plane) * s->channels * s->plane + lanes % s->plane;
    if (walk->column >= s->plane) {
        walk->column -= s->plane;
        walk->at += (size_t)(s->channels - 1) * s->plane;
    }
}

struct element_sums {
    double first, second;
};

ELEMENT void element_sums_add(struct element_sums *to, const struct element_sums *from)
{
    to->first += from->first;
    to->second += from->second;
}

/* The sums of x - shift and of its square. The shift is the channel's first value, so one pass is exact
 * enough: cancellation loses at most log2(values + 1) bits of a double. */
ELEMENT struct element_sums element_norm_lane(const struct element_channels *s, const float *x,
                                              uint32_t channel, uint32_t lane, uint32_t lanes)
{
    const double shift = (double)x[(size_t)channel * s->plane];
    struct element_sums sums = {0, 0};
    for (struct element_walk w = element_walk_begin(s, channel, lane); w.i < s->values;
         element_walk_on(s, &w, lanes)) {
        const double value = (double)x[w.at] - shift;
        sums.first += value;
        sums.second += value * value;
    }
    return sums;
}

/* How a channel is normalized: (x - mean) inverse weight + bias. */
struct element_norm {
    float mean, inverse; /* of the standard deviation, epsilon included */
};

/* By the running statistics. */
ELEMENT struct element_norm element_norm_running(float mean, float variance, double epsilon)
{
    struct element_norm norm;
    norm.mean = mean;
    norm.inverse = (float)(1 / sqrt((double)variance + epsilon));
    return norm;
}

/* By the sums of all lanes. *mean and *variance, the unbiased one, are the operation's outputs. */
ELEMENT struct element_norm element_norm_of(const struct element_channels *s, const float *x,
                                            uint32_t channel, const struct element_sums *sums, double epsilon,
                                            float *mean, float *variance)
{
    const double n = (double)s->values, difference = sums->second - sums->first / n * sums->first;
    const double squares = difference < 0 ? 0 : difference;
    struct element_norm norm;
    norm.mean = (float)((double)x[(size_t)channel * s->plane] + sums->first / n);
    norm.inverse = (float)(1 / sqrt(squares / n + epsilon));
    *mean = norm.mean;
    *variance = (float)(squares / (n - 1));
    return norm;
}

ELEMENT void element_normalize_lane(const struct element_channels *s, const struct element_norm *norm,
                                    const float *x, float weight, float bias, bool relu, uint32_t channel,
                                    uint32_t lane, uint32_t lanes, float *y)
{
    const float factor = norm->inverse * weight;
    for (struct element_walk w = element_walk_begin(s, channel, lane); w.i < s->values;
         element_walk_on(s, &w, lanes)) {
        const float value = (x[w.at] - norm->mean) * factor + bias;
        y[w.at] = relu ? element_relu(value) : value;
    }
}

/* The gradient before the ReLU, from the output; y NULL: there is no ReLU. */
ELEMENT float element_before_relu(const float *y, const float *dy, size_t at)
{
    return y != NULL ? element_relu_backward(y[at], dy[at]) : dy[at];
}

/* The sums of dz, which is the bias's gradient, and of dz (x - mean). */
ELEMENT struct element_sums element_norm_gradient_lane(const struct element_channels *s,
                                                       const struct element_norm *norm, const float *x,
                                                       const float *y, const float *dy, uint32_t channel,
                                                       uint32_t lane, uint32_t lanes)
{
    struct element_sums sums = {0, 0};
    for (struct element_walk w = element_walk_begin(s, channel, lane); w.i < s->values;
         element_walk_on(s, &w, lanes)) {
        const double dz = (double)element_before_relu(y, dy, w.at);
        sums.first += dz;
        sums.second += dz * (double)(x[w.at] - norm->mean);
    }
    return sums;
}

/* dx = weight inverse (dz - sum dz / n - (x - mean) inverse^2 sum dz (x - mean) / n) */
ELEMENT void element_norm_backward_lane(const struct element_channels *s, const struct element_norm *norm,
                                        const struct element_sums *sums, const float *x, const float *y,
                                        const float *dy, float weight, uint32_t channel, uint32_t lane,
                                        uint32_t lanes, float *dx)
{
    const double n = (double)s->values, inverse = (double)norm->inverse;
    const float factor = norm->inverse * weight, offset = (float)(sums->first / n);
    const float slope = (float)(inverse * inverse * sums->second / n);
    for (struct element_walk w = element_walk_begin(s, channel, lane); w.i < s->values;
         element_walk_on(s, &w, lanes))
        dx[w.at] = factor * (element_before_relu(y, dy, w.at) - offset - (x[w.at] - norm->mean) * slope);
}

/* ---- classes: logits (outer, classes, inner), a term for each (outer, inner) ---- */

struct element_classes {
    uint32_t classes, inner;
};

/* Where class 0 of a term stands; the next classes follow `inner` apart. */
ELEMENT size_t element_term_begin(const struct element_classes *shape, size_t term)
{
    return term / shape->inner * shape->classes * shape->inner + term % shape->inner;
}

/* The caller refuses an index that is out of range; the clamp keeps the kernel inside the tensor. */
ELEMENT uint32_t element_clamp(int32_t index, uint32_t count)
{
    return index < 0 ? 0 : (uint32_t)index < count ? (uint32_t)index : count - 1;
}

ELEMENT float element_max_lane(const struct element_classes *shape, const float *x, uint32_t lane,
                               uint32_t lanes)
{
    float highest = -INFINITY;
    for (uint32_t c = lane; c < shape->classes; c += lanes)
        highest = fmaxf(highest, x[(size_t)c * shape->inner]);
    return highest;
}

ELEMENT double element_exp_lane(const struct element_classes *shape, const float *x, float highest,
                                uint32_t lane, uint32_t lanes)
{
    double total = 0;
    for (uint32_t c = lane; c < shape->classes; c += lanes)
        total += (double)expf(x[(size_t)c * shape->inner] - highest);
    return total;
}

/* -log softmax at the target; log_sum: of the exponentials of the term's logits. */
ELEMENT double element_cross_entropy(const struct element_classes *shape, const float *x,
                                     const int32_t *target, double log_sum, size_t term)
{
    const size_t at = element_clamp(target[term], shape->classes);
    return log_sum - (double)x[element_term_begin(shape, term) + at * shape->inner];
}

/* The gradient of logit i; pull: of the loss, over the number of terms. */
ELEMENT float element_cross_entropy_backward(const struct element_classes *shape, const float *x,
                                             const int32_t *target, const double *log_sums, float pull,
                                             size_t i)
{
    const size_t block = (size_t)shape->classes * shape->inner;
    const size_t term = i / block * shape->inner + i % shape->inner;
    const uint32_t c = (uint32_t)(i % block / shape->inner);
    const float probability = expf((float)((double)x[i] - log_sums[term]));
    return pull * (probability - (c == element_clamp(target[term], shape->classes) ? 1.0f : 0.0f));
}

ELEMENT float element_log_probability_backward(const int32_t *actions, const float *dy, uint32_t classes,
                                               size_t i)
{
    const size_t row = i / classes;
    return i % classes == element_clamp(actions[row], classes) ? dy[row] : 0;
}

/* ---- embedding: the backward sorts the tokens, so that each row of the table has one writer ---- */

/* Key of token number i: sorts by index, then by place. */
ELEMENT uint64_t element_sort_key(const int32_t *indices, size_t i, uint32_t vocabulary)
{
    return (uint64_t)element_clamp(indices[i], vocabulary) << 32 | i;
}

/* One step of a bitonic sorting network (Batcher, "Sorting networks and their applications", 1968): pair
 * number `pair` of the elements that stand `apart` from each other, in the merge of runs of `run`. keys[0] is
 * element number `base` of all. Sizes are powers of two. */
ELEMENT void element_sort_pair(uint64_t *keys, size_t pair, size_t apart, size_t run, size_t base)
{
    const size_t i = pair / apart * 2 * apart + pair % apart;
    const bool ascending = ((base + i) & run) == 0;
    const uint64_t a = keys[i], b = keys[i + apart];
    if ((a > b) == ascending) {
        keys[i] = b;
        keys[i + apart] = a;
    }
}

/* True at the first of a run of equal indices. */
ELEMENT bool element_run_begins(const uint64_t *keys, size_t i)
{
    return i == 0 || keys[i - 1] >> 32 != keys[i] >> 32;
}

/* The gradient of column `column` of the table's row whose run begins at i; tokens in ascending order. */
ELEMENT float element_embedding_backward(const uint64_t *keys, size_t count, size_t i, const float *dy,
                                         uint32_t width, uint32_t column)
{
    const uint64_t index = keys[i] >> 32;
    double sum = 0;
    for (; i < count && keys[i] >> 32 == index; i++)
        sum += (double)dy[(size_t)(uint32_t)keys[i] * width + column];
    return (float)sum;
}

/* ---- pooling's backward ---- */

/* What a pool or a convolution slides over its images. */
struct element_window {
    uint32_t size[2], out[2]; /* input and output: height, width */
    uint32_t kernel[2], stride[2], padding[2];
};

/* The part of window `o` along dimension d that lies in the input: [*begin, *end). */
ELEMENT void element_window_inputs(const struct element_window *pool, int d, uint32_t o, uint32_t *begin,
                                   uint32_t *end)
{
    const uint32_t first = o * pool->stride[d], last = first + pool->kernel[d];
    *begin = first > pool->padding[d] ? first - pool->padding[d] : 0;
    *end = last - pool->padding[d] < pool->size[d] ? last - pool->padding[d] : pool->size[d];
}

/* Which element of the image x has the first maximum of window (o0, o1), in row-major order. */
ELEMENT size_t element_first_maximum(const struct element_window *pool, const float *x, uint32_t o0,
                                     uint32_t o1)
{
    uint32_t top, bottom, left, right;
    element_window_inputs(pool, 0, o0, &top, &bottom);
    element_window_inputs(pool, 1, o1, &left, &right);
    size_t best = (size_t)top * pool->size[1] + left;
    for (uint32_t r = top; r < bottom; r++)
        for (uint32_t c = left; c < right; c++) {
            const size_t at = (size_t)r * pool->size[1] + c;
            if (x[at] > x[best])
                best = at;
        }
    return best;
}

/* The first window along dimension d that holds input i, and the one past the last. */
ELEMENT void element_windows_of(const struct element_window *pool, int d, uint32_t i, uint32_t *begin,
                                uint32_t *end)
{
    const uint32_t at = i + pool->padding[d], past = at / pool->stride[d] + 1;
    *begin = at >= pool->kernel[d] ? (at - pool->kernel[d]) / pool->stride[d] + 1 : 0;
    *end = past < pool->out[d] ? past : pool->out[d];
}

/* The gradient of element i of x (images, height, width): the sum over the windows whose first maximum it is.
 */
ELEMENT float element_max_pool_backward(const struct element_window *pool, const float *x, const float *dy,
                                        size_t i)
{
    const size_t plane = (size_t)pool->size[0] * pool->size[1], image = i / plane, at = i % plane;
    const size_t out_plane = (size_t)pool->out[0] * pool->out[1];
    uint32_t top, bottom, left, right;
    float sum = 0;
    element_windows_of(pool, 0, (uint32_t)(at / pool->size[1]), &top, &bottom);
    element_windows_of(pool, 1, (uint32_t)(at % pool->size[1]), &left, &right);
    for (uint32_t o0 = top; o0 < bottom; o0++)
        for (uint32_t o1 = left; o1 < right; o1++)
            if (element_first_maximum(pool, x + image * plane, o0, o1) == at)
                sum += dy[image * out_plane + (size_t)o0 * pool->out[1] + o1];
    return sum;
}

/* The same of a mean, whose divisor counts the padding. */
ELEMENT float element_avg_pool_backward(const struct element_window *pool, const float *dy, size_t i)
{
    const size_t plane = (size_t)pool->size[0] * pool->size[1], image = i / plane, at = i % plane;
    const size_t out_plane = (size_t)pool->out[0] * pool->out[1];
    uint32_t top, bottom, left, right;
    float sum = 0;
    element_windows_of(pool, 0, (uint32_t)(at / pool->size[1]), &top, &bottom);
    element_windows_of(pool, 1, (uint32_t)(at % pool->size[1]), &left, &right);
    for (uint32_t o0 = top; o0 < bottom; o0++)
        for (uint32_t o1 = left; o1 < right; o1++)
            sum += dy[image * out_plane + (size_t)o0 * pool->out[1] + o1];
    return sum / (float)(pool->kernel[0] * pool->kernel[1]);
}

/* ---- optimizers ---- */

/* v may be NULL: no momentum. */
ELEMENT void element_sgd(float lr, float momentum, bool first, float *p, float g, float *v)
{
    if (v != NULL) {
        *v = first ? g : momentum * *v + g;
        g = *v;
    }
    *p -= lr * g;
}

/* kernels/adam.c's update of one element. */
ELEMENT void element_adam(const struct adam_factors *f, float *p, float *m, float *v, float g)
{
    *m = f->keep_m * *m + f->add_m * g;
    *v = f->keep_v * *v + f->add_v * g * g;
    *p -= f->step_size * *m / (sqrtf(*v) / f->root_correction + f->epsilon);
}

#endif
