/* Writes what is generated from the table: the JSON schema (draft 2020-12) of job files, the manual page
 * coalesced-job(5) in mdoc(7), and the keys for completions. config/JOBS.md is the manual page, translated by
 * mandoc. The command's process. */
#include "worker/job/job_table_words.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schema ----
 * An editor underlines with it what the check refuses, except limits on products, rules that compare two
 * keys, and the bytes of a path. The schema first tests the kind, which picks one description. An editor can
 * then name the key at fault; alternatives would only say that none fits.
 *
 * Without memory a tree lacks a branch or is NULL, which cJSON's functions accept. The failed allocation is
 * remembered, and such a tree is not written. */

static bool lacks_memory; /* an allocation has failed since the schema was begun */

static void *schema_allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    lacks_memory |= memory == NULL;
    return memory;
}

/* An object with one member, which it takes. */
static cJSON *object_of(const char *name, cJSON *value)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToObject(object, name, value);
    return object;
}

/* cJSON itself writes 15 digits of a number, where the largest seed has 16. */
static void add_number(cJSON *schema, const char *name, double number)
{
    char words[JOB_WORDS_BYTES] = "";
    words_add_number(words, number, true);
    cJSON_AddRawToObject(schema, name, words);
}

static void add_required(cJSON *schema, const char *name)
{
    cJSON_AddItemToObject(schema, "required", cJSON_CreateStringArray(&name, 1));
}

/* ---- one key of the schema ---- */

static void add_type(cJSON *schema, const struct job_key *key, const char *type)
{
    const char *const types[] = {type, "null"};
    if (key->nullable)
        cJSON_AddItemToObject(schema, "type", cJSON_CreateStringArray(types, 2));
    else
        cJSON_AddStringToObject(schema, "type", type);
}

static void add_bounds(cJSON *schema, const struct job_key *key)
{
    const double bounds[] = {key->min, key->max};
    add_type(schema, key, key->type == JOB_NUMBER || key->type == JOB_AUTO ? "number" : "integer");
    if (key->bounds_only) {
        cJSON_AddItemToObject(schema, "enum", cJSON_CreateDoubleArray(bounds, 2));
    } else if (key->max != DBL_MAX) {
        add_number(schema, key->min_open ? "exclusiveMinimum" : "minimum", key->min);
        add_number(schema, key->max_open ? "exclusiveMaximum" : "maximum", key->max);
    }
}

static void add_names(cJSON *schema, const struct job_key *key)
{
    cJSON *names = cJSON_AddArrayToObject(schema, "enum");
    for (size_t i = 0; key->names[i] != NULL; i++)
        if (key->names[i][0] != '\0')
            cJSON_AddItemToArray(names, cJSON_CreateString(key->names[i]));
    if (key->nullable)
        cJSON_AddItemToArray(names, cJSON_CreateNull());
}

/* Either a value within the key's bounds, or `other`. */
static void add_choice(cJSON *schema, const struct job_key *key, cJSON *other)
{
    cJSON *choices = cJSON_AddArrayToObject(schema, "anyOf"), *bounds = cJSON_CreateObject();
    add_bounds(bounds, key);
    cJSON_AddItemToArray(choices, bounds);
    cJSON_AddItemToArray(choices, other);
}

/* [an integer, "step" or "episode"] */
static cJSON *frequency_schema(const struct job_key *key)
{
    const char *const units[] = {"step", "episode"};
    cJSON *schema = object_of("type", cJSON_CreateString("array")), *count = cJSON_CreateObject();
    cJSON *items = cJSON_AddArrayToObject(schema, "prefixItems");
    add_bounds(count, key);
    cJSON_AddItemToArray(items, count);
    cJSON_AddItemToArray(items, object_of("enum", cJSON_CreateStringArray(units, 2)));
    add_number(schema, "minItems", 2);
    add_number(schema, "maxItems", 2);
    return schema;
}

