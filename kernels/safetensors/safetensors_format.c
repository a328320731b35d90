/* Formats the header of a safetensors file, in memory: its length stands before it. */
#include "kernels/safetensors/safetensors.h"

#include "kernels/base/text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void format_string(FILE *out, const char *text)
{
    char piece[TEXT_ESCAPED_BYTES];
    putc('"', out);
    for (; *text != '\0'; text++)
        fputs(text_escape(piece, *text), out);
    putc('"', out);
}

static void format_entry(FILE *out, const struct safetensors_entry *entry, uint64_t offset)
{
    format_string(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", entry->dtype);
    for (uint32_t i = 0; i < entry->rank; i++)
        fprintf(out, "%s%" PRIu64, i == 0 ? "" : ",", entry->size[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + entry->bytes);
}

char *safetensors_format(const struct safetensors_entry *entries, size_t count, size_t *bytes)
{
    uint64_t offset = 0, length = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
    fwrite(&length, sizeof length, 1, out);
    putc('{', out);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            putc(',', out);
        format_entry(out, &entries[i], offset);
        offset += entries[i].bytes;
    }
    putc('}', out);
    for (long at = ftell(out); at % 8 != 0; at++)
        putc(' ', out);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    length = *bytes - sizeof length;
    memcpy(text, &length, sizeof length);
    return text;
}
