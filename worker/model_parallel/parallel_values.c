/* What checkpoints of a model-parallel job are written from and read into. The trainer's thread runs this. */
#include "worker/model_parallel/parallel_values.h"

#include "kernels/params/gradients.h"
#include "worker/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory for parameters, which no iteration computes with. */
static enum status values_open_params(struct backend **backend, struct params **params, struct error *error)
{
    const struct backend_settings settings = {.threads = 1};
    enum status status = backend_load(backend, "onednn", &settings, error);
    return status == STATUS_OK ? params_new(params, *backend, error) : status;
}

/* ---- the whole model ---- */

enum status whole_open(struct whole *whole, const struct rnn_config *rnn, bool momentum, struct error *error)
{
    enum status status = values_open_params(&whole->backend, &whole->params, error);
    if (status == STATUS_OK)
        status = rnn_register(rnn, whole->params, error);
    if (status == STATUS_OK)
        status = params_build(whole->params, 0, error);
    if (status == STATUS_OK && momentum)
        status = gradients_new(&whole->momentum, whole->params, error);
    if (status == STATUS_OK && momentum)
        status = gradients_complete(whole->momentum, error); // whole_values gives out its memory
    return status;
}

void whole_close(struct whole *whole)
{
    gradients_free(whole->momentum);
    params_free(whole->params);
    backend_close(whole->backend);
    *whole = (struct whole){0};
}

size_t whole_count(const struct whole *whole, uint32_t index)
{
    return shape_elements(&params_at(whole->params, index)->tensor.shape);
}

float *whole_values(const struct whole *whole, uint32_t index, bool momentum)
{
    const struct parameter *parameter = params_at(whole->params, index);
    bool fresh;
    return momentum ? gradients_take(whole->momentum, parameter, &fresh)->data : parameter->tensor.data;
}

/* ---- opening ---- */

static enum status values_open_text(struct parallel_values *values, const struct parallel_data *data,
                                    struct error *error)
{
    const struct corpus *corpus = &data->corpus;
    if (!data->text)
        return STATUS_OK;
    values->extra.text.tokens = corpus->training.count + corpus->held_out.count;
    memcpy(values->extra.text.sha256, corpus->sha256, sizeof values->extra.text.sha256);
    values->vocabulary = vocabulary_format(corpus->vocabulary, &values->extra.vocabulary.count);
    values->extra.vocabulary.text = values->vocabulary;
    if (values->vocabulary == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the vocabulary's text");
    return STATUS_OK;
}

bool parallel_values_come_from_file(const struct worker *worker)
{
    return worker_resumes(worker) || worker->job.init.has_path;
}

static enum status values_load(const struct parallel_values *values, const struct worker *worker,
                               struct error *error)
{
    const struct checkpoint_values into = {.params = values->whole.params,
                                           .momentum = values->whole.momentum};
    if (!parallel_values_come_from_file(worker))
        return STATUS_OK;
    return worker_resumes(worker) ? checkpoint_load(worker_resume_path(worker), &into, error)
                                  : checkpoint_load_model(path_of(worker->job.init.path), &into, error);
}

static enum status values_open_states(struct parallel_values *values, const struct parallel_data *data,
                                      struct error *error)
{
    const struct shape shape = SHAPE3(data->rnn.layers, data->job->trainers.batch, data->rnn.hidden);
    const struct init zero = {INIT_CONSTANT, 0};
    enum status status = values_open_params(&values->backend, &values->states, error);
    for (uint32_t i = 0; i < 2 * data->job->trainers.count && status == STATUS_OK; i++) {
        struct parameter *entry;
        char name[32];
        snprintf(name, sizeof name, "trainer%u.%s", i / 2, i % 2 == 0 ? "h" : "c");
        status = params_add(values->states, name, PARAMETER_BUFFER, shape, zero, &entry, error);
    }
    return status == STATUS_OK ? params_build(values->states, 0, error) : status;
}

enum status parallel_values_open(struct parallel_values *values, const struct worker *worker, bool leads,
                                 const struct parallel_data *data, struct error *error)
{
    enum status status = STATUS_OK;
    if (!leads && !worker_resumes(worker))
        return STATUS_OK;
    if (leads)
        status = whole_open(&values->whole, &data->rnn, worker->job.optimizer.momentum > 0, error);
    if (leads && status == STATUS_OK)
        status = values_load(values, worker, error);
    if (status == STATUS_OK)
        status = values_open_states(values, data, error);
    values->extra.state = values->states;
    return status == STATUS_OK ? values_open_text(values, data, error) : status;
}

void parallel_values_close(struct parallel_values *values)
{
    whole_close(&values->whole);
    params_free(values->states);
    backend_close(values->backend);
    free(values->vocabulary);
}

void parallel_values_state(const struct parallel_values *values, uint32_t trainer, float **h, float **c)
{
    *h = params_at(values->states, 2 * trainer)->tensor.data;
    *c = params_at(values->states, 2 * trainer + 1)->tensor.data;
}

/* ---- is this the text of the checkpoint? ---- */

/* A word's number is its row in the model: another vocabulary is another model. */
static enum status values_check_vocabulary(const struct parallel_values *values,
                                           const struct parallel_data *data, struct path path,
                                           struct error *error)
{
    const struct checkpoint_bytes *ours = &values->extra.vocabulary;
    char *text;
    size_t bytes;
    enum status status = checkpoint_read(path, CHECKPOINT_VOCABULARY, &text, &bytes, error);
    if (status != STATUS_OK)
        return status;
    const bool same = (text == NULL) == (ours->text == NULL) &&
                      (text == NULL || (bytes == ours->count && memcmp(text, ours->text, bytes) == 0));
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

enum status parallel_values_resume(struct parallel_values *values, const struct parallel_data *data,
                                   struct path path, const struct checkpoint_text *text, struct error *error)
{
    enum status status = values_check_vocabulary(values, data, path, error);
    if (status == STATUS_OK)
        status = values_check_text(values, data, path.text, text, error);
    return status == STATUS_OK ? checkpoint_load_state(path, values->states, error) : status;
}

/* ---- owners ---- */

enum status parallel_values_move(const struct parallel_values *values, bool to_owners, bool momentum,
                                 struct dist *dist, struct rref *const parameters[], struct error *error)
{
    const struct whole *whole = &values->whole;
    const enum dist_values last = momentum && whole->momentum != NULL ? DIST_MOMENT_FIRST : DIST_VALUES;
    enum status status = STATUS_OK;
    for (enum dist_values which = DIST_VALUES; which <= last; which++)
        for (uint32_t i = 0; i < params_count(whole->params) && status == STATUS_OK; i++) {
            float *at = whole_values(whole, i, which == DIST_MOMENT_FIRST);
            const size_t count = whole_count(whole, i);
            status = to_owners ? dist_parameter_set(parameters[i], which, at, count, error)
                               : dist_parameter_get(dist, parameters[i], which, at, count, error);
        }
    return status;
}
