/* The pointers and values of a JSON document as text for people; see the header. */
#include "worker/job/json_document.h"

#include "kernels/base/text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_CHARACTERS = 40, SHOWN_KEY_CHARACTERS = 40 };

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
    const struct json_node *nodes = document->nodes;
    uint32_t path[JSON_DEPTH_MAX + 1];
    size_t depth = 0;
    for (uint32_t i = index; i != 0; i = nodes[i].parent) {
        assert(depth <= JSON_DEPTH_MAX);
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
        json_pointer_add(pointer, nodes[i].key.length == 0 ? place : nodes[i].name);
    }
}

void json_document_show(char out[JSON_SHOWN_BYTES], const struct json_document *document, uint32_t index)
{
    const struct json_node *node = &document->nodes[index];
    char text[JSON_SHOWN_BYTES - 2];
    if (node->type == JSON_OBJECT) {
        snprintf(out, JSON_SHOWN_BYTES, "an object");
    } else if (node->type == JSON_ARRAY) {
        const uint32_t elements = json_document_elements(document, index);
        snprintf(out, JSON_SHOWN_BYTES, elements == 0 ? "an empty array" : "an array of %u", elements);
    } else {
        const char *begin = document->text + node->value.offset;
        size_t length = node->value.length;
        bool quoted = node->type == JSON_STRING;
        if (quoted && node->string != begin) {
            begin++;
            length -= 2;
        }
        text_show(text, sizeof text, begin, length, SHOWN_CHARACTERS);
        snprintf(out, JSON_SHOWN_BYTES, quoted ? "\"%s\"" : "%s", text);
    }
}
