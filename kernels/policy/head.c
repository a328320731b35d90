/* A head's memory, and its calls of the table in dense_internal.h. */
#include "kernels/policy/head.h"

#include "kernels/policy/dense_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct head {
    struct dense_shape shape;
    uint32_t outputs;
    const struct dense_lanes *lanes;
    struct dense_sigma sigma;
    size_t stride;    // of a row of components
    float *scratch;   // struct dense_head's
    float *log_sigma; // (rows, stride) dL/d log_std of each row
    float *memory;    // all of the above, and of sigma
};

static size_t padded(size_t floats)
{
    return (floats + DENSE_LANES - 1) / DENSE_LANES * DENSE_LANES;
}

enum status head_new(struct head **out, const struct dense_shape *shape, struct error *error)
{
    struct head *head = calloc(1, sizeof *head);
    if (head == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's head");
    head->shape = *shape;
    head->outputs = dense_outputs(shape);
    head->stride = padded(shape->components);
    const size_t scratch = padded(2 * (size_t)head->outputs * DENSE_LANES);
    const size_t bytes = (scratch + (3 + DENSE_CHUNK_ROWS) * head->stride) * sizeof(float);
    enum status status = dense_lanes_choose(&head->lanes, error);
    head->memory = status == STATUS_OK ? aligned_alloc(64, bytes) : NULL;
    if (status == STATUS_OK && head->memory == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for the %zu bytes of a policy's head", bytes);
    if (status != STATUS_OK) {
        head_free(head);
        return status;
    }
    memset(head->memory, 0, bytes);
    head->scratch = head->memory;
    head->sigma.sigma = head->scratch + scratch;
    head->sigma.inverse = head->sigma.sigma + head->stride;
    head->sigma.shift = head->sigma.inverse + head->stride;
    head->log_sigma = head->sigma.shift + head->stride;
    if (shape->gaussian)
        head_load(head, head->log_sigma);
    *out = head;
    return STATUS_OK;
}

void head_free(struct head *head)
{
    if (head == NULL)
        return;
    free(head->memory);
    free(head);
}

void head_load(struct head *head, const float *log_std)
{
    dense_sigma_load(&head->sigma, head->lanes, log_std, head->shape.components);
}

/* The lanes read the outputs only. */
static struct dense_head lanes_head(const struct head *head, const struct head_rows *rows)
{
    assert(rows->batch.count <= DENSE_CHUNK_ROWS);
    return (struct dense_head){.shape = &head->shape,
                               .outputs = head->outputs,
                               .batch = rows->batch,
                               .z = {(float *)(uintptr_t)rows->outputs, head->outputs},
                               .scratch = head->scratch,
                               .sigma = &head->sigma};
}

void head_act(struct head *head, const struct head_rows *rows, const struct dense_draw *draw,
              float *log_probability)
{
    const struct dense_head lanes = lanes_head(head, rows);
    head->lanes->act(&lanes, draw, log_probability);
}

void head_evaluate(struct head *head, const struct head_rows *rows, float *log_probability, float *entropy)
{
    const struct dense_head lanes = lanes_head(head, rows);
    head->lanes->evaluate(&lanes, log_probability, entropy);
}

void head_pull(struct head *head, const struct head_rows *rows, const struct dense_pulls *pulls,
               float *d_outputs, float *d_log_std)
{
    const struct dense_head lanes = lanes_head(head, rows);
    const uint32_t components = head->shape.components;
    head->lanes->pull(&lanes, pulls, (struct dense_matrix){d_outputs, head->outputs},
                      (struct dense_matrix){head->log_sigma, head->stride});
    for (uint32_t c = 0; c < components && head->shape.gaussian; c++) {
        d_log_std[c] = 0;
        for (uint32_t r = 0; r < rows->batch.count; r++)
            d_log_std[c] += head->log_sigma[r * head->stride + c];
    }
}
