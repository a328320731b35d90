/* The JSON schema (draft 2020-12) of job files, out of the table: an editor underlines with it whatever the
 * check refuses, but for limits on products, rules that compare two keys, and the bytes of a path. The first
 * keyword that applies is the kind, which picks one of the descriptions: an editor then names the key at
 * fault, where alternatives would only say that none fits. Runs in the command's process. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <float.h>
#include <string.h>

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
        write_bounds(stream, key);
        break;
    case JOB_BOOLEAN:
        fputs("\"type\": \"boolean\"", stream);
        break;
    case JOB_ENUM:
    case JOB_CHOICE:
        write_names(stream, key);
        break;
    case JOB_PATH:
        write_type_name(stream, key, "string");
        fprintf(stream, ", \"minLength\": %.0f, \"maxLength\": %.0f", key->min, key->max);
        break;
    case JOB_NAME:
    case JOB_ROUND:
    case JOB_PLACE:
        fprintf(stream, "\"type\": \"string\", \"pattern\": \"%s\"", job_type_pattern(key->type));
        break;
    case JOB_OBJECT:
        break;
    }
}

static void write_key_default(FILE *stream, const struct job_key *key)
{
    if (key->by_default != NULL)
        fprintf(stream, ", \"default\": %s", key->by_default);
}

/* The array around a key's own type. */
static void write_array(FILE *stream, const struct job_key *key)
{
    if (key->elements > 1)
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
    job_write_string(stream, key->text);
    fputs(", ", stream);
    if (key->offset == offsetof(struct job, kind))
        fprintf(stream, "\"const\": \"%s\"", job_kind_name(kind));
    else if (key->elements > 0)
        write_array(stream, key);
    else
        write_type(stream, key);
    write_key_default(stream, key);
    fputc('}', stream);
}

/* ---- rules between keys ---- */

/* The condition as a schema of the key's value. */
static void write_condition_value(FILE *stream, const struct job_key *key,
                                  const struct job_condition *condition)
{
    const bool numbered = key->type == JOB_ROUND || key->type == JOB_PLACE;
    switch (condition->test) {
    case JOB_IS:
        fprintf(stream, numbered ? "{\"pattern\": \"^%s\"}" : "{\"const\": \"%s\"}", condition->name);
        break;
    case JOB_IS_NOT:
        fprintf(stream, "{\"not\": {\"const\": \"%s\"}}", condition->name);
        break;
    case JOB_IS_NULL:
        fputs("{\"type\": \"null\"}", stream);
        break;
    case JOB_IS_SET:
        fputs(key->type == JOB_PATH ? "{\"minLength\": 1}" : "{\"not\": {\"type\": \"null\"}}", stream);
        break;
    case JOB_AT_LEAST:
        fprintf(stream, "{\"minimum\": %g}", condition->number);
        break;
    case JOB_AT_MOST:
        fprintf(stream, key->elements > 1 ? "{\"maxItems\": %g}" : "{\"maximum\": %g}", condition->number);
        break;
    case JOB_ALWAYS:
    case JOB_AT_MOST_KEY:
    case JOB_BELOW_KEY:
        break;
    }
}

/* Whether the condition holds where its key is absent, and all of `given` hold. */
static bool default_satisfies(int kind, const struct job_condition *condition,
                              const struct job_condition given[2])
{
    struct job job;
    const struct job_key *key = job_key_at(JOB_KINDS_OF(kind), condition->pointer);
    const struct job_condition *where = &key->null_where;
    job_defaults(&job, JOB_KINDS_OF(kind));
    for (size_t i = 0; given != NULL && where->test != JOB_ALWAYS && i < 2 && given[i].test != JOB_ALWAYS;
         i++)
        if (given[i].test == where->test && strcmp(given[i].pointer, where->pointer) == 0 &&
            (where->name == NULL || strcmp(given[i].name, where->name) == 0))
            job_value_make_null(&job, key);
    return job_condition_holds(&job, JOB_KINDS_OF(kind), condition);
}

/* The condition as a schema of the whole job. A key that may be absent, with its default, is not required. */
static void write_condition(FILE *stream, int kind, const struct job_condition *condition,
                            const struct job_condition given[2])
{
    const struct job_key *key = job_key_at(JOB_KINDS_OF(kind), condition->pointer);
    const char *name = job_key_name(key);
    const int length = (int)(name - key->pointer) - 2;
    const bool required = !default_satisfies(kind, condition, given);
    fprintf(stream, "{\"properties\": {\"%.*s\": {\"properties\": {\"%s\": ", length, key->pointer + 1, name);
    write_condition_value(stream, key, condition);
    fputc('}', stream);
    if (required)
        fprintf(stream, ", \"required\": [\"%s\"]", name);
    fputs("}}", stream);
    if (required)
        fprintf(stream, ", \"required\": [\"%.*s\"]", length, key->pointer + 1);
    fputc('}', stream);
}

static void write_rules(FILE *stream, int kind)
{
    const char *separator = "      \"allOf\": [\n";
    for (size_t i = 0; i < job_rule_count; i++) {
        const struct job_rule *rule = &job_rules[i];
        if ((rule->kinds & JOB_KINDS_OF(kind)) == 0 || rule->then.test == JOB_AT_MOST_KEY ||
            rule->then.test == JOB_BELOW_KEY)
            continue;
        const bool two = rule->when[1].test != JOB_ALWAYS;
        fprintf(stream, "%s        {\"if\": %s", separator, two ? "{\"allOf\": [" : "");
        write_condition(stream, kind, &rule->when[0], NULL);
        if (two) {
            fputs(", ", stream);
            write_condition(stream, kind, &rule->when[1], NULL);
            fputs("]}", stream);
        }
        fputs(",\n          \"then\": ", stream);
        write_condition(stream, kind, &rule->then, rule->when);
        fputc('}', stream);
        separator = ",\n";
    }
    fputs("\n      ],\n", stream);
}

/* ---- groups, kinds, the whole ---- */

/* The keywords that a group and a job share: only known keys are allowed. */
static void write_closed(FILE *stream, const char *indent)
{
    fprintf(stream, "%s\"type\": \"object\",\n%s\"additionalProperties\": false,\n", indent, indent);
    fprintf(stream, "%s\"patternProperties\": {\"^(_|\\\\$schema$)\": true},\n", indent);
}

static void write_group(FILE *stream, const struct job_key *group, int kind)
{
    fprintf(stream, "\"%s\": {\n          \"description\": ", job_key_name(group));
    job_write_string(stream, group->text);
    fputs(",\n", stream);
    write_closed(stream, "          ");
    fputs("          \"properties\": {", stream);
    const char *separator = "\n            ";
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & JOB_KINDS_OF(kind)) != 0 &&
            job_key_is_member(&job_keys[i], group->pointer)) {
            fputs(separator, stream);
            write_key(stream, &job_keys[i], kind);
            separator = ",\n            ";
        }
    fputs("\n          }\n        }", stream);
}

/* All keys of a kind. */
static void write_kind(FILE *stream, int kind)
{
    fprintf(stream, "    \"%s\": {\n", job_kind_name(kind));
    write_closed(stream, "      ");
    fputs("      \"required\": [\"kind\"],\n", stream);
    write_rules(stream, kind);
    fputs("      \"properties\": {", stream);
    const char *separator = "\n        ";
    for (size_t i = 0; i < job_key_count; i++) {
        if ((job_keys[i].kinds & JOB_KINDS_OF(kind)) == 0 || !job_key_is_member(&job_keys[i], ""))
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
          "  \"$comment\": \"generated from the daemon's own table; `make documents` writes it\",\n"
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