static void add_value(cJSON *schema, const struct job_key *key)
{
    switch (key->type) {
    case JOB_AUTO:
        add_choice(schema, key, object_of("pattern", cJSON_CreateString(key->pattern)));
        cJSON_AddStringToObject(cJSON_GetArrayItem(cJSON_GetObjectItem(schema, "anyOf"), 1), "type",
                                "string");
        break;
    case JOB_FREQUENCY:
        add_choice(schema, key, frequency_schema(key));
        break;
    case JOB_INTEGER:
    case JOB_NUMBER:
    case JOB_WIDTHS:
        add_bounds(schema, key);
        break;
    case JOB_BOOLEAN:
        cJSON_AddStringToObject(schema, "type", "boolean");
        break;
    case JOB_ENUM:
        add_names(schema, key);
        break;
    case JOB_PATH:
        add_type(schema, key, "string");
        add_number(schema, "minLength", key->min);
        add_number(schema, "maxLength", key->max);
        break;
    case JOB_NAME:
    case JOB_NUMBERED:
        add_type(schema, key, "string");
        cJSON_AddStringToObject(schema, "pattern", key->pattern);
        break;
    case JOB_OPTIONS:
        cJSON_AddStringToObject(schema, "type", "object");
        break;
    case JOB_OBJECT:
        break;
    }
}

/* One integer or an array; with `is_either` also an object of two such. Returns the schema of an element,
 * which the caller fills. */
static cJSON *add_widths(cJSON *schema, const struct job_key *key, bool is_either)
{
    const char *const types[] = {"integer", "array", "object"}, *const names[] = {"pi", key->second};
    add_bounds(schema, key);
    cJSON_DeleteItemFromObject(schema, "type");
    cJSON_AddItemToObject(schema, "type", cJSON_CreateStringArray(types, is_either ? 3 : 2));
    add_number(schema, "maxItems", key->elements);
    if (is_either) {
        cJSON *members = cJSON_AddObjectToObject(schema, "properties");
        for (int i = 0; i < 2; i++) {
            cJSON *member = cJSON_AddObjectToObject(members, names[i]);
            add_bounds(add_widths(member, key, false), key);
            add_required(schema, names[i]);
        }
        cJSON_AddFalseToObject(schema, "additionalProperties");
    }
    return cJSON_AddObjectToObject(schema, "items");
}

static cJSON *key_schema(const struct job_key *key)
{
    cJSON *schema = object_of("description", cJSON_CreateString(key->text)), *value = schema;
    if (key->type == JOB_WIDTHS) {
        value = add_widths(schema, key, key->second != NULL);
    } else if (key->elements > 0) {
        cJSON_AddStringToObject(schema, "type", "array");
        add_number(schema, "minItems", 1);
        add_number(schema, "maxItems", key->elements);
        cJSON_AddRawToObject(schema, "not", "{\"minItems\": 2, \"maxItems\": 2}");
        value = cJSON_AddObjectToObject(schema, "items");
    }
    add_value(value, key);
    if (key->by_default != NULL)
        cJSON_AddRawToObject(schema, "default", key->by_default);
    return schema;
}

/* ---- rules of the schema ---- */

/* The condition as a schema of the key's value; NULL: no schema compares two keys. */
static cJSON *condition_value(const struct job_key *key, const struct job_condition *condition)
{
    char pattern[JOB_NAME_BYTES];
    switch (condition->test) {
    case JOB_IS:
        if (key->type == JOB_ENUM)
            return object_of("const", cJSON_CreateString(condition->name));
        if (key->type == JOB_BOOLEAN)
            return object_of("const", cJSON_CreateBool(strcmp(condition->name, "true") == 0));
        if (key->type == JOB_FREQUENCY) {
            cJSON *value = object_of("contains", object_of("const", cJSON_CreateString(condition->name)));
            cJSON_AddStringToObject(value, "type", "array");
            return value;
        }
        snprintf(pattern, sizeof pattern, "^%s", condition->name);
        return object_of("pattern", cJSON_CreateString(pattern));
    case JOB_IS_NULL:
        return object_of("type", cJSON_CreateString("null"));
    case JOB_IS_SET:
        return key->type == JOB_PATH ? object_of("minLength", cJSON_CreateNumber(1))
                                     : object_of("not", object_of("type", cJSON_CreateString("null")));
    case JOB_AT_LEAST:
        return object_of("minimum", cJSON_CreateNumber(condition->number));
    case JOB_AT_MOST:
        return object_of(key->elements > 0 ? "maxItems" : "maximum", cJSON_CreateNumber(condition->number));
    default:
        return NULL;
    }
}

/* Whether the key has its other default where this condition holds. */
static bool changes_default(const struct job_key *key, const struct job_condition *given)
{
    for (size_t i = 0; i < JOB_OTHERWISE_MAX && key->otherwise_where[i].test != JOB_ALWAYS; i++) {
        const struct job_condition *where = &key->otherwise_where[i];
        if (given->test == where->test && strcmp(given->pointer, where->pointer) == 0 &&
            (where->name == NULL || strcmp(given->name, where->name) == 0))
            return true;
    }
    return false;
}

