/* One key's value by its type: stored, written, and in words. Runs in whatever process reads or writes a job.
 */
#include "kernels/base/text.h"
#include "worker/job/job_table.h"
#include "worker/job/json_document.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

/* ---- types that a pattern defines ---- */

/* Extended regular expressions, which mean the same in a JSON schema; and the same in words. */
static const struct {
    const char *pattern, *words;
} types[] = {
    [JOB_OBJECT] = {NULL, "an object"},
    [JOB_BOOLEAN] = {NULL, "true or false"},
    [JOB_NAME] = {"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$",
                  "1 to 63 of the characters A-Z a-z 0-9 . _ - that begin with neither . nor -"},
    [JOB_ROUND] = {"^(all|first ([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-6])"
                   "|async ([0-9]|[1-5][0-9]|6[0-4]))$",
                   "\"all\", \"first K\" with K in 1..256, or \"async S\" with S in 0..64"},
    [JOB_PLACE] = {"^(trainer|server ([0-9]|1[0-5]))$", "\"trainer\", or \"server K\" with K in 0..15"},
};
_Static_assert(JOB_NAME_BYTES == 64 && JOB_TRAINERS_MAX == 256 && JOB_SERVERS_MAX == 16,
               "the patterns' limits");

const char *job_type_pattern(enum job_type type)
{
    return types[type].pattern;
}

