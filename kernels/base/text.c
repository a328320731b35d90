/* Makes text from input fit to show, escapes it, and reads whole numbers. Pure functions; any thread. */
#include "kernels/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES_MAX = 40 };

/* The bounds of the second byte depend on the first: they keep out overlong forms (E0, F0), surrogates (ED)
 * and numbers above U+10FFFF (F4). */
size_t text_character(const char *bytes, size_t length)
{
    const unsigned char *byte = (const unsigned char *)bytes;
    if (length == 0)
        return 0;
    if (byte[0] < 0x80)
        return 1;
    size_t size = byte[0] >= 0xC2 && byte[0] <= 0xDF   ? 2
                  : byte[0] >= 0xE0 && byte[0] <= 0xEF ? 3
                  : byte[0] >= 0xF0 && byte[0] <= 0xF4 ? 4
                                                       : 0;
    if (size == 0 || size > length)
        return 0;
    unsigned char low = byte[0] == 0xE0 ? 0xA0 : byte[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = byte[0] == 0xED ? 0x9F : byte[0] == 0xF4 ? 0x8F : 0xBF;
    if (byte[1] < low || byte[1] > high)
        return 0;
    for (size_t i = 2; i < size; i++)
        if ((byte[i] & 0xC0) != 0x80)
            return 0;
    return size;
}

uint32_t text_code_point(const char *bytes, size_t size)
{
    static const unsigned char first_mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t code = (unsigned char)bytes[0] & first_mask[size];
    for (size_t i = 1; i < size; i++)
        code = code << 6 | ((unsigned char)bytes[i] & 0x3F);
    return code;
}

/* Control characters move the cursor or recolour a terminal; the format characters among the rest (marks
 * and overrides of direction, zero-width and tag characters, spaces that break no line) make a line read as
 * something it is not. */
static bool harmless(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x0000, 0x001F}, {0x007F, 0x00A0}, {0x00AD, 0x00AD}, {0x061C, 0x061C}, {0x200B, 0x200F},
        {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE0FFF},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return false;
    return true;
}

/* Writes the character at `bytes` as it may be shown. *used: bytes of it. Returns the written length. */
static size_t show_one(char piece[16], const char *bytes, size_t length, size_t *used)
{
    size_t size = text_character(bytes, length);
    *used = size == 0 ? 1 : size;
    if (size == 0)
        return (size_t)snprintf(piece, 16, "\\x%02x", (unsigned)(unsigned char)bytes[0]);
    uint32_t code = text_code_point(bytes, size);
    if (!harmless(code))
        return (size_t)snprintf(piece, 16, code > 0xFFFF ? "\\U%08x" : "\\u%04x", (unsigned)code);
    memcpy(piece, bytes, size);
    return size;
}

size_t text_show(char *out, size_t size, const char *bytes, size_t length, size_t characters_max)
{
    size_t written = 0, at = 0;
    for (size_t characters = 0; at < length; characters++) {
        char piece[16];
        size_t used;
        size_t piece_bytes = show_one(piece, bytes + at, length - at, &used);
        if (characters == characters_max || written + piece_bytes + 4 > size) {
            memcpy(out + written, "...", 3);
            written += 3;
            break;
        }
        memcpy(out + written, piece, piece_bytes);
        written += piece_bytes;
        at += used;
    }
    out[written] = '\0';
    return written;
}

const char *text_escape(char piece[TEXT_ESCAPED_BYTES], char c)
{
    if (c == '"' || c == '\\')
        snprintf(piece, TEXT_ESCAPED_BYTES, "\\%c", c);
    else if (c == '\n')
        snprintf(piece, TEXT_ESCAPED_BYTES, "\\n");
    else
        snprintf(piece, TEXT_ESCAPED_BYTES, (unsigned char)c < ' ' ? "\\u%04x" : "%c", (unsigned char)c);
    return piece;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t text_distance(const char *a, const char *b)
{
    size_t a_bytes = strnlen(a, WORD_BYTES_MAX + 1), b_bytes = strnlen(b, WORD_BYTES_MAX + 1);
    if (a_bytes > WORD_BYTES_MAX || b_bytes > WORD_BYTES_MAX)
        return SIZE_MAX;
    /* cost[i][j]: from the first i letters of a to the first j letters of b. */
    size_t cost[WORD_BYTES_MAX + 1][WORD_BYTES_MAX + 1];
    for (size_t i = 0; i <= a_bytes; i++)
        for (size_t j = 0; j <= b_bytes; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            cost[i][j] = least(cost[i - 1][j - 1] + (x != y), 1 + least(cost[i - 1][j], cost[i][j - 1]));
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    return cost[a_bytes][b_bytes];
}

bool text_integer(const char *text, uint64_t max, uint64_t *value)
{
    char *end;
    if (text == NULL || text[0] < '0' || text[0] > '9') /* strtoull would accept spaces and a sign */
        return false;
    errno = 0;
    const uint64_t number = strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || number > max)
        return false;
    *value = number;
    return true;
}
