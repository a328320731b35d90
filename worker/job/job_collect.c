/* Where each key of the job stands: in the file, in an override, or nowhere. Reports what is not JSON, and
 * keys that are none. Runs in whatever process reads a job, on the caller's thread. */
#include "kernels/base/text.h"
#include "worker/job/did_you_mean.h"
#include "worker/job/job_reading.h"

#include <stdarg.h>
#include <string.h>
#include <strings.h>

void job_report(struct job_reading *reading, uint32_t document, struct json_span span, const char *pointer,
                const char *format, ...)
{
    char text[PROBLEM_TEXT_BYTES - JSON_POINTER_BYTES - 4];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct problem_place place = {.source = document, .line = span.line, .column = span.column};
    bool named = pointer[0] != '\0';
    if (document > 0) {
        const char *override = reading->overrides[document - 1];
        size_t length = strlen(pointer);
        named = named && !(strncmp(override, pointer, length) == 0 && override[length] == '=');
    }
    problem_list_add(&reading->problems, place, "%s%s%s", named ? pointer : "", named ? ": " : "", text);
}

/* Where no kind is known, every key of any kind is one. */
static bool report_other_kind(struct job_reading *reading, uint32_t document, struct json_span span,
                              const struct job_key *parent, const char *name)
{
    const struct job_key *key = job_key_member(JOB_KINDS_ALL, parent, name);
    if (key == NULL)
        return false;
    char kinds[128] = "";
    size_t length = 0;
    for (unsigned left = job_key_kinds(key); left != 0; left &= left - 1)
        length += (size_t)snprintf(kinds + length, sizeof kinds - length, "%s\"%s\"",
                                   length == 0 ? "" : " or ", job_kind_name(ffs((int)left) - 1));
    job_report(reading, document, span, key->pointer, "is a key of the kind %s, this job is a \"%s\"", kinds,
               job_kind_name(ffs((int)reading->kinds) - 1));
    return true;
}

static void report_unknown(struct job_reading *reading, uint32_t document, struct json_span span,
                           const struct job_key *parent, const char *name)
{
    if (report_other_kind(reading, document, span, parent, name))
        return;
    char pointer[JSON_POINTER_BYTES], question[DID_YOU_MEAN_BYTES];
    snprintf(pointer, sizeof pointer, "%s", parent == NULL ? "" : parent->pointer);
    json_pointer_add(pointer, name);
    did_you_mean_key(question, reading->kinds, parent, name);
    job_report(reading, document, span, pointer, "unknown key%s", question);
}

/* ---- the file ---- */

static void collect_members(struct job_reading *reading, uint32_t document, uint32_t object,
                            const struct job_key *parent);

/* Notes that `key`'s value is the node, and looks into it when it is a group. */
static void collect_value(struct job_reading *reading, uint32_t document, uint32_t node,
                          const struct job_key *key)
{
    reading->found[key - job_keys] = (struct job_found){.present = true, .document = document, .node = node};
    if (key->type != JOB_OBJECT)
        return;
    for (size_t i = 0; i < job_key_count; i++)
        if (job_key_is_member(&job_keys[i], key))
            reading->found[i] = (struct job_found){0};
    if (reading->documents[document].nodes[node].type == JSON_OBJECT)
        collect_members(reading, document, node, key);
}

/* Groups of the table hold no groups: this goes two levels deep. */
static void collect_members(struct job_reading *reading, uint32_t document, uint32_t object,
                            const struct job_key *parent)
{
    const struct json_document *of = &reading->documents[document];
    const struct json_node *nodes = of->nodes;
    for (uint32_t i = object + 1; i < nodes[object].end; i = nodes[i].end) {
        const char *name = nodes[i].name;
        if (nodes[i].duplicate || nodes[i].key_flawed || job_key_ignored(name))
            continue;
        const struct job_key *key = job_key_member(reading->kinds, parent, name);
        if (key == NULL)
            report_unknown(reading, document, nodes[i].key, parent, name);
        else if (strcmp(key->pointer, "/kind") != 0) /* that one has been read */
            collect_value(reading, document, i, key);
    }
}

static void report_flaw(void *context, uint32_t line, uint32_t column, const char *text)
{
    struct job_reading *reading = context;
    problem_list_add(&reading->problems, (struct problem_place){.line = line, .column = column}, "%s", text);
}

static void collect_file(struct job_reading *reading)
{
    const struct json_document *file = &reading->documents[0];
    if (file->count == 0)
        return;
    if (file->nodes[0].type == JSON_OBJECT) {
        collect_members(reading, 0, 0, NULL);
    } else if (!file->nodes[0].flawed) {
        char got[JSON_SHOWN_BYTES];
        json_document_show(got, file, 0);
        job_report(reading, 0, file->nodes[0].value, "", "expected an object, got %s", got);
    }
}

/* ---- overrides ---- */

/* Copies a pointer's first name, which ends at '/' or '=', to `name`, with ~0 and ~1 decoded. Returns the
 * rest of the pointer. A name that is too long for any key is cut: it stays unknown. */
static const char *next_name(char name[JOB_NAME_BYTES], const char *pointer)
{
    size_t length = 0;
    for (; *pointer != '/' && *pointer != '='; pointer++) {
        char c = *pointer;
        if (c == '~' && (pointer[1] == '0' || pointer[1] == '1'))
            c = *++pointer == '0' ? '~' : '/';
        if (length < JOB_NAME_BYTES - 1)
            name[length++] = c;
    }
    name[length] = '\0';
    return pointer;
}

