/* Writes and reads the text of manifest.json; the header lists its keys. Any thread. */
#include "worker/checkpoint/checkpoint_manifest.h"

#include "worker/job/json_document.h"

#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CHECKPOINT_HASH_BYTES == crypto_hash_sha256_BYTES, "the text's hash is one");
_Static_assert(RUN_DIGEST_BYTES == crypto_hash_sha256_BYTES, "the digests of a run are such hashes");

enum { HEX_BYTES = 2 * crypto_hash_sha256_BYTES + 1 };

const char *const checkpoint_file_names[CHECKPOINT_FILES_MAX] = {
    [CHECKPOINT_MODEL] = "model.safetensors",       [CHECKPOINT_OPTIMIZER] = "optimizer.safetensors",
    [CHECKPOINT_VOCABULARY] = "vocabulary.txt",     [CHECKPOINT_STATE] = "state.safetensors",
    [CHECKPOINT_ENVIRONMENTS] = "environments.bin", [CHECKPOINT_DESCRIPTION] = "environment.json"};

static const char *const measure_names[CHECKPOINT_MEASURES] = {
    [CHECKPOINT_RUNNING_REWARD] = "running_reward",
    [CHECKPOINT_ACCURACY] = "accuracy",
    [CHECKPOINT_HELD_OUT_LOSS] = "held_out_loss",
    [CHECKPOINT_EVALUATION_REWARD] = "evaluation_reward",
};

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

