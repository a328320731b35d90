/* Fuzzes the reader of texts and that of vocabularies. The input's first byte says which one it is for, and
 * of a text how much is held out and which words are rare.
 *
 * Holds five promises: an accepted vocabulary, written again, is the same bytes; of an accepted text every
 * token is a word of the vocabulary, which can itself be written and read back; by its own vocabulary the
 * text is the same tokens; batches lie within it; and what is refused is refused with a text that is UTF-8
 * without control characters and names the file, and of a vocabulary the line. */
#include "kernels/base/text.h"
#include "worker/data/corpus.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COLUMNS = 3, STEPS = 4 };

static char path[64];

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_refused(const struct error *error, const char *begins)
{
    const size_t length = strlen(error->text);
    require(strncmp(error->text, begins, strlen(begins)) == 0);
    for (size_t at = 0; at < length;) {
        const size_t size = text_character(error->text + at, length - at);
        require(size > 0 && (unsigned char)error->text[at] >= 0x20 && error->text[at] != 0x7F);
        at += size;
    }
}

static void fuzz_vocabulary(const char *text, size_t bytes)
{
    struct vocabulary *vocabulary;
    struct error error = {0};
    enum status status = vocabulary_parse(&vocabulary, "vocabulary.txt", text, bytes, &error);
    if (status == STATUS_OK) {
        size_t bytes_again;
        char *again = vocabulary_format(vocabulary, &bytes_again);
        require(again != NULL && bytes_again == bytes && memcmp(again, text, bytes) == 0);
        free(again);
    } else {
        require(status == STATUS_CORRUPT && error.status == status);
        check_refused(&error, "vocabulary.txt: line ");
    }
    vocabulary_free(vocabulary);
}

static void remove_file(void)
{
    unlink(path);
}

static void write_text(const char *text, size_t bytes)
{
    if (path[0] == '\0') {
        snprintf(path, sizeof path, "/dev/shm/fuzz-text-%ld", (long)getpid());
        require(atexit(remove_file) == 0);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
    close(fd);
}

static void check_part(const struct corpus_split *part, uint32_t words)
{
    const uint64_t batches = corpus_batches(part, COLUMNS, STEPS);
    int32_t tokens[COLUMNS * STEPS], targets[COLUMNS * STEPS];
    for (size_t i = 0; i < part->count; i++)
        require(part->tokens[i] >= 0 && (uint32_t)part->tokens[i] < words);
    for (uint64_t batch = 0; batch < batches; batch++) {
        const uint32_t steps = corpus_batch(part, COLUMNS, 0, COLUMNS, STEPS, batch, tokens, targets);
        require(steps >= 1 && steps <= STEPS);
        for (uint32_t i = 0; i + COLUMNS < steps * COLUMNS; i++)
            require(targets[i] == tokens[i + COLUMNS]);
    }
}

/* The same text by the vocabulary that it gave. */
static void check_again(const struct corpus *corpus, const struct corpus_config *config)
{
    struct corpus again;
    struct error error = {0};
    struct corpus_config by_own = *config;
    const size_t count = corpus->training.count + corpus->held_out.count;
    by_own.vocabulary = corpus->vocabulary;
    require(corpus_read(&again, &by_own, &error) == STATUS_OK);
    require(again.training.count == corpus->training.count && again.held_out.count == corpus->held_out.count);
    require(memcmp(again.training.tokens, corpus->training.tokens, count * sizeof(int32_t)) == 0);
    corpus_fini(&again);
}

static void fuzz_text(const char *text, size_t bytes, const struct corpus_config *config)
{
    struct corpus corpus;
    struct error error = {0};
    write_text(text, bytes);
    enum status status = corpus_read(&corpus, config, &error);
    if (status == STATUS_OK) {
        size_t vocabulary_bytes;
        char *vocabulary = vocabulary_format(corpus.vocabulary, &vocabulary_bytes);
        require(vocabulary != NULL && corpus.training.count >= 2 && corpus.unigram_perplexity > 0);
        fuzz_vocabulary(vocabulary, vocabulary_bytes);
        free(vocabulary);
        check_part(&corpus.training, vocabulary_size(corpus.vocabulary));
        check_part(&corpus.held_out, vocabulary_size(corpus.vocabulary));
        check_again(&corpus, config);
    } else {
        require(status == STATUS_CORRUPT || status == STATUS_INVALID);
        check_refused(&error, path);
    }
    corpus_fini(&corpus);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    const struct corpus_config config = {
        .path = path, .minimum_count = 1 + (data[0] >> 1) % 4, .held_out = (data[0] >> 3) / 32.0};
    if (data[0] % 2 == 0)
        fuzz_vocabulary(text, size - 1);
    else
        fuzz_text(text, size - 1, &config);
    return 0;
}
