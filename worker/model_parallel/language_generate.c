/* Runs `coalesced generate`: prints text that the model of a checkpoint draws, word by word. */
#include "worker/model_parallel/language.h"

#include "kernels/base/rng.h"
#include "worker/data/tokenize.h"
#include "worker/model_parallel/language_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
static enum status language_check_logits(const struct language *l, const char *checkpoint, uint64_t number,
                                         struct error *error)
{
    const float *logits = l->outputs[JOB_LAYER_DECODER];
    uint32_t i = 0;
    while (i < l->rnn.tokens && isfinite(logits[i]))
        i++;
    if (i == l->rnn.tokens)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT,
                     "%.300s: for word %llu of the text the logit of \"%.60s\" is not finite", checkpoint,
                     (unsigned long long)number + 1, vocabulary_word(l->vocabulary, i));
}

/* The text begins after a line end, with a state of zeros. */
static enum status language_write_text(struct language *l, const char *checkpoint,
                                       const struct language_generate *settings, FILE *stream, float *h,
                                       float *c, struct error *error)
{
    int32_t word = VOCABULARY_END_OF_LINE;
    const struct parallel_batch batch = {
        .steps = 1, .columns = 1, .tokens = &word, .h = h, .c = c, .h_out = h, .c_out = c};
    enum status status = STATUS_OK;
    const char *before = NULL;
    for (uint64_t i = 0; i < settings->words && status == STATUS_OK; i++) {
        status = language_forward(l, &batch, error);
        if (status == STATUS_OK)
            status = language_check_logits(l, checkpoint, i, error);
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
        status = language_write_text(&language, checkpoint, settings, stream, state, state + count, error);
    free(state);
    language_close(&language);
    return status;
}