static void manifest_print_place(FILE *out, const struct run_place *place)
{
    char id[2 * RUN_ID_BYTES + 1], hex[HEX_BYTES];
    sodium_bin2hex(id, sizeof id, place->run.id, sizeof place->run.id);
    sodium_bin2hex(hex, sizeof hex, place->run.numbers, sizeof place->run.numbers);
    fprintf(out, "  \"run\": {\"id\": \"%s\", \"seed\": %" PRIu64 ", \"numbers\": \"%s\"},\n  \"logs\": {",
            id, place->run.seed, hex);
    for (int i = 0; i < RUN_LOGS; i++) {
        const struct log_place *log = &place->logs[i];
        sodium_bin2hex(hex, sizeof hex, log->sha256, sizeof log->sha256);
        fprintf(out, "%s\n    \"%s\": {\"lines\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"sha256\": \"%s\"}",
                i == 0 ? "" : ",", run_log_name(i), log->lines, log->bytes, hex);
    }
    fprintf(out, "\n  },\n");
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
    if (counters->train > 0 || counters->held_out > 0)
        fprintf(out, "  \"data\": {\"train\": %" PRIu64 ", \"held_out\": %" PRIu64 "},\n", counters->train,
                counters->held_out);
    if (counters->score.measure == CHECKPOINT_EVALUATION_REWARD)
        fprintf(out, "  \"%s\": %.17g,\n", measure_names[CHECKPOINT_RUNNING_REWARD],
                counters->running_reward);
    if (counters->score.measure != CHECKPOINT_UNMEASURED)
        fprintf(out, "  \"%s\": %.17g,\n", measure_names[counters->score.measure], counters->score.value);
    if (manifest->extra)
        manifest_print_extra(out, manifest);
    fprintf(out, "  \"entries\": %" PRIu32 ",\n  \"elements\": %" PRIu64 ",\n  \"momentum\": %s,\n",
            manifest->entries, manifest->elements, manifest->momentum ? "true" : "false");
    manifest_print_place(out, &manifest->place);
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

char *manifest_format(const struct manifest *manifest, size_t *bytes)
{
    uint8_t sum[crypto_hash_sha256_BYTES];
    char *text = NULL, hex[HEX_BYTES];
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
    manifest_print_values(out, manifest);
    bool good = fflush(out) == 0; // the text is there so far
    if (good) {
        crypto_hash_sha256(sum, (const unsigned char *)text, *bytes);
        sodium_bin2hex(hex, sizeof hex, sum, sizeof sum);
        fprintf(out, ",\n  \"sha256\": \"%s\"\n}\n", hex);
    }
    good = good && ferror(out) == 0;
    if (fclose(out) == 0 && good)
        return text;
    free(text);
    return NULL;
}

/* ---- reading ---- */

/* From the digits: a double cannot represent all integers beyond 2^53. */
static uint64_t manifest_integer(const struct json_document *document, const cJSON *value)
{
    return cJSON_IsNumber(value) ? strtoull(document->text + json_place_of(document, value)->value, NULL, 10)
                                 : 0;
}

static const cJSON *manifest_member(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static uint64_t integer_member(const struct json_document *document, const char *key)
{
    return manifest_integer(document, manifest_member(document->root, key));
}

static void manifest_read_hex(const cJSON *object, const char *key, uint8_t *to, size_t bytes)
{
    const char *hex = cJSON_GetStringValue(manifest_member(object, key));
    if (hex != NULL)
        sodium_hex2bin(to, bytes, hex, strlen(hex), NULL, NULL, NULL);
}

static double number_member(const struct json_document *document, const char *key)
{
    const cJSON *value = manifest_member(document->root, key);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

/* The object's two members: a size, under the key `name`, and a sum. */
static void manifest_read_sized(const struct json_document *document, const cJSON *object, const char *name,
                                uint64_t *size, uint8_t sum[crypto_hash_sha256_BYTES])
{
    *size = manifest_integer(document, manifest_member(object, name));
    manifest_read_hex(object, "sha256", sum, crypto_hash_sha256_BYTES);
}

static void manifest_read_place(const struct json_document *document, struct run_place *place)
{
    const cJSON *run = manifest_member(document->root, "run"),
                *logs = manifest_member(document->root, "logs");
    manifest_read_hex(run, "id", place->run.id, sizeof place->run.id);
    place->run.seed = manifest_integer(document, manifest_member(run, "seed"));
    manifest_read_hex(run, "numbers", place->run.numbers, sizeof place->run.numbers);
    for (int i = 0; i < RUN_LOGS; i++) {
        const cJSON *log = manifest_member(logs, run_log_name(i));
        place->logs[i].lines = manifest_integer(document, manifest_member(log, "lines"));
        manifest_read_sized(document, log, "bytes", &place->logs[i].bytes, place->logs[i].sha256);
    }
}

static void manifest_read_counters(const struct json_document *document, struct checkpoint_counters *counters)
{
    const cJSON *steps = manifest_member(document->root, "steps"), *step;
    const cJSON *data = manifest_member(document->root, "data");
    counters->update = integer_member(document, "update");
    counters->late = integer_member(document, "late");
    counters->epoch_loss = number_member(document, "epoch_loss");
    counters->train = manifest_integer(document, manifest_member(data, "train"));
    counters->held_out = manifest_integer(document, manifest_member(data, "held_out"));
    for (int i = CHECKPOINT_UNMEASURED + 1; i < CHECKPOINT_MEASURES; i++)
        if (manifest_member(document->root, measure_names[i]) != NULL)
            counters->score = (struct checkpoint_score){i, number_member(document, measure_names[i])};
    if (counters->score.measure == CHECKPOINT_RUNNING_REWARD ||
        counters->score.measure == CHECKPOINT_EVALUATION_REWARD)
        counters->running_reward = number_member(document, measure_names[CHECKPOINT_RUNNING_REWARD]);
    cJSON_ArrayForEach(step, steps)
    {
        if (counters->trainers < JOB_TRAINERS_MAX)
            counters->steps[counters->trainers++] = manifest_integer(document, step);
    }
}

static void manifest_read_extra(const struct json_document *document, struct manifest *manifest)
{
    struct checkpoint_counters *counters = &manifest->counters;
    const cJSON *text = manifest_member(document->root, "text");
    counters->line_loss = number_member(document, "line_loss");
    counters->lr = number_member(document, "lr");
    counters->best_loss = cJSON_IsNull(manifest_member(document->root, "best_loss"))
                              ? (double)INFINITY
                              : number_member(document, "best_loss");
    if (text != NULL)
        manifest_read_sized(document, text, "tokens", &manifest->text.tokens, manifest->text.sha256);
}

static void manifest_read_values(const struct json_document *document, struct manifest *manifest)
{
    const cJSON *files = manifest_member(document->root, "files");
    manifest_read_place(document, &manifest->place);
    manifest_read_counters(document, &manifest->counters);
    manifest->entries = (uint32_t)integer_member(document, "entries");
    manifest->elements = integer_member(document, "elements");
    manifest->momentum = cJSON_IsTrue(manifest_member(document->root, "momentum"));
    manifest->extra = manifest_member(document->root, "line_loss") != NULL;
    if (manifest->extra)
        manifest_read_extra(document, manifest);
    for (int i = 0; i < CHECKPOINT_FILES_MAX; i++) {
        const cJSON *file = manifest_member(files, checkpoint_file_names[i]);
        if (file != NULL)
            manifest_read_sized(document, file, "bytes", &manifest->files[i].bytes,
                                manifest->files[i].sha256);
    }
}

/* Names the first line in which the text is not the expected one. */
static enum status manifest_refuse(const char *name, const char *text, const char *expected,
                                   struct error *error)
{
    size_t line = 1, begin = 0, at = 0;
    for (; text[at] == expected[at] && text[at] != '\0'; at++)
        if (text[at] == '\n') {
            line++;
            begin = at + 1;
        }
    begin += strspn(expected + begin, " ");
    if (expected[begin] == '\0')
        return error_set(error, STATUS_CORRUPT, "%s:%zu: expected the end of the file", name, line);
    return error_set(error, STATUS_CORRUPT, "%s:%zu: expected %.*s", name, line,
                     (int)strcspn(expected + begin, "\n"), expected + begin);
}

enum status manifest_parse(struct manifest *manifest, const char *name, const char *text, size_t length,
                           struct error *error)
{
    struct json_document document;
    struct json_error fault;
    size_t bytes = 0;
    *manifest = (struct manifest){0};
    enum status status = json_document_parse(&document, text, length, &fault);
    const bool is_old = status == STATUS_OK && integer_member(&document, "format") == 1;
    if (status == STATUS_OK)
        manifest_read_values(&document, manifest);
    json_document_fini(&document);
    if (is_old)
        return error_set(error, STATUS_INVALID,
                         "%s: an older version has written it in format 1: expected format %d", name,
                         MANIFEST_FORMAT);
    if (status == STATUS_INVALID) {
        const struct json_position at = json_position(text, fault.offset);
        return error_set(error, STATUS_CORRUPT, "%s:%u:%u: %s", name, at.line, at.column, fault.text);
    }
    char *expected = status == STATUS_OK ? manifest_format(manifest, &bytes) : NULL;
    if (expected == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "%s: no memory to read it", name);
    else if (bytes != length || memcmp(text, expected, bytes) != 0)
        status = manifest_refuse(name, text, expected, error);
    else if (manifest->counters.trainers == 0)
        status = error_set(error, STATUS_CORRUPT, "%s: expected the steps of at least one trainer", name);
    free(expected);
    return status;
}
