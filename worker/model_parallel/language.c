/* Reads the language model of a checkpoint and computes its forward in one process. The three layers run in
 * turn, each on its own tape and backend as in a job, so an evaluation's figures equal the log's. */
#include "worker/model_parallel/language.h"

#include "worker/checkpoint/checkpoint.h"
#include "worker/device.h"
#include "worker/model_parallel/layer.h"
#include "worker/model_parallel/parallel_values.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct language {
    const char *checkpoint;
    const struct job *job;
    struct vocabulary *vocabulary; /* the checkpoint's */
    struct rnn_config rnn;
    struct layer *layers[JOB_LAYERS];
    struct tape *tapes[JOB_LAYERS];
    float *outputs[JOB_LAYERS]; /* each layer's, of the newest forward */
    /* An evaluation's: the loss is computed on a backend of its own, as at a trainer. */
    struct backend *loss_backend;
    struct tape *loss_tape;
    uint64_t batches; /* so far */
};

/* ---- opening ---- */

static enum status language_open_vocabulary(struct language *l, struct error *error)
{
    const char *checkpoint = l->checkpoint;
    char *text, file[PATH_MAX];
    size_t bytes;
    enum status status = checkpoint_read(path_of(checkpoint), CHECKPOINT_VOCABULARY, &text, &bytes, error);
    if (status != STATUS_OK)
        return status;
    if (text == NULL)
        return error_set(error, STATUS_INVALID,
                         "%.300s has no vocabulary: expected a model that was trained on a text", checkpoint);
    snprintf(file, sizeof file, "%s/vocabulary.txt", checkpoint);
    status = vocabulary_parse(&l->vocabulary, file, text, bytes, error);
    free(text);
    if (status == STATUS_OK)
        l->rnn = parallel_rnn(l->job, vocabulary_size(l->vocabulary));
    return status;
}

/* Copies a layer's values from the whole model's. */
static enum status language_fill_layer(struct layer *layer, const struct whole *whole, struct error *error)
{
    struct params *params = layer->params;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++) {
        struct parameter *parameter = params_at(params, i);
        status = params_write(params, parameter, DTYPE_F32,
                              params_find(whole->params, parameter->name)->tensor.data, error);
    }
    return status;
}

static enum status language_open_layers(struct language *l, struct whole *whole, struct error *error)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++) {
        const struct layer_settings settings = {
            .rnn = l->rnn, .seed = l->job->seed, .threads = l->job->threads[i].count};
        status = layer_new(&l->layers[i], i, &settings, l->job, error);
        if (status == STATUS_OK)
            status = language_fill_layer(l->layers[i], whole, error);
        if (status == STATUS_OK)
            status = tape_new(&l->tapes[i], l->layers[i]->backend, error);
    }
    return status;
}

static enum status language_open_model(struct language *l, struct error *error)
{
    struct whole whole = {0};
    enum status status = whole_open(&whole, &l->rnn, false, error);
    if (status == STATUS_OK) {
        const struct checkpoint_values values = {.params = whole.params};
        status = checkpoint_load_model(path_of(l->checkpoint), &values, error);
    }
    if (status == STATUS_OK)
        status = language_open_layers(l, &whole, error);
    whole_close(&whole);
    return status;
}

enum status language_open(struct language **out, const struct job *job, const char *checkpoint, size_t rows,
                          struct error *error)
{
    struct language *l = calloc(1, sizeof *l);
    *out = l;
    if (l == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a language model");
    *l = (struct language){.checkpoint = checkpoint, .job = job};
    enum status status = language_open_vocabulary(l, error);
    if (status == STATUS_OK)
        status = language_open_model(l, error);
    const uint32_t widths[JOB_LAYERS] = {l->rnn.embedding, l->rnn.hidden, l->rnn.tokens};
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++) {
        l->outputs[i] = calloc(rows * widths[i], sizeof *l->outputs[i]);
        if (l->outputs[i] == NULL)
            status = error_set(error, STATUS_NO_MEMORY, "no memory for %zu words of %u numbers each", rows,
                               widths[i]);
    }
    return status;
}

void language_close(struct language *l)
{
    if (l == NULL)
        return;
    for (int i = 0; i < JOB_LAYERS; i++) {
        tape_free(l->tapes[i]);
        layer_free(l->layers[i]);
        free(l->outputs[i]);
    }
    tape_free(l->loss_tape);
    backend_close(l->loss_backend);
    vocabulary_free(l->vocabulary);
    free(l);
}

const struct vocabulary *language_vocabulary(const struct language *l)
{
    return l->vocabulary;
}

size_t language_state_count(const struct language *l)
{
    return (size_t)l->rnn.layers * l->rnn.hidden;
}

/* ---- forward ---- */

/* Runs one layer on its tape, from inputs that are on it. Its first output is copied to l->outputs, its
 * state, if any, to the batch's. */
