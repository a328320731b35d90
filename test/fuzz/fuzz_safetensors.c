/* Fuzzes the safetensors reader: once with the input as the whole file, and once with its first byte as the
 * number of data bytes and the rest as the header, so that the length before the header need not be guessed.
 *
 * Holds three promises: what is accepted is one unbroken row of entries over the data, each found by its name
 * and with an offset within the file; what is refused is refused as corrupt; and what is said of it is UTF-8
 * without control characters. */
#include "kernels/base/text.h"
#include "test/kernels/safetensors/safetensors_memory.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_accepted(const struct safetensors *file, const uint8_t *bytes, size_t size)
{
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes, sizeof header_bytes);
    uint64_t at = sizeof header_bytes + header_bytes;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_entry *entry = safetensors_at(file, i);
        require(entry->offset == at && safetensors_find(file, entry->name) == entry);
        require(strcmp(entry->name, "__metadata__") != 0 && entry->rank <= SAFETENSORS_RANK_MAX);
        at += entry->bytes;
    }
    require(at == size);
}

static void check_refused(const struct error *error)
{
    size_t length = strlen(error->text);
    require(strncmp(error->text, SAFETENSORS_MEMORY_PATH ": ", strlen(SAFETENSORS_MEMORY_PATH ": ")) == 0);
    for (size_t at = 0; at < length;) {
        size_t size = text_character(error->text + at, length - at);
        require(size > 0 && (unsigned char)error->text[at] >= 0x20);
        at += size;
    }
}

static void check_file(const uint8_t *bytes, size_t size)
{
    struct safetensors *file = NULL;
    struct error error = {0};
    require(safetensors_memory_put(bytes, size));
    enum status status = safetensors_open(&file, SAFETENSORS_MEMORY_PATH, &error);
    require((status == STATUS_OK) == (file != NULL));
    if (status == STATUS_OK)
        check_accepted(file, bytes, size);
    else if (status == STATUS_CORRUPT)
        check_refused(&error);
    else
        abort();
    safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_file(data, size);
    if (size == 0)
        return 0;
    uint64_t header_bytes = size - 1;
    size_t file_bytes = sizeof header_bytes + header_bytes + data[0];
    uint8_t *bytes = calloc(1, file_bytes);
    require(bytes != NULL);
    memcpy(bytes, &header_bytes, sizeof header_bytes);
    memcpy(bytes + sizeof header_bytes, data + 1, header_bytes);
    check_file(bytes, file_bytes);
    free(bytes);
    return 0;
}
