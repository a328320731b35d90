/* Writes a struct environment_spec as JSON, and reads it back. */
#include "worker/environment/environment_description.h"

#include "kernels/base/text.h"
#include "worker/environment/environment_spec.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dtype_names[] = {
    [ENVIRONMENT_U8] = "uint8", [ENVIRONMENT_I32] = "int32", [ENVIRONMENT_F32] = "float32"};

/* ---- writing ---- */

static void write_text(FILE *out, const char *text)
{
    char piece[TEXT_ESCAPED_BYTES];
    fputc('"', out);
    for (; *text != '\0'; text++)
        fputs(text_escape(piece, *text), out);
    fputc('"', out);
}

/* With as few digits as read back to the same double. */
static void write_number(FILE *out, double value)
{
    char text[32];
    int digits = 0;
    do
        snprintf(text, sizeof text, "%.*g", ++digits, value);
    while (strtod(text, NULL) != value && digits < 17);
    fputs(isfinite(value) ? text : "null", out);
}

/* A number for each element, or one for all where they are equal: `bounds`, or the space's choices. */
static void write_numbers(FILE *out, const char *key, const struct environment_space *space,
                          const double *bounds)
{
    const size_t count = environment_space_elements(space);
    size_t equal = 1;
    while (equal < count &&
           (bounds != NULL ? bounds[equal] == bounds[0] : space->choices[equal] == space->choices[0]))
        equal++;
    fprintf(out, ",\"%s\":%s", key, equal < count ? "[" : "");
    for (size_t i = 0; i < (equal < count ? count : 1); i++) {
        fputs(i > 0 ? "," : "", out);
        write_number(out, bounds != NULL ? bounds[i] : space->choices[i]);
    }
    fputs(equal < count ? "]" : "", out);
}

/* The members of a space, without braces. */
static void write_members(FILE *out, const struct environment_space *space)
{
    fprintf(out, "\"dtype\":\"%s\",\"shape\":[", dtype_names[space->dtype]);
    for (uint32_t i = 0; i < space->rank; i++)
        fprintf(out, "%s%" PRIu32, i > 0 ? "," : "", space->shape[i]);
    fputc(']', out);
    if (space->choices != NULL)
        write_numbers(out, "choices", space, NULL);
    if (space->choices == NULL && space->low != NULL)
        write_numbers(out, "low", space, space->low);
    if (space->choices == NULL && space->high != NULL)
        write_numbers(out, "high", space, space->high);
}

static void write_parts(FILE *out, const struct environment_spec *spec)
{
    for (uint32_t i = 0; i < spec->part_count; i++) {
        fputs(i == 0 ? ",\"parts\":[{\"name\":" : ",{\"name\":", out);
        write_text(out, spec->parts[i].name);
        fputc(',', out);
        write_members(out, &spec->parts[i].space);
        fputc('}', out);
    }
    fputs(spec->part_count > 0 ? "]" : "", out);
}

static void write_flag(FILE *out, const char *key, bool value)
{
    fprintf(out, ",\"%s\":%s", key, value ? "true" : "false");
}

char *environment_describe(const char *name, const struct environment_spec *spec, bool can_save)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = strlen(name) < ENVIRONMENT_NAME_BYTES ? open_memstream(&text, &bytes) : NULL;
    if (out == NULL)
        return NULL;
    fputs("{\"name\":", out);
    write_text(out, name);
    fprintf(out, ",\"agents\":%" PRIu32 ",\"steps_max\":%" PRIu32, spec->agents, spec->steps_max);
    write_flag(out, "mask", spec->has_mask == 1);
    write_flag(out, "can_seed", (spec->limits & ENVIRONMENT_CANNOT_SEED) == 0);
    write_flag(out, "can_save", can_save);
    write_flag(out, "singleton", (spec->limits & ENVIRONMENT_SINGLETON) != 0);
    fputs(",\"metrics\":[", out);
    for (uint32_t i = 0; i < spec->metric_count; i++) {
        fputs(i > 0 ? "," : "", out);
        write_text(out, spec->metrics[i]);
    }
    fputc(']', out);
    fputs(",\"observation\":{", out);
    write_members(out, &spec->observation);
    write_parts(out, spec);
    fputs("},\"action\":{", out);
    write_members(out, &spec->action);
    fputs("}}", out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}

