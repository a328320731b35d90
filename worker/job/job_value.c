/* Stores one key's value by its type, reads it again, and puts it, or what it must be, into words for
 * messages and for the manual. The caller's thread. */
#include "worker/job/job_table.h"

#include "kernels/base/text.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <regex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

/* A pattern is compiled once for the process: that costs more than all else in the reading of a job. */
bool job_pattern_matches(const struct job_key *key, const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static regex_t expressions[JOB_KEYS_MAX];
    static bool compiled[JOB_KEYS_MAX];
    const size_t row = (size_t)(key - job_keys);
    pthread_mutex_lock(&lock);
    compiled[row] = compiled[row] || regcomp(&expressions[row], key->pattern, REG_EXTENDED | REG_NOSUB) == 0;
    const bool match = compiled[row] && regexec(&expressions[row], text, 0, NULL, 0) == 0;
    pthread_mutex_unlock(&lock);
    return match;
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

/* The index of the first `length` bytes of `text` among the key's names, or -1. */
static int name_index(const struct job_key *key, const char *text, size_t length)
{
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
    if (key->type == JOB_NUMBER || key->type == JOB_AUTO)
        *(double *)at = value;
    else if (key->type == JOB_INTEGER && key->min < 0)
        *(int32_t *)at = (int32_t)value;
    else if (key->type != JOB_INTEGER || key->bytes == sizeof(uint32_t))
        *(uint32_t *)at = (uint32_t)value;
    else
        *(uint64_t *)at = (uint64_t)value;
    return true;
}

static bool store_numbered(struct job_numbered *at, const struct job_key *key, const char *text)
{
    const size_t length = strcspn(text, " ");
    if (!job_pattern_matches(key, text))
        return false;
    at->name = name_index(key, text, length);
    at->number = text[length] == '\0' ? 0 : (uint32_t)strtoul(text + length, NULL, 10);
    return true;
}

/* A number, or the pattern's word with a number that may follow its "_". */
static bool store_auto(struct job_auto *at, const struct job_key *key, const cJSON *value)
{
    const char *text = cJSON_GetStringValue(value);
    at->automatic = text != NULL;
    if (text == NULL)
        return cJSON_IsNumber(value) && store_number(&at->number, key, value->valuedouble);
    const char *number = strchr(text, '_');
    at->number = number != NULL ? strtod(number + 1, NULL) : 1;
    return job_pattern_matches(key, text) && at->number > 0 && at->number <= key->max;
}

/* An integer, or an array of it and the unit. */
static bool store_frequency(struct job_frequency *at, const struct job_key *key,
                            const struct json_document *document, const cJSON *value)
{
    const cJSON *count = cJSON_IsArray(value) ? value->child : value;
    const char *unit = cJSON_IsArray(value) ? cJSON_GetStringValue(cJSON_GetArrayItem(value, 1)) : "step";
    const bool whole = !cJSON_IsArray(value) || cJSON_GetArraySize(value) == 2;
    at->episodes = unit != NULL && strcmp(unit, "episode") == 0;
    return whole && unit != NULL && (at->episodes || strcmp(unit, "step") == 0) &&
           json_is_integer(document, count) && store_number(&at->count, key, count->valuedouble);
}

static bool store_text(void *at, const struct job_key *key, const char *text)
{
    const bool valid =
        key->type == JOB_NAME ? job_pattern_matches(key, text) : path_valid(text, key->min, key->max);
    if (valid) {
        memset(at, 0, key->bytes);
        memcpy(at, text, strlen(text));
    }
    return valid;
}

static bool store_options(char *at, const struct job_key *key, const cJSON *value)
{
    char text[JOB_OPTIONS_BYTES + 64]; /* cJSON wants a few bytes more than it prints */
    cJSON object = *value;             /* cJSON prints only what it might write to */
    const bool fits = cJSON_IsObject(value) && cJSON_PrintPreallocated(&object, text, sizeof text, false) &&
                      strlen(text) <= (size_t)key->max;
    memset(at, 0, key->bytes);
    if (fits)
        memcpy(at, text, strlen(text));
    return fits;
}

/* Stores a value, or one element, at `at`. */
static bool store_one(void *at, const struct job_key *key, const struct json_document *document,
                      const cJSON *value)
{
    const char *text = cJSON_GetStringValue(value);
    const int name = key->type == JOB_ENUM && text != NULL ? name_index(key, text, strlen(text)) : -1;
    switch (key->type) {
    case JOB_OBJECT:
        return cJSON_IsObject(value);
    case JOB_INTEGER:
    case JOB_WIDTHS:
        return json_is_integer(document, value) && store_number(at, key, value->valuedouble);
    case JOB_NUMBER:
        return cJSON_IsNumber(value) && store_number(at, key, value->valuedouble);
    case JOB_BOOLEAN:
        *(bool *)at = cJSON_IsTrue(value);
        return cJSON_IsBool(value);
    case JOB_ENUM:
        if (name >= 0)
            *(int *)at = name;
        return name >= 0;
    case JOB_OPTIONS:
        return store_options(at, key, value);
    case JOB_NUMBERED:
        return text != NULL && store_numbered(at, key, text);
    case JOB_AUTO:
        return store_auto(at, key, value);
    case JOB_FREQUENCY:
        return store_frequency(at, key, document, value);
    default:
        return text != NULL && store_text(at, key, text);
    }
}

bool job_value_has_elements(const struct job_key *key, const cJSON *value)
{
    const uint32_t count = (uint32_t)cJSON_GetArraySize(value);
    if (!cJSON_IsArray(value) || key->elements == 0)
        return false;
    return key->type == JOB_WIDTHS ? count <= key->elements : count == 1 || count == key->elements;
}

bool job_value_store_element(struct job *job, const struct job_key *key, const struct json_document *document,
                             const cJSON *element, uint32_t index)
{
    void *at = (char *)job + key->offset;
    struct job_channels *channels = at;
    struct job_widths *widths = at;
    if (key->type == JOB_WIDTHS) {
        widths->count = index + 1;
        return store_one(&widths->value[index], key, document, element);
    }
    channels->count = index + 1;
    return store_one(&channels->value[index], key, document, element);
}

/* An array, or one integer in its place. */
static bool store_elements(struct job *job, const struct job_key *key, const struct json_document *document,
                           const cJSON *value)
{
    if (key->type == JOB_WIDTHS && !cJSON_IsArray(value))
        return job_value_store_element(job, key, document, value, 0);
    bool good = job_value_has_elements(key, value);
    uint32_t index = 0;
    for (const cJSON *element = value->child; element != NULL && good; element = element->next)
        good = job_value_store_element(job, key, document, element, index++);
    return good;
}

/* The members pi and key->second of an object. */
static bool store_both(struct job *job, const struct job_key *key, const struct json_document *document,
                       const cJSON *value)
{
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(value, "pi");
    const cJSON *second = cJSON_GetObjectItemCaseSensitive(value, key->second);
    struct job_widths *widths = (void *)((char *)job + key->offset);
    if (first == NULL || second == NULL || cJSON_GetArraySize(value) != 2 ||
        !store_elements(job, key, document, second))
        return false;
    widths[1] = widths[0];
    widths[0] = (struct job_widths){0};
    return store_elements(job, key, document, first);
}

bool job_value_store(struct job *job, const struct job_key *key, const struct json_document *document,
                     const cJSON *value)
{
    if (key->nullable)
        *(bool *)((char *)job + key->offset_present) = !cJSON_IsNull(value);
    if (key->nullable && cJSON_IsNull(value)) {
        memset((char *)job + key->offset, 0, key->bytes);
        return true;
    }
    if (key->elements == 0)
        return store_one((char *)job + key->offset, key, document, value);
    memset((char *)job + key->offset, 0, key->bytes);
    if (key->second != NULL && cJSON_IsObject(value))
        return store_both(job, key, document, value);
    const bool good = store_elements(job, key, document, value);
    struct job_widths *widths = (void *)((char *)job + key->offset);
    if (key->second != NULL)
        widths[1] = widths[0];
    return good;
}

/* ---- reading what is stored ---- */

static bool job_value_is_null(const struct job *job, const struct job_key *key)
{
    return key->nullable && !*(const bool *)((const char *)job + key->offset_present);
}

double job_value_number(const struct job *job, const struct job_key *key)
{
    const void *at = (const char *)job + key->offset;
    if (key->elements > 0)
        return *(const uint32_t *)at; // the count of struct job_channels, struct job_widths
    switch (key->type) {
    case JOB_INTEGER:
        if (key->min < 0)
            return *(const int32_t *)at;
        return key->bytes == sizeof(uint32_t) ? (double)*(const uint32_t *)at : (double)*(const uint64_t *)at;
    case JOB_NUMBER:
        return *(const double *)at;
    case JOB_NUMBERED:
        return ((const struct job_numbered *)at)->number;
    case JOB_FREQUENCY:
        return ((const struct job_frequency *)at)->count;
    default:
        return 0;
    }
}

/* The name that the value is or begins with, or "". */
static const char *job_value_name(const struct job *job, const struct job_key *key)
{
    const void *at = (const char *)job + key->offset;
    switch (key->type) {
    case JOB_ENUM:
        return key->names[*(const int *)at];
    case JOB_NUMBERED:
        return key->names[((const struct job_numbered *)at)->name];
    case JOB_BOOLEAN:
        return *(const bool *)at ? "true" : "false";
    case JOB_FREQUENCY:
        return ((const struct job_frequency *)at)->episodes ? "episode" : "step";
    case JOB_NAME:
    case JOB_PATH:
    case JOB_OPTIONS:
        return at;
    default:
        return "";
    }
}

/* ---- conditions ---- */

bool job_condition_holds(const struct job *job, unsigned kinds, const struct job_condition *condition)
{
    if (condition->test == JOB_ALWAYS)
        return true;
    const struct job_key *key = job_key_at(kinds, condition->pointer);
    const char *name = job_value_name(job, key);
    const double number = job_value_number(job, key);
    switch (condition->test) {
    case JOB_IS:
        return strcmp(name, condition->name) == 0;
    case JOB_IS_NULL:
        return job_value_is_null(job, key);
    case JOB_IS_SET:
        return !job_value_is_null(job, key) && (key->type != JOB_PATH || name[0] != '\0');
    case JOB_AT_LEAST:
        return number >= condition->number;
    case JOB_AT_MOST:
        return number <= condition->number;
    case JOB_AT_MOST_KEY:
        return number + condition->number <= job_value_number(job, job_key_at(kinds, condition->name));
    default:
        return true;
    }
}

/* ---- defaults ---- */

static enum status set_default(struct job *job, const struct job_key *key, const char *value)
{
    struct json_document document;
    struct json_error error;
    enum status status = json_document_parse(&document, value, strlen(value), &error);
    if (status == STATUS_OK && !job_value_store(job, key, &document, document.root))
        status = STATUS_NO_MEMORY;
    json_document_fini(&document);
    return status;
}

enum status job_defaults(struct job *job, unsigned kinds)
{
    enum status status = STATUS_OK;
    memset(job, 0, sizeof *job);
    for (size_t i = 0; i < job_key_count && status == STATUS_OK; i++)
        if ((job_keys[i].kinds & kinds) == kinds && job_keys[i].by_default != NULL)
            status = set_default(job, &job_keys[i], job_keys[i].by_default);
    return status;
}

enum status job_value_otherwise(struct job *job, const struct job_key *key)
{
    return set_default(job, key, key->otherwise);
}

/* ---- words ---- */

void words_add(char words[JOB_WORDS_BYTES], const char *format, ...)
{
    const size_t length = strlen(words);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words + length, JOB_WORDS_BYTES - length, format, arguments);
    va_end(arguments);
}