static bool matches(enum job_type type, const char *text)
{
    regex_t expression;
    if (regcomp(&expression, types[type].pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    const bool match = regexec(&expression, text, 0, NULL, 0) == 0;
    regfree(&expression);
    return match;
}

bool job_name_valid(const char *name)
{
    return matches(JOB_NAME, name);
}

/* Whether `text` has min..max bytes, all of them well-formed UTF-8 that text_show would leave alone: nothing
 * in a path may move a cursor or hide. */
static bool path_valid(const char *text, double min, double max)
{
    size_t length = strlen(text);
    if ((double)length < min || (double)length > max)
        return false;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        char shown[16];
        bytes = text_character(text + at, length - at);
        if (bytes == 0 || text_show(shown, sizeof shown, text + at, bytes, 1) != bytes ||
            memcmp(shown, text + at, bytes) != 0)
            return false;
    }
    return true;
}

/* The index of `text`, up to a space, among the key's names, or -1. */
static int name_index(const struct job_key *key, const char *text)
{
    const size_t length = strcspn(text, " ");
    for (int i = 0; length > 0 && key->names[i] != NULL; i++)
        if (strlen(key->names[i]) == length && memcmp(key->names[i], text, length) == 0)
            return i;
    return -1;
}

/* ---- storing ---- */

static bool store_number(void *at, const struct job_key *key, double value)
{
    if (value < key->min || value > key->max || (key->min_open && value == key->min) ||
        (key->max_open && value == key->max) || (key->bounds_only && value != key->min && value != key->max))
        return false;
    if (key->type == JOB_NUMBER)
        *(double *)at = value;
    else if (key->bytes == sizeof(uint32_t))
        *(uint32_t *)at = (uint32_t)value;
    else
        *(uint64_t *)at = (uint64_t)value;
    return true;
}

/* "NAME", or "NAME NUMBER" for every name but the first. */
static bool store_numbered(void *at, const struct job_key *key, const char *text)
{
    if (!matches(key->type, text))
        return false;
    const int name = name_index(key, text);
    const uint32_t number = name == 0 ? 0 : (uint32_t)strtoul(strchr(text, ' '), NULL, 10);
    if (key->type == JOB_ROUND) {
        *(struct job_round_rule *)at = (struct job_round_rule){.rule = name, .number = number};
    } else {
        struct job_place *place = at; /* member by member: equal jobs are equal byte for byte */
        place->on_server = name > 0;
        place->server = number;
    }
    return true;
}

static bool store_string(void *at, const struct job_key *key, const char *text)
{
    const int name = key->names == NULL || strchr(text, ' ') != NULL ? -1 : name_index(key, text);
    if (key->type == JOB_ROUND || key->type == JOB_PLACE)
        return store_numbered(at, key, text);
    const bool valid = key->type == JOB_NAME   ? job_name_valid(text)
                       : key->type == JOB_PATH ? path_valid(text, key->min, key->max)
                                               : name >= 0;
    if (valid && key->type == JOB_ENUM) {
        *(int *)at = name;
    } else if (valid) {
        memset(at, 0, key->bytes);
        memcpy(at, text, strlen(text));
    }
    return valid;
}

/* Stores a value, or one element, at `at`. */
static bool store_one(void *at, const struct job_key *key, const struct json_document *document,
                      const cJSON *value)
{
    switch (key->type) {
    case JOB_OBJECT:
        return cJSON_IsObject(value);
    case JOB_INTEGER:
        return json_is_integer(document, value) && store_number(at, key, value->valuedouble);
    case JOB_NUMBER:
        return cJSON_IsNumber(value) && store_number(at, key, value->valuedouble);
    case JOB_BOOLEAN:
        *(bool *)at = cJSON_IsTrue(value);
        return cJSON_IsBool(value);
    default:
        return cJSON_IsString(value) && store_string(at, key, value->valuestring);
    }
}

bool job_value_has_elements(const struct job_key *key, const cJSON *value)
{
    const uint32_t count = (uint32_t)cJSON_GetArraySize(value);
    return cJSON_IsArray(value) && (count == 1 || count == key->elements) && key->elements > 0;
}

bool job_value_store_element(struct job *job, const struct job_key *key, const struct json_document *document,
                             const cJSON *element, uint32_t index)
{
    void *at = (char *)job + key->offset;
    struct job_channels *channels = at;
    if (key->elements == 1)
        return store_one(at, key, document, element);
    channels->count = index + 1;
    return store_one(&channels->value[index], key, document, element);
}

bool job_value_store(struct job *job, const struct job_key *key, const struct json_document *document,
                     const cJSON *value)
{
    if (key->nullable && cJSON_IsNull(value)) {
        job_value_make_null(job, key);
        return true;
    }
    if (key->nullable)
        *(bool *)((char *)job + key->offset_present) = true;
    if (key->elements == 0)
        return store_one((char *)job + key->offset, key, document, value);
    bool good = job_value_has_elements(key, value);
    uint32_t index = 0;
    for (const cJSON *element = value->child; element != NULL && good; element = element->next)
        good = job_value_store_element(job, key, document, element, index++);
    return good;
}

/* ---- reading what is stored ---- */

bool job_value_is_null(const struct job *job, const struct job_key *key)
{
    return key->nullable && !*(const bool *)((const char *)job + key->offset_present);
}

void job_value_make_null(struct job *job, const struct job_key *key)
{
    *(bool *)((char *)job + key->offset_present) = false;
    memset((char *)job + key->offset, 0, key->bytes);
}

double job_value_number(const struct job *job, const struct job_key *key)
{
    const void *at = (const char *)job + key->offset;
    if (key->elements > 1)
        return ((const struct job_channels *)at)->count;
    switch (key->type) {
    case JOB_INTEGER:
        return key->bytes == sizeof(uint32_t) ? (double)*(const uint32_t *)at : (double)*(const uint64_t *)at;
    case JOB_NUMBER:
        return *(const double *)at;
    case JOB_ROUND:
        return ((const struct job_round_rule *)at)->number;
    case JOB_PLACE:
        return ((const struct job_place *)at)->server;
    default:
        return 0;
    }
}

const char *job_value_name(const struct job *job, const struct job_key *key)
{
    const void *at = (const char *)job + key->offset;
    switch (key->type) {
    case JOB_ENUM:
        return key->names[*(const int *)at];
    case JOB_ROUND:
        return key->names[((const struct job_round_rule *)at)->rule];
    case JOB_PLACE:
        return key->names[((const struct job_place *)at)->on_server];
    case JOB_CHOICE:
    case JOB_NAME:
    case JOB_PATH:
        return at;
    default:
        return "";
    }
}

/* ---- writing ---- */

void job_write_string(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', stream);
        fputc(*text, stream);
    }
    fputc('"', stream);
}