static enum status language_run_layer(struct language *l, enum job_layer which,
                                      const struct parallel_batch *batch, struct variable *const in[],
                                      uint32_t in_count, struct error *error)
{
    static const uint64_t numbers[LAYER_NUMBERS] = {0, 0}; /* nothing is drawn */
    struct tape *tape = l->tapes[which];
    struct variable *out[LAYER_VARIABLES_MAX] = {NULL};
    const uint32_t outputs = layer_forward(l->layers[which], tape, in, in_count, numbers, out);
    tape_read(tape, out[0], DTYPE_F32, l->outputs[which]);
    if (outputs == 3) {
        tape_read(tape, out[1], DTYPE_F32, batch->h_out);
        tape_read(tape, out[2], DTYPE_F32, batch->c_out);
    }
    return tape_finish(tape, error);
}

enum status language_forward(struct language *l, const struct parallel_batch *batch, const float **logits,
                             struct error *error)
{
    *logits = l->outputs[JOB_LAYER_DECODER];
    const uint32_t steps = batch->steps, columns = batch->columns;
    const struct shape state = SHAPE3(l->rnn.layers, columns, l->rnn.hidden);
    struct tape *const *tapes = l->tapes;
    struct variable *in[LAYER_VARIABLES_MAX];
    for (int i = 0; i < JOB_LAYERS; i++)
        tape_begin(tapes[i], TAPE_INFER, NULL);
    in[0] =
        tape_input(tapes[JOB_LAYER_EMBEDDING], SHAPE2(steps, columns), DTYPE_I32, "tokens", batch->tokens);
    enum status status = language_run_layer(l, JOB_LAYER_EMBEDDING, batch, in, 1, error);
    if (status != STATUS_OK)
        return status;
    in[0] = tape_input(tapes[JOB_LAYER_LSTM], SHAPE3(steps, columns, l->rnn.embedding), DTYPE_F32, "embedded",
                       l->outputs[JOB_LAYER_EMBEDDING]);
    in[1] = tape_input(tapes[JOB_LAYER_LSTM], state, DTYPE_F32, "h", batch->h);
    in[2] = tape_input(tapes[JOB_LAYER_LSTM], state, DTYPE_F32, "c", batch->c);
    status = language_run_layer(l, JOB_LAYER_LSTM, batch, in, 3, error);
    if (status != STATUS_OK)
        return status;
    in[0] = tape_input(tapes[JOB_LAYER_DECODER], SHAPE3(steps, columns, l->rnn.hidden), DTYPE_F32, "output",
                       l->outputs[JOB_LAYER_LSTM]);
    return language_run_layer(l, JOB_LAYER_DECODER, batch, in, 1, error);
}

/* ---- evaluate ---- */

static enum status language_batch_loss(void *context, const struct parallel_batch *batch, double *loss,
                                       struct error *error)
{
    struct language *l = context;
    struct tape *tape = l->loss_tape;
    const uint32_t rows = batch->steps * batch->columns;
    const float *logits;
    enum status status = language_forward(l, batch, &logits, error);
    if (status != STATUS_OK)
        return status;
    tape_begin(tape, TAPE_INFER, NULL);
    struct variable *mean =
        tape_cross_entropy(tape, tape_input(tape, SHAPE2(rows, l->rnn.tokens), DTYPE_F32, "logits", logits),
                           tape_input(tape, SHAPE1(rows), DTYPE_I32, "targets", batch->targets));
    tape_read(tape, mean, DTYPE_F64, loss);
    status = tape_finish(tape, error);
    l->batches++;
    if (status != STATUS_OK || isfinite(*loss))
        return status;
    return error_set(error, STATUS_CORRUPT,
                     "%.300s: its loss on batch %llu of the held-out text is not finite", l->checkpoint,
                     (unsigned long long)l->batches);
}

/* Reads the text in the checkpoint's words. */
static enum status language_open_data(struct parallel_data *data, const struct language *l,
                                      struct error *error)
{
    const struct corpus_config reading = {.vocabulary = l->vocabulary};
    if (l->job->data.kind != JOB_DATA_TEXT)
        return error_set(error, STATUS_INVALID,
                         "synthetic data has none held out to evaluate: expected \"text\" in /data/kind");
    const enum status status = parallel_data_open(data, l->job, &reading, error);
    if (status != STATUS_OK || data->held_out_batches > 0)
        return status;
    return error_set(error, STATUS_INVALID,
                     "%.300s: too little is held out to evaluate %u columns (/data/held_out)",
                     l->job->data.path, l->job->evaluation.batch);
}

enum status language_evaluate(const struct job *job, const char *checkpoint, double *loss, uint64_t *tokens,
                              struct error *error)
{
    const size_t rows = (size_t)job->sequence.steps * job->evaluation.batch;
    struct language *language;
    struct parallel_data data = {0};
    enum status status = language_open(&language, job, checkpoint, rows, error);
    if (status == STATUS_OK)
        status = language_open_data(&data, language, error);
    if (status == STATUS_OK)
        status = device_open(&language->loss_backend, job, job->trainers.threads, false, error);
    if (status == STATUS_OK)
        status = tape_new(&language->loss_tape, language->loss_backend, error);
    if (status == STATUS_OK)
        status = held_out_loss(&data, language_batch_loss, language, loss, tokens, error);
    parallel_data_close(&data);
    language_close(language);
    return status;
}
