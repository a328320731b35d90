/* Writes a struct environment_spec as JSON, and reads it back. */
#include "worker/environment/environment_description.h"

#include "kernels/base/arena.h"
#include "kernels/base/text.h"
#include "worker/environment/environment_spec.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The members of each object; flags by their number. */
enum { MASK, CAN_SEED, CAN_SAVE, SINGLETON, FLAGS };
static const char *const flag_names[FLAGS] = {"mask", "can_seed", "can_save", "singleton"};
static const char *const root_members[] = {"name",        "agents",   "steps_max", "mask",
                                           "can_seed",    "can_save", "singleton", "metrics",
                                           "observation", "action",   NULL};
static const char *const space_members[] = {"dtype", "shape", "low", "high", "choices", NULL};
static const char *const part_members[] = {"name", "dtype", "shape", "low", "high", "choices", NULL};
static const char *const observation_members[] = {"parts", "dtype", "shape", "low", "high", "choices", NULL};

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
    fprintf(out, "\"dtype\":\"%s\",\"shape\":[", environment_dtype_names[space->dtype]);
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
    const bool flags[FLAGS] = {spec->has_mask == 1, (spec->limits & ENVIRONMENT_CANNOT_SEED) == 0, can_save,
                               (spec->limits & ENVIRONMENT_SINGLETON) != 0};
    for (int i = 0; i < FLAGS; i++)
        fprintf(out, ",\"%s\":%s", flag_names[i], flags[i] ? "true" : "false");
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

/* Memory of the description's, for the member `key` of `of`. NULL after an error, too. */
static void *take(struct arena *memory, size_t bytes, const char *of, const char *key, struct error *error)
{
    void *taken = error->status == STATUS_OK ? arena_take(memory, bytes) : NULL;
    if (taken == NULL && error->status == STATUS_OK)
        error_set(error, STATUS_NO_MEMORY, "no memory for %s.%s", of, key);
    return taken;
}

static const cJSON *member(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* Refuses a member whose name is none of the `known` ones, a list that ends with NULL, or is there twice. The
 * caller refuses what is no object. */
static void check_members(const cJSON *object, const char *of, const char *const *known, struct error *error)
{
    const cJSON *item = NULL;
    if (!cJSON_IsObject(object))
        return;
    cJSON_ArrayForEach(item, object)
    {
        const char *const *name = known;
        while (*name != NULL && strcmp(*name, item->string) != 0)
            name++;
        if (*name == NULL || member(object, *name) != item)
            refuse(error, "%s%.64s: an unknown member", of, item->string);
    }
}

/* A copy of a text in the description's memory. NULL: it is none. */
static const char *read_text(struct arena *memory, const cJSON *item)
{
    const size_t bytes = cJSON_IsString(item) ? strlen(item->valuestring) + 1 : 0;
    char *copy = bytes > 0 ? arena_take(memory, bytes) : NULL;
    return copy != NULL ? memcpy(copy, item->valuestring, bytes) : NULL;
}

static uint32_t read_whole(const cJSON *root, const char *key, struct error *error)
{
    const cJSON *item = member(root, key);
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (value >= 0 && value <= UINT32_MAX && value == floor(value))
        return (uint32_t)value;
    refuse(error, "%s: expected a whole number", key);
    return 0;
}

/* A member with a number for each element, or with one number for all, in a new array; NULL where there is no
 * such member. `absent` is the number of a null; NAN: null is not taken. */
static double *read_numbers(struct arena *memory, const cJSON *object, const char *of, const char *key,
                            size_t count, double absent, struct error *error)
{
    const cJSON *item = member(object, key);
    const bool is_list = cJSON_IsArray(item);
    if (is_list && (size_t)cJSON_GetArraySize(item) != count)
        refuse(error, "%s.%s: %d numbers, expected %zu", of, key, cJSON_GetArraySize(item), count);
    double *numbers = item != NULL ? take(memory, count * sizeof *numbers, of, key, error) : NULL;
    if (numbers == NULL)
        return NULL;
    const cJSON *element = is_list ? item->child : item;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = cJSON_IsNull(element) ? absent : cJSON_IsNumber(element) ? element->valuedouble : NAN;
        if (isnan(numbers[i]))
            refuse(error, "%s.%s: number %zu is none", of, key, i);
        element = is_list ? element->next : element;
    }
    return numbers;
}

enum { ELEMENTS_MAX = ENVIRONMENT_ROW_BYTES_MAX / 4 };

/* At most `most` elements, for whose bounds there will be memory. */
static void read_shape(const cJSON *object, const char *of, struct environment_space *space, size_t most,
                       struct error *error)
{
    const cJSON *list = member(object, "shape");
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
}

static uint32_t *read_choices(struct arena *memory, const cJSON *object, const char *of, size_t count,
                              struct error *error)
{
    const double *values = read_numbers(memory, object, of, "choices", count, NAN, error);
    uint32_t *choices = values != NULL ? take(memory, count * sizeof *choices, of, "choices", error) : NULL;
    for (size_t i = count; i-- > 0 && choices != NULL;) { /* the last wrong one is named */
        if (values[i] >= 1 && values[i] <= ENVIRONMENT_CHOICES_MAX && values[i] == floor(values[i]))
            choices[i] = (uint32_t)values[i];
        else
            refuse(error, "%s.choices: number %zu is %g, expected 1..%d", of, i, values[i],
                   ENVIRONMENT_CHOICES_MAX);
    }
    return choices;
}

