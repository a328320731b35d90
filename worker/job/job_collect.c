/* Finds where each key of the job stands: in the file, in an override, or nowhere. Reports text that is not
 * JSON, and unknown keys. The caller's thread. */
#include "kernels/base/text.h"
#include "worker/job/job_reading.h"

#include <string.h>
#include <strings.h>

/* ---- unknown keys ---- */

/* `"reinforce"`, or `"reinforce" with the algorithm "ppo"`. */
static void add_variant(char words[JOB_WORDS_BYTES], int variant, bool with_algorithm)
{
    words_add(words, "\"%s\"", job_kind_name(variant));
    if (with_algorithm && job_variant_algorithm(variant) != NULL)
        words_add(words, " with the algorithm \"%s\"", job_variant_algorithm(variant));
}

/* Whether some algorithms have the key, and others do not. */
static bool depends_on_algorithm(const char *pointer)
{
    const bool reinforce = job_key_at(JOB_KINDS_OF(JOB_REINFORCE), pointer) != NULL;
    for (int variant = JOB_VARIANT_PPO; variant < JOB_VARIANTS; variant++)
        if (reinforce != (job_key_at(JOB_KINDS_OF(variant), pointer) != NULL))
            return true;
    return false;
}

/* While the kind is not known, a key of any kind is known. The algorithm is named where it matters: between
 * two of them, or where the algorithm "reinforce" lacks the key. */
static void report_unknown(struct job_reading *reading, struct problem_place place, const char *pointer)
{
    const int mine = ffs((int)reading->kinds) - 1;
    const bool matters =
        depends_on_algorithm(pointer) &&
        (job_variant_algorithm(mine) != NULL || job_key_at(JOB_KINDS_OF(JOB_REINFORCE), pointer) == NULL);
    char words[JOB_WORDS_BYTES] = "";
    for (int variant = JOB_REINFORCE; variant < JOB_VARIANTS; variant++) {
        if (job_key_at(JOB_KINDS_OF(variant), pointer) == NULL || (variant >= JOB_VARIANT_PPO && !matters))
            continue;
        words_add(words, words[0] == '\0' ? "is a key of the kind " : " or ");
        add_variant(words, variant, matters);
    }
    if (words[0] != '\0') {
        words_add(words, ", this job is a ");
        add_variant(words, mine, matters);
    } else {
        words_add(words, "unknown key");
        words_suggest_key(words, reading->kinds, pointer);
    }
    job_report(reading, place, pointer, "%s", words);
}

/* ---- values ---- */

static void collect_members(struct job_reading *reading, uint32_t source, const cJSON *object,
                            const char *group);

/* The member whose value the item is, where it stands for the whole group; NULL: it does not. */
static const struct job_key *shorthand_of(const struct job_reading *reading, const cJSON *item,
                                          const struct job_key *key)
{
    char pointer[JSON_POINTER_BYTES];
    if (key->shorthand == NULL || cJSON_IsObject(item))
        return NULL;
    snprintf(pointer, sizeof pointer, "%s/%s", key->pointer, key->shorthand);
    return job_key_at(reading->kinds, pointer);
}

/* Notes that `key`'s value is the item, and looks into it when it is a group. */
static void collect_value(struct job_reading *reading, uint32_t source, const cJSON *item,
                          const struct job_key *key)
{
    const struct job_key *member = shorthand_of(reading, item, key);
    if (member != NULL)
        key = member;
    reading->found[key - job_keys] = (struct job_found){.item = item, .source = source};
    if (key->type != JOB_OBJECT)
        return;
    for (size_t i = 0; i < job_key_count; i++)
        if (job_key_is_member(&job_keys[i], key->pointer))
            reading->found[i] = (struct job_found){0};
    if (cJSON_IsObject(item))
        collect_members(reading, source, item, key->pointer);
}

/* Groups of the table hold no groups: this goes two levels deep. */
static void collect_members(struct job_reading *reading, uint32_t source, const cJSON *object,
                            const char *group)
{
    const cJSON *member;
    cJSON_ArrayForEach(member, object)
    {
        char pointer[JSON_POINTER_BYTES];
        snprintf(pointer, sizeof pointer, "%s", group);
        json_pointer_add(pointer, member->string);
        const struct job_key *key = job_key_at(reading->kinds, pointer);
        if (job_key_ignored(member->string) || strcmp(pointer, "/kind") == 0) /* the kind has been read */
            continue;
        if (key != NULL)
            collect_value(reading, source, member, key);
        else
            report_unknown(
                reading,
                (struct problem_place){source, json_place_of(&reading->documents[source], member)->key},
                pointer);
    }
}

/* ---- overrides ---- */

/* The key that an override names. NULL: there is none, which is reported, or it is a key to be ignored. */
static const struct job_key *override_key(struct job_reading *reading, uint32_t source, const char *override)
{
    const struct job_key *key = NULL;
    for (const char *end = override; *end == '/';) {
        char pointer[JSON_POINTER_BYTES];
        end += 1 + strcspn(end + 1, "/=");
        text_show(pointer, sizeof pointer, override, (size_t)(end - override), JSON_POINTER_BYTES);
        if (job_key_ignored(strrchr(pointer, '/') + 1))
            return NULL;
        key = job_key_at(reading->kinds, pointer);
        if (key == NULL) {
            report_unknown(reading, (struct problem_place){.source = source}, pointer);
            return NULL;
        }
    }
    return key;
}