/* Whether the condition holds where its key is absent, and all of `given` hold. */
static bool default_satisfies(int kind, const struct job_condition *condition,
                              const struct job_condition given[2])
{
    struct job job;
    const struct job_key *key = job_key_at(JOB_KINDS_OF(kind), condition->pointer);
    if (job_defaults(&job, JOB_KINDS_OF(kind)) != STATUS_OK) {
        lacks_memory = true;
        return false;
    }
    for (size_t i = 0; i < 2 && given[i].test != JOB_ALWAYS; i++)
        lacks_memory =
            lacks_memory || (changes_default(key, &given[i]) && job_value_otherwise(&job, key) != STATUS_OK);
    return job_condition_holds(&job, JOB_KINDS_OF(kind), condition);
}

/* The condition as a schema of the whole job. A key that may be absent, with its default, is not required. */
static cJSON *condition_schema(int kind, const struct job_condition *condition,
                               const struct job_condition given[2])
{
    const struct job_key *key = job_key_at(JOB_KINDS_OF(kind), condition->pointer);
    const char *name = job_key_name(key);
    char group[JOB_NAME_BYTES], pointer[JOB_NAME_BYTES + 1], pattern[JOB_NAME_BYTES + 2];
    snprintf(group, sizeof group, "%.*s", (int)(name - key->pointer) - 2, key->pointer + 1);
    cJSON *inner = object_of("properties", object_of(name, condition_value(key, condition)));
    snprintf(pointer, sizeof pointer, "/%s", group);
    const struct job_key *whole = job_key_at(JOB_KINDS_OF(kind), pointer);
    if (whole->shorthand != NULL && strcmp(whole->shorthand, name) == 0 && condition->test == JOB_IS) {
        snprintf(pattern, sizeof pattern, "^%s$", condition->name);
        cJSON_AddStringToObject(inner, "pattern", pattern); /* of the shorthand, which is a string */
    }
    cJSON *outer = object_of("properties", object_of(group, inner));
    if (!default_satisfies(kind, condition, given)) {
        add_required(inner, name);
        add_required(outer, group);
    }
    return outer;
}

/* ---- groups, kinds, the whole schema ---- */

/* A group for which the value of a member may stand, which is one of the member's names. */
static void add_shorthand(cJSON *schema, const struct job_key *group, int kind)
{
    const char *const types[] = {"string", "object"};
    char words[JOB_WORDS_BYTES] = "";
    words_add(words, "%s/%s", group->pointer, group->shorthand);
    const struct job_key *member = job_key_at(JOB_KINDS_OF(kind), words);
    words[0] = '\0';
    for (size_t i = 0; member->names[i] != NULL; i++)
        words_add(words, "%s%s", i == 0 ? "^(" : "|", member->names[i]);
    words_add(words, ")$");
    cJSON_AddItemToObject(schema, "type", cJSON_CreateStringArray(types, 2));
    cJSON_AddStringToObject(schema, "pattern", words);
}

/* Adds the members of a group ("": of the job) that the kind has. No other keys are allowed. */
static void add_members(cJSON *schema, const char *group, int kind)
{
    const struct job_key *whole = job_key_at(JOB_KINDS_OF(kind), group);
    if (whole != NULL && whole->shorthand != NULL)
        add_shorthand(schema, whole, kind);
    else
        cJSON_AddStringToObject(schema, "type", "object");
    cJSON_AddFalseToObject(schema, "additionalProperties");
    cJSON_AddItemToObject(schema, "patternProperties", object_of("^(_|\\$schema$)", cJSON_CreateTrue()));
    cJSON *properties = cJSON_AddObjectToObject(schema, "properties");
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if ((key->kinds & JOB_KINDS_OF(kind)) == 0 || !job_key_is_member(key, group))
            continue;
        cJSON *member = key_schema(key);
        if (key->type == JOB_OBJECT)
            add_members(member, key->pointer, kind);
        cJSON_AddItemToObject(properties, job_key_name(key), member);
    }
}