/* ---- reading: the first error stays, and what is read after it is worth nothing ---- */

__attribute__((format(printf, 2, 3))) static void refuse(struct error *error, const char *format, ...)
{
    char words[ERROR_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    if (error->status == STATUS_OK)
        error_set(error, STATUS_INVALID, "%s", words);
}

/* For the member `key` of `of`. NULL after an error, too. */
static void *allocate(size_t count, size_t bytes, const char *of, const char *key, struct error *error)
{
    void *memory = error->status == STATUS_OK ? calloc(count, bytes) : NULL;
    if (memory == NULL && error->status == STATUS_OK)
        error_set(error, STATUS_NO_MEMORY, "no memory for %s.%s", of, key);
    return memory;
}

/* Takes a member out of the object, so that in the end none may be left. */
static cJSON *take(cJSON *object, const char *key)
{
    return cJSON_DetachItemFromObjectCaseSensitive(object, key);
}

static uint32_t read_whole(cJSON *root, const char *key, struct error *error)
{
    cJSON *item = take(root, key);
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    const bool is_whole = value >= 0 && value <= UINT32_MAX && value == floor(value);
    cJSON_Delete(item);
    if (!is_whole)
        refuse(error, "%s: expected a whole number", key);
    return is_whole ? (uint32_t)value : 0;
}

static bool read_bool(cJSON *root, const char *key, struct error *error)
{
    cJSON *item = take(root, key);
    const bool is_true = cJSON_IsTrue(item);
    if (!cJSON_IsBool(item))
        refuse(error, "%s: expected true or false", key);
    cJSON_Delete(item);
    return is_true;
}

/* A member with a number for each element, or with one number for all, in a new array; NULL where there is no
 * such member. `absent` is the number of a null; NAN: null is not taken. */
static double *read_numbers(cJSON *object, const char *of, const char *key, size_t count, double absent,
                            struct error *error)
{
    cJSON *item = take(object, key);
    const bool is_list = item != NULL && cJSON_IsArray(item);
    if (is_list && (size_t)cJSON_GetArraySize(item) != count)
        refuse(error, "%s.%s: %d numbers, expected %zu", of, key, cJSON_GetArraySize(item), count);
    double *numbers = item != NULL ? allocate(count, sizeof *numbers, of, key, error) : NULL;
    const cJSON *element = is_list ? item->child : item;
    for (size_t i = 0; i < count && numbers != NULL; i++) {
        numbers[i] = cJSON_IsNull(element) ? absent : cJSON_IsNumber(element) ? element->valuedouble : NAN;
        if (isnan(numbers[i]))
            refuse(error, "%s.%s: number %zu is none", of, key, i);
        element = is_list ? element->next : element;
    }
    cJSON_Delete(item);
    return numbers;
}

static uint32_t read_dtype(cJSON *object, const char *of, struct error *error)
{
    cJSON *item = take(object, "dtype");
    uint32_t dtype = 0;
    for (uint32_t i = ENVIRONMENT_U8; i <= ENVIRONMENT_F32 && cJSON_IsString(item); i++)
        if (strcmp(item->valuestring, dtype_names[i]) == 0)
            dtype = i;
    cJSON_Delete(item);
    if (dtype == 0)
        refuse(error, "%s.dtype: expected \"float32\", \"int32\" or \"uint8\"", of);
    return dtype;
}

enum { ELEMENTS_MAX = ENVIRONMENT_ROW_BYTES_MAX / 4 };

/* At most `most` elements, for whose bounds there will be memory. */
static void read_shape(cJSON *object, const char *of, struct environment_space *space, size_t most,
                       struct error *error)
{
    cJSON *list = take(object, "shape");
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > 3)
        refuse(error, "%s.shape: expected a list of at most 3 numbers", of);
    uint64_t elements = 1;
    for (const cJSON *item = error->status == STATUS_OK ? list->child : NULL; item != NULL;
         item = item->next) {
        const double size = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(size >= 1 && size <= ENVIRONMENT_ROW_BYTES_MAX && size == floor(size)) ||
            (elements *= (uint64_t)size) > most) {
            refuse(error, "%s.shape: expected sizes from 1, of at most %zu elements", of, most);
            break;
        }
        space->shape[space->rank++] = (uint32_t)size;
    }
    cJSON_Delete(list);
}

