/* manifest.json, written and read; checkpoint_internal.h has its keys. The caller's thread.
 *
 * The manifest is read as strictly as a job file, by the same scanner: a file that decides which bytes to
 * trust must be unambiguous. Reading stops at the first fault. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"
#include "worker/job/json_document.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(CHECKPOINT_HASH_BYTES == crypto_hash_sha256_BYTES, "the text's hash is one");

enum { HEX_BYTES = 2 * crypto_hash_sha256_BYTES + 1, DIGITS_MAX = 20 };

const char *const checkpoint_file_names[CHECKPOINT_FILES_MAX] = {[CHECKPOINT_MODEL] = "model.safetensors",
                                                                 [CHECKPOINT_OPTIMIZER] =
                                                                     "optimizer.safetensors",
                                                                 [CHECKPOINT_VOCABULARY] = "vocabulary.txt",
                                                                 [CHECKPOINT_STATE] = "state.safetensors"};

/* ---- writing ---- */

static void manifest_print_extra(FILE *out, const struct manifest *manifest)
{
    const struct checkpoint_counters *counters = &manifest->counters;
    const struct checkpoint_text *text = &manifest->text;
    char hex[HEX_BYTES];
    fprintf(out, "  \"line_loss\": %.17g,\n  \"lr\": %.17g,\n  \"best_loss\": ", counters->line_loss,
            counters->lr);
    if (isinf(counters->best_loss))
        fprintf(out, "null,\n");
    else
        fprintf(out, "%.17g,\n", counters->best_loss);
    if (text->tokens == 0)
        return;
    sodium_bin2hex(hex, sizeof hex, text->sha256, sizeof text->sha256);
    fprintf(out, "  \"text\": {\"tokens\": %" PRIu64 ", \"sha256\": \"%s\"},\n", text->tokens, hex);
}

static void manifest_print_values(FILE *out, const struct manifest *manifest)
{
    const struct checkpoint_counters *counters = &manifest->counters;
    char hex[HEX_BYTES];
    fprintf(out, "{\n  \"format\": %d,\n  \"update\": %" PRIu64 ",\n  \"steps\": [", MANIFEST_FORMAT,
            counters->update);
    for (uint32_t i = 0; i < counters->trainers; i++)
        fprintf(out, "%s%" PRIu64, i == 0 ? "" : ", ", counters->steps[i]);
    fprintf(out, "],\n  \"late\": %" PRIu64 ",\n  \"epoch_loss\": %.17g,\n", counters->late,
            counters->epoch_loss);
    if (manifest->extra)
        manifest_print_extra(out, manifest);
    fprintf(out, "  \"entries\": %" PRIu32 ",\n  \"elements\": %" PRIu64 ",\n  \"momentum\": %s,\n",
            manifest->entries, manifest->elements, manifest->momentum ? "true" : "false");
    fprintf(out, "  \"files\": {");
    for (int i = 0; i < CHECKPOINT_FILES_MAX; i++) {
        const struct manifest_file *file = &manifest->files[i];
        if (!manifest_has(manifest, i))
            continue;
        sodium_bin2hex(hex, sizeof hex, file->sha256, sizeof file->sha256);
        fprintf(out, "%s\n    \"%s\": {\"bytes\": %" PRIu64 ", \"sha256\": \"%s\"}", i == 0 ? "" : ",",
                checkpoint_file_names[i], file->bytes, hex);
    }
    fprintf(out, "\n  }");
}

/* Formats the manifest with its own hash at the end. */
static char *manifest_format_summed(const struct manifest *manifest, size_t *bytes,
                                    uint8_t sum[crypto_hash_sha256_BYTES])
{
    char *text = NULL, hex[HEX_BYTES];
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
    manifest_print_values(out, manifest);
    bool good = fflush(out) == 0; // the text is there so far
    if (good) {
        crypto_hash_sha256(sum, (const unsigned char *)text, *bytes);
        sodium_bin2hex(hex, sizeof hex, sum, crypto_hash_sha256_BYTES);
        fprintf(out, ",\n  \"sha256\": \"%s\"\n}\n", hex);
    }
    good = good && ferror(out) == 0;
    if (fclose(out) == 0 && good)
        return text;
    free(text);
    return NULL;
}

char *manifest_format(const struct manifest *manifest, size_t *bytes)
{
    uint8_t sum[crypto_hash_sha256_BYTES];
    return manifest_format_summed(manifest, bytes, sum);
}

/* ---- reading ---- */

/* One manifest while it is read. */
struct reading {
    const char *name;
    struct json_document document;
    bool faulty;
    struct error *error;
};

