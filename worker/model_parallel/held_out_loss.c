/* Computes the mean loss over the held-out lines, in batches of evaluation.batch columns and sequence.steps
 * rows.
 */
#include "worker/model_parallel/held_out_loss.h"

#include <stdlib.h>

static enum status held_out_walk(const struct parallel_data *data, struct parallel_batch *batch,
                                 int32_t *tokens, int32_t *targets, held_out_forward *forward, void *context,
                                 double *sum, uint64_t *count, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint64_t i = 0; i < data->held_out_batches && status == STATUS_OK; i++) {
        double mean = 0;
        batch->steps = corpus_batch(&data->corpus.held_out, batch->columns, 0, batch->columns,
                                    data->job->sequence.steps, i, tokens, targets);
        status = forward(context, batch, &mean, error);
        *sum += mean * batch->steps * batch->columns;
        *count += (uint64_t)batch->steps * batch->columns;
    }
    return status;
}

enum status held_out_loss(const struct parallel_data *data, held_out_forward *forward, void *context,
                          double *loss, uint64_t *count, struct error *error)
{
    const uint32_t columns = data->job->evaluation.batch;
    const size_t numbers = (size_t)data->job->sequence.steps * columns;
    const size_t state = parallel_data_state_count(data, columns);
    int32_t *tokens = calloc(numbers, sizeof *tokens), *targets = calloc(numbers, sizeof *targets);
    float *h = calloc(state, sizeof *h), *c = calloc(state, sizeof *c);
    struct parallel_batch batch = {
        .columns = columns, .tokens = tokens, .targets = targets, .h = h, .c = c, .h_out = h, .c_out = c};
    double sum = 0;
    enum status status = STATUS_OK;
    *count = 0;
    if (tokens == NULL || targets == NULL || h == NULL || c == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for batches of %u columns", columns);
    else
        status = held_out_walk(data, &batch, tokens, targets, forward, context, &sum, count, error);
    *loss = *count > 0 ? sum / (double)*count : 0;
    free(tokens);
    free(targets);
    free(h);
    free(c);
    return status;
}