static uint32_t *read_choices(cJSON *object, const char *of, size_t count, struct error *error)
{
    double *values = read_numbers(object, of, "choices", count, NAN, error);
    uint32_t *choices = values != NULL ? allocate(count, sizeof *choices, of, "choices", error) : NULL;
    for (size_t i = count; i-- > 0 && choices != NULL;) { /* the last wrong one is named */
        if (values[i] >= 1 && values[i] <= ENVIRONMENT_CHOICES_MAX && values[i] == floor(values[i]))
            choices[i] = (uint32_t)values[i];
        else
            refuse(error, "%s.choices: number %zu is %g, expected 1..%d", of, i, values[i],
                   ENVIRONMENT_CHOICES_MAX);
    }
    free(values);
    return choices;
}

/* `of` is the object's name, with `point` behind it; "" and "" of the root. */
static void check_empty(const cJSON *object, const char *of, const char *point, struct error *error)
{
    if (error->status == STATUS_OK && object->child != NULL)
        refuse(error, "%s%s%.64s: an unknown member", of, point, object->child->string);
}

/* Takes the members of a space out of the object `of`. */
static void read_members(cJSON *object, const char *of, struct environment_space *space, size_t most,
                         struct error *error)
{
    if (!cJSON_IsObject(object))
        refuse(error, "%s: expected an object", of);
    space->dtype = read_dtype(object, of, error);
    read_shape(object, of, space, most, error);
    const size_t count = environment_space_elements(space);
    space->low = read_numbers(object, of, "low", count, -INFINITY, error);
    space->high = read_numbers(object, of, "high", count, INFINITY, error);
    space->choices = read_choices(object, of, count, error);
}

static void read_part(cJSON *object, struct environment_part *part, uint32_t i, size_t most,
                      struct error *error)
{
    char of[48];
    snprintf(of, sizeof of, "observation.parts[%u]", i);
    if (!cJSON_IsObject(object))
        refuse(error, "%s: expected an object", of);
    cJSON *name = take(object, "name");
    part->name = cJSON_IsString(name) ? strdup(name->valuestring) : NULL;
    cJSON_Delete(name);
    if (part->name == NULL)
        refuse(error, "%s.name: expected a text", of);
    read_members(object, of, &part->space, most, error);
    check_empty(object, of, ".", error);
}

/* Absent where the observation is one thing. */
static void read_parts(cJSON *object, struct environment_spec *spec, struct error *error)
{
    cJSON *list = take(object, "parts");
    const int count = list == NULL ? 0 : cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    if (count < 0 || count > ENVIRONMENT_PARTS_MAX || (list != NULL && count == 0))
        refuse(error, "observation.parts: expected a list of 1..%d objects", ENVIRONMENT_PARTS_MAX);
    struct environment_part *parts =
        error->status == STATUS_OK && count > 0
            ? allocate((size_t)count, sizeof *parts, "observation", "parts", error)
            : NULL;
    spec->parts = parts;
    size_t most = ELEMENTS_MAX; /* of all parts together */
    for (cJSON *item = parts != NULL ? list->child : NULL; item != NULL && error->status == STATUS_OK;
         item = item->next, spec->part_count++) {
        read_part(item, &parts[spec->part_count], spec->part_count, most, error);
        most -= environment_space_elements(&parts[spec->part_count].space);
    }
    cJSON_Delete(list);
}

static void read_observation(cJSON *root, struct environment_spec *spec, struct error *error)
{
    cJSON *object = take(root, "observation");
    read_members(object, "observation", &spec->observation, ELEMENTS_MAX, error);
    read_parts(object, spec, error);
    check_empty(object, "observation", ".", error);
    cJSON_Delete(object);
}

