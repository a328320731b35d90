/* Reads members of a cJSON object, whose text may come from anywhere, and writes numbers, also those that
 * JSON cannot have. Pure. */
#ifndef DAEMON_LOG_JSON_MEMBERS_H
#define DAEMON_LOG_JSON_MEMBERS_H

#include <cjson/cJSON.h>
#include <math.h>
#include <stdint.h>

/* A number; NaN: the object has none of this name, or is NULL. */
static inline double json_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* A whole number; 0 where there is none, or it is below 0 or 2^63 or more. */
static inline uint64_t json_count(const cJSON *object, const char *name)
{
    const double value = json_number(object, name);
    return value >= 0 && value < 0x1p63 ? (uint64_t)value : 0;
}

/* A text, which is the object's; "": the object has none of this name, or is NULL. */
static inline const char *json_text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* Adds a number; null where it is not finite. */
static inline void json_put(cJSON *object, const char *name, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddNullToObject(object, name);
}

#endif