void job_number_show(char text[32], double value)
{
    for (int digits = fabs(value) < 1e15 && value == floor(value) ? 15 : 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

static void write_number(FILE *stream, double value, bool brief)
{
    char text[32];
    job_number_show(text, value);
    if (brief)
        fputs(text, stream);
    else
        fprintf(stream, "%.17g", value);
}

static void write_channels(FILE *stream, const struct job_channels *channels, bool brief)
{
    for (uint32_t i = 0; i < channels->count; i++) {
        fputs(i == 0 ? "[" : ", ", stream);
        write_number(stream, channels->value[i], brief);
    }
    fputc(']', stream);
}

/* "NAME", or "NAME NUMBER" for every name but the first. */
static void write_numbered(FILE *stream, const struct job *job, const struct job_key *key)
{
    const char *name = job_value_name(job, key);
    if (strcmp(name, key->names[0]) == 0)
        job_write_string(stream, name);
    else
        fprintf(stream, "\"%s %.0f\"", name, job_value_number(job, key));
}

void job_value_write(FILE *stream, const struct job *job, const struct job_key *key, bool brief)
{
    const void *at = (const char *)job + key->offset;
    if (job_value_is_null(job, key))
        fputs("null", stream);
    else if (key->elements > 1)
        write_channels(stream, at, brief);
    else if (key->type == JOB_INTEGER)
        fprintf(stream, key->elements > 0 ? "[%.0f]" : "%.0f", job_value_number(job, key));
    else if (key->type == JOB_NUMBER)
        write_number(stream, *(const double *)at, brief);
    else if (key->type == JOB_BOOLEAN)
        fputs(*(const bool *)at ? "true" : "false", stream);
    else if (key->type == JOB_ROUND || key->type == JOB_PLACE)
        write_numbered(stream, job, key);
    else
        job_write_string(stream, job_value_name(job, key));
}

/* ---- in words ---- */

static void expect_names(char *text, const struct job_key *key)
{
    int length = snprintf(text, JOB_WORDS_BYTES, key->names[1] == NULL ? "" : "one of ");
    const char *separator = "";
    for (size_t i = 0; key->names[i] != NULL; i++) {
        if (key->names[i][0] == '\0')
            continue;
        length +=
            snprintf(text + length, JOB_WORDS_BYTES - (size_t)length, "%s\"%s\"", separator, key->names[i]);
        separator = ", ";
    }
}

static void expect_number(char *text, const struct job_key *key)
{
    char min[32], max[32];
    job_number_show(min, key->min);
    job_number_show(max, key->max);
    if (key->bounds_only)
        snprintf(text, JOB_WORDS_BYTES, "%s or %s", min, max);
    else if (key->type == JOB_INTEGER)
        snprintf(text, JOB_WORDS_BYTES, "an integer in %s..%s", min, max);
    else if (key->max == DBL_MAX)
        snprintf(text, JOB_WORDS_BYTES, "a number");
    else
        snprintf(text, JOB_WORDS_BYTES, "a number in %c%s, %s%c", key->min_open ? '(' : '[', min, max,
                 key->max_open ? ')' : ']');
}

void job_value_expected_element(char text[JOB_WORDS_BYTES], const struct job_key *key)
{
    if (key->type == JOB_INTEGER || key->type == JOB_NUMBER)
        expect_number(text, key);
    else if (key->type == JOB_ENUM || key->type == JOB_CHOICE)
        expect_names(text, key);
    else if (key->type == JOB_PATH)
        snprintf(text, JOB_WORDS_BYTES, "a path of %.0f to %.0f bytes, all of them printable UTF-8", key->min,
                 key->max);
    else
        snprintf(text, JOB_WORDS_BYTES, "%s", types[key->type].words);
}

void job_value_expected(char text[JOB_WORDS_BYTES], const struct job_key *key)
{
    char element[JOB_WORDS_BYTES];
    job_value_expected_element(element, key);
    snprintf(text, JOB_WORDS_BYTES, "%s%s%.150s", key->nullable ? "null or " : "",
             key->elements == 1  ? "an array of exactly one element, "
             : key->elements > 1 ? "an array of 1 or 3 elements, each "
                                 : "",
             element);
}

/* ---- defaults ---- */

static enum status set_default(struct job *job, const struct job_key *key)
{
    struct json_document document;
    struct json_error error;
    const enum status status =
        json_document_parse(&document, key->by_default, strlen(key->by_default), &error);
    if (status == STATUS_OK) {
        const bool stored = job_value_store(job, key, &document, document.root);
        assert(stored);
        (void)stored;
    }
    json_document_fini(&document);
    return status;
}

enum status job_defaults(struct job *job, unsigned kinds)
{
    enum status status = STATUS_OK;
    memset(job, 0, sizeof *job);
    for (size_t i = 0; i < job_key_count && status == STATUS_OK; i++)
        if ((job_keys[i].kinds & kinds) == kinds && job_keys[i].by_default != NULL)
            status = set_default(job, &job_keys[i]);
    return status;
}