static cJSON *kind_schema(int kind)
{
    static const struct job_condition nothing[2];
    cJSON *schema = cJSON_CreateObject();
    cJSON *rules = cJSON_AddArrayToObject(schema, "allOf");
    for (size_t i = 0; i < job_rule_count; i++) {
        const struct job_rule *rule = &job_rules[i];
        if ((rule->kinds & JOB_KINDS_OF(kind)) == 0 || rule->when[0].test == JOB_ALWAYS ||
            rule->then.test == JOB_AT_MOST_KEY)
            continue;
        cJSON *of_rule = cJSON_CreateObject();
        cJSON *when = cJSON_AddArrayToObject(cJSON_AddObjectToObject(of_rule, "if"), "allOf");
        for (size_t k = 0; k < 2 && rule->when[k].test != JOB_ALWAYS; k++)
            cJSON_AddItemToArray(when, condition_schema(kind, &rule->when[k], nothing));
        cJSON_AddItemToObject(of_rule, "then", condition_schema(kind, &rule->then, rule->when));
        cJSON_AddItemToArray(rules, of_rule);
    }
    add_members(schema, "", kind);
    return schema;
}

/* The schema of a job whose algorithm is the variant's, and is named. */
static cJSON *algorithm_schema(int variant)
{
    cJSON *name = object_of("const", cJSON_CreateString(job_variant_algorithm(variant)));
    cJSON *inner = object_of("properties", object_of("name", name));
    cJSON *outer = object_of("properties", object_of("algorithm", inner));
    add_required(inner, "name");
    add_required(outer, "algorithm");
    return outer;
}

/* The schema of the jobs that are of a variant. The algorithm reinforce need not be named. */
static cJSON *variant_schema(int variant)
{
    cJSON *name = object_of("const", cJSON_CreateString(job_kind_name(variant)));
    cJSON *schema = object_of("properties", object_of("kind", name));
    cJSON *all = variant == JOB_REINFORCE || variant >= JOB_VARIANT_PPO
                     ? cJSON_AddArrayToObject(schema, "allOf")
                     : NULL;
    if (variant >= JOB_VARIANT_PPO)
        cJSON_AddItemToArray(all, algorithm_schema(variant));
    for (int other = JOB_VARIANT_PPO; other < JOB_VARIANTS && variant == JOB_REINFORCE; other++)
        cJSON_AddItemToArray(all, object_of("not", algorithm_schema(other)));
    return schema;
}

static cJSON *whole_schema(void)
{
    cJSON *schema = cJSON_CreateObject();
    cJSON_AddStringToObject(schema, "$schema", "https://json-schema.org/draft/2020-12/schema");
    cJSON_AddStringToObject(schema, "title", "a job of coalesced");
    cJSON_AddStringToObject(schema, "$comment",
                            "generated from the daemon's own table; `make documents` writes it");
    cJSON_AddStringToObject(schema, "type", "object");
    add_required(schema, "kind");
    cJSON *kinds = cJSON_AddObjectToObject(cJSON_AddObjectToObject(schema, "properties"), "kind");
    cJSON *all = cJSON_AddArrayToObject(schema, "allOf");
    add_names(kinds, job_key_at(JOB_KINDS_ALL, "/kind"));
    for (int variant = JOB_REINFORCE; variant < JOB_VARIANTS; variant++) {
        cJSON *rule = object_of("if", variant_schema(variant));
        cJSON_AddItemToObject(rule, "then", kind_schema(variant));
        cJSON_AddItemToArray(all, rule);
    }
    return schema;
}

int job_write_schema(FILE *stream)
{
    cJSON_Hooks hooks = {.malloc_fn = schema_allocate, .free_fn = free};
    lacks_memory = false;
    cJSON_InitHooks(&hooks);
    cJSON *schema = whole_schema();
    char *text = cJSON_Print(schema);
    cJSON_Delete(schema);
    cJSON_InitHooks(NULL);
    const bool written = !lacks_memory && fprintf(stream, "%s\n", text) > 0 && fflush(stream) == 0;
    free(text);
    if (lacks_memory)
        errno = ENOMEM;
    return written ? 0 : EOF;
}

/* ---- the manual ---- */

enum { PAGE_WIDTH = 78 };

static const char introduction[] =
    "A job file is one JSON object (RFC 8259) in UTF-8, read strictly: duplicate keys, comments, trailing "
    "commas, and keys that the job's kind does not have are errors. Every key but /kind has a default. "
    "\"$schema\" and every key that begins with _ are ignored, in every object: they hold an editor's schema "
    "and remarks.";
static const char overrides[] =
    "--set /POINTER=VALUE replaces one value before the job is checked. POINTER is the JSON pointer (RFC "
    "6901) "
    "of a key, as in the headings below, or of a group of keys, which is replaced as a whole. VALUE is JSON, "
    "and a string if it is not JSON. Options are applied in order, and the last one for a key stands.";
