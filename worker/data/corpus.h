/* A text as a language model reads it: numbers of words, in two parts, and the batches cut from them.
 *
 * The text is UTF-8, a file of any size. A line is its words and "<eos>"; lines without a word are left out.
 * Words: see corpus.c's opening comment, which gives the rule. The last part of the lines (`held_out` of
 * them, rounded down) is kept for evaluation; the vocabulary is built from the rest alone.
 *
 * ---- Batches (as PyTorch's word_language_model cuts them) ----
 * A part of n tokens is cut into `columns` pieces of n / columns, which lie beside each other (what is left
 * over is left out). Batch k of `steps` holds rows [k steps, k steps + s) of some columns as input, the rows
 * one further as targets; s is `steps`, or less for the last batch (at least 1). Trainer t of several has the
 * columns [t batch, (t + 1) batch).
 *
 * corpus_read blocks on the file; everything else is pure. */
#ifndef WORKER_DATA_CORPUS_H
#define WORKER_DATA_CORPUS_H

#include "worker/data/vocabulary.h"

struct corpus_config {
    const char *path;
    uint32_t minimum_count;              /* a word of the training part that is rarer is <unk>; >= 1 */
    double held_out;                     /* 0 <= x < 1 */
    const struct vocabulary *vocabulary; /* to go by (a checkpoint's); NULL: build one */
    void (*progress)(void *context); /* optional: called every 256 KiB, some ten milliseconds, of reading */
    void *progress_context;
};

struct corpus_part {
    int32_t *tokens;
    size_t count;
};

enum { CORPUS_HASH_BYTES = 32 };

struct corpus {
    struct vocabulary *vocabulary; /* the corpus's own */
    struct corpus_part training, held_out;
    /* SHA-256 of the training part's count (uint64) and of all tokens (int32), little-endian: with the same
     * vocabulary, texts that give the same batches have the same one. */
    uint8_t sha256[CORPUS_HASH_BYTES];
    /* Of held_out (training, when that is empty) by the training part's frequencies, with one more of each
     * word: what a model without context reaches. */
    double unigram_perplexity;
};

/* STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_IO name the file; STATUS_CORRUPT: "FILE:LINE: not UTF-8 (byte
 * 0xff at column 3)", a control character, or a word longer than VOCABULARY_WORD_BYTES_MAX (columns count
 * bytes, from 1); STATUS_INVALID: no words, or a vocabulary of more than VOCABULARY_WORDS_MAX. */
enum status corpus_read(struct corpus *corpus, const struct corpus_config *config, struct error *error);
void corpus_fini(struct corpus *corpus);

/* How many batches of `steps` a part gives in `columns` columns; 0: it is too short for one. */
uint64_t corpus_batches(const struct corpus_part *part, uint32_t columns, uint32_t steps);

/* Batch `index`: fills tokens and targets, (s, batch) each, for the columns [first, first + batch); returns
 * s. */
uint32_t corpus_batch(const struct corpus_part *part, uint32_t columns, uint32_t first, uint32_t batch,
                      uint32_t steps, uint64_t index, int32_t *tokens, int32_t *targets);

/* ---- The tutorial's random data, which no file holds ---- */

/* What a draw is for; part of what keys it, so never renumbered. */
enum corpus_draw { CORPUS_TOKENS = 0, CORPUS_TARGETS = 1, CORPUS_HIDDEN = 2, CORPUS_CELL = 3 };

enum { CORPUS_UPDATE_BITS_MAX = 54 };

/* Tokens or targets of update `update` (from 0, below 2^54) of trainer `trainer`: `count` numbers uniform in
 * [0, below). Tokens are (steps, batch) in [0, vocabulary). Targets are the classes' (worker/job:
 * /loss/classes): (steps, batch) in [0, vocabulary) for the tokens' dimension, (steps, vocabulary) in [0,
 * batch) for the batch's. Value i is rng_below of words 2 (i mod 2) and 2 (i mod 2) + 1 of the block of
 * stream RNG_DATA with number draw << 22 | update >> 32, word 1 = i / 2, word 2 = the update's lower 32 bits,
 * word 3 = the trainer. */
void corpus_random(uint64_t seed, uint32_t trainer, uint64_t update, enum corpus_draw draw, int32_t *values,
                   size_t count, uint32_t below);

/* The hidden state, or the cells, that a trainer's first update begins with: (layers, batch, hidden), `count`
 * numbers normal(0, 1), as the tutorial has them. Value i is rng_normal of the block with number draw << 22,
 * word 1 = i, word 2 = 0, word 3 = the trainer, rounded to float32. */
void corpus_random_state(uint64_t seed, uint32_t trainer, enum corpus_draw draw, float *values, size_t count);

#endif
