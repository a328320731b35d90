/* Transforms images, in the loader's thread.
 *
 * The fitted image lies in `frame` as planes of floats in [0, 255]; one pass from there into the batch crops,
 * mirrors and normalizes. */
#include "worker/data/transform.h"

#include "kernels/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct room {
    float *values;
    size_t capacity;
};

/* How one axis is resized: output i is the sum of count[i] inputs from first[i] on, with weights in a row of
 * `stride` of them. Kept from image to image of one length. */
struct axis {
    uint32_t from; /* 0: none yet */
    uint32_t *first, *count;
    size_t stride;
    struct room weights;
};

struct transform {
    uint32_t size, channels, crop;
    int fit;
    float mean[JOB_CHANNELS_MAX], std[JOB_CHANNELS_MAX];
    struct axis across, down;
    struct room rows; /* resized across, not yet down: (channels, image height, size) */
    float *frame;     /* (image channels, size, size) */
};

static enum status transform_make_room(struct room *room, size_t count, struct error *error)
{
    if (count <= room->capacity)
        return STATUS_OK;
    float *values = reallocarray(room->values, count, sizeof *values);
    if (values == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to resize an image (%zu floats)", count);
    room->values = values;
    room->capacity = count;
    return STATUS_OK;
}

static bool axis_init(struct axis *axis, uint32_t size)
{
    axis->first = calloc(size, sizeof *axis->first);
    axis->count = calloc(size, sizeof *axis->count);
    return axis->first != NULL && axis->count != NULL;
}

static void axis_fini(struct axis *axis)
{
    free(axis->first);
    free(axis->count);
    free(axis->weights.values);
}

static float channel_of(const struct job_channels *channels, uint32_t c)
{
    return (float)channels->value[c < channels->count ? c : 0];
}

enum status transform_new(struct transform **out, const struct job *job, uint32_t crop, struct error *error)
{
    struct transform *transform = calloc(1, sizeof *transform);
    if (transform == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a transform");
    const uint32_t size = job->data.size;
    transform->size = size;
    transform->channels = job->data.channels;
    transform->crop = crop;
    transform->fit = job->data.fit;
    for (uint32_t c = 0; c < JOB_CHANNELS_MAX; c++) {
        transform->mean[c] = channel_of(&job->data.mean, c);
        transform->std[c] = channel_of(&job->data.std, c);
    }
    transform->frame = calloc((size_t)JOB_CHANNELS_MAX * size * size, sizeof *transform->frame);
    if (transform->frame == NULL || !axis_init(&transform->across, size) ||
        !axis_init(&transform->down, size)) {
        transform_free(transform);
        return error_set(error, STATUS_NO_MEMORY, "no memory for images of %u x %u", size, size);
    }
    *out = transform;
    return STATUS_OK;
}

void transform_free(struct transform *transform)
{
    if (transform == NULL)
        return;
    axis_fini(&transform->across);
    axis_fini(&transform->down);
    free(transform->rows.values);
    free(transform->frame);
    free(transform);
}

size_t transform_elements(const struct transform *transform)
{
    return (size_t)transform->channels * transform->size * transform->size;
}

/* ---- pad ---- */

static float *frame_plane(const struct transform *transform, uint32_t c)
{
    return transform->frame + (size_t)c * transform->size * transform->size;
}

/* Where `length` pixels lie in the middle of `size`: how many are taken, from which on, to which on. */
struct span {
    uint32_t count, from, to;
};

static struct span span_of(uint32_t length, uint32_t size)
{
    if (length <= size)
        return (struct span){.count = length, .to = (size - length) / 2};
    return (struct span){.count = size, .from = (length - size) / 2};
}

static void transform_pad(const struct transform *transform, const struct image *image)
{
    const uint32_t size = transform->size, channels = image->channels;
    const struct span down = span_of(image->height, size), across = span_of(image->width, size);
    memset(transform->frame, 0, (size_t)channels * size * size * sizeof *transform->frame);
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t y = 0; y < down.count; y++) {
            const uint8_t *from =
                image->pixels + ((size_t)(down.from + y) * image->width + across.from) * channels + c;
            float *to = frame_plane(transform, c) + (size_t)(down.to + y) * size + across.to;
            for (uint32_t x = 0; x < across.count; x++)
                to[x] = from[(size_t)x * channels];
        }
}

/* ---- resize ---- */

static void axis_weigh(struct axis *axis, uint32_t i, double scale, double support)
{
    const double center = scale * (i + 0.5);
    const double first = floor(center - support + 0.5), last = floor(center + support + 0.5);
    const uint32_t begin = first > 0 ? (uint32_t)first : 0;
    const uint32_t end = last < axis->from ? (uint32_t)last : axis->from;
    float *weights = axis->weights.values + i * axis->stride;
    double sum = 0;
    for (uint32_t j = begin; j < end; j++)
        sum += fmax(0, 1 - fabs(j + 0.5 - center) / support);
    for (uint32_t j = begin; j < end; j++)
        weights[j - begin] = (float)(fmax(0, 1 - fabs(j + 0.5 - center) / support) / sum);
    axis->first[i] = begin;
    axis->count[i] = end - begin;
}

static enum status axis_prepare(struct axis *axis, uint32_t from, uint32_t to, struct error *error)
{
    if (axis->from == from)
        return STATUS_OK;
    const double scale = (double)from / to, support = fmax(1, scale);
    const size_t stride = 2 * (size_t)support + 3;
    axis->from = 0;
    enum status status = transform_make_room(&axis->weights, stride * to, error);
    if (status != STATUS_OK)
        return status;
    axis->from = from;
    axis->stride = stride;
    for (uint32_t i = 0; i < to; i++)
        axis_weigh(axis, i, scale, support);
    return STATUS_OK;
}

/* One row of pixels, every `channels`-th of them, into `to`. */
static void resize_row(const struct axis *axis, const uint8_t *row, uint32_t channels, uint32_t size,
                       float *to)
{
    for (uint32_t i = 0; i < size; i++) {
        const float *weights = axis->weights.values + i * axis->stride;
        const uint8_t *pixel = row + (size_t)axis->first[i] * channels;
        float sum = 0;
        for (uint32_t j = 0; j < axis->count[i]; j++, pixel += channels)
            sum += weights[j] * *pixel;
        to[i] = sum;
    }
}

static void resize_down(const struct axis *axis, const float *rows, uint32_t size, float *to)
{
    memset(to, 0, (size_t)size * size * sizeof *to);
    for (uint32_t i = 0; i < size; i++, to += size)
        for (uint32_t j = 0; j < axis->count[i]; j++) {
            const float weight = axis->weights.values[i * axis->stride + j];
            const float *row = rows + (size_t)(axis->first[i] + j) * size;
            for (uint32_t x = 0; x < size; x++)
                to[x] += weight * row[x];
        }
}

static enum status transform_resize(struct transform *transform, const struct image *image,
                                    struct error *error)
{
    const uint32_t size = transform->size, channels = image->channels;
    enum status status = axis_prepare(&transform->across, image->width, size, error);
    if (status == STATUS_OK)
        status = axis_prepare(&transform->down, image->height, size, error);
    if (status == STATUS_OK)
        status = transform_make_room(&transform->rows, (size_t)image->height * size, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t c = 0; c < channels; c++) {
        for (uint32_t y = 0; y < image->height; y++)
            resize_row(&transform->across, image->pixels + (size_t)y * image->width * channels + c, channels,
                       size, transform->rows.values + (size_t)y * size);
        resize_down(&transform->down, transform->rows.values, size, frame_plane(transform, c));
    }
    return STATUS_OK;
}

/* ---- the rest ---- */

struct transform_view transform_draw_view(uint64_t seed, uint32_t sample, uint64_t epoch, uint32_t lap,
                                          uint32_t crop, bool flip)
{
    const struct rng_key key = {
        .seed = seed, .environment = sample, .step = (uint32_t)epoch, .episode = (uint32_t)(epoch >> 32)};
    const uint64_t places = 2 * (uint64_t)crop + 1;
    uint32_t words[4];
    rng_block(&key, RNG_AUGMENT, lap, words);
    return (struct transform_view){.y = (uint32_t)(words[1] * places >> 32),
                                   .x = (uint32_t)(words[2] * places >> 32),
                                   .mirror = flip && words[0] >> 31 != 0};
}

/* Pixel x of a row of the view, or 0 where it lies in the margin. */
static void view_row(const float *row, uint32_t size, int64_t offset, bool mirror, float *out)
{
    for (uint32_t x = 0; x < size; x++) {
        const int64_t at = (mirror ? size - 1 - x : x) + offset;
        out[x] = row != NULL && at >= 0 && at < size ? row[at] : 0;
    }
}

static void view_plane(const struct transform *transform, const float *plane,
                       const struct transform_view *view, uint32_t c, float *out)
{
    const uint32_t size = transform->size;
    const float mean = transform->mean[c], std = transform->std[c];
    for (uint32_t y = 0; y < size; y++, out += size) {
        const int64_t at = (int64_t)y + view->y - transform->crop;
        view_row(at >= 0 && at < size ? plane + at * size : NULL, size, (int64_t)view->x - transform->crop,
                 view->mirror, out);
        for (uint32_t x = 0; x < size; x++)
            out[x] = (out[x] / 255.0f - mean) / std;
    }
}

enum status transform_apply(struct transform *transform, const struct image *image,
                            const struct transform_view *view, float *out, struct error *error)
{
    const size_t plane = (size_t)transform->size * transform->size;
    if (transform->fit == JOB_FIT_PAD) {
        transform_pad(transform, image);
    } else {
        enum status status = transform_resize(transform, image, error);
        if (status != STATUS_OK)
            return status;
    }
    float *red = frame_plane(transform, 0);
    const float *green = red + plane, *blue = green + plane;
    for (size_t i = 0; i < plane && transform->channels < image->channels; i++) /* gray */
        red[i] = 0.299f * red[i] + 0.587f * green[i] + 0.114f * blue[i];
    for (uint32_t c = 0; c < transform->channels; c++)
        view_plane(transform, frame_plane(transform, c < image->channels ? c : 0), view, c, out + c * plane);
    return STATUS_OK;
}
