/* The oracle's operations that take each element by itself: relu, tanh, add, reshape, dropout. */
#include "kernels/base/rng.h"
#include "test/oracle/ref_internal.h"

#include <math.h>
#include <string.h>

enum status ref_relu_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *x = call->in[0]->data;
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] <= 0 ? 0 : x[i];
    return STATUS_OK;
}

enum status ref_relu_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->out[0]);
    const double *y = call->out[0]->data, *dy = call->dout[0]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    for (size_t i = 0; i < count; i++)
        dx[i] = y[i] > 0 ? dy[i] : 0;
    return STATUS_OK;
}

enum status ref_tanh_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *x = call->in[0]->data;
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t i = 0; i < count; i++)
        y[i] = tanh(x[i]);
    return STATUS_OK;
}

enum status ref_tanh_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->out[0]);
    const double *y = call->out[0]->data, *dy = call->dout[0]->data;
    enum status status = ref_make_gradients(call, error);
    if (status != STATUS_OK || call->din[0] == NULL)
        return status;
    double *dx = call->din[0]->data;
    for (size_t i = 0; i < count; i++)
        dx[i] = dy[i] * (1 - y[i] * y[i]);
    return STATUS_OK;
}

enum status ref_add_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    const size_t count = ref_count(call->in[0]);
    const double *a = call->in[0]->data, *b = call->in[1]->data;
    enum status status = ref_make(call, call->out[0], error);
    if (status != STATUS_OK)
        return status;
    double *y = call->out[0]->data;
    for (size_t i = 0; i < count; i++)
        y[i] = a[i] + b[i];
    ref_apply_relu(call, call->out[0]);
    return STATUS_OK;
}

enum status ref_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    double *dz;
    void *scratch;
    enum status status = ref_begin_backward(call, &dz, &scratch, error);
    if (status != STATUS_OK)
        return status;
    for (int i = 0; i < 2; i++)
        if (call->din[i] != NULL)
            memcpy(call->din[i]->data, dz, ref_count(call->out[0]) * sizeof *dz);
    arena_release(call->arena, scratch);
    return STATUS_OK;
}

static enum status copy(const struct op_call *call, const struct tensor *from, struct tensor *to,
                        struct error *error)
{
    enum status status = ref_make(call, to, error);
    if (status == STATUS_OK)
        memcpy(to->data, from->data, ref_count(from) * sizeof(double));
    return status;
}

enum status ref_reshape_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    return copy(call, call->in[0], call->out[0], error);
}

enum status ref_reshape_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    return call->din[0] != NULL ? copy(call, call->dout[0], call->din[0], error) : STATUS_OK;
}

/* Element j's 16 bits of the draw at `key`. */
static long draw_bits(const struct rng_key *key, size_t j)
{
    const size_t group = j / 128, v = j % 128 / 16;
    uint32_t words[4];
    rng_block(key, RNG_DROPOUT, (uint32_t)(16 * group + j % 16), words);
    return words[v / 2] >> 16 * (v % 2) & 0xffff;
}

/* to = from keep / (1 - p), forward and backward alike: the mask is drawn again. */
static void drop(const struct op_call *call, const struct tensor *from, struct tensor *to)
{
    const struct draw *draw = &call->attributes.draw;
    const double *in = from->data;
    double *out = to->data;
    const int32_t *words = call->in[1] != NULL ? call->in[1]->data : NULL;
    const size_t rows = call->in[1] != NULL ? call->in[1]->shape.size[0] : 1;
    const size_t row_elements = ref_count(from) / rows;
    const long threshold = lrint(65536 * call->attributes.dropout);
    for (size_t r = 0; r < rows; r++) {
        struct rng_key key = {draw->seed, draw->word[0], draw->word[1], draw->word[2]};
        if (words != NULL)
            key = (struct rng_key){draw->seed, (uint32_t)words[3 * r], (uint32_t)words[3 * r + 1],
                                   (uint32_t)words[3 * r + 2]};
        for (size_t j = 0; j < row_elements; j++) {
            const size_t i = r * row_elements + j;
            out[i] = draw_bits(&key, j) >= threshold ? in[i] / (1 - call->attributes.dropout) : 0;
        }
    }
}

enum status ref_dropout_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = ref_make(call, call->out[0], error);
    if (status == STATUS_OK)
        drop(call, call->in[0], call->out[0]);
    return status;
}

enum status ref_dropout_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    enum status status = ref_make_gradients(call, error);
    if (status == STATUS_OK && call->din[0] != NULL)
        drop(call, call->dout[0], call->din[0]);
    return status;
}