void words_add_number(char words[JOB_WORDS_BYTES], double value, bool brief)
{
    char text[32] = "";
    int digits = !brief ? 17 : fabs(value) < 1e15 && value == floor(value) ? 15 : 1;
    do
        snprintf(text, sizeof text, "%.*g", digits, value);
    while (digits++ < 17 && strtod(text, NULL) != value);
    words_add(words, "%s", text);
}

/* The elements of struct job_channels or struct job_widths at `at`. */
static void add_elements(char words[JOB_WORDS_BYTES], const struct job_key *key, const void *at, bool brief)
{
    const struct job_channels *channels = at;
    const struct job_widths *widths = at;
    const bool integers = key->type == JOB_WIDTHS;
    words_add(words, "[");
    for (uint32_t i = 0; i < (integers ? widths->count : channels->count); i++) {
        words_add(words, i == 0 ? "" : ", ");
        words_add_number(words, integers ? widths->value[i] : channels->value[i], brief);
    }
    words_add(words, "]");
}

/* Two that differ, as an object. */
static void add_both(char words[JOB_WORDS_BYTES], const struct job_key *key, const struct job_widths *both,
                     bool brief)
{
    words_add(words, "{\"pi\": ");
    add_elements(words, key, &both[0], brief);
    words_add(words, ", \"%s\": ", key->second);
    add_elements(words, key, &both[1], brief);
    words_add(words, "}");
}

