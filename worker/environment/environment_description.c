/* Writes a struct environment_spec as JSON, and reads it back. */
#include "worker/environment/environment_description.h"

#include "worker/environment/environment_spec.h"

#include <cjson/cJSON.h>
#include <math.h>
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

static cJSON *list_of(const double *values, size_t count)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < count && list != NULL; i++)
        if (!append(list, number_or_null(values[i]))) {
            cJSON_Delete(list);
            return NULL;
        }
    return list;
}

static bool add_numbers(cJSON *object, const char *key, const double *values, size_t count)
{
    return add(object, key, all_equal(values, count) ? number_or_null(values[0]) : list_of(values, count));
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

/* ---- reading ---- */

/* Takes a member out of the object, so that in the end none may be left. */
static cJSON *take(cJSON *object, const char *key)
{
    return cJSON_DetachItemFromObjectCaseSensitive(object, key);
}

static enum status take_whole(cJSON *object, const char *of, const char *key, uint32_t *out,
                              struct error *error)
{
    cJSON *item = take(object, key);
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    cJSON_Delete(item);
    if (!(value >= 0 && value <= UINT32_MAX && value == floor(value)))
        return error_set(error, STATUS_INVALID, "%s%s: expected a whole number", of, key);
    *out = (uint32_t)value;
    return STATUS_OK;
}

static enum status take_bool(cJSON *object, const char *key, bool *out, struct error *error)
{
    cJSON *item = take(object, key);
    const bool is_bool = cJSON_IsBool(item);
    *out = cJSON_IsTrue(item);
    cJSON_Delete(item);
    return is_bool ? STATUS_OK : error_set(error, STATUS_INVALID, "%s: expected true or false", key);
}

/* The number of one element of a list, or of the one number for all. NAN: it is none. */
static double number_of(const cJSON *item, double absent)
{
    if (cJSON_IsNull(item))
        return absent;
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* A member with a number for each element, in a new array; *out is NULL where there is no such member.
 * `absent` is the number of a null; NAN: null is not taken. */
static enum status take_numbers(cJSON *object, const char *of, const char *key, size_t count, double absent,
                                double **out, struct error *error)
{
    cJSON *item = take(object, key);
    if (item == NULL)
        return STATUS_OK;
    enum status status = STATUS_OK;
    const bool is_list = cJSON_IsArray(item);
    if (is_list && (size_t)cJSON_GetArraySize(item) != count)
        status = error_set(error, STATUS_INVALID, "%s.%s: %d numbers, expected %zu", of, key,
                           cJSON_GetArraySize(item), count);
    else if ((*out = calloc(count, sizeof **out)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %s.%s", of, key);
    const cJSON *element = is_list ? item->child : item;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        (*out)[i] = number_of(element, absent);
        if (isnan((*out)[i]))
            status = error_set(error, STATUS_INVALID, "%s.%s: number %zu is none", of, key, i);
        element = is_list ? element->next : element;
    }
    cJSON_Delete(item);
    return status;
}

static enum status read_dtype(cJSON *object, const char *of, uint32_t *out, struct error *error)
{
    cJSON *item = take(object, "dtype");
    *out = 0;
    for (uint32_t i = ENVIRONMENT_U8; i <= ENVIRONMENT_F32 && cJSON_IsString(item); i++)
        if (strcmp(item->valuestring, dtype_names[i]) == 0)
            *out = i;
    cJSON_Delete(item);
    return *out != 0 ? STATUS_OK
                     : error_set(error, STATUS_INVALID,
                                 "%s.dtype: expected \"float32\", \"int32\" or \"uint8\"", of);
}

static enum status read_shape(cJSON *object, const char *of, struct environment_space *space,
                              struct error *error)
{
    cJSON *list = take(object, "shape");
    enum status status = STATUS_OK;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > 3)
        status = error_set(error, STATUS_INVALID, "%s.shape: expected a list of at most 3 numbers", of);
    uint64_t elements = 1;
    for (const cJSON *item = status == STATUS_OK ? list->child : NULL; item != NULL; item = item->next) {
        const double size = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(size >= 1 && size <= ENVIRONMENT_ROW_BYTES_MAX && size == floor(size)) ||
            (elements *= (uint64_t)size) > ENVIRONMENT_ROW_BYTES_MAX) {
            status =
                error_set(error, STATUS_INVALID, "%s.shape: expected sizes from 1, of at most %d elements",
                          of, ENVIRONMENT_ROW_BYTES_MAX);
            break;
        }
        space->shape[space->rank++] = (uint32_t)size;
    }
    cJSON_Delete(list);
    return status;
}

static enum status read_choices(cJSON *object, const char *of, struct environment_space *space, size_t count,
                                struct error *error)
{
    double *values = NULL;
    uint32_t *choices = NULL;
    enum status status = take_numbers(object, of, "choices", count, NAN, &values, error);
    if (status == STATUS_OK && values != NULL && (choices = calloc(count, sizeof *choices)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %s.choices", of);
    for (size_t i = 0; i < count && choices != NULL; i++) {
        if (!(values[i] >= 1 && values[i] <= ENVIRONMENT_CHOICES_MAX && values[i] == floor(values[i])))
            status = error_set(error, STATUS_INVALID, "%s.choices: number %zu is %g, expected 1..%d", of, i,
                               values[i], ENVIRONMENT_CHOICES_MAX);
        else
            choices[i] = (uint32_t)values[i];
    }
    free(values);
    space->choices = choices;
    return status;
}

static enum status check_empty(const cJSON *object, const char *of, struct error *error)
{
    return object->child == NULL
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "%s%.64s: an unknown member", of, object->child->string);
}

static enum status read_space(cJSON *root, const char *key, struct environment_space *space,
                              struct error *error)
{
    char of[32];
    double *low = NULL, *high = NULL;
    cJSON *object = take(root, key);
    snprintf(of, sizeof of, "%s.", key);
    enum status status = cJSON_IsObject(object)
                             ? read_dtype(object, key, &space->dtype, error)
                             : error_set(error, STATUS_INVALID, "%s: expected an object", key);
    if (status == STATUS_OK)
        status = read_shape(object, key, space, error);
    const size_t count = status == STATUS_OK ? environment_space_elements(space) : 0;
    if (status == STATUS_OK)
        status = take_numbers(object, key, "low", count, -INFINITY, &low, error);
    space->low = low;
    if (status == STATUS_OK)
        status = take_numbers(object, key, "high", count, INFINITY, &high, error);
    space->high = high;
    if (status == STATUS_OK)
        status = read_choices(object, key, space, count, error);
    if (status == STATUS_OK)
        status = check_empty(object, of, error);
    cJSON_Delete(object);
    return status;
}

static enum status read_metrics(cJSON *root, struct environment_spec *spec, struct error *error)
{
    cJSON *list = take(root, "metrics");
    enum status status = STATUS_OK;
    const int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    char **names = NULL;
    if (count < 0 || count > ENVIRONMENT_METRICS_MAX)
        status = error_set(error, STATUS_INVALID, "metrics: expected a list of at most %d names",
                           ENVIRONMENT_METRICS_MAX);
    else if ((names = calloc((size_t)count + 1, sizeof *names)) == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %d metrics", count);
    spec->metrics = (const char *const *)names;
    for (const cJSON *item = status == STATUS_OK ? list->child : NULL; item != NULL; item = item->next) {
        char *name = cJSON_IsString(item) ? strdup(item->valuestring) : NULL;
        if (name == NULL) {
            status = error_set(error, STATUS_INVALID, "metrics: expected names");
            break;
        }
        names[spec->metric_count++] = name;
    }
    cJSON_Delete(list);
    return status;
}

static enum status read_name(cJSON *root, char name[ENVIRONMENT_NAME_BYTES], struct error *error)
{
    cJSON *item = take(root, "name");
    const bool good = cJSON_IsString(item) && item->valuestring[0] != '\0' &&
                      strlen(item->valuestring) < ENVIRONMENT_NAME_BYTES;
    if (good)
        snprintf(name, ENVIRONMENT_NAME_BYTES, "%s", item->valuestring);
    cJSON_Delete(item);
    return good ? STATUS_OK
                : error_set(error, STATUS_INVALID, "name: expected a text of 1..%d bytes",
                            ENVIRONMENT_NAME_BYTES - 1);
}

static enum status read_flags(struct environment_description *description, cJSON *root, struct error *error)
{
    struct environment_spec *spec = &description->spec;
    bool has_mask = false, can_seed = false, singleton = false;
    enum status status = take_bool(root, "mask", &has_mask, error);
    if (status == STATUS_OK)
        status = take_bool(root, "can_seed", &can_seed, error);
    if (status == STATUS_OK)
        status = take_bool(root, "can_save", &description->can_save, error);
    if (status == STATUS_OK)
        status = take_bool(root, "singleton", &singleton, error);
    spec->has_mask = has_mask;
    spec->limits = (can_seed ? 0 : ENVIRONMENT_CANNOT_SEED) | (singleton ? ENVIRONMENT_SINGLETON : 0);
    return status;
}

static enum status read_root(struct environment_description *description, cJSON *root, struct error *error)
{
    struct environment_spec *spec = &description->spec;
    enum status status = read_name(root, description->name, error);
    if (status == STATUS_OK)
        status = take_whole(root, "", "agents", &spec->agents, error);
    if (status == STATUS_OK)
        status = take_whole(root, "", "steps_max", &spec->steps_max, error);
    if (status == STATUS_OK)
        status = read_flags(description, root, error);
    if (status == STATUS_OK)
        status = read_metrics(root, spec, error);
    if (status == STATUS_OK)
        status = read_space(root, "observation", &spec->observation, error);
    if (status == STATUS_OK)
        status = read_space(root, "action", &spec->action, error);
    if (status == STATUS_OK)
        status = check_empty(root, "", error);
    return status == STATUS_OK ? environment_spec_check(spec, error) : status;
}

enum status environment_description_read(struct environment_description *description, const char *text,
                                         size_t bytes, struct error *error)
{
    *description = (struct environment_description){.spec.size = sizeof description->spec};
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    const enum status status = cJSON_IsObject(root)
                                   ? read_root(description, root, error)
                                   : error_set(error, STATUS_INVALID, "expected a JSON object");
    cJSON_Delete(root);
    return status;
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
