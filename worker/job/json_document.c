/* JSON text read in full; see the header. Runs in whatever process reads a job, on the caller's thread. */
#include "worker/job/json_document.h"

#include "kernels/base/text.h"
#include "worker/job/job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_CHARACTERS = 40, SHOWN_KEY_CHARACTERS = 40 };

void json_document_fini(struct json_document *document)
{
    cJSON_Delete(document->root);
    free(document->items);
    json_scan_fini(&document->scan);
    free(document->text);
    *document = (struct json_document){0};
}

/* ---- pointers and values, shown ---- */

void json_pointer_add(char pointer[JSON_POINTER_BYTES], const char *name)
{
    char escaped[2 * SHOWN_KEY_CHARACTERS * 4 + 1];
    size_t length = 0;
    for (const char *c = name; *c != '\0' && length + 2 < sizeof escaped; c++) {
        if (*c == '~' || *c == '/') {
            escaped[length++] = '~';
            escaped[length++] = *c == '~' ? '0' : '1';
        } else {
            escaped[length++] = *c;
        }
    }
    size_t used = strlen(pointer);
    if (used + 16 >= JSON_POINTER_BYTES)
        return;
    pointer[used++] = '/';
    text_show(pointer + used, JSON_POINTER_BYTES - used, escaped, length, SHOWN_KEY_CHARACTERS);
}

void json_document_pointer(char pointer[JSON_POINTER_BYTES], const struct json_document *document,
                           uint32_t index)
{
    const struct json_node *nodes = document->scan.nodes;
    uint32_t path[JOB_DEPTH_MAX + 1];
    size_t depth = 0;
    for (uint32_t i = index; i != 0; i = nodes[i].parent) {
        assert(depth <= JOB_DEPTH_MAX);
        path[depth++] = i;
    }
    pointer[0] = '\0';
    while (depth-- > 0) {
        uint32_t i = path[depth];
        char place[16];
        uint32_t elements = 0;
        if (nodes[i].key.length == 0)
            for (uint32_t j = nodes[i].parent + 1; j != i; j = nodes[j].end)
                elements++;
        snprintf(place, sizeof place, "%u", elements);
        json_pointer_add(pointer, nodes[i].key.length == 0 ? place : document->items[i]->string);
    }
}

void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, uint32_t index)
{
    const struct json_node *node = &document->scan.nodes[index];
    char text[JSON_SHOWN_BYTES - 2];
    if (node->type == JSON_OBJECT) {
        snprintf(out, JSON_SHOWN_BYTES, "an object");
    } else if (node->type == JSON_ARRAY) {
        uint32_t elements = 0;
        for (uint32_t i = index + 1; i < node->end; i = document->scan.nodes[i].end)
            elements++;
        snprintf(out, JSON_SHOWN_BYTES, elements == 0 ? "an empty array" : "an array of %u", elements);
    } else {
        const char *begin = document->text + node->value.offset;
        size_t length = node->value.length;
        bool quoted = node->type == JSON_STRING;
        if (quoted && length >= 2 && begin[0] == '"') {
            begin++;
            length -= 2;
        }
        text_show(text, sizeof text, begin, length, SHOWN_CHARACTERS);
        snprintf(out, JSON_SHOWN_BYTES, quoted ? "\"%s\"" : "%s", text);
    }
}

/* ---- duplicate keys ---- */

/* By object, then by decoded key, then by place. */
static int compare_keys(const void *left, const void *right, void *context)
{
    const struct json_document *document = context;
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const struct json_node *nodes = document->scan.nodes;
    if (nodes[a].parent != nodes[b].parent)
        return nodes[a].parent < nodes[b].parent ? -1 : 1;
    int order = strcmp(document->items[a]->string, document->items[b]->string);
    return order != 0 ? order : a < b ? -1 : a > b;
}

