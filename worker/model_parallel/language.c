/* Runs `coalesced evaluate` and `coalesced generate`: reads the language model of a checkpoint, computes its
 * forward in one process, and prints a loss or the words that the model draws. The three layers run in turn,
 * each on its own tape and backend as in a job, so that an evaluation's figures equal the log's. */
#include "worker/model_parallel/language.h"

#include "kernels/base/rng.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/tokenize.h"
#include "worker/device.h"
#include "worker/model_parallel/layer.h"
#include "worker/model_parallel/parallel_values.h"

#include <errno.h>
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
    float *outputs[JOB_LAYERS]; /* each layer's, of the newest forward; the decoder's are logits (rows,
                                   tokens) */
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
    enum status status = checkpoint_vocabulary(path_of(checkpoint), &text, &bytes, error);
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

/* Opens the model of a checkpoint's folder, for batches of at most `rows` (steps times columns). Afterwards,
 * and after a failure, language_close. */
static enum status language_open(struct language *l, const struct job *job, const char *checkpoint,
                                 size_t rows, struct error *error)
{
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

static void language_close(struct language *l)
{
    for (int i = 0; i < JOB_LAYERS; i++) {
        tape_free(l->tapes[i]);
        layer_free(l->layers[i]);
        free(l->outputs[i]);
    }
    tape_free(l->loss_tape);
    backend_close(l->loss_backend);
    vocabulary_free(l->vocabulary);
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

/* Computes a batch: every layer's output, and the new state. */
static enum status language_forward(struct language *l, const struct parallel_batch *batch,
                                    struct error *error)
{
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
    enum status status = language_forward(l, batch, error);
    if (status != STATUS_OK)
        return status;
    tape_begin(tape, TAPE_INFER, NULL);
    struct variable *mean = tape_cross_entropy(
        tape,
        tape_input(tape, SHAPE2(rows, l->rnn.tokens), DTYPE_F32, "logits", l->outputs[JOB_LAYER_DECODER]),
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
    struct language language;
    struct parallel_data data = {0};
    enum status status = language_open(&language, job, checkpoint, rows, error);
    if (status == STATUS_OK)
        status = language_open_data(&data, &language, error);
    if (status == STATUS_OK)
        status = device_open(&language.loss_backend, job, job->trainers.threads, false, error);
    if (status == STATUS_OK)
        status = tape_new(&language.loss_tape, language.loss_backend, error);
    if (status == STATUS_OK)
        status = held_out_loss(&data, language_batch_loss, &language, loss, tokens, error);
    parallel_data_close(&data);
    language_close(&language);
    return status;
}

/* ---- generate ---- */

/* The word with number a, the smallest for which u is below the sum of probabilities up to it; u is a draw of
 * (seed, number of the word). */
static uint32_t language_draw_word(const float *logits, uint32_t count,
                                   const struct language_generate *settings, uint64_t number)
{
    const struct rng_key key = {
        .seed = settings->seed, .environment = (uint32_t)number, .step = (uint32_t)(number >> 32)};
    uint32_t words[4], word = 0;
    double largest = (double)logits[0], sum = 0, below = 0;
    rng_block(&key, RNG_ACTION, 0, words);
    for (uint32_t i = 1; i < count; i++)
        largest = fmax(largest, (double)logits[i]);
    for (uint32_t i = 0; i < count; i++)
        sum += exp(((double)logits[i] - largest) / settings->temperature);
    const double limit = rng_uniform_double(words[0], words[1]) * sum;
    for (; word + 1 < count; word++) {
        below += exp(((double)logits[word] - largest) / settings->temperature);
        if (limit < below)
            break;
    }
    return word;
}

/* *before: the previous word of the line, or NULL. */
static enum status language_put_word(FILE *stream, const struct language *l, uint32_t number,
                                     const char **before, struct error *error)
{
    const char *word = vocabulary_word(l->vocabulary, number);
    int put;
    if (number == VOCABULARY_END_OF_LINE)
        put = fputc('\n', stream);
    else
        put = fprintf(stream, "%s%s", spacing_between(*before, word) ? " " : "", word);
    *before = number != VOCABULARY_END_OF_LINE ? word : NULL;
    return put >= 0 ? STATUS_OK : error_set_errno(error, errno, "cannot write the text");
}

/* `number`: of the word that is to be drawn, from 0. */
static enum status language_check_logits(const struct language *l, uint64_t number, struct error *error)
{
    const float *logits = l->outputs[JOB_LAYER_DECODER];
    uint32_t i = 0;
    while (i < l->rnn.tokens && isfinite(logits[i]))
        i++;
    if (i == l->rnn.tokens)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT,
                     "%.300s: for word %llu of the text the logit of \"%.60s\" is not finite", l->checkpoint,
                     (unsigned long long)number + 1, vocabulary_word(l->vocabulary, i));
}

/* The text begins after a line end, with a state of zeros. */
static enum status language_write_text(struct language *l, const struct language_generate *settings,
                                       FILE *stream, float *h, float *c, struct error *error)
{
    int32_t word = VOCABULARY_END_OF_LINE;
    const struct parallel_batch batch = {
        .steps = 1, .columns = 1, .tokens = &word, .h = h, .c = c, .h_out = h, .c_out = c};
    enum status status = STATUS_OK;
    const char *before = NULL;
    for (uint64_t i = 0; i < settings->words && status == STATUS_OK; i++) {
        status = language_forward(l, &batch, error);
        if (status == STATUS_OK)
            status = language_check_logits(l, i, error);
        if (status != STATUS_OK)
            break;
        word = (int32_t)language_draw_word(l->outputs[JOB_LAYER_DECODER], l->rnn.tokens, settings, i);
        status = language_put_word(stream, l, (uint32_t)word, &before, error);
    }
    if (status == STATUS_OK && ((before != NULL && fputc('\n', stream) < 0) || fflush(stream) != 0))
        status = error_set_errno(error, errno, "cannot write the text");
    return status;
}

enum status language_generate(const struct job *job, const char *checkpoint,
                              const struct language_generate *settings, FILE *stream, struct error *error)
{
    struct language language;
    enum status status = language_open(&language, job, checkpoint, 1, error);
    const size_t count = (size_t)language.rnn.layers * language.rnn.hidden;
    float *state = calloc(2 * count + 1, sizeof *state); /* h, then c */
    if (status == STATUS_OK && state == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a state of %zu numbers", count);
    if (status == STATUS_OK)
        status = language_write_text(&language, settings, stream, state, state + count, error);
    free(state);
    language_close(&language);
    return status;
}