/* The members of a space among those of the object `of`. */
static void read_space(struct arena *memory, const cJSON *object, const char *of,
                       struct environment_space *space, size_t most, struct error *error)
{
    const char *dtype = cJSON_GetStringValue(member(object, "dtype"));
    if (!cJSON_IsObject(object))
        refuse(error, "%s: expected an object", of);
    for (uint32_t i = ENVIRONMENT_U8; i <= ENVIRONMENT_F32 && dtype != NULL; i++)
        if (strcmp(dtype, environment_dtype_names[i]) == 0)
            space->dtype = i;
    if (space->dtype == 0)
        refuse(error, "%s.dtype: expected \"float32\", \"int32\" or \"uint8\"", of);
    read_shape(object, of, space, most, error);
    const size_t count = environment_space_elements(space);
    space->low = read_numbers(memory, object, of, "low", count, -INFINITY, error);
    space->high = read_numbers(memory, object, of, "high", count, INFINITY, error);
    space->choices = read_choices(memory, object, of, count, error);
}

static void read_part(struct arena *memory, const cJSON *object, struct environment_part *part, uint32_t i,
                      size_t most, struct error *error)
{
    char of[48];
    snprintf(of, sizeof of, "observation.parts[%u]", i);
    if (!cJSON_IsObject(object))
        refuse(error, "%s: expected an object", of);
    part->name = read_text(memory, member(object, "name"));
    if (part->name == NULL)
        refuse(error, "%s.name: expected a text", of);
    read_space(memory, object, of, &part->space, most, error);
    snprintf(of, sizeof of, "observation.parts[%u].", i);
    check_members(object, of, part_members, error);
}

/* Absent where the observation is one thing. */
static void read_parts(struct arena *memory, const cJSON *object, struct environment_spec *spec,
                       struct error *error)
{
    const cJSON *list = member(object, "parts");
    const int count = list == NULL ? 0 : cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    if (count < 0 || count > ENVIRONMENT_PARTS_MAX || (list != NULL && count == 0))
        refuse(error, "observation.parts: expected a list of 1..%d objects", ENVIRONMENT_PARTS_MAX);
    struct environment_part *parts =
        count > 0 ? take(memory, (size_t)count * sizeof *parts, "observation", "parts", error) : NULL;
    spec->parts = parts;
    size_t most = ELEMENTS_MAX; /* of all parts together */
    for (const cJSON *item = parts != NULL ? list->child : NULL; item != NULL && error->status == STATUS_OK;
         item = item->next, spec->part_count++) {
        struct environment_part *part = &parts[spec->part_count];
        *part = (struct environment_part){0};
        read_part(memory, item, part, spec->part_count, most, error);
        most -= environment_space_elements(&part->space);
    }
}

static void read_metrics(struct arena *memory, const cJSON *root, struct environment_spec *spec,
                         struct error *error)
{
    const cJSON *list = member(root, "metrics");
    const int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    if (count < 0 || count > ENVIRONMENT_METRICS_MAX)
        refuse(error, "metrics: expected a list of at most %d names", ENVIRONMENT_METRICS_MAX);
    const char **names = take(memory, (size_t)count * sizeof *names, "environment", "metrics", error);
    spec->metrics = names;
    for (const cJSON *item = names != NULL ? list->child : NULL; item != NULL; item = item->next) {
        names[spec->metric_count] = read_text(memory, item);
        if (names[spec->metric_count++] == NULL)
            refuse(error, "metrics: expected names");
    }
}

static void read_root(struct environment_description *description, const cJSON *root, struct error *error)
{
    struct arena *memory = description->memory;
    struct environment_spec *spec = &description->spec;
    const cJSON *observation = member(root, "observation"), *action = member(root, "action");
    const char *name = cJSON_GetStringValue(member(root, "name"));
    bool flags[FLAGS];
    if (name == NULL || name[0] == '\0' || strlen(name) >= ENVIRONMENT_NAME_BYTES)
        refuse(error, "name: expected a text of 1..%d bytes", ENVIRONMENT_NAME_BYTES - 1);
    else
        snprintf(description->name, sizeof description->name, "%s", name);
    spec->agents = read_whole(root, "agents", error);
    spec->steps_max = read_whole(root, "steps_max", error);
    for (int i = 0; i < FLAGS; i++) {
        const cJSON *flag = member(root, flag_names[i]);
        flags[i] = cJSON_IsTrue(flag);
        if (!cJSON_IsBool(flag))
            refuse(error, "%s: expected true or false", flag_names[i]);
    }
    spec->has_mask = flags[MASK];
    spec->limits =
        (flags[CAN_SEED] ? 0 : ENVIRONMENT_CANNOT_SEED) | (flags[SINGLETON] ? ENVIRONMENT_SINGLETON : 0);
    description->can_save = flags[CAN_SAVE];
    read_metrics(memory, root, spec, error);
    read_space(memory, observation, "observation", &spec->observation, ELEMENTS_MAX, error);
    read_parts(memory, observation, spec, error);
    check_members(observation, "observation.", observation_members, error);
    read_space(memory, action, "action", &spec->action, ELEMENTS_MAX, error);
    check_members(action, "action.", space_members, error);
    check_members(root, "", root_members, error);
    if (error->status == STATUS_OK)
        environment_spec_check(spec, error);
}

enum status environment_description_read(struct environment_description *description, const char *text,
                                         size_t bytes, struct error *error)
{
    struct error found = {0};
    *description = (struct environment_description){.spec.size = sizeof description->spec};
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    if (!cJSON_IsObject(root))
        refuse(&found, "expected a JSON object");
    else if (arena_new(&description->memory, &arena_host, &found) == STATUS_OK)
        read_root(description, root, &found);
    cJSON_Delete(root);
    if (found.status != STATUS_OK && error != NULL)
        *error = found;
    return found.status;
}

void environment_description_fini(struct environment_description *description)
{
    arena_free(description->memory);
    *description = (struct environment_description){0};
}
