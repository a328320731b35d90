/* Writes a struct environment_spec as JSON, and reads it back. */
#include "worker/environment/environment_description.h"

#include "worker/environment/environment_spec.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dtype_names[] = {
    [ENVIRONMENT_U8] = "uint8", [ENVIRONMENT_I32] = "int32", [ENVIRONMENT_F32] = "float32"};

/* ---- writing: a NULL from cJSON sticks, and is found at the end ---- */

static bool add(cJSON *object, const char *key, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToObject(object, key, item))
        return true;
    cJSON_Delete(item);
    return false;
}

/* cJSON's own numbers are cut to 15 digits where that is nearly the same. */
static cJSON *number_or_null(double value)
{
    char text[32];
    int digits = 1;
    do
        snprintf(text, sizeof text, "%.*g", digits, value);
    while (strtod(text, NULL) != value && ++digits <= 17);
    return isfinite(value) ? cJSON_CreateRaw(text) : cJSON_CreateNull();
}

static bool all_equal(const double *values, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (values[i] != values[0])
            return false;
    return true;
}

static bool append(cJSON *list, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToArray(list, item))
        return true;
    cJSON_Delete(item);
    return false;
}

static bool add_numbers(cJSON *object, const char *key, const double *values, size_t count)
{
    if (all_equal(values, count))
        return add(object, key, number_or_null(values[0]));
    cJSON *list = cJSON_AddArrayToObject(object, key);
    bool good = list != NULL;
    for (size_t i = 0; i < count && good; i++)
        good = append(list, number_or_null(values[i]));
    return good;
}

static bool add_choices(cJSON *object, const struct environment_space *space, size_t count)
{
    double *values = calloc(count, sizeof *values);
    for (size_t i = 0; i < count && values != NULL; i++)
        values[i] = space->choices[i];
    const bool added = values != NULL && add_numbers(object, "choices", values, count);
    free(values);
    return added;
}

static bool add_space(cJSON *root, const char *key, const struct environment_space *space)
{
    const size_t count = environment_space_elements(space);
    cJSON *object = cJSON_AddObjectToObject(root, key);
    bool good = object != NULL && add(object, "dtype", cJSON_CreateString(dtype_names[space->dtype]));
    cJSON *shape = good ? cJSON_AddArrayToObject(object, "shape") : NULL;
    good = shape != NULL;
    for (uint32_t i = 0; i < space->rank && good; i++)
        good = append(shape, cJSON_CreateNumber(space->shape[i]));
    if (space->choices != NULL)
        return good && add_choices(object, space, count);
    if (good && space->low != NULL)
        good = add_numbers(object, "low", space->low, count);
    if (good && space->high != NULL)
        good = add_numbers(object, "high", space->high, count);
    return good;
}

static bool add_metrics(cJSON *root, const struct environment_spec *spec)
{
    cJSON *list = cJSON_AddArrayToObject(root, "metrics");
    bool good = list != NULL;
    for (uint32_t i = 0; i < spec->metric_count && good; i++)
        good = append(list, cJSON_CreateString(spec->metrics[i]));
    return good;
}

char *environment_describe(const char *name, const struct environment_spec *spec, bool can_save)
{
    cJSON *root = cJSON_CreateObject();
    char *text = NULL;
    if (root != NULL && strlen(name) < ENVIRONMENT_NAME_BYTES &&
        add(root, "name", cJSON_CreateString(name)) &&
        add(root, "agents", cJSON_CreateNumber(spec->agents)) &&
        add(root, "steps_max", cJSON_CreateNumber(spec->steps_max)) &&
        add(root, "mask", cJSON_CreateBool(spec->has_mask == 1)) &&
        add(root, "can_seed", cJSON_CreateBool((spec->limits & ENVIRONMENT_CANNOT_SEED) == 0)) &&
        add(root, "can_save", cJSON_CreateBool(can_save)) &&
        add(root, "singleton", cJSON_CreateBool((spec->limits & ENVIRONMENT_SINGLETON) != 0)) &&
        add_metrics(root, spec) && add_space(root, "observation", &spec->observation) &&
        add_space(root, "action", &spec->action))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
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

static void read_shape(cJSON *object, const char *of, struct environment_space *space, struct error *error)
{
    cJSON *list = take(object, "shape");
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > 3)
        refuse(error, "%s.shape: expected a list of at most 3 numbers", of);
    uint64_t elements = 1;
    for (const cJSON *item = error->status == STATUS_OK ? list->child : NULL; item != NULL;
         item = item->next) {
        const double size = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(size >= 1 && size <= ENVIRONMENT_ROW_BYTES_MAX && size == floor(size)) ||
            (elements *= (uint64_t)size) > ENVIRONMENT_ROW_BYTES_MAX) {
            refuse(error, "%s.shape: expected sizes from 1, of at most %d elements", of,
                   ENVIRONMENT_ROW_BYTES_MAX);
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

static void read_space(cJSON *root, const char *key, struct environment_space *space, struct error *error)
{
    cJSON *object = take(root, key);
    if (!cJSON_IsObject(object))
        refuse(error, "%s: expected an object", key);
    space->dtype = read_dtype(object, key, error);
    read_shape(object, key, space, error);
    const size_t count = environment_space_elements(space);
    space->low = read_numbers(object, key, "low", count, -INFINITY, error);
    space->high = read_numbers(object, key, "high", count, INFINITY, error);
    space->choices = read_choices(object, key, count, error);
    check_empty(object, key, ".", error);
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
    read_space(root, "observation", &spec->observation, error);
    read_space(root, "action", &spec->action, error);
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
void environment_description_fini(struct environment_description *description)
{
    struct environment_spec *spec = &description->spec;
    for (uint32_t i = 0; i < spec->metric_count; i++)
        free((void *)(uintptr_t)spec->metrics[i]);
    free((void *)(uintptr_t)spec->metrics);
    const void *const arrays[] = {spec->observation.low, spec->observation.high, spec->observation.choices,
                                  spec->action.low,      spec->action.high,      spec->action.choices};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free((void *)(uintptr_t)arrays[i]);
    *description = (struct environment_description){0};
}