static const char notation[] =
    "a..b are the integers from a to b. [a, b) are the numbers from a to below b; a round bracket leaves its "
    "end out.";
static const char messages[] =
    "No message between two workers may carry more than 512 MiB. The check refuses sizes that would make the "
    "tensors of a call, or one parameter, larger, and names the keys.";

/* Writes running text: lines of at most PAGE_WIDTH bytes, and a new line for each sentence. */
static void write_text(FILE *stream, const char *text)
{
    size_t column = 0;
    while (*text != '\0') {
        const size_t length = strcspn(text, " ");
        const bool ends = length > 0 && strchr(".:", text[length - 1]) != NULL;
        if (column > 0 && column + 1 + length > PAGE_WIDTH) {
            fputc('\n', stream);
            column = 0;
        }
        if (column > 0)
            fputc(' ', stream);
        fputs(column == 0 && (text[0] == '.' || text[0] == '\'') ? "\\&" : "", stream);
        for (size_t i = 0; i < length; i++)
            fputs(text[i] == '\\' ? "\\e" : (const char[]){text[i], '\0'}, stream);
        column += length + (column > 0);
        text += length + strspn(text + length, " ");
        if (ends && (isupper((unsigned char)*text) || *text == '"')) {
            fputc('\n', stream);
            column = 0;
        }
    }
    fputc('\n', stream);
}

/* ---- one key of the manual ---- */

/* "/data/kind is \"text\"". */
static void add_clause(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_condition *condition)
{
    const struct job_key *key = job_key_at(kinds, condition->pointer);
    words_add(words, "%s is ", condition->pointer);
    if (condition->test == JOB_IS_SET && key->type != JOB_PATH)
        words_add(words, "set");
    else
        words_add_condition(words, kinds, condition);
}

/* "Where /data/kind is \"text\", this must be null: the text brings its own vocabulary." */
static void add_rule(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_rule *rule)
{
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        words_add(words, i == 0 ? " Where " : " and ");
        add_clause(words, kinds, &rule->when[i]);
    }
    words_add(words, rule->when[0].test == JOB_ALWAYS ? " This must be " : ", this must be ");
    words_add_condition(words, kinds, &rule->then);
    words_add(words, "%s%s.", rule->why != NULL ? ": " : "", rule->why != NULL ? rule->why : "");
}

static void add_limit(char words[JOB_WORDS_BYTES], unsigned kinds, const struct job_limit *limit)
{
    if (limit->when.test != JOB_ALWAYS) {
        words_add(words, " Where ");
        add_clause(words, kinds, &limit->when);
        words_add(words, ",");
    }
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++)
        words_add(words, " %s%s", i == 0 ? "" : "* ", limit->factors[i]);
    words_add(words, " may be at most %.0f %s.", limit->most, limit->of);
}

static bool is_factor(const struct job_limit *limit, const struct job_key *key)
{
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++)
        if (strcmp(limit->factors[i], key->pointer) == 0)
            return true;
    return false;
}

/* Writes what the key means: its own text, and the rules that bind it. */
static void write_meaning(FILE *stream, const struct job_key *key)
{
    char words[JOB_WORDS_BYTES] = "";
    words_add(words, "%s", key->text);
    for (size_t i = 0; i < job_rule_count; i++)
        if ((job_rules[i].kinds & key->kinds) != 0 && strcmp(job_rules[i].then.pointer, key->pointer) == 0)
            add_rule(words, job_rules[i].kinds, &job_rules[i]);
    for (size_t i = 0; i < job_limit_count; i++)
        if ((job_limits[i].kinds & key->kinds) != 0 && is_factor(&job_limits[i], key))
            add_limit(words, job_limits[i].kinds & key->kinds, &job_limits[i]);
    write_text(stream, words);
}

static void write_value(FILE *stream, const struct job_key *key)
{
    char words[JOB_WORDS_BYTES] = "Value: ";
    words_add_expected(words, key);
    if (key->unit != NULL)
        words_add(words, " (%s)", key->unit);
    words_add(words, ". Default: %s",
              key->by_default != NULL ? key->by_default
              : key->type == JOB_NAME ? "the file's name"
                                      : "none, the key is required");
    for (size_t i = 0; i < JOB_OTHERWISE_MAX && key->otherwise_where[i].test != JOB_ALWAYS; i++) {
        words_add(words, i == 0 ? "; %s where " : ", or ", key->otherwise);
        add_clause(words, key->kinds, &key->otherwise_where[i]);
    }
    words_add(words, ".");
    write_text(stream, words);
    fputs(".br\n", stream);
}

