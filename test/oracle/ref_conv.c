/* The oracle's convolution. Every loop nest is (n, o, c, kh, kw, rows) around one pass along a row of the
 * output, over those columns whose input is not padding. */
#include "test/oracle/ref_internal.h"

struct conv {
    size_t n, c, h, w, o, kh, kw, out_h, out_w;
    size_t stride[2], padding[2];
};

static struct conv conv_of(const struct op_call *call)
{
    const uint32_t *x = call->in[0]->shape.size, *weight = call->in[1]->shape.size;
    const uint32_t *y = call->out[0]->shape.size;
    const struct op_attributes *set = &call->attributes;
    return (struct conv){.n = x[0],
                         .c = x[1],
                         .h = x[2],
                         .w = x[3],
                         .o = weight[0],
                         .kh = weight[2],
                         .kw = weight[3],
                         .out_h = y[2],
                         .out_w = y[3],
                         .stride = {set->stride[0], set->stride[1]},
                         .padding = {set->padding[0], set->padding[1]}};
}

/* The outputs first..end-1 of one direction for which kernel element k meets no padding: those with
 * 0 <= position * stride + k - padding < size. */
struct range {
    size_t first, end;
};

static struct range range_of(size_t k, size_t stride, size_t padding, size_t size, size_t outputs)
{
    struct range range = {0, 0};
    if (padding > k)
        range.first = (padding - k + stride - 1) / stride;
    if (size + padding > k)
        range.end = (size + padding - k - 1) / stride + 1;
    if (range.end > outputs)
        range.end = outputs;
    return range;
}

/* One element (o, c, i, j) of the weight at image n: the rows and columns of the output that it reaches. */
struct tap {
    struct range rows, columns;
    size_t x, y;    // where plane (n, c) of x and plane (n, o) of y begin
    size_t i, j;    // kernel element
    size_t element; // of the weight
};

typedef void tap_function(const struct conv *conv, const struct tap *tap, double *x, double *weight,
                          double *y);

/* Calls `function` for every image and every element of the weight. */
static void for_each_tap(const struct conv *conv, tap_function *function, double *x, double *weight,
                         double *y)
{
    for (size_t n = 0; n < conv->n; n++)
        for (size_t o = 0; o < conv->o; o++)
            for (size_t c = 0; c < conv->c; c++)
                for (size_t i = 0; i < conv->kh; i++)
                    for (size_t j = 0; j < conv->kw; j++) {
                        struct tap tap = {
                            .rows = range_of(i, conv->stride[0], conv->padding[0], conv->h, conv->out_h),
                            .columns = range_of(j, conv->stride[1], conv->padding[1], conv->w, conv->out_w),
                            .x = (n * conv->c + c) * conv->h * conv->w,
                            .y = (n * conv->o + o) * conv->out_h * conv->out_w,
                            .i = i,
                            .j = j,
                            .element = ((o * conv->c + c) * conv->kh + i) * conv->kw + j,
                        };
                        function(conv, &tap, x, weight, y);
                    }
}

/* The element of x that the output's `row`, column 0 meets; a column further is stride[1] elements further.
 * May lie before the row's begin when column 0 meets padding, so it is a difference. */
static ptrdiff_t x_row(const struct conv *conv, const struct tap *tap, size_t row)
{
    const size_t h = row * conv->stride[0] + tap->i - conv->padding[0];
    return (ptrdiff_t)(tap->x + h * conv->w + tap->j) - (ptrdiff_t)conv->padding[1];
}

/* y += weight x */
static void tap_forward(const struct conv *conv, const struct tap *tap, double *x, double *weight, double *y)
{
    const double factor = weight[tap->element];
    const size_t stride = conv->stride[1];
    for (size_t row = tap->rows.first; row < tap->rows.end; row++) {
        const ptrdiff_t at = x_row(conv, tap, row);
        double *to = y + tap->y + row * conv->out_w;
        for (size_t column = tap->columns.first; column < tap->columns.end; column++)
            to[column] += factor * x[at + (ptrdiff_t)(column * stride)];
    }
}

/* dx += weight dy */
static void tap_backward_data(const struct conv *conv, const struct tap *tap, double *dx, double *weight,
                              double *dy)
{
    const double factor = weight[tap->element];
    const size_t stride = conv->stride[1];
    for (size_t row = tap->rows.first; row < tap->rows.end; row++) {
        const ptrdiff_t at = x_row(conv, tap, row);
        const double *from = dy + tap->y + row * conv->out_w;
        for (size_t column = tap->columns.first; column < tap->columns.end; column++)
            dx[at + (ptrdiff_t)(column * stride)] += factor * from[column];
    }
}

/* dweight += x dy */
static void tap_backward_weight(const struct conv *conv, const struct tap *tap, double *x, double *dweight,
                                double *dy)
{
    const size_t stride = conv->stride[1];
    double sum = 0;
    for (size_t row = tap->rows.first; row < tap->rows.end; row++) {
        const ptrdiff_t at = x_row(conv, tap, row);
        const double *from = dy + tap->y + row * conv->out_w;
        for (size_t column = tap->columns.first; column < tap->columns.end; column++)
            sum += x[at + (ptrdiff_t)(column * stride)] * from[column];
    }
    dweight[tap->element] += sum;
}

/* Every element of y: its channel's bias, or 0. */
static void begin_with_bias(const struct conv *conv, const struct tensor *bias, double *y)
{
    const size_t plane = conv->out_h * conv->out_w;
    for (size_t i = 0; i < conv->n * conv->o * plane; i++)
        y[i] = bias == NULL ? 0 : ((const double *)bias->data)[i / plane % conv->o];
}

static void sum_planes(const struct conv *conv, const double *dy, double *dbias)
{
    const size_t plane = conv->out_h * conv->out_w;
    ref_zero(dbias, conv->o);
    for (size_t i = 0; i < conv->n * conv->o * plane; i++)
        dbias[i / plane % conv->o] += dy[i];
}

enum status ref_conv2d_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct conv conv = conv_of(call);
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    begin_with_bias(&conv, call->in[2], y);
    for_each_tap(&conv, tap_forward, call->in[0]->data, call->in[1]->data, y);
    return STATUS_OK;
}

enum status ref_conv2d_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const struct conv conv = conv_of(call);
    double *dz, *dx = NULL, *dweight = NULL, *dbias = NULL;
    void *scratch;
    enum status status = ref_begin_backward(call, &dz, &scratch, error);
    if (status != STATUS_OK)
        return status;
    if ((dx = ref_doubles(call->din[0])) != NULL) {
        ref_zero(dx, ref_count(call->din[0]));
        for_each_tap(&conv, tap_backward_data, dx, call->in[1]->data, dz);
    }
    if ((dweight = ref_doubles(call->din[1])) != NULL) {
        ref_zero(dweight, ref_count(call->din[1]));
        for_each_tap(&conv, tap_backward_weight, call->in[0]->data, dweight, dz);
    }
    if ((dbias = ref_doubles(call->din[2])) != NULL)
        sum_planes(&conv, dz, dbias);
    arena_release(call->arena, scratch);
    return STATUS_OK;
}
