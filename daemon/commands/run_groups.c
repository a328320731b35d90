/* Each job becomes a list of keys without /seed; groups are equal lists. Pure. */
#include "daemon/commands/run_groups.h"

#include "kernels/base/text.h"
#include "worker/job/json_document.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the keys of a job ---- */

struct key {
    char *pointer, *value; /* "/optimizer/lr", "0.001" */
};

struct key_list {
    struct key *keys; /* (count) in the job's order */
    size_t count, capacity;
    char *seed; /* "": the job has none */
};

static void key_list_fini(struct key_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->keys[i].pointer);
        cJSON_free(list->keys[i].value);
    }
    free(list->keys);
    cJSON_free(list->seed);
    *list = (struct key_list){0};
}

static bool key_list_add(struct key_list *list, const char *pointer, const cJSON *item)
{
    char *value = cJSON_PrintUnformatted(item);
    if (value != NULL && strcmp(pointer, "/seed") == 0) {
        list->seed = value;
        return true;
    }
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        struct key *keys = realloc(list->keys, capacity * sizeof *keys);
        if (keys != NULL) {
            list->keys = keys;
            list->capacity = capacity;
        }
    }
    char *copy = list->count < list->capacity ? strdup(pointer) : NULL;
    if (copy == NULL || value == NULL) {
        free(copy);
        cJSON_free(value);
        return false;
    }
    list->keys[list->count++] = (struct key){copy, value};
    return true;
}

/* Adds all keys below `object`, whose pointer is `pointer`. A job nests objects at most JSON_DEPTH_MAX deep.
 */
// NOLINTNEXTLINE(misc-no-recursion)
static bool key_list_fill(struct key_list *list, const cJSON *object, const char *pointer)
{
    const cJSON *item;
    bool filled = true;
    cJSON_ArrayForEach(item, object)
    {
        char below[JSON_POINTER_BYTES];
        snprintf(below, sizeof below, "%s", pointer);
        json_pointer_add(below, item->string);
        filled = filled &&
                 (cJSON_IsObject(item) ? key_list_fill(list, item, below) : key_list_add(list, below, item));
    }
    return filled;
}

static enum status key_list_read(struct key_list *list, const char *text, struct error *error)
{
    struct json_document document;
    struct json_error why = {0};
    enum status status = json_document_parse(&document, text, strlen(text), &why);
    if (status == STATUS_OK && !key_list_fill(list, document.root, ""))
        status = STATUS_NO_MEMORY;
    json_document_fini(&document);
    if (status == STATUS_INVALID)
        return error_set(error, status, "a run's job is not JSON: %s", why.text);
    return status == STATUS_OK ? status : error_set(error, status, "no memory for a run's job");
}

static bool key_list_equals(const struct key_list *a, const struct key_list *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; i < a->count && equal; i++)
        equal = strcmp(a->keys[i].pointer, b->keys[i].pointer) == 0 &&
                strcmp(a->keys[i].value, b->keys[i].value) == 0;
    return equal;
}

/* Whether `list` has the key with the same value. Jobs of one kind have the key at the same index. */
static bool key_list_has(const struct key_list *list, const struct key *key, size_t index)
{
    const bool here = index < list->count && strcmp(list->keys[index].pointer, key->pointer) == 0;
    if (here)
        return strcmp(list->keys[index].value, key->value) == 0;
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->keys[i].pointer, key->pointer) == 0)
            return strcmp(list->keys[i].value, key->value) == 0;
    return false;
}

/* ---- labels ---- */

struct label {
    char *text; /* RUN_LABEL_BYTES */
    size_t length;
};

static void label_add(struct label *label, const char *key, const char *value)
{
    char text[RUN_LABEL_BYTES];
    const size_t bytes = strlen(value), quotes = bytes >= 2 && value[0] == '"' ? 1 : 0;
    if (label->length >= RUN_LABEL_BYTES)
        return;
    text_show(text, sizeof text, value + quotes, bytes - 2 * quotes, 48);
    label->length +=
        (size_t)snprintf(label->text + label->length, RUN_LABEL_BYTES - label->length, "%s%s%s%s",
                         label->length > 0 ? ", " : "", key, key[0] != '\0' ? " " : "", text);
}