static void add_string(char words[JOB_WORDS_BYTES], const char *text)
{
    char piece[TEXT_ESCAPED_BYTES];
    words_add(words, "\"");
    for (; *text != '\0'; text++)
        words_add(words, "%s", text_escape(piece, *text));
    words_add(words, "\"");
}

static void add_auto(char words[JOB_WORDS_BYTES], const struct job_auto *value, bool brief)
{
    words_add(words, value->automatic ? "\"auto" : "");
    words_add(words, value->automatic && value->number != 1 ? "_" : "");
    if (!value->automatic || value->number != 1)
        words_add_number(words, value->number, brief);
    words_add(words, value->automatic ? "\"" : "");
}

void words_add_value(char words[JOB_WORDS_BYTES], const struct job *job, const struct job_key *key,
                     bool brief)
{
    const void *at = (const char *)job + key->offset;
    const char *name = job_value_name(job, key);
    if (job_value_is_null(job, key))
        words_add(words, "null");
    else if (key->second != NULL && memcmp(at, (const struct job_widths *)at + 1, key->bytes / 2) != 0)
        add_both(words, key, at, brief);
    else if (key->elements > 0)
        add_elements(words, key, at, brief);
    else if (key->type == JOB_INTEGER || key->type == JOB_NUMBER)
        words_add_number(words, job_value_number(job, key), brief && key->type == JOB_NUMBER);
    else if (key->type == JOB_AUTO)
        add_auto(words, at, brief);
    else if (key->type == JOB_FREQUENCY)
        words_add(words, strcmp(name, "step") == 0 ? "%.0f" : "[%.0f, \"episode\"]",
                  job_value_number(job, key));
    else if (key->type == JOB_BOOLEAN || key->type == JOB_OPTIONS)
        words_add(words, "%s", name);
    else if (key->type == JOB_NUMBERED && strcmp(name, key->names[0]) != 0)
        words_add(words, "\"%s %.0f\"", name, job_value_number(job, key));
    else
        add_string(words, name);
}

