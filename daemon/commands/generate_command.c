/* `coalesced generate`: prints text that a language model writes, word by word. The command's process; its
 * own thread and the math library's. */
#include "daemon/commands/commands.h"
#include "daemon/commands/job_files.h"
#include "kernels/base/rng.h"
#include "worker/data/tokenize.h"
#include "worker/model_parallel/language.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The word with number a, the smallest for which u is below the sum of probabilities up to it; u is a draw of
 * (seed, number of the word). */
static uint32_t sample_word(const float *logits, uint32_t count, const struct text_settings *settings,
                            uint64_t number)
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
static enum status put_word(const struct vocabulary *vocabulary, uint32_t number, const char **before,
                            struct error *error)
{
    const char *word = vocabulary_word(vocabulary, number);
    int put;
    if (number == VOCABULARY_END_OF_LINE)
        put = putchar('\n');
    else
        put = printf("%s%s", spacing_between(*before, word) ? " " : "", word);
    *before = number != VOCABULARY_END_OF_LINE ? word : NULL;
    return put >= 0 ? STATUS_OK : error_set_errno(error, errno, "cannot write the text");
}

/* `number`: of the word that is to be drawn, from 0. */
static enum status check_logits(const char *checkpoint, const struct vocabulary *vocabulary,
                                const float *logits, uint64_t number, struct error *error)
{
    for (uint32_t i = 0; i < vocabulary_size(vocabulary); i++)
        if (!isfinite(logits[i]))
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: for word %llu of the text the logit of \"%.60s\" is not finite",
                             checkpoint, (unsigned long long)number + 1, vocabulary_word(vocabulary, i));
    return STATUS_OK;
}

/* The text begins after a line end, with a state of zeros: `h` and `c`. */
static enum status write_text(struct language *language, const struct arguments *arguments, float *h,
                              float *c, struct error *error)
{
    const struct vocabulary *vocabulary = language_vocabulary(language);
    int32_t word = VOCABULARY_END_OF_LINE;
    const struct parallel_batch batch = {
        .steps = 1, .columns = 1, .tokens = &word, .h = h, .c = c, .h_out = h, .c_out = c};
    enum status status = STATUS_OK;
    const char *before = NULL;
    for (uint64_t i = 0; i < arguments->text.words && status == STATUS_OK; i++) {
        const float *logits;
        status = language_forward(language, &batch, &logits, error);
        if (status == STATUS_OK)
            status = check_logits(arguments->checkpoint, vocabulary, logits, i, error);
        if (status != STATUS_OK)
            break;
        word = (int32_t)sample_word(logits, vocabulary_size(vocabulary), &arguments->text, i);
        status = put_word(vocabulary, (uint32_t)word, &before, error);
    }
    if (status == STATUS_OK && ((before != NULL && putchar('\n') < 0) || fflush(stdout) != 0))
        status = error_set_errno(error, errno, "cannot write the text");
    return status;
}

enum status generate(const struct arguments *arguments, struct job *job, struct error *error)
{
    struct language *language = NULL;
    float *state = NULL; /* h, then c */
    enum status status = job_files_of_checkpoint(job, arguments->checkpoint, JOB_MODEL_PARALLEL, error);
    if (status != STATUS_OK)
        return status;
    job_resolve(job);
    status = language_open(&language, job, arguments->checkpoint, 1, error);
    if (status == STATUS_OK) {
        const size_t count = language_state_count(language);
        state = calloc(2 * count, sizeof *state);
        status = state == NULL
                     ? error_set(error, STATUS_NO_MEMORY, "no memory for a state of %zu numbers", count)
                     : write_text(language, arguments, state, state + count, error);
    }
    free(state);
    language_close(language);
    return status;
}