/* Reads `text` as the value of `key`: JSON, else a string. Where the key takes an object or an array, text
 * that begins like one is not taken for a string: the message would hide the error in it. */
static enum status collect_override_value(struct job_reading *reading, uint32_t source,
                                          const struct job_key *key, const char *text)
{
    struct json_document *document = &reading->documents[source];
    struct json_error error;
    enum status status = json_document_parse(document, text, strlen(text), &error);
    if (status == STATUS_INVALID && (key->type == JOB_OBJECT || key->elements > 0) &&
        (text[0] == '{' || text[0] == '[')) {
        const char *pointer = error.text[0] == '/' ? key->pointer : ""; /* error.text has the rest of it */
        job_report(reading, (struct problem_place){source, error.offset}, "", "%s%s", pointer, error.text);
        reading->found[key - job_keys].wrong = true;
        return STATUS_OK;
    }
    if (status == STATUS_INVALID) {
        json_document_fini(document);
        status = json_document_of_string(document, text);
    }
    if (status == STATUS_OK)
        collect_value(reading, source, document->root, key);
    return status;
}

static enum status collect_override(struct job_reading *reading, uint32_t source)
{
    const char *override = reading->overrides[source - 1];
    const char *equals = strchr(override, '=');
    if (override[0] != '/' || equals == NULL || strlen(override) > JOB_TEXT_BYTES_MAX) {
        job_report(reading, (struct problem_place){.source = source}, "",
                   "expected /pointer=value, at most %d bytes", JOB_TEXT_BYTES_MAX);
        return STATUS_OK;
    }
    const struct job_key *key = override_key(reading, source, override);
    return key == NULL ? STATUS_OK : collect_override_value(reading, source, key, equals + 1);
}

/* Collects the overrides of /kind (`of_kind`), or all others. */
static enum status collect_overrides(struct job_reading *reading, bool of_kind)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < reading->override_count && status == STATUS_OK; i++)
        if ((strncmp(reading->overrides[i], "/kind=", 6) == 0) == of_kind)
            status = collect_override(reading, i + 1);
    return status;
}

/* ---- the kind, and then everything ---- */

/* job_check reports a kind that is missing, and a value that is no kind. */
static void read_kind(struct job_reading *reading, const struct job_key *key)
{
    const char *name = cJSON_GetStringValue(reading->found[key - job_keys].item);
    for (int kind = 0; name != NULL && key->names[kind] != NULL; kind++)
        if (strcmp(name, key->names[kind]) == 0)
            reading->kinds = JOB_KINDS_OF(kind);
}

/* The variant whose keys a job with this algorithm has. Of a name that is none, which is reported in its
 * turn, PPO's: most keys are. */
static int variant_of(const char *algorithm)
{
    int variant = JOB_VARIANT_PPO;
    while (variant < JOB_VARIANTS && strcmp(algorithm, job_variant_algorithm(variant)) != 0)
        variant++;
    return strcmp(algorithm, "reinforce") == 0 ? JOB_REINFORCE
           : variant < JOB_VARIANTS            ? variant
                                               : JOB_VARIANT_PPO;
}

/* The algorithm's name, which is read ahead of its turn: "/algorithm/name=ppo", "/algorithm={…}", the file.
 */
static void read_algorithm(struct job_reading *reading)
{
    const cJSON *group = cJSON_GetObjectItemCaseSensitive(reading->documents[0].root, "algorithm");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(group, "name"));
    cJSON *parsed = NULL;
    for (uint32_t i = 0; i < reading->override_count; i++) {
        const char *override = reading->overrides[i];
        const bool of_name = strncmp(override, "/algorithm/name=", 16) == 0;
        if (!of_name && strncmp(override, "/algorithm=", 11) != 0)
            continue;
        cJSON *value = cJSON_Parse(strchr(override, '=') + 1);
        name = cJSON_GetStringValue(of_name ? value : cJSON_GetObjectItemCaseSensitive(value, "name"));
        if (of_name && value == NULL)
            name = override + 16;
        cJSON_Delete(parsed);
        parsed = value;
    }
    if (name != NULL)
        reading->kinds = JOB_KINDS_OF(variant_of(name));
    cJSON_Delete(parsed);
}

static void collect_file(struct job_reading *reading, const cJSON *root)
{
    char got[JSON_SHOWN_BYTES];
    if (cJSON_IsObject(root)) {
        collect_members(reading, 0, root, "");
    } else if (root != NULL) {
        json_document_show(got, &reading->documents[0], root);
        job_report(reading, (struct problem_place){0, json_place_of(&reading->documents[0], root)->value}, "",
                   "expected an object, got %s", got);
    }
}

enum status job_collect(struct job_reading *reading, const char *text, size_t length)
{
    const struct job_key *kind = job_key_at(JOB_KINDS_ALL, "/kind");
    struct json_document *file = &reading->documents[0];
    struct json_error error;
    enum status status = json_document_parse(file, text, length, &error);
    if (status == STATUS_NO_MEMORY)
        return status;
    if (status == STATUS_INVALID)
        job_report(reading, (struct problem_place){.offset = error.offset}, "", "%s", error.text);
    reading->found[kind - job_keys].item = cJSON_GetObjectItemCaseSensitive(file->root, "kind");
    status = collect_overrides(reading, true);
    read_kind(reading, kind);
    if (reading->kinds == JOB_KINDS_OF(JOB_REINFORCE))
        read_algorithm(reading);
    collect_file(reading, file->root);
    return status == STATUS_OK ? collect_overrides(reading, false) : status;
}