static const char *last_part(const char *pointer)
{
    return strrchr(pointer, '/') + 1;
}

/* Whether another key of `differs`, which is of the keys of `list`, ends like key `i`. */
static bool ends_like_another(const struct key_list *list, const bool *differs, size_t i)
{
    for (size_t j = 0; j < list->count; j++)
        if (j != i && differs[j] &&
            strcmp(last_part(list->keys[j].pointer), last_part(list->keys[i].pointer)) == 0)
            return true;
    return false;
}

/* The keys of group `g` that another group has not, or with another value. */
static void find_differences(bool *differs, const struct key_list *lists, const struct run_groups *groups,
                             size_t g)
{
    const struct key_list *list = &lists[groups->groups[g].first];
    for (size_t i = 0; i < list->count; i++) {
        differs[i] = false;
        for (size_t other = 0; other < groups->count && !differs[i]; other++)
            differs[i] = !key_list_has(&lists[groups->groups[other].first], &list->keys[i], i);
    }
}

static bool seeds_are_distinct(const struct run_groups *groups, const struct key_list *lists, size_t count,
                               size_t g)
{
    for (size_t i = groups->groups[g].first; i < count; i++) {
        if (groups->group_of[i] != g || lists[i].seed == NULL)
            continue;
        for (size_t j = i + 1; j < count; j++)
            if (groups->group_of[j] == g && strcmp(lists[i].seed, lists[j].seed) == 0)
                return false;
    }
    return true;
}

static enum status label_group(struct run_groups *groups, const struct key_list *lists,
                               const char *const *names, size_t count, size_t g, struct error *error)
{
    struct run_group *group = &groups->groups[g];
    const struct key_list *list = &lists[group->first];
    struct label label = {.text = group->label};
    char runs[48];
    bool *differs = calloc(list->count + 1, sizeof *differs);
    if (differs == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the labels of a figure");
    find_differences(differs, lists, groups, g);
    for (size_t i = 0; i < list->count; i++) {
        const char *pointer = list->keys[i].pointer;
        if (differs[i])
            label_add(&label, ends_like_another(list, differs, i) ? pointer : last_part(pointer),
                      list->keys[i].value);
    }
    free(differs);
    if (label.length == 0 || label.length > RUN_LABEL_CHARACTERS_MAX) {
        label.length = 0;
        label_add(&label, "", names[group->first]);
    }
    if (group->runs > 1) {
        snprintf(runs, sizeof runs, "%zu %s", group->runs,
                 seeds_are_distinct(groups, lists, count, g) ? "seeds" : "runs");
        label_add(&label, "", runs);
    }
    return STATUS_OK;
}

/* ---- groups ---- */

static void join_group(struct run_groups *groups, const struct key_list *lists, size_t run)
{
    size_t g = 0;
    while (g < groups->count && !key_list_equals(&lists[groups->groups[g].first], &lists[run]))
        g++;
    if (g == groups->count)
        groups->groups[groups->count++] = (struct run_group){.first = run};
    groups->groups[g].runs++;
    groups->group_of[run] = g;
}

enum status run_groups_make(struct run_groups *groups, const char *const *jobs, const char *const *names,
                            size_t count, struct error *error)
{
    struct key_list *lists = calloc(count + 1, sizeof *lists);
    *groups = (struct run_groups){.groups = calloc(count + 1, sizeof *groups->groups),
                                  .group_of = calloc(count + 1, sizeof *groups->group_of)};
    enum status status = STATUS_OK;
    if (lists == NULL || groups->groups == NULL || groups->group_of == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %zu runs", count);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        status = key_list_read(&lists[i], jobs[i], error);
        if (status == STATUS_OK)
            join_group(groups, lists, i);
    }
    for (size_t g = 0; g < groups->count && status == STATUS_OK; g++)
        status = label_group(groups, lists, names, count, g, error);
    for (size_t i = 0; lists != NULL && i < count; i++)
        key_list_fini(&lists[i]);
    free(lists);
    return status;
}

void run_groups_fini(struct run_groups *groups)
{
    free(groups->groups);
    free(groups->group_of);
    *groups = (struct run_groups){0};
}