/* Reports a fault of the JSON text; only the first is kept. */
static void report_flaw(void *context, uint32_t line, uint32_t column, const char *text)
{
    struct reading *reading = context;
    if (!reading->faulty)
        error_set(reading->error, STATUS_CORRUPT, "%s:%u:%u: %s", reading->name, line, column, text);
    reading->faulty = true;
}

/* Reports a fault of the value at node `index`. */
__attribute__((format(printf, 3, 4))) static enum status report_fault(const struct reading *reading,
                                                                      uint32_t index, const char *format, ...)
{
    const struct json_span *place = &reading->document.nodes[index].value;
    char pointer[JSON_POINTER_BYTES], text[JSON_SHOWN_BYTES + 128];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    json_document_pointer(pointer, &reading->document, index);
    return error_set(reading->error, STATUS_CORRUPT, "%s:%u:%u: %s%s%s", reading->name, place->line,
                     place->column, pointer, pointer[0] == '\0' ? "" : ": ", text);
}

static enum status report_unexpected(const struct reading *reading, uint32_t index, const char *expected)
{
    char shown[JSON_SHOWN_BYTES];
    json_document_show(shown, &reading->document, index);
    return report_fault(reading, index, "expected %s, got %s", expected, shown);
}

/* Finds the members of the object at `object`, which must be the first `required` of these `count` keys and
 * may be the others: nodes[i] is the value of keys[i], or stays. `nodes` is zero at first. */
static enum status manifest_find_members(const struct reading *reading, uint32_t object,
                                         const char *const *keys, size_t required, size_t count,
                                         uint32_t *nodes)
{
    const struct json_node *all = reading->document.nodes;
    if (all[object].type != JSON_OBJECT)
        return report_unexpected(reading, object, "an object");
    for (uint32_t i = object + 1; i < all[object].end; i = all[i].end) {
        size_t key = 0;
        while (key < count && strcmp(keys[key], reading->document.nodes[i].name) != 0)
            key++;
        if (key == count)
            return report_fault(reading, i, "unknown key");
        nodes[key] = i;
    }
    for (size_t key = 0; key < required; key++)
        if (nodes[key] == 0)
            return report_fault(reading, object, "the key \"%s\" is missing", keys[key]);
    return STATUS_OK;
}

/* Parses the digits of the text: a double cannot represent all integers beyond 2^53. */
static enum status manifest_read_integer(const struct reading *reading, uint32_t index, uint64_t min,
                                         uint64_t max, uint64_t *value)
{
    const struct json_node *node = &reading->document.nodes[index];
    const char *text = reading->document.text + node->value.offset;
    bool good = node->type == JSON_NUMBER && node->value.length <= DIGITS_MAX;
    *value = 0;
    for (uint32_t i = 0; i < node->value.length && good; i++) {
        const unsigned digit = (unsigned char)text[i] - (unsigned)'0';
        good = digit <= 9 && !__builtin_mul_overflow(*value, 10, value) &&
               !__builtin_add_overflow(*value, digit, value);
    }
    if (good && *value >= min && *value <= max)
        return STATUS_OK;
    char expected[80];
    snprintf(expected, sizeof expected, "an integer in %" PRIu64 "..%" PRIu64, min, max);
    return report_unexpected(reading, index, expected);
}

static enum status manifest_read_number(const struct reading *reading, uint32_t index, double *value)
{
    if (reading->document.nodes[index].type != JSON_NUMBER)
        return report_unexpected(reading, index, "a number");
    *value = reading->document.nodes[index].number;
    return STATUS_OK;
}

/* A loss that may not be there yet: null is INFINITY. */
static enum status manifest_read_best(const struct reading *reading, uint32_t index, double *value)
{
    const enum json_type type = reading->document.nodes[index].type;
    *value = INFINITY;
    if (type != JSON_NULL && type != JSON_NUMBER)
        return report_unexpected(reading, index, "null or a number");
    return type == JSON_NULL ? STATUS_OK : manifest_read_number(reading, index, value);
}

static enum status manifest_read_bool(const struct reading *reading, uint32_t index, bool *value)
{
    const enum json_type type = reading->document.nodes[index].type;
    if (type != JSON_TRUE && type != JSON_FALSE)
        return report_unexpected(reading, index, "true or false");
    *value = type == JSON_TRUE;
    return STATUS_OK;
}

static enum status manifest_read_steps(const struct reading *reading, uint32_t index,
                                       struct checkpoint_counters *counters)
{
    const struct json_node *nodes = reading->document.nodes;
    enum status status = STATUS_OK;
    if (nodes[index].type != JSON_ARRAY)
        return report_unexpected(reading, index, "an array");
    counters->trainers = 0;
    for (uint32_t i = index + 1; i < nodes[index].end && status == STATUS_OK; i = nodes[i].end) {
        if (counters->trainers == JOB_TRAINERS_MAX)
            return report_fault(reading, index, "expected the steps of at most %d trainers",
                                JOB_TRAINERS_MAX);
        status = manifest_read_integer(reading, i, 0, UINT64_MAX, &counters->steps[counters->trainers++]);
    }
    if (status == STATUS_OK && counters->trainers == 0)
        return report_unexpected(reading, index, "the steps of at least one trainer");
    return status;
}

