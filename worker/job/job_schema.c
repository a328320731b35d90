/* The JSON schema (draft 2020-12) of job files, out of the table. What an editor underlines with it is what
 * the daemon refuses, but for rules on products of numbers, on a round's number of trainers and on the server
 * of a part, which no schema can say, and for the bytes of a path and which they are. The first keyword that
 * applies is the kind, which picks one of the descriptions: an editor then names the key at fault, where
 * alternatives would only say that none fits. Runs in the supervisor's program, at the developer's wish. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <float.h>
#include <string.h>

/* Of a parameter-server: what ends after epochs alone needs data that has some. */
static const char epochs_rule[] =
    "\"if\": {\"properties\": {\"data\": {\"properties\": {\"kind\": {\"const\": \"synthetic\"}}}, "
    "\"stop\": {\"properties\": {\"epochs\": {\"type\": \"integer\"}}, \"required\": [\"epochs\"]}}, "
    "\"required\": [\"stop\"]},\n"
    "      \"then\": {\"properties\": {\"stop\": {\"properties\": {\"updates\": {\"type\": \"integer\"}}, "
    "\"required\": [\"updates\"]}}}";

/* Of a model-parallel: what a text brings itself, what is of one trainer only, what a plateau is one of. */
static const char parallel_rules[] =
    "\"allOf\": [\n"
    "        {\"if\": {\"properties\": {\"data\": {\"properties\": {\"kind\": {\"const\": \"text\"}}, "
    "\"required\": [\"kind\"]}}, \"required\": [\"data\"]},\n"
    "          \"then\": {\"properties\": {\"model\": {\"properties\": {\"tokens\": {\"type\": \"null\"}}}, "
    "\"loss\": {\"properties\": {\"classes\": {\"const\": \"tokens\"}}}}},\n"
    "          \"else\": {\"properties\": {\"model\": {\"properties\": {\"tokens\": {\"type\": "
    "\"integer\"}}}, "
    "\"optimizer\": {\"properties\": {\"schedule\": {\"const\": \"constant\"}}}}}},\n"
    "        {\"if\": {\"properties\": {\"trainers\": {\"properties\": {\"count\": {\"minimum\": 2}}, "
    "\"required\": [\"count\"]}}, \"required\": [\"trainers\"]},\n"
    "          \"then\": {\"properties\": {\"placement\": {\"properties\": {\"embedding\": {\"pattern\": "
    "\"^server\"}, \"lstm\": {\"pattern\": \"^server\"}, \"decoder\": {\"pattern\": \"^server\"}}, "
    "\"required\": [\"lstm\"]}}, \"required\": [\"placement\"]}},\n"
    "        {\"if\": {\"properties\": {\"optimizer\": {\"properties\": {\"schedule\": {\"const\": "
    "\"plateau\"}}, \"required\": [\"schedule\"]}}, \"required\": [\"optimizer\"]},\n"
    "          \"then\": {\"properties\": {\"evaluation\": {\"properties\": {\"every\": {\"type\": "
    "\"integer\"}}}, \"data\": {\"properties\": {\"held_out\": {\"exclusiveMinimum\": 0}}}}}}\n      ]";

static void write_type_name(FILE *stream, const struct job_key *key, const char *type)
{
    fprintf(stream, key->nullable ? "\"type\": [\"%s\", \"null\"]" : "\"type\": \"%s\"", type);
}

static void write_bounds(FILE *stream, const struct job_key *key)
{
    char number[32];
    const char *type = key->type == JOB_INTEGER ? "integer" : "number";
    write_type_name(stream, key, type);
    if (key->max == DBL_MAX)
        return;
    job_number_show(number, key->min);
    if (key->bounds_only) {
        fprintf(stream, ", \"enum\": [%s", number);
        job_number_show(number, key->max);
        fprintf(stream, ", %s]", number);
        return;
    }
    fprintf(stream, ", \"%s\": %s", key->min_open ? "exclusiveMinimum" : "minimum", number);
    job_number_show(number, key->max);
    fprintf(stream, ", \"%s\": %s", key->max_open ? "exclusiveMaximum" : "maximum", number);
}

static void write_names(FILE *stream, const struct job_key *key)
{
    const char *separator = "\"enum\": [";
    for (size_t i = 0; key->names[i] != NULL; i++) {
        if (key->names[i][0] == '\0')
            continue;
        fprintf(stream, "%s\"%s\"", separator, key->names[i]);
        separator = ", ";
    }
    fputc(']', stream);
}

