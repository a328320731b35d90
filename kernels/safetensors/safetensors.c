/* The format's dtypes, sizes and names: shared by the reader and the writer. Pure functions. */
#include "kernels/safetensors/safetensors_internal.h"

#include "kernels/base/text.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN_CHARACTERS = 40 };

static const struct safetensors_format formats[] = {
    {"F32", SAFETENSORS_F32, 32},          {"F64", SAFETENSORS_F64, 64},
    {"I32", SAFETENSORS_I32, 32},          {"I64", SAFETENSORS_I64, 64},
    {"BOOL", SAFETENSORS_OTHER, 8},        {"U8", SAFETENSORS_OTHER, 8},
    {"I8", SAFETENSORS_OTHER, 8},          {"U16", SAFETENSORS_OTHER, 16},
    {"I16", SAFETENSORS_OTHER, 16},        {"F16", SAFETENSORS_OTHER, 16},
    {"BF16", SAFETENSORS_OTHER, 16},       {"U32", SAFETENSORS_OTHER, 32},
    {"U64", SAFETENSORS_OTHER, 64},        {"C64", SAFETENSORS_OTHER, 64},
    {"F8_E4M3", SAFETENSORS_OTHER, 8},     {"F8_E5M2", SAFETENSORS_OTHER, 8},
    {"F8_E8M0", SAFETENSORS_OTHER, 8},     {"F8_E4M3FNUZ", SAFETENSORS_OTHER, 8},
    {"F8_E5M2FNUZ", SAFETENSORS_OTHER, 8}, {"F6_E2M3", SAFETENSORS_OTHER, 6},
    {"F6_E3M2", SAFETENSORS_OTHER, 6},     {"F4", SAFETENSORS_OTHER, 4},
};

const struct safetensors_format *safetensors_format_find(const char *text)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].text, text) == 0)
            return &formats[i];
    return NULL;
}

bool safetensors_bytes(const struct safetensors_format *format, uint32_t rank, const uint64_t *size,
                       uint64_t *bytes)
{
    uint64_t bits = format->bits;
    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bits, size[i], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

const char *safetensors_show(char shown[SAFETENSORS_SHOWN_BYTES], const char *name)
{
    text_show(shown, SAFETENSORS_SHOWN_BYTES, name, strlen(name), SHOWN_CHARACTERS);
    return shown;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *safetensors_duplicate(const char **names, size_t count)
{
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return names[i];
    return NULL;
}