static enum status manifest_read_sum(const struct reading *reading, uint32_t index,
                                     uint8_t sum[crypto_hash_sha256_BYTES])
{
    const enum json_type type = reading->document.nodes[index].type;
    const char *hex = type == JSON_STRING ? reading->document.nodes[index].string : "";
    if (strlen(hex) != HEX_BYTES - 1 || strspn(hex, "0123456789abcdef") != HEX_BYTES - 1 ||
        sodium_hex2bin(sum, crypto_hash_sha256_BYTES, hex, HEX_BYTES - 1, NULL, NULL, NULL) != 0)
        return report_unexpected(reading, index, "64 digits of 0-9 and a-f");
    return STATUS_OK;
}

/* An object of a size, under the key `name`, and a sum. */
static enum status manifest_read_sized(const struct reading *reading, uint32_t index, const char *name,
                                       uint64_t min, uint64_t *size, uint8_t sum[crypto_hash_sha256_BYTES])
{
    const char *const keys[] = {name, "sha256"};
    uint32_t nodes[2] = {0};
    enum status status = manifest_find_members(reading, index, keys, 2, 2, nodes);
    if (status == STATUS_OK)
        status = manifest_read_integer(reading, nodes[0], min, INT64_MAX, size);
    return status == STATUS_OK ? manifest_read_sum(reading, nodes[1], sum) : status;
}

static enum status manifest_read_files(const struct reading *reading, uint32_t index,
                                       struct manifest *manifest)
{
    uint32_t nodes[CHECKPOINT_FILES_MAX] = {0};
    const size_t count = manifest->extra ? CHECKPOINT_FILES_MAX : CHECKPOINT_FILES;
    enum status status =
        manifest_find_members(reading, index, checkpoint_file_names, CHECKPOINT_FILES, count, nodes);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        if (nodes[i] != 0)
            status = manifest_read_sized(reading, nodes[i], "bytes", i < CHECKPOINT_FILES ? 0 : 1,
                                         &manifest->files[i].bytes, manifest->files[i].sha256);
    return status;
}

/* Compares the hash at the end with the values that were read. */
static enum status manifest_check_sum(const struct reading *reading, uint32_t index,
                                      const struct manifest *manifest)
{
    uint8_t found[crypto_hash_sha256_BYTES], expected[crypto_hash_sha256_BYTES];
    size_t bytes;
    enum status status = manifest_read_sum(reading, index, found);
    if (status != STATUS_OK)
        return status;
    char *text = manifest_format_summed(manifest, &bytes, expected);
    if (text == NULL)
        return error_set(reading->error, STATUS_NO_MEMORY, "%s: no memory to check it", reading->name);
    free(text);
    return memcmp(found, expected, sizeof found) == 0
               ? STATUS_OK
               : report_fault(reading, index, "not the SHA-256 of the text before it");
}

enum manifest_key {
    KEY_FORMAT,
    KEY_UPDATE,
    KEY_STEPS,
    KEY_LATE,
    KEY_EPOCH_LOSS,
    KEY_ENTRIES,
    KEY_ELEMENTS,
    KEY_MOMENTUM,
    KEY_FILES,
    KEY_SUM,
    KEYS_REQUIRED, /* by every manifest; the next ones stand together or not at all */
    KEY_LINE_LOSS = KEYS_REQUIRED,
    KEY_LR,
    KEY_BEST_LOSS,
    KEYS_EXTRA, /* the last one only beside them */
    KEY_TEXT = KEYS_EXTRA,
    KEY_COUNT
};
static const char *const manifest_keys[KEY_COUNT] = {
    [KEY_FORMAT] = "format",         [KEY_UPDATE] = "update",
    [KEY_STEPS] = "steps",           [KEY_LATE] = "late",
    [KEY_EPOCH_LOSS] = "epoch_loss", [KEY_ENTRIES] = "entries",
    [KEY_ELEMENTS] = "elements",     [KEY_MOMENTUM] = "momentum",
    [KEY_FILES] = "files",           [KEY_SUM] = "sha256",
    [KEY_LINE_LOSS] = "line_loss",   [KEY_LR] = "lr",
    [KEY_BEST_LOSS] = "best_loss",   [KEY_TEXT] = "text"};