/* ---- what a value must be ---- */

static void add_names(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    const char *before = key->names[1] == NULL ? "" : "one of ";
    for (size_t i = 0; key->names[i] != NULL; i++) {
        if (key->names[i][0] == '\0')
            continue;
        words_add(words, "%s\"%s\"", before, key->names[i]);
        before = ", ";
    }
}

static void add_bounds(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    const bool integer = key->type != JOB_NUMBER && key->type != JOB_AUTO;
    if (key->max == DBL_MAX) {
        words_add(words, "a number");
        return;
    }
    if (!key->bounds_only)
        words_add(words, integer ? "an integer in " : key->min_open ? "a number in (" : "a number in [");
    words_add_number(words, key->min, true);
    words_add(words, key->bounds_only ? " or " : integer ? ".." : ", ");
    words_add_number(words, key->max, true);
    if (!integer)
        words_add(words, key->max_open ? ")" : "]");
}

void words_add_element(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    if (key->type == JOB_INTEGER || key->type == JOB_NUMBER || key->type == JOB_WIDTHS ||
        key->type == JOB_AUTO || key->type == JOB_FREQUENCY)
        add_bounds(words, key);
    else if (key->type == JOB_ENUM)
        add_names(words, key);
    else if (key->type == JOB_PATH)
        words_add(words, "a path of %.0f to %.0f bytes, all of them printable UTF-8", key->min, key->max);
    else if (key->type == JOB_OPTIONS)
        words_add(words, "an object of at most %.0f bytes", key->max);
    else if (key->type == JOB_BOOLEAN)
        words_add(words, "true or false");
    else
        words_add(words, "%s", key->type == JOB_OBJECT ? "an object" : key->words);
}

void words_add_expected(char words[JOB_WORDS_BYTES], const struct job_key *key)
{
    const bool channels = key->elements > 0 && key->type != JOB_WIDTHS;
    words_add(words, "%s%s", key->nullable ? "null or " : "",
              channels ? "an array of 1 or 3 elements, each " : "");
    words_add_element(words, key);
    if (key->type == JOB_WIDTHS)
        words_add(words, ", or an array of 0 to %u of them", key->elements);
    if (key->second != NULL)
        words_add(words, ", or {\"pi\": ..., \"%s\": ...} of these", key->second);
    if (key->type == JOB_WIDTHS)
        return;
    if (key->type == JOB_AUTO)
        words_add(words, ", or %s", key->words);
    else if (key->type == JOB_FREQUENCY)
        words_add(words, ", or an array of it and \"step\" or \"episode\"");
}

void words_add_condition(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition)
{
    const struct job_key *key = job_key_at(kinds, condition->pointer);
    switch (condition->test) {
    case JOB_ALWAYS:
        break;
    case JOB_IS:
        words_add(words,
                  key->type == JOB_BOOLEAN                                                   ? "%s"
                  : key->type == JOB_NUMBERED && strcmp(condition->name, key->names[0]) != 0 ? "\"%s K\""
                                                                                             : "\"%s\"",
                  condition->name);
        break;
    case JOB_IS_NULL:
        words_add(words, "null");
        break;
    case JOB_IS_SET:
        if (key->type == JOB_PATH)
            words_add(words, "a path");
        else
            words_add_element(words, key);
        break;
    case JOB_AT_LEAST:
        words_add(words, "at least %g", condition->number);
        break;
    case JOB_AT_MOST:
        words_add(words, key->elements > 0 ? "an array of %g element" : "at most %g", condition->number);
        break;
    case JOB_AT_MOST_KEY:
        words_add(words, condition->number > 0 ? "\"server K\" with K below %s" : "at most %s",
                  condition->name);
        break;
    }
}