static void report_duplicate(struct json_document *document, uint32_t index, uint32_t first,
                             json_report *report, void *context)
{
    struct json_node *nodes = document->scan.nodes;
    char pointer[JSON_POINTER_BYTES], text[JSON_POINTER_BYTES + 80];
    nodes[index].duplicate = true;
    json_document_pointer(pointer, document, index);
    snprintf(text, sizeof text, "%s: duplicate key; it stands already at %u:%u", pointer,
             nodes[first].key.line, nodes[first].key.column);
    report(context, nodes[index].key.line, nodes[index].key.column, text);
}

/* Sorting finds them in n log n whatever the keys are; a hash could be made to collide. */
static enum status find_duplicates(struct json_document *document, json_report *report, void *context)
{
    struct json_scan *scan = &document->scan;
    uint32_t *keys = malloc(scan->count * sizeof *keys);
    if (keys == NULL)
        return STATUS_NO_MEMORY;
    uint32_t count = 0;
    for (uint32_t i = 0; i < scan->count; i++)
        if (scan->nodes[i].key.length != 0 && !scan->nodes[i].key_flawed)
            keys[count++] = i;
    qsort_r(keys, count, sizeof *keys, compare_keys, document);
    uint32_t first = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (scan->nodes[keys[i]].parent == scan->nodes[keys[first]].parent &&
            strcmp(document->items[keys[i]]->string, document->items[keys[first]]->string) == 0)
            report_duplicate(document, keys[i], keys[first], report, context);
        else
            first = i;
    }
    free(keys);
    return STATUS_OK;
}

/* ---- reading ---- */

/* cJSON's tree in pre-order, which is the scanner's order. As deep as a text may nest. */
static void list_items(struct json_document *document, cJSON *item, uint32_t *count)
{
    assert(*count < document->scan.count);
    document->items[(*count)++] = item;
    for (cJSON *child = item->child; child != NULL; child = child->next)
        list_items(document, child, count);
}

static enum status read_values(struct json_document *document)
{
    /* With the zero counted in, cJSON checks that nothing stands between the value and the end. A text that
     * the scanner passes is one that cJSON reads, so that memory is all that can be missing. */
    document->root = cJSON_ParseWithLengthOpts(document->text, document->length + 1, NULL, true);
    document->items = calloc(document->scan.count, sizeof(cJSON *));
    if (document->root == NULL || document->items == NULL)
        return STATUS_NO_MEMORY;
    uint32_t count = 0;
    list_items(document, document->root, &count);
    assert(count == document->scan.count);
    return STATUS_OK;
}

enum status json_document_parse(struct json_document *document, const char *text, size_t length,
                                json_report *report, void *context)
{
    *document = (struct json_document){.length = length, .text = malloc(length + 1)};
    if (document->text == NULL)
        return STATUS_NO_MEMORY;
    if (length > 0)
        memcpy(document->text, text, length);
    document->text[length] = '\0';
    enum status status = json_scan(&document->scan, document->text, length, report, context);
    if (status != STATUS_OK || document->scan.broken)
        return status;
    status = read_values(document);
    return status != STATUS_OK ? status : find_duplicates(document, report, context);
}

enum status json_document_of_string(struct json_document *document, const char *value)
{
    *document = (struct json_document){.length = strlen(value), .text = strdup(value)};
    struct json_scan *scan = &document->scan;
    scan->nodes = calloc(1, sizeof *scan->nodes);
    document->items = calloc(1, sizeof(cJSON *));
    document->root = cJSON_CreateString(value);
    if (document->text == NULL || scan->nodes == NULL || document->items == NULL || document->root == NULL)
        return STATUS_NO_MEMORY;
    document->items[0] = document->root;
    scan->count = 1;
    scan->nodes[0] =
        (struct json_node){.type = JSON_STRING,
                           .end = 1,
                           .value = {.length = (uint32_t)document->length, .line = 1, .column = 1}};
    return STATUS_OK;
}