/* The keys of a model-parallel job alone. */
static enum status manifest_read_extra(const struct reading *reading, uint32_t nodes[KEY_COUNT],
                                       struct manifest *manifest)
{
    struct checkpoint_counters *counters = &manifest->counters;
    struct checkpoint_text *text = &manifest->text;
    for (int key = KEYS_REQUIRED; key < KEY_COUNT; key++)
        manifest->extra = manifest->extra || nodes[key] != 0;
    if (!manifest->extra)
        return STATUS_OK;
    enum status status = manifest_find_members(reading, 0, manifest_keys, KEYS_EXTRA, KEY_COUNT, nodes);
    if (status == STATUS_OK)
        status = manifest_read_number(reading, nodes[KEY_LINE_LOSS], &counters->line_loss);
    if (status == STATUS_OK)
        status = manifest_read_number(reading, nodes[KEY_LR], &counters->lr);
    if (status == STATUS_OK)
        status = manifest_read_best(reading, nodes[KEY_BEST_LOSS], &counters->best_loss);
    if (status == STATUS_OK && nodes[KEY_TEXT] != 0)
        status = manifest_read_sized(reading, nodes[KEY_TEXT], "tokens", 1, &text->tokens, text->sha256);
    return status;
}

static enum status manifest_read_members(const struct reading *reading, struct manifest *manifest)
{
    struct checkpoint_counters *counters = &manifest->counters;
    uint32_t nodes[KEY_COUNT] = {0};
    uint64_t format, entries = 0;
    enum status status = manifest_find_members(reading, 0, manifest_keys, KEYS_REQUIRED, KEY_COUNT, nodes);
    if (status == STATUS_OK)
        status = manifest_read_integer(reading, nodes[KEY_FORMAT], MANIFEST_FORMAT, MANIFEST_FORMAT, &format);
    if (status == STATUS_OK)
        status = manifest_read_integer(reading, nodes[KEY_UPDATE], 0, UINT64_MAX, &counters->update);
    if (status == STATUS_OK)
        status = manifest_read_steps(reading, nodes[KEY_STEPS], counters);
    if (status == STATUS_OK)
        status = manifest_read_integer(reading, nodes[KEY_LATE], 0, UINT64_MAX, &counters->late);
    if (status == STATUS_OK)
        status = manifest_read_number(reading, nodes[KEY_EPOCH_LOSS], &counters->epoch_loss);
    if (status == STATUS_OK)
        status = manifest_read_integer(reading, nodes[KEY_ENTRIES], 0, UINT32_MAX, &entries);
    if (status == STATUS_OK)
        status = manifest_read_integer(reading, nodes[KEY_ELEMENTS], 0, UINT64_MAX, &manifest->elements);
    if (status == STATUS_OK)
        status = manifest_read_bool(reading, nodes[KEY_MOMENTUM], &manifest->momentum);
    if (status == STATUS_OK)
        status = manifest_read_extra(reading, nodes, manifest);
    if (status == STATUS_OK)
        status = manifest_read_files(reading, nodes[KEY_FILES], manifest);
    manifest->entries = (uint32_t)entries;
    return status == STATUS_OK ? manifest_check_sum(reading, nodes[KEY_SUM], manifest) : status;
}

enum status manifest_parse(struct manifest *manifest, const char *name, const char *text, size_t length,
                           struct error *error)
{
    struct reading reading = {.name = name, .error = error};
    *manifest = (struct manifest){0};
    if (length > MANIFEST_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT, "%s: expected at most %d bytes, got %zu", name,
                         MANIFEST_BYTES_MAX, length);
    enum status status = json_document_parse(&reading.document, text, length, report_flaw, &reading);
    if (status != STATUS_OK)
        error_set(error, status, "%s: no memory to read it", name);
    else if (reading.faulty)
        status = STATUS_CORRUPT;
    else
        status = manifest_read_members(&reading, manifest);
    json_document_fini(&reading.document);
    return status;
}

enum status manifest_read(struct manifest *manifest, const char *folder, struct error *error)
{
    char path[CHECKPOINT_PATH_BYTES];
    uint64_t bytes;
    int fd;
    enum status status = checkpoint_path(path, error, "%s/" MANIFEST_NAME, folder);
    if (status == STATUS_OK)
        status = file_open(&fd, &bytes, path, error);
    if (status != STATUS_OK)
        return status;
    char *text = malloc(MANIFEST_BYTES_MAX + 1);
    /* One byte more than the limit reveals a file that is too long. */
    ssize_t length = text == NULL ? 0 : file_read_at(fd, text, MANIFEST_BYTES_MAX + 1, 0);
    if (text == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to read it", path);
    else if (length < 0)
        status = error_set_errno(error, errno, "%s: cannot be read", path);
    else
        status = manifest_parse(manifest, path, text, (size_t)length, error);
    free(text);
    close(fd);
    return status;
}
