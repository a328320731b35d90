/* What checkpoints of a model-parallel job are written from and read into. The trainer's thread runs this. */
#include "worker/model_parallel/parallel_values.h"

#include "worker/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static enum status values_open_text(struct parallel_values *values, const struct parallel_data *data,
                                    struct error *error)
{
    const struct corpus *corpus = &data->corpus;
    if (!data->text)
        return STATUS_OK;
    values->extra.text.tokens = corpus->training.count + corpus->held_out.count;
    memcpy(values->extra.text.sha256, corpus->sha256, sizeof values->extra.text.sha256);
    values->vocabulary = vocabulary_format(corpus->vocabulary, &values->extra.vocabulary_bytes);
    values->extra.vocabulary = values->vocabulary;
    if (values->vocabulary == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the vocabulary's text");
    return STATUS_OK;
}

bool parallel_values_begin(const struct worker *worker)
{
    return worker_resumes(worker) || worker->job.init.has_path;
}

static enum status values_load(const struct parallel_values *values, const struct worker *worker,
                               struct error *error)
{
    const struct checkpoint_values into = {.params = values->whole.params,
                                           .momentum = values->whole.momentum};
    if (!parallel_values_begin(worker))
        return STATUS_OK;
    return worker_resumes(worker) ? checkpoint_load(worker_resume_path(worker), &into, error)
                                  : checkpoint_load_model(path_of(worker->job.init.path), &into, error);
}

enum status parallel_values_open(struct parallel_values *values, const struct worker *worker, bool leads,
                                 const struct parallel_data *data, struct hidden_state *hidden,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    if (!leads && !worker_resumes(worker))
        return STATUS_OK;
    if (leads)
        status = whole_open(&values->whole, &data->rnn, worker->job.optimizer.momentum > 0, error);
    if (leads && status == STATUS_OK)
        status = values_load(values, worker, error);
    if (status == STATUS_OK)
        status = hidden_state_open_saved(hidden, data, error);
    values->extra.state = hidden->saved;
    return status == STATUS_OK ? values_open_text(values, data, error) : status;
}

void parallel_values_close(struct parallel_values *values)
{
    whole_close(&values->whole);
    free(values->vocabulary);
}

/* ---- is this the text of the checkpoint? ---- */

/* A word's number is its row in the model: another vocabulary is another model. */
static enum status values_check_vocabulary(const struct parallel_values *values,
                                           const struct parallel_data *data, struct path path,
                                           struct error *error)
{
    const struct checkpoint_extra *ours = &values->extra;
    char *text;
    size_t bytes;
    enum status status = checkpoint_vocabulary(path, &text, &bytes, error);
    if (status != STATUS_OK)
        return status;
    const bool same =
        (text == NULL) == (ours->vocabulary == NULL) &&
        (text == NULL || (bytes == ours->vocabulary_bytes && memcmp(text, ours->vocabulary, bytes) == 0));
    free(text);
    if (same)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.200s was made with other words than those of %.200s: expected the text with which "
                     "the run began",
                     path.text, data->text ? data->job->data.path : "synthetic data");
}

/* A text with the same words in another order, or with other lines held out, belongs to another run. */
static enum status values_check_text(const struct parallel_values *values, const struct parallel_data *data,
                                     const char *path, const struct checkpoint_text *expected,
                                     struct error *error)
{
    const struct checkpoint_text *text = &values->extra.text;
    if (expected->tokens == 0)
        return STATUS_OK;
    if (text->tokens != expected->tokens)
        return error_set(error, STATUS_INVALID,
                         "%.200s holds %" PRIu64 " words and line ends: expected the %" PRIu64
                         " of the text that %.200s was made with",
                         data->job->data.path, text->tokens, expected->tokens, path);
    if (memcmp(text->sha256, expected->sha256, sizeof text->sha256) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%.200s holds other words, or in another order: expected the text that %.200s was made "
                     "with",
                     data->job->data.path, path);
}

enum status parallel_values_check(const struct parallel_values *values, const struct parallel_data *data,
                                  struct path path, const struct checkpoint_text *text, struct error *error)
{
    enum status status = values_check_vocabulary(values, data, path, error);
    return status == STATUS_OK ? values_check_text(values, data, path.text, text, error) : status;
}

/* ---- owners ---- */

enum status parallel_values_send(const struct parallel_values *values, struct dist *dist,
                                 struct rref *const parameters[], bool momentum, struct error *error)
{
    const struct whole *whole = &values->whole;
    const enum dist_values which = momentum ? DIST_MOMENT_FIRST : DIST_VALUES;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(whole->params) && status == STATUS_OK; i++)
        status = dist_parameter_set(dist, parameters[i], which, whole_values(whole, i, momentum),
                                    whole_count(whole, i), error);
    return status;
}

enum status parallel_values_fetch(struct parallel_values *values, struct dist *dist,
                                  struct rref *const parameters[], bool momentum, struct error *error)
{
    const struct whole *whole = &values->whole;
    const enum dist_values which = momentum ? DIST_MOMENT_FIRST : DIST_VALUES;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(whole->params) && status == STATUS_OK; i++)
        status = dist_parameter_get(dist, parameters[i], which, whole_values(whole, i, momentum),
                                    whole_count(whole, i), error);
    return status;
}
