/* Fuzzes the safetensors reader: once with the input as the whole file, and once with its first byte as the
 * number of data bytes and the rest as the header, so that the length before the header need not be guessed.
 *
 * Holds three promises: what is accepted is entries in the order of their names, each within the data and
 * found by its name, and as large as the data together; what is refused is refused as corrupt; and what is
 * said of it is UTF-8 without control characters. */
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

static void check_accepted(const struct safetensors *file, size_t size)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        require(entry->offset >= file->data && entry->offset + entry->bytes <= size);
        require(safetensors_find(file, entry->name) == entry && entry->rank <= SAFETENSORS_RANK_MAX);
        require(strcmp(entry->name, "__metadata__") != 0);
        require(i == 0 || strcmp(file->entries[i - 1].name, entry->name) < 0);
        bytes += entry->bytes;
    }
    require(file->data + bytes == size);
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
    enum status status = safetensors_open(&file, path_of(SAFETENSORS_MEMORY_PATH), &error);
    require((status == STATUS_OK) == (file != NULL));
    if (status == STATUS_OK)
        check_accepted(file, size);
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
