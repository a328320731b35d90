/* The oracle's pools. A window is what of the kernel lies inside of the plane; by the rule on paddings none
 * is empty. */
#include "test/oracle/ref_internal.h"

#include <math.h>

struct window {
    size_t top, bottom, left, right; // rows top..bottom-1, columns left..right-1 of the plane
};

/* What output `position` covers of `size` elements: from *first to before *end. */
static void span(size_t position, uint32_t kernel, uint32_t stride, uint32_t padding, size_t size,
                 size_t *first, size_t *end)
{
    const size_t begin = position * stride;
    *first = begin > padding ? begin - padding : 0;
    *end = begin + kernel - padding < size ? begin + kernel - padding : size;
}

static struct window window_of(const struct op_call *call, size_t row, size_t column)
{
    const struct op_attributes *set = &call->attributes;
    const uint32_t *x = call->in[0]->shape.size;
    struct window window;
    span(row, set->kernel[0], set->stride[0], set->padding[0], x[2], &window.top, &window.bottom);
    span(column, set->kernel[1], set->stride[1], set->padding[1], x[3], &window.left, &window.right);
    return window;
}

typedef void window_function(const struct op_call *call, size_t x_plane, size_t y_at, struct window window);

/* Calls `function` for every element of y, in order, with the element at which its plane of x begins. */
static void for_each_window(const struct op_call *call, window_function *function)
{
    const uint32_t *x = call->in[0]->shape.size, *y = call->out[0]->shape.size;
    size_t at = 0;
    for (size_t plane = 0; plane < (size_t)y[0] * y[1]; plane++)
        for (size_t row = 0; row < y[2]; row++)
            for (size_t column = 0; column < y[3]; column++)
                function(call, plane * x[2] * x[3], at++, window_of(call, row, column));
}

/* The first maximum; a NaN is larger than everything, and the first one stays. saved[0]: which element of x
 * it was. */
static void max_forward(const struct op_call *call, size_t x_plane, size_t y_at, struct window window)
{
    const double *x = call->in[0]->data;
    const size_t width = call->in[0]->shape.size[3];
    size_t best = x_plane + window.top * width + window.left;
    for (size_t row = window.top; row < window.bottom; row++)
        for (size_t column = window.left; column < window.right; column++) {
            const size_t at = x_plane + row * width + column;
            if (x[at] > x[best] || (isnan(x[at]) && !isnan(x[best])))
                best = at;
        }
    ref_doubles(call->out[0])[y_at] = x[best];
    if (call->keep)
        ((int32_t *)call->saved[0].data)[y_at] = (int32_t)best;
}

enum status ref_max_pool_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = ref_make(call, call->out[0], error);
    if (status == STATUS_OK && call->keep)
        status = tensor_new(&call->saved[0], call->arena, call->out[0]->shape, DTYPE_I32, NULL, error);
    if (status == STATUS_OK)
        for_each_window(call, max_forward);
    return status;
}

enum status ref_max_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const double *dy = call->dout[0]->data;
    const int32_t *best = call->saved[0].data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    ref_zero(dx, ref_count(call->din[0]));
    for (size_t i = 0; i < ref_count(call->out[0]); i++)
        dx[best[i]] += dy[i];
    return STATUS_OK;
}

static double kernel_size(const struct op_call *call)
{
    return (double)call->attributes.kernel[0] * (double)call->attributes.kernel[1];
}

static void average_forward(const struct op_call *call, size_t x_plane, size_t y_at, struct window window)
{
    const double *x = ref_doubles(call->in[0]) + x_plane;
    const size_t width = call->in[0]->shape.size[3];
    double sum = 0;
    for (size_t row = window.top; row < window.bottom; row++)
        for (size_t column = window.left; column < window.right; column++)
            sum += x[row * width + column];
    ref_doubles(call->out[0])[y_at] = sum / kernel_size(call);
}

static void average_backward(const struct op_call *call, size_t x_plane, size_t y_at, struct window window)
{
    double *dx = ref_doubles(call->din[0]) + x_plane;
    const size_t width = call->in[0]->shape.size[3];
    const double share = ref_doubles(call->dout[0])[y_at] / kernel_size(call);
    for (size_t row = window.top; row < window.bottom; row++)
        for (size_t column = window.left; column < window.right; column++)
            dx[row * width + column] += share;
}

enum status ref_avg_pool_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = ref_make(call, call->out[0], error);
    if (status == STATUS_OK)
        for_each_window(call, average_forward);
    return status;
}

enum status ref_avg_pool_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    ref_zero(call->din[0]->data, ref_count(call->din[0]));
    for_each_window(call, average_backward);
    return STATUS_OK;
}