static void read_action(cJSON *root, struct environment_spec *spec, struct error *error)
{
    cJSON *object = take(root, "action");
    read_members(object, "action", &spec->action, ELEMENTS_MAX, error);
    check_empty(object, "action", ".", error);
    cJSON_Delete(object);
}

static void read_metrics(cJSON *root, struct environment_spec *spec, struct error *error)
{
    cJSON *list = take(root, "metrics");
    const int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    char **names = NULL;
    if (count < 0 || count > ENVIRONMENT_METRICS_MAX)
        refuse(error, "metrics: expected a list of at most %d names", ENVIRONMENT_METRICS_MAX);
    else if ((names = calloc((size_t)count + 1, sizeof *names)) == NULL && error->status == STATUS_OK)
        error_set(error, STATUS_NO_MEMORY, "no memory for %d metrics", count);
    spec->metrics = (const char *const *)names;
    for (const cJSON *item = names != NULL ? list->child : NULL; item != NULL; item = item->next) {
        char *name = cJSON_IsString(item) ? strdup(item->valuestring) : NULL;
        if (name == NULL) {
            refuse(error, "metrics: expected names");
            break;
        }
        names[spec->metric_count++] = name;
    }
    cJSON_Delete(list);
}

static void read_name(cJSON *root, char name[ENVIRONMENT_NAME_BYTES], struct error *error)
{
    cJSON *item = take(root, "name");
    if (cJSON_IsString(item) && item->valuestring[0] != '\0' &&
        strlen(item->valuestring) < ENVIRONMENT_NAME_BYTES)
        snprintf(name, ENVIRONMENT_NAME_BYTES, "%s", item->valuestring);
    else
        refuse(error, "name: expected a text of 1..%d bytes", ENVIRONMENT_NAME_BYTES - 1);
    cJSON_Delete(item);
}

static void read_root(struct environment_description *description, cJSON *root, struct error *error)
{
    struct environment_spec *spec = &description->spec;
    read_name(root, description->name, error);
    spec->agents = read_whole(root, "agents", error);
    spec->steps_max = read_whole(root, "steps_max", error);
    spec->has_mask = read_bool(root, "mask", error);
    spec->limits = read_bool(root, "can_seed", error) ? 0 : ENVIRONMENT_CANNOT_SEED;
    description->can_save = read_bool(root, "can_save", error);
    spec->limits |= read_bool(root, "singleton", error) ? ENVIRONMENT_SINGLETON : 0;
    read_metrics(root, spec, error);
    read_observation(root, spec, error);
    read_action(root, spec, error);
    check_empty(root, "", "", error);
    if (error->status == STATUS_OK)
        environment_spec_check(spec, error);
}

enum status environment_description_read(struct environment_description *description, const char *text,
                                         size_t bytes, struct error *error)
{
    struct error found = {0};
    *description = (struct environment_description){.spec.size = sizeof description->spec};
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    if (cJSON_IsObject(root))
        read_root(description, root, &found);
    else
        refuse(&found, "expected a JSON object");
    cJSON_Delete(root);
    if (found.status != STATUS_OK && error != NULL)
        *error = found;
    return found.status;
}

/* The arrays were made here; only environment.h's types are const. */
static void free_space(const struct environment_space *space)
{
    free((void *)(uintptr_t)space->low);
    free((void *)(uintptr_t)space->high);
    free((void *)(uintptr_t)space->choices);
}

void environment_description_fini(struct environment_description *description)
{
    struct environment_spec *spec = &description->spec;
    for (uint32_t i = 0; i < spec->metric_count; i++)
        free((void *)(uintptr_t)spec->metrics[i]);
    free((void *)(uintptr_t)spec->metrics);
    for (uint32_t i = 0; i < spec->part_count; i++) {
        free((void *)(uintptr_t)spec->parts[i].name);
        free_space(&spec->parts[i].space);
    }
    free((void *)(uintptr_t)spec->parts);
    free_space(&spec->observation);
    free_space(&spec->action);
    *description = (struct environment_description){0};
}