static void write_type(FILE *stream, const struct job_key *key)
{
    switch (key->type) {
    case JOB_INTEGER:
    case JOB_NUMBER:
    case JOB_CHANNELS:
        write_bounds(stream, key);
        break;
    case JOB_BOOLEAN:
        fputs("\"type\": \"boolean\"", stream);
        break;
    case JOB_ENUM:
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
        write_names(stream, key);
        break;
    case JOB_NAME:
        fprintf(stream, "\"type\": \"string\", \"pattern\": \"^[A-Za-z0-9_][A-Za-z0-9._-]{0,%d}$\"",
                JOB_NAME_BYTES - 2);
        break;
    case JOB_PATH:
        write_type_name(stream, key, "string");
        fprintf(stream, ", \"minLength\": %.0f, \"maxLength\": %.0f", key->min, key->max);
        break;
    case JOB_ROUND:
        fputs("\"type\": \"string\", \"pattern\": \"^(all|first ([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-6])"
              "|async ([0-9]|[1-5][0-9]|6[0-4]))$\"",
              stream);
        break;
    case JOB_PLACE:
        fputs("\"type\": \"string\", \"pattern\": \"^(trainer|server ([0-9]|1[0-5]))$\"", stream);
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
    else if (key->type == JOB_PLACE)
        fputs(key->default_number != 0 ? "\"server 0\"" : "\"trainer\"", stream);
    else if (key->names != NULL)
        job_write_string(stream, key->names[(size_t)key->default_number]);
    else if (key->type == JOB_PATH)
        fputs("\"\"", stream);
    else
        fprintf(stream, key->list_of_one || key->type == JOB_CHANNELS ? "[%s]" : "%s", number);
}

/* What stands around a key's own type when it is in an array. */
static void write_array(FILE *stream, const struct job_key *key)
{
    if (key->type == JOB_CHANNELS)
        fprintf(stream,
                "\"type\": \"array\", \"minItems\": 1, \"maxItems\": %d, \"not\": {\"minItems\": 2, "
                "\"maxItems\": %d}, \"items\": {",
                JOB_CHANNELS_MAX, JOB_CHANNELS_MAX - 1);
    else
        fputs("\"type\": \"array\", \"minItems\": 1, \"maxItems\": 1, \"items\": {", stream);
    write_type(stream, key);
    fputc('}', stream);
}

static void write_key(FILE *stream, const struct job_key *key, int kind)
{
    fprintf(stream, "\"%s\": {\"description\": ", job_key_name(key));
    job_write_string(stream, key->description);
    fputs(", ", stream);
    if (strcmp(key->pointer, "/kind") == 0)
        fprintf(stream, "\"const\": \"%s\"", job_kind_name(kind));
    else if (key->list_of_one || key->type == JOB_CHANNELS)
        write_array(stream, key);
    else
        write_type(stream, key);
    write_default(stream, key);
    fputc('}', stream);
}

/* What a group and a job have in common: the keys that are allowed. */
static void write_closed(FILE *stream, const char *indent)
{
    fprintf(stream, "%s\"type\": \"object\",\n%s\"additionalProperties\": false,\n", indent, indent);
    fprintf(stream, "%s\"patternProperties\": {\"^(_|\\\\$schema$)\": true},\n", indent);
}

static void write_group(FILE *stream, const struct job_key *group, int kind)
{
    fprintf(stream, "\"%s\": {\n          \"description\": ", job_key_name(group));
    job_write_string(stream, group->description);
    fputs(",\n", stream);
    write_closed(stream, "          ");
    if (group->schema_rule != NULL)
        fprintf(stream, "          %s,\n", group->schema_rule);
    fputs("          \"properties\": {", stream);
    const char *separator = "\n            ";
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & JOB_KINDS_OF(kind)) != 0 && job_key_is_member(&job_keys[i], group)) {
            fputs(separator, stream);
            write_key(stream, &job_keys[i], kind);
            separator = ",\n            ";
        }
    fputs("\n          }\n        }", stream);
}
static void write_required(FILE *stream, int kind)
{
    const char *separator = "";
    fputs("\"required\": [", stream);
    for (size_t i = 0; i < job_key_count; i++)
        if (job_keys[i].required && (job_keys[i].kinds & JOB_KINDS_OF(kind)) != 0) {
            fprintf(stream, "%s\"%s\"", separator, job_key_name(&job_keys[i]));
            separator = ", ";
        }
    fputs("],\n", stream);
}

/* All keys of a kind. */
static void write_kind(FILE *stream, int kind)
{
    fprintf(stream, "    \"%s\": {\n", job_kind_name(kind));
    write_closed(stream, "      ");
    fputs("      ", stream);
    write_required(stream, kind);
    if (kind == JOB_PARAMETER_SERVER)
        fprintf(stream, "      %s,\n", epochs_rule);
    if (kind == JOB_MODEL_PARALLEL)
        fprintf(stream, "      %s,\n", parallel_rules);
    fputs("      \"properties\": {", stream);
    const char *separator = "\n        ";
    for (size_t i = 0; i < job_key_count; i++) {
        if ((job_keys[i].kinds & JOB_KINDS_OF(kind)) == 0 || !job_key_is_member(&job_keys[i], NULL))
            continue;
        fputs(separator, stream);
        if (job_keys[i].type == JOB_OBJECT)
            write_group(stream, &job_keys[i], kind);
        else
            write_key(stream, &job_keys[i], kind);
        separator = ",\n        ";
    }
    fputs("\n      }\n    }", stream);
}

int job_write_schema(FILE *stream)
{
    const struct job_key *kind = job_key_at(JOB_KINDS_ALL, "/kind");
    fputs("{\n"
          "  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
          "  \"title\": \"a job of coalesced\",\n"
          "  \"$comment\": \"generated from the daemon's own table; `make schema` writes it anew\",\n"
          "  \"type\": \"object\",\n  \"required\": [\"kind\"],\n  \"properties\": {\"kind\": {\"enum\": [",
          stream);
    for (int i = 0; kind->names[i] != NULL; i++)
        fprintf(stream, "%s\"%s\"", i == 0 ? "" : ", ", kind->names[i]);
    fputs("]}},\n  \"allOf\": [", stream);
    for (int i = 0; kind->names[i] != NULL; i++)
        fprintf(
            stream,
            "%s\n    {\"if\": {\"properties\": {\"kind\": {\"const\": \"%s\"}}, \"required\": [\"kind\"]}, "
            "\"then\": {\"$ref\": \"#/$defs/%s\"}}",
            i == 0 ? "" : ",", kind->names[i], kind->names[i]);
    fputs("\n  ],\n  \"$defs\": {\n", stream);
    for (int i = 0; kind->names[i] != NULL; i++) {
        fputs(i == 0 ? "" : ",\n", stream);
        write_kind(stream, i);
    }
    fputs("\n  }\n}\n", stream);
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}
