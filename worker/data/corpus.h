/* A corpus: a text as a language model reads it. Word numbers, split into a training and a held-out part, and
 * the batches cut from them.
 *
 * The text is a UTF-8 file, which is read whole. A line becomes its words and "<eos>"; lines without a word
 * are left out. tokenize.h says what a word is. The last lines (the fraction `held_out` of them, rounded
 * down) are kept for evaluation; the vocabulary is built from the other lines alone.
 *
 * ---- Batches (cut as PyTorch's word_language_model cuts them) ----
 * A split of n tokens is cut into `columns` runs of n / columns tokens, which lie beside each other; the rest
 * is left out. Batch k of `steps` rows holds rows [k steps, k steps + s) of some columns as input and the
 * rows one further as targets; s is `steps`, or less for the last batch (at least 1). Of several trainers,
 * trainer t has the columns [t batch, (t + 1) batch).
 *
 * corpus_read blocks on the file. All other functions are pure. */
#ifndef WORKER_DATA_CORPUS_H
#define WORKER_DATA_CORPUS_H

#include "worker/data/vocabulary.h"

struct corpus_config {
    const char *path;
    uint32_t minimum_count; /* >= 1; a word that the training part has less often is <unk> */
    double held_out;        /* 0 <= x < 1 */
    const struct vocabulary
        *vocabulary;                 /* a checkpoint's, outlives the corpus; NULL: build one from the text */
    void (*progress)(void *context); /* optional: called after every 256 KiB, about 10 ms */
    void *progress_context;
};

struct corpus_split {
    int32_t *tokens;
    size_t count;
};

enum { CORPUS_HASH_BYTES = 32 };

struct corpus {
    const struct vocabulary *vocabulary; /* the config's, or `own` */
    struct vocabulary *own;
    struct corpus_split training, held_out;
    /* SHA-256 of the training part's count (uint64) and of all tokens (int32), little-endian. With the same
     * vocabulary, two texts have the same hash exactly when they give the same batches. */
    uint8_t sha256[CORPUS_HASH_BYTES];
    /* The perplexity of a model without context on held_out (on training where held_out is empty): each word
     * has its frequency in the training part, counted one higher. */
    double unigram_perplexity;
};

/* STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO name the file; STATUS_CORRUPT: "FILE:LINE: not UTF-8 (byte
 * 0xff at column 3)", a control character, or a word longer than VOCABULARY_WORD_BYTES_MAX (columns count
 * bytes, from 1); STATUS_INVALID: no words, or a vocabulary of more than VOCABULARY_WORDS_MAX. */
enum status corpus_read(struct corpus *corpus, const struct corpus_config *config, struct error *error);
void corpus_fini(struct corpus *corpus);

/* The number of batches of `steps` rows in `columns` columns; 0: the split is too short for one. */
uint64_t corpus_batches(const struct corpus_split *part, uint32_t columns, uint32_t steps);

/* Writes batch `index` into tokens and targets, (s, batch) each, for the columns [first, first + batch).
 * Returns s. */
uint32_t corpus_batch(const struct corpus_split *part, uint32_t columns, uint32_t first, uint32_t batch,
                      uint32_t steps, uint64_t index, int32_t *tokens, int32_t *targets);

/* ---- The tutorial's random data ---- */

/* The purpose of a draw. Part of its key, hence never renumbered. */
enum corpus_draw { CORPUS_TOKENS = 0, CORPUS_TARGETS = 1, CORPUS_HIDDEN = 2, CORPUS_CELL = 3 };

enum { CORPUS_UPDATE_BITS_MAX = 54 };

/* Draws the tokens or targets of update `update` (from 0, below 2^54) of trainer `trainer`: `count` numbers
 * uniform in [0, below). Tokens are (steps, batch) in [0, vocabulary). The shape of targets follows
 * /loss/classes: "tokens" (steps, batch) in [0, vocabulary), "batch" (steps, vocabulary) in [0, batch). Value
 * i is rng_below of words 2 (i mod 2) and 2 (i mod 2) + 1 of the block of stream RNG_DATA with number draw <<
 * 22 | update >> 32, word 1 = i / 2, word 2 = the update's lower 32 bits, word 3 = the trainer. */
void corpus_random(uint64_t seed, uint32_t trainer, uint64_t update, enum corpus_draw draw, int32_t *values,
                   size_t count, uint32_t below);

/* Draws the hidden state or the cells before a trainer's first update: (layers, batch, hidden), `count`
 * numbers normal(0, 1), as in the tutorial. Value i is rng_normal of the block with number draw << 22, word 1
 * = i, word 2 = 0, word 3 = the trainer, rounded to float32. */
void corpus_random_state(uint64_t seed, uint32_t trainer, enum corpus_draw draw, float *values, size_t count);

#endif