/* The key that an override names; NULL when it names none, which has been reported where it should be.
 * *element: it names the one element of the key's array. */
static const struct job_key *override_key(struct job_reading *reading, uint32_t document, const char *pointer,
                                          bool *element)
{
    const struct job_key *key = NULL;
    *element = false;
    while (*pointer == '/') {
        char name[JOB_NAME_BYTES];
        pointer = next_name(name, pointer + 1);
        if (job_key_ignored(name))
            return NULL;
        const struct job_key *member = job_key_member(reading->kinds, key, name);
        if (key != NULL && key->list_of_one && !*element && strcmp(name, "0") == 0) {
            *element = true;
            continue;
        }
        if (member == NULL) {
            report_unknown(reading, document, (struct json_span){0}, key, name);
            return NULL;
        }
        key = member;
    }
    return key;
}

/* One reading of an override's value. */
struct override_reading {
    struct job_reading *reading;
    uint32_t document;
    const struct job_key *key;
    bool flawed;
};

static void note_flaw(void *context, uint32_t line, uint32_t column, const char *text)
{
    (void)line, (void)column, (void)text;
    ((struct override_reading *)context)->flawed = true;
}

/* A sentence that begins with a pointer has it from the value's root. */
static void report_override_flaw(void *context, uint32_t line, uint32_t column, const char *text)
{
    const struct override_reading *override = context;
    struct problem_place place = {.source = override->document, .line = line, .column = column};
    problem_list_add(&override->reading->problems, place, "%s%s",
                     text[0] == '/' ? override->key->pointer : "", text);
}

/* Reads `text` as the value of `key`: JSON, else a string. But an object or an array with flaws in it was
 * meant as one: a string of it would hide what is wrong. */
static enum status read_override(struct job_reading *reading, uint32_t document, const struct job_key *key,
                                 const char *text)
{
    struct json_document *value = &reading->documents[document];
    struct override_reading override = {reading, document, key, false};
    enum status status = json_document_parse(value, text, strlen(text), note_flaw, &override);
    if (status != STATUS_OK || !override.flawed)
        return status;
    enum json_type type = value->count == 0 ? JSON_STRING : value->nodes[0].type;
    json_document_fini(value);
    if (type == JSON_OBJECT || type == JSON_ARRAY)
        return json_document_parse(value, text, strlen(text), report_override_flaw, &override);
    return json_document_of_string(value, text);
}

static enum status collect_override(struct job_reading *reading, uint32_t index)
{
    uint32_t document = index + 1;
    const char *override = reading->overrides[index];
    const char *equals = strchr(override, '=');
    if (override[0] != '/' || equals == NULL || strlen(override) > JOB_TEXT_BYTES_MAX) {
        job_report(reading, document, (struct json_span){0}, "", "expected /pointer=value, at most %d bytes",
                   JOB_TEXT_BYTES_MAX);
        return STATUS_OK;
    }
    bool element;
    const struct job_key *key = override_key(reading, document, override, &element);
    if (key == NULL)
        return STATUS_OK;
    enum status status = read_override(reading, document, key, equals + 1);
    if (status != STATUS_OK)
        return status;
    collect_value(reading, document, 0, key);
    reading->found[key - job_keys].element = element;
    return STATUS_OK;
}

/* ---- the kind, and then everything ---- */

static bool says_kind(const char *override)
{
    return strncmp(override, "/kind=", 6) == 0;
}

/* Notes what the file's own "kind" is. */
static void collect_file_kind(struct job_reading *reading, const struct job_key *kind)
{
    const struct json_document *file = &reading->documents[0];
    if (file->count == 0 || file->nodes[0].type != JSON_OBJECT)
        return;
    const struct json_node *nodes = file->nodes;
    for (uint32_t i = 1; i < nodes[0].end; i = nodes[i].end)
        if (!nodes[i].duplicate && !nodes[i].key_flawed && strcmp(nodes[i].name, job_key_name(kind)) == 0)
            collect_value(reading, 0, i, kind);
}

/* Which kind the value found is; one that is none, or not there, is reported by job_check. */
static void read_kind(struct job_reading *reading, const struct job_key *key)
{
    const struct job_found *found = &reading->found[key - job_keys];
    const struct json_document *of = &reading->documents[found->document];
    if (!found->present || of->nodes[found->node].type != JSON_STRING || of->nodes[found->node].flawed)
        return;
    for (int kind = 0; key->names[kind] != NULL; kind++)
        if (strcmp(of->nodes[found->node].string, key->names[kind]) == 0)
            reading->kinds = JOB_KINDS_OF(kind);
}

enum status job_collect(struct job_reading *reading, const char *text, size_t length)
{
    const struct job_key *kind = job_key_at(JOB_KINDS_ALL, "/kind");
    enum status status = json_document_parse(&reading->documents[0], text, length, report_flaw, reading);
    if (status != STATUS_OK)
        return status;
    collect_file_kind(reading, kind);
    for (uint32_t i = 0; status == STATUS_OK && i < reading->override_count; i++)
        if (says_kind(reading->overrides[i]))
            status = collect_override(reading, i);
    if (status != STATUS_OK)
        return status;
    read_kind(reading, kind);
    collect_file(reading);
    for (uint32_t i = 0; status == STATUS_OK && i < reading->override_count; i++)
        if (!says_kind(reading->overrides[i]))
            status = collect_override(reading, i);
    return status;
}
