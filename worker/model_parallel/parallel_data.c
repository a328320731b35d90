/* Makes batches for a trainer of a language model, and computes the loss over the held-out lines. A batch is
 * a function of its number, so a resumed run has the same batches as a run that never stopped. */
#include "worker/model_parallel/parallel_data.h"

#include <stdlib.h>
#include <string.h>

static uint32_t data_columns_of(const struct job *job)
{
    return job->trainers.count * job->trainers.batch;
}

/* The largest messages depend on the text's vocabulary, which is known only now. */
static enum status data_check_messages(const struct parallel_data *data, struct error *error)
{
    struct job_message messages[JOB_MESSAGES_MAX];
    if (job_large_messages(data->job, data->rnn.tokens, messages) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%.300s: %s; a higher /data/minimum_count makes it smaller",
                     data->job->data.path, messages[0].text);
}

/* A job that asks for evaluations must have a batch to evaluate: floor(lines * held_out) lines may be none.
 */
static enum status data_check_held_out(const struct parallel_data *data, struct error *error)
{
    const struct job *job = data->job;
    if (!job->evaluation.has_every || !(job->sequence.held_out > 0) || data->held_out_batches > 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.300s: too little is held out to evaluate %u columns: expected more in "
                     "/data/held_out, less in /evaluation/batch, or null in /evaluation/every",
                     job->data.path, job->evaluation.batch);
}

static enum status data_open_text(struct parallel_data *data, const struct corpus_config *reading,
                                  struct error *error)
{
    const struct job *job = data->job;
    struct corpus_config config = reading != NULL ? *reading : (struct corpus_config){0};
    config.path = job->data.path;
    config.minimum_count = job->sequence.minimum_count;
    config.held_out = job->sequence.held_out;
    enum status status = corpus_read(&data->corpus, &config, error);
    if (status != STATUS_OK)
        return status;
    data->text = true;
    data->rnn.tokens = vocabulary_size(data->corpus.vocabulary);
    data->epoch_updates = corpus_batches(&data->corpus.training, data_columns_of(job), job->sequence.steps);
    data->held_out_batches =
        corpus_batches(&data->corpus.held_out, job->evaluation.batch, job->sequence.steps);
    return STATUS_OK;
}

struct rnn_config parallel_rnn(const struct job *job, uint32_t tokens)
{
    return (struct rnn_config){.tokens = tokens,
                               .embedding = job->rnn.embedding,
                               .hidden = job->rnn.hidden,
                               .layers = job->rnn.layers,
                               .dropout = job->rnn.dropout};
}

enum status parallel_data_open(struct parallel_data *data, const struct job *job,
                               const struct corpus_config *reading, struct error *error)
{
    *data = (struct parallel_data){
        .job = job, .rnn = parallel_rnn(job, job->rnn.tokens), .epoch_updates = job->sequence.updates};
    enum status status = job->data.kind == JOB_DATA_TEXT ? data_open_text(data, reading, error) : STATUS_OK;
    data->updates = job_updates(job, data->epoch_updates);
    return status;
}

enum status parallel_data_check(const struct parallel_data *data, struct error *error)
{
    const struct job *job = data->job;
    if (!data->text)
        return STATUS_OK;
    const enum status status = data_check_messages(data, error);
    if (status != STATUS_OK)
        return status;
    if (data->epoch_updates == 0)
        return error_set(error, STATUS_INVALID,
                         "%.300s: %zu words and line ends to train on are too few for %u trainers with %u "
                         "columns each",
                         job->data.path, data->corpus.training.count, job->trainers.count,
                         job->trainers.batch);
    return data_check_held_out(data, error);
}

void parallel_data_close(struct parallel_data *data)
{
    if (data->text)
        corpus_fini(&data->corpus);
    data->text = false;
}

size_t parallel_data_tokens_max(const struct parallel_data *data)
{
    return (size_t)data->job->sequence.steps * data->job->trainers.batch;
}

static bool data_batch_has_classes(const struct parallel_data *data)
{
    return !data->text && data->job->sequence.classes == JOB_CLASSES_BATCH;
}

size_t parallel_data_targets_max(const struct parallel_data *data)
{
    const uint32_t across = data_batch_has_classes(data) ? data->rnn.tokens : data->job->trainers.batch;
    return (size_t)data->job->sequence.steps * across;
}

uint32_t parallel_data_batch(const struct parallel_data *data, uint32_t trainer, uint64_t iteration,
                             int32_t *tokens, int32_t *targets)
{
    const struct job *job = data->job;
    const uint32_t batch = job->trainers.batch, steps = job->sequence.steps;
    if (data->text)
        return corpus_batch(&data->corpus.training, data_columns_of(job), trainer * batch, batch, steps,
                            iteration % data->epoch_updates, tokens, targets);
    corpus_random(job->seed, trainer, iteration, CORPUS_TOKENS, tokens, parallel_data_tokens_max(data),
                  data->rnn.tokens);
    corpus_random(job->seed, trainer, iteration, CORPUS_TARGETS, targets, parallel_data_targets_max(data),
                  data_batch_has_classes(data) ? batch : data->rnn.tokens);
    return steps;
}

/* The last batch of a text's epoch has fewer steps. */
uint64_t parallel_data_tokens(const struct parallel_data *data, uint64_t first, uint64_t end)
{
    const uint64_t steps = data->job->sequence.steps, every = data->epoch_updates;
    uint64_t rows = (end - first) * steps;
    if (data->text) {
        const uint64_t there = data->corpus.training.count / data_columns_of(data->job) - 1;
        rows -= (end / every - first / every) * (every * steps - there);
    }
    return rows * data->job->trainers.batch;
}

bool parallel_data_ends_epoch(const struct parallel_data *data, uint64_t iteration)
{
    return iteration > 0 && (iteration % data->epoch_updates == 0 || iteration == data->updates);
}

size_t parallel_data_state_count(const struct parallel_data *data, uint32_t columns)
{
    return (size_t)data->rnn.layers * columns * data->rnn.hidden;
}

void parallel_data_first_state(const struct parallel_data *data, uint32_t trainer, float *h, float *c)
{
    const size_t count = parallel_data_state_count(data, data->job->trainers.batch);
    memset(h, 0, count * sizeof *h);
    memset(c, 0, count * sizeof *c);
    if (data->text)
        return;
    corpus_random_state(data->job->seed, trainer, CORPUS_HIDDEN, h, count);
    corpus_random_state(data->job->seed, trainer, CORPUS_CELL, c, count);
}

/* ---- the held-out lines: batches of evaluation.batch columns and sequence.steps rows ---- */

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
