/* Fuzzes the reader of checkpoint manifests.
 *
 * Holds four promises: the values that are read are, written, accepted and the same bytes once more, also
 * where the text is refused, for a fuzzer cannot guess its sum; a refused text is corrupt or of an older
 * format, with its name;
 * and what is said of it is UTF-8 without control characters. */
#include "kernels/base/text.h"
#include "worker/checkpoint/checkpoint_manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_values(const struct manifest *manifest)
{
    struct manifest again;
    struct error error = {0};
    size_t bytes, bytes_again;
    char *text = manifest_format(manifest, &bytes);
    require(text != NULL && strlen(text) == bytes && bytes <= MANIFEST_BYTES_MAX);
    require(manifest_parse(&again, "fuzz", text, bytes, &error) == STATUS_OK);
    char *text_again = manifest_format(&again, &bytes_again);
    require(text_again != NULL && bytes == bytes_again && memcmp(text, text_again, bytes) == 0);
    free(text);
    free(text_again);
}

static void check_refused(const struct error *error)
{
    const size_t length = strlen(error->text);
    require(strncmp(error->text, "fuzz:", 5) == 0);
    for (size_t at = 0; at < length;) {
        const size_t size = text_character(error->text + at, length - at);
        require(size > 0 && (unsigned char)error->text[at] >= 0x20 && error->text[at] != 0x7F);
        at += size;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest manifest;
    struct error error = {0};
    char *text = calloc(1, size + 1);
    require(text != NULL);
    memcpy(text, data, size);
    enum status status = manifest_parse(&manifest, "fuzz", text, size, &error);
    const bool is_refused = status == STATUS_CORRUPT || status == STATUS_INVALID;
    require(status == STATUS_OK || (is_refused && error.status == status));
    if (is_refused)
        check_refused(&error);
    if (manifest.counters.trainers > 0)
        check_values(&manifest);
    free(text);
    return 0;
}
