/* The JSON schema (draft 2020-12) of job files, out of the table. What an editor underlines with it is what
 * the daemon refuses, but for the rule on the product of two numbers, which no schema can say.
 * Runs in the supervisor's program, at the developer's wish. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <float.h>

/* Every object allows the keys that mean nothing to us, and no others. */
static const char ignored_keys[] = "\"patternProperties\": {\"^(_|\\\\$schema$)\": true},";

static void write_string(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', stream);
        fputc(*text, stream);
    }
    fputc('"', stream);
}

static void write_bounds(FILE *stream, const struct job_key *key)
{
    char number[32];
    const char *type = key->type == JOB_INTEGER ? "integer" : "number";
    fprintf(stream, key->nullable ? "\"type\": [\"%s\", \"null\"]" : "\"type\": \"%s\"", type);
    if (key->max == DBL_MAX)
        return;
    job_number_show(number, key->min);
    fprintf(stream, ", \"%s\": %s", key->min_open ? "exclusiveMinimum" : "minimum", number);
    job_number_show(number, key->max);
    fprintf(stream, ", \"%s\": %s", key->max_open ? "exclusiveMaximum" : "maximum", number);
}

static void write_type(FILE *stream, const struct job_key *key)
{
    switch (key->type) {
    case JOB_INTEGER:
    case JOB_NUMBER:
        write_bounds(stream, key);
        break;
    case JOB_BOOLEAN:
        fputs("\"type\": \"boolean\"", stream);
        break;
    case JOB_ENUM:
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
        fputs("\"enum\": [", stream);
        for (size_t i = 0; key->names[i] != NULL; i++)
            fprintf(stream, "%s\"%s\"", i == 0 ? "" : ", ", key->names[i]);
        fputc(']', stream);
        break;
    case JOB_NAME:
        fprintf(stream, "\"type\": \"string\", \"pattern\": \"^[A-Za-z0-9_][A-Za-z0-9._-]{0,%d}$\"",
                JOB_NAME_BYTES - 2);
        break;
    case JOB_OBJECT:
        break;
    }
}

static void write_default(FILE *stream, const struct job_key *key)
{
    char number[32];
    job_number_show(number, key->default_number);
    if (key->required || key->type == JOB_NAME)
        return;
    fputs(", \"default\": ", stream);
    if (key->null_by_default)
        fputs("null", stream);
    else if (key->type == JOB_BOOLEAN)
        fputs(key->default_number != 0 ? "true" : "false", stream);
    else if (key->names != NULL)
        write_string(stream, key->names[(size_t)key->default_number]);
    else
        fprintf(stream, key->list_of_one ? "[%s]" : "%s", number);
}

static void write_key(FILE *stream, const struct job_key *key)
{
    fprintf(stream, "\"%s\": {\"description\": ", job_key_name(key));
    write_string(stream, key->description);
    fputs(", ", stream);
    if (key->list_of_one)
        fputs("\"type\": \"array\", \"minItems\": 1, \"maxItems\": 1, \"items\": {", stream);
    write_type(stream, key);
    if (key->list_of_one)
        fputc('}', stream);
    write_default(stream, key);
    fputc('}', stream);
}

static void write_group(FILE *stream, const struct job_key *group)
{
    fprintf(stream, "\"%s\": {\n      \"description\": ", job_key_name(group));
    write_string(stream, group->description);
    fprintf(stream, ",\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n      %s\n",
            ignored_keys);
    if (group->schema_rule != NULL)
        fprintf(stream, "      %s,\n", group->schema_rule);
    fputs("      \"properties\": {", stream);
    const char *separator = "\n        ";
    for (size_t i = 0; i < job_key_count; i++)
        if (job_key_parent(&job_keys[i]) == group) {
            fputs(separator, stream);
            write_key(stream, &job_keys[i]);
            separator = ",\n        ";
        }
    fputs("\n      }\n    }", stream);
}

static void write_required(FILE *stream)
{
    const char *separator = "";
    fputs("  \"required\": [", stream);
    for (size_t i = 0; i < job_key_count; i++)
        if (job_keys[i].required) {
            fprintf(stream, "%s\"%s\"", separator, job_key_name(&job_keys[i]));
            separator = ", ";
        }
    fputs("],\n", stream);
}

int job_write_schema(FILE *stream)
{
    fputs("{\n"
          "  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
          "  \"title\": \"a job of coalesced\",\n"
          "  \"$comment\": \"generated from the daemon's own table; `make schema` writes it anew\",\n"
          "  \"type\": \"object\",\n  \"additionalProperties\": false,\n",
          stream);
    fprintf(stream, "  %s\n", ignored_keys);
    write_required(stream);
    fputs("  \"properties\": {", stream);
    const char *separator = "\n    ";
    for (size_t i = 0; i < job_key_count; i++) {
        if (job_key_parent(&job_keys[i]) != NULL)
            continue;
        fputs(separator, stream);
        if (job_keys[i].type == JOB_OBJECT)
            write_group(stream, &job_keys[i]);
        else
            write_key(stream, &job_keys[i]);
        separator = ",\n    ";
    }
    fputs("\n  }\n}\n", stream);
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}