/* ---- the whole manual ---- */

static const char page_begin[] =
    ".\\\" Generated from the daemon's own table by `make documents`.\n"
    ".Dd November 22, 2026\n.Dt COALESCED-JOB 5\n.Os\n.Sh NAME\n.Nm coalesced-job\n"
    ".Nd job files of the training daemon coalesced\n.Sh DESCRIPTION\n";

static const char page_end[] = ".Sh EXAMPLES\n"
                               "CartPole with ten observers, whose requests are joined in batches:\n"
                               ".Bd -literal -offset indent\n"
                               "{\n"
                               "  \"$schema\": \"/usr/local/share/coalesced/job.schema.json\",\n"
                               "  \"kind\": \"reinforce\",\n"
                               "  \"observers\": {\"count\": 10},\n"
                               "  \"stop\": {\"episodes\": 1000, \"running_reward\": 475}\n"
                               "}\n"
                               ".Ed\n"
                               ".Sh SEE ALSO\n.Xr coalesced 1\n";

static const struct section {
    const char *title;
    unsigned kinds, without; /* keys that all of these have, and not all of those */
    const char *text;        /* or NULL */
} sections[] = {
    {"Keys of every kind", JOB_KINDS_ALL, 0, NULL},
    {"Keys of the kind reinforce", AGENT, JOB_KINDS_ALL, NULL},
    {"Keys of the kind reinforce with the algorithm reinforce", REINFORCE, AGENT, NULL},
    {"Keys of the kind reinforce with any other algorithm", STEPWISE, AGENT, NULL},
    {"Keys of the kind reinforce with the algorithm ppo or a2c", ACTOR_CRITIC, STEPWISE, NULL},
    {"Keys of the kind reinforce with the algorithm ppo", PPO, ACTOR_CRITIC, NULL},
    {"Keys of the kind reinforce with the algorithm a2c", A2C, ACTOR_CRITIC, NULL},
    {"Keys of the kind reinforce with the algorithm dqn, sac or td3", OFF_POLICY, STEPWISE, NULL},
    {"Keys of the kind reinforce with the algorithm dqn", DQN, OFF_POLICY, NULL},
    {"Keys of the kind reinforce with the algorithm sac or td3", SAC | TD3, OFF_POLICY, NULL},
    {"Keys of the kind reinforce with the algorithm sac", SAC, SAC | TD3, NULL},
    {"Keys of the kind reinforce with the algorithm td3", TD3, SAC | TD3, NULL},
    {"Keys of the kind parameter-server", SERVER, JOB_KINDS_ALL, NULL},
    {"Keys of the kind model-parallel", PARALLEL, JOB_KINDS_ALL, messages},
};

static void write_section(FILE *stream, const struct section *section)
{
    fprintf(stream, ".Ss %s\n", section->title);
    if (section->text != NULL)
        write_text(stream, section->text);
    fputs(".Bl -tag -width Ds\n", stream);
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if ((key->kinds & section->kinds) != section->kinds ||
            (section->without != 0 && (key->kinds & section->without) == section->without))
            continue;
        fprintf(stream, ".It Li %s\n", key->pointer);
        if (key->type != JOB_OBJECT)
            write_value(stream, key);
        write_meaning(stream, key);
    }
    fputs(".El\n", stream);
}

int job_write_manual(FILE *stream)
{
    fputs(page_begin, stream);
    write_text(stream, introduction);
    fputs(".Pp\n", stream);
    write_text(stream, overrides);
    fputs(".Pp\n", stream);
    write_text(stream, notation);
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        write_section(stream, &sections[i]);
    fputs(page_end, stream);
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}

/* ---- completions ---- */

int job_write_pointers(FILE *stream)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if (job_key_at(JOB_KINDS_ALL, key->pointer) != key || key->type == JOB_OBJECT)
            continue;
        fputs(key->pointer, stream);
        for (size_t n = 0; key->names != NULL && key->names[n] != NULL; n++)
            if (key->names[n][0] != '\0')
                fprintf(stream, " %s", key->names[n]);
        fputs(key->type == JOB_BOOLEAN ? " true false\n" : "\n", stream);
    }
    return fflush(stream) != 0 || ferror(stream) ? EOF : 0;
}
