/* Reads a job from its text, and writes it back. The supervisor reads the file; every worker reads the
 * resolved text. The caller's thread.
 *
 * A reading finds where each key's value stands, checks each value against its row of the table, and then the
 * rules between keys. The checks find problems in any order; the list has them in the file's order, then
 * those of the overrides. It keeps the first PROBLEMS_MAX, so that a hostile file costs no more memory than a
 * short one. */
#include "worker/job/job.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"
#include "kernels/base/thread.h"
#include "worker/job/job_table.h"
#include "worker/net/wire.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { PROBLEMS_MAX = 100, PROBLEM_TEXT_BYTES = 1100 };

/* A place in a text. Source 0 is the file; source n is the value of override n - 1. */
struct problem_place {
    uint32_t source, offset;
};

struct job_problem {
    struct problem_place place;
    char text[PROBLEM_TEXT_BYTES];
};

/* Where the value of one table row comes from. */
struct job_found {
    const cJSON *item; /* NULL: the default stands */
    uint32_t source;
    bool wrong; /* reported; what follows from this value is not judged */
};

struct job_reading {
    struct job job;
    unsigned kinds;     /* the bit of the job's kind; JOB_KINDS_ALL while that is not known */
    const char *origin; /* the file's name */
    const char *const *overrides;
    uint32_t override_count;
    struct job_found found[JOB_KEYS_MAX];      /* by the table's index */
    struct job_problem problems[PROBLEMS_MAX]; /* the first ones, in the order of their places */
    uint32_t problem_count;                    /* of all */
    struct json_document documents[];          /* by source; without a text: not read */
};

/* ---- problems ---- */

enum { ORIGIN_CHARACTERS = 300, OVERRIDE_CHARACTERS = 80, CHARACTER_BYTES = 10 };

/* The place of the key's value; of a key without a value, the place of the whole job. */
static struct problem_place job_found_place(const struct job_reading *reading, const struct job_found *found)
{
    const struct json_document *document = &reading->documents[found->source];
    return (struct problem_place){
        found->source, json_place_of(document, found->item != NULL ? found->item : document->root)->value};
}

static bool problem_place_before(struct problem_place a, struct problem_place b)
{
    return a.source != b.source ? a.source < b.source : a.offset < b.offset;
}

/* Makes room for a problem at `place`, behind earlier ones at the same place. NULL: PROBLEMS_MAX problems
 * stand before it. */
static struct job_problem *problem_insert(struct job_reading *reading, struct problem_place place)
{
    struct job_problem *problems = reading->problems;
    const uint32_t kept = reading->problem_count < PROBLEMS_MAX ? reading->problem_count : PROBLEMS_MAX;
    uint32_t at = kept;
    reading->problem_count++;
    while (at > 0 && problem_place_before(place, problems[at - 1].place))
        at--;
    if (at == PROBLEMS_MAX)
        return NULL;
    const uint32_t behind = (kept < PROBLEMS_MAX ? kept : PROBLEMS_MAX - 1) - at;
    memmove(&problems[at + 1], &problems[at], behind * sizeof *problems);
    problems[at].place = place;
    return &problems[at];
}

/* Adds a problem about `pointer` ("": about none). In an override's line the pointer is left out when the
 * override itself names it. */
__attribute__((format(printf, 4, 5))) static void job_report(struct job_reading *reading,
                                                             struct problem_place place, const char *pointer,
                                                             const char *format, ...)
{
    struct job_problem *problem = problem_insert(reading, place);
    const size_t length = strlen(pointer);
    bool named = length > 0;
    if (problem == NULL)
        return;
    if (place.source > 0) {
        const char *override = reading->overrides[place.source - 1];
        named = named && !(strncmp(override, pointer, length) == 0 && override[length] == '=');
    }
    const int begin =
        snprintf(problem->text, PROBLEM_TEXT_BYTES, "%s%s", named ? pointer : "", named ? ": " : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->text + begin, PROBLEM_TEXT_BYTES - (size_t)begin, format, arguments);
    va_end(arguments);
}

static void write_problem(FILE *stream, const struct job_reading *reading, const char *origin,
                          const struct job_problem *problem)
{
    const struct problem_place place = problem->place;
    if (place.source > 0) {
        char shown[OVERRIDE_CHARACTERS * CHARACTER_BYTES + 8];
        const char *override = reading->overrides[place.source - 1];
        text_show(shown, sizeof shown, override, strlen(override), OVERRIDE_CHARACTERS);
        fprintf(stream, "--set %s: %s\n", shown, problem->text);
    } else if (reading->documents[0].text != NULL) {
        const struct json_position at = json_position(reading->documents[0].text, place.offset);
        fprintf(stream, "%s:%u:%u: %s\n", origin, at.line, at.column, problem->text);
    } else {
        fprintf(stream, "%s: %s\n", origin, problem->text);
    }
}

/* Writes the problems as *text (see job_parse), or NULL if there is none. Errors: STATUS_NO_MEMORY. */
static enum status job_problems_write(const struct job_reading *reading, char **text)
{
    char origin[ORIGIN_CHARACTERS * CHARACTER_BYTES + 8];
    size_t bytes;
    *text = NULL;
    if (reading->problem_count == 0)
        return STATUS_OK;
    FILE *stream = open_memstream(text, &bytes);
    if (stream == NULL)
        return STATUS_NO_MEMORY;
    text_show(origin, sizeof origin, reading->origin, strlen(reading->origin), ORIGIN_CHARACTERS);
    for (uint32_t i = 0; i < reading->problem_count && i < PROBLEMS_MAX; i++)
        write_problem(stream, reading, origin, &reading->problems[i]);
    if (reading->problem_count > PROBLEMS_MAX)
        fprintf(stream, "%s: and %u problems more\n", origin, reading->problem_count - PROBLEMS_MAX);
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) == 0 && !failed)
        return STATUS_OK;
    free(*text);
    *text = NULL;
    return STATUS_NO_MEMORY;
}

/* ---- "did you mean" ---- */

enum { SUGGESTIONS_MAX = 3 };

/* What Stable-Baselines3 and CleanRL call a setting that has another name or another place here. */
static const struct {
    const char *name, *pointer;
} known_elsewhere[] = {
    {"activation_fn", "/policy/activation"},
    {"anneal_lr", "/algorithm/learning_rate_schedule"},
    {"clip_coef", "/algorithm/clip_range"},
    {"clip_vloss", "/algorithm/clip_range_vf"},
    {"eval_freq", "/evaluation/every"},
    {"n_envs", "/observers/environments"},
    {"n_eval_episodes", "/evaluation/episodes"},
    {"n_timesteps", "/stop/steps"},
    {"net_arch", "/policy/hidden"},
    {"norm_adv", "/algorithm/normalize_advantage"},
    {"num_envs", "/observers/environments"},
    {"num_steps", "/algorithm/n_steps"},
    {"total_timesteps", "/stop/steps"},
    {"update_epochs", "/algorithm/n_epochs"},
};

/* The nearest of the names that `word` may be, mistyped; NULL: none. */
struct nearest {
    const char *word, *name;
    size_t distance;
};

/* Takes the name if it is near: one slip away, or two in a word of five or more letters. */
static void nearest_try(struct nearest *nearest, const char *name)
{
    const size_t distance = text_distance(nearest->word, name);
    const size_t word_bytes = strlen(nearest->word), name_bytes = strlen(name);
    const size_t longer = word_bytes > name_bytes ? word_bytes : name_bytes;
    const bool near = distance == 0 || (distance == 1 && longer >= 2) || (distance == 2 && longer >= 5);
    if (near && (nearest->name == NULL || distance < nearest->distance)) {
        nearest->name = name;
        nearest->distance = distance;
    }
}

/* Suggests a key in place of the unknown `pointer`: the key of the same group whose name is nearest, "; did
 * you mean \"count\"?"; or else keys of the same name elsewhere, "; did you mean /observers/count?". Of a
 * name that Stable-Baselines3 or CleanRL has, "; here it is /stop/steps". Nothing if no key is near. */
static void suggest_key(char words[JOB_WORDS_BYTES], unsigned kinds, const char *pointer)
{
    const char *name = strrchr(pointer, '/') + 1;
    struct nearest beside = {.word = name};
    size_t count = 0;
    for (size_t i = 0; i < sizeof known_elsewhere / sizeof known_elsewhere[0]; i++)
        if (strcmp(known_elsewhere[i].name, name) == 0 &&
            job_key_at(kinds, known_elsewhere[i].pointer) != NULL) {
            words_add(words, "; here it is %s", known_elsewhere[i].pointer);
            return;
        }
    for (size_t i = 0; i < job_key_count; i++) {
        const char *known = job_key_name(&job_keys[i]), *begin = job_keys[i].pointer;
        if ((job_keys[i].kinds & kinds) != 0 && known - begin == name - pointer &&
            memcmp(begin, pointer, (size_t)(name - pointer)) == 0)
            nearest_try(&beside, known);
    }
    if (beside.name != NULL) {
        words_add(words, "; did you mean \"%s\"?", beside.name);
        return;
    }
    for (size_t i = 0; i < job_key_count && count < SUGGESTIONS_MAX; i++) {
        const struct job_key *key = &job_keys[i];
        if (job_key_at(kinds, key->pointer) == key && text_distance(name, job_key_name(key)) == 0)
            words_add(words, "%s%s", count++ == 0 ? "; did you mean " : " or ", key->pointer);
    }
    if (count > 0)
        words_add(words, "?");
}

/* Suggests the name nearest to the string `got`, which is none of the key's names. */
static void suggest_value(char words[JOB_WORDS_BYTES], const struct job_key *key, const char *got)
{
    char word[JOB_NAME_BYTES]; /* of JOB_NUMBERED, the name before the number */
    struct nearest nearest = {.word = word};
    snprintf(word, sizeof word, "%.*s", (int)strcspn(got, key->type == JOB_NUMBERED ? " " : ""), got);
    for (size_t i = 0; key->names != NULL && key->names[i] != NULL; i++)
        if (strcmp(word, key->names[i]) != 0)
            nearest_try(&nearest, key->names[i]);
    if (nearest.name != NULL)
        words_add(words, "; did you mean \"%s\"?", nearest.name);
}

/* ---- unknown keys ---- */

/* `"reinforce"`, or `"reinforce" with the algorithm "ppo"`. */
static void add_variant(char words[JOB_WORDS_BYTES], int variant, bool with_algorithm)
{
    words_add(words, "\"%s\"", job_kind_name(variant));
    if (with_algorithm && job_variant_algorithm(variant) != NULL)
        words_add(words, " with the algorithm \"%s\"", job_variant_algorithm(variant));
}

/* While the kind is not known, a key of any kind is known. The algorithm is named where it matters: between
 * two of them, or where the algorithm "reinforce" lacks the key. */
static void report_unknown(struct job_reading *reading, struct problem_place place, const char *pointer)
{
    const int mine = ffs((int)reading->kinds) - 1;
    const bool reinforce = job_key_at(JOB_KINDS_OF(JOB_REINFORCE), pointer) != NULL;
    bool matters = false; /* some algorithms have the key, and others do not */
    for (int variant = JOB_VARIANT_PPO; variant < JOB_VARIANTS; variant++)
        matters = matters || reinforce != (job_key_at(JOB_KINDS_OF(variant), pointer) != NULL);
    matters = matters && (job_variant_algorithm(mine) != NULL || !reinforce);
    char words[JOB_WORDS_BYTES] = "";
    bool follows = false; /* the algorithm that was named last */
    for (int variant = JOB_REINFORCE; variant < JOB_VARIANTS; variant++) {
        if (job_key_at(JOB_KINDS_OF(variant), pointer) == NULL || (variant >= JOB_VARIANT_PPO && !matters))
            continue;
        words_add(words, words[0] == '\0' ? "is a key of the kind " : " or ");
        if (follows)
            words_add(words, "\"%s\"", job_variant_algorithm(variant));
        else
            add_variant(words, variant, matters);
        follows = matters && job_variant_algorithm(variant) != NULL;
    }
    if (words[0] != '\0') {
        words_add(words, ", this job is a ");
        add_variant(words, mine, matters);
    } else {
        words_add(words, "unknown key");
        suggest_key(words, reading->kinds, pointer);
    }
    job_report(reading, place, pointer, "%s", words);
}

/* ---- values ---- */

static void collect_members(struct job_reading *reading, uint32_t source, const cJSON *object,
                            const char *group);

/* Notes that `key`'s value is the item, and looks into it when it is a group. Of a group with a shorthand, an
 * item that is no object is the value of that member. */
static void collect_value(struct job_reading *reading, uint32_t source, const cJSON *item,
                          const struct job_key *key)
{
    char pointer[JSON_POINTER_BYTES];
    if (key->shorthand != NULL && !cJSON_IsObject(item)) {
        snprintf(pointer, sizeof pointer, "%s/%s", key->pointer, key->shorthand);
        key = job_key_at(reading->kinds, pointer);
    }
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

/* The algorithm's name, which is read ahead of its turn: "/algorithm/name=ppo", "/algorithm={…}", the file.
 * An unknown name, which is reported later, gets PPO's variant: PPO has most keys. */
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
    if (name != NULL && strcmp(name, job_variant_algorithm(JOB_REINFORCE)) != 0)
        reading->kinds = JOB_KINDS_OF(JOB_VARIANT_PPO);
    for (int variant = JOB_VARIANT_PPO; name != NULL && variant < JOB_VARIANTS; variant++)
        if (strcmp(name, job_variant_algorithm(variant)) == 0)
            reading->kinds = JOB_KINDS_OF(variant);
    cJSON_Delete(parsed);
}

/* Reads the file's text and every override, and notes where each key's value is. The kind comes first,
 * wherever it stands, for it decides which keys there are. Reports text that is not JSON, and keys that the
 * job's kind does not have; of a job without a kind, keys that no kind has. Errors: STATUS_NO_MEMORY. */
static enum status job_collect(struct job_reading *reading, const char *text, size_t length)
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
    /* job_check reports a kind that is missing, and a value that is no kind. */
    const char *name = cJSON_GetStringValue(reading->found[kind - job_keys].item);
    for (int i = 0; name != NULL && kind->names[i] != NULL; i++)
        if (strcmp(name, kind->names[i]) == 0)
            reading->kinds = JOB_KINDS_OF(i);
    if (reading->kinds == JOB_KINDS_OF(JOB_REINFORCE))
        read_algorithm(reading);
    if (cJSON_IsObject(file->root)) {
        collect_members(reading, 0, file->root, "");
    } else if (file->root != NULL) {
        char got[JSON_SHOWN_BYTES];
        json_document_show(got, file, file->root);
        job_report(reading, (struct problem_place){0, json_place_of(file, file->root)->value}, "",
                   "expected an object, got %s", got);
    }
    return status == STATUS_OK ? collect_overrides(reading, false) : status;
}

static struct job_found *found_at(struct job_reading *reading, const char *pointer)
{
    return &reading->found[job_key_at(reading->kinds, pointer) - job_keys];
}

/* Keys whose values may not go together. */
struct clash {
    struct problem_place last; /* the place of the one that comes last */
    const char *last_pointer;
    bool wrong; /* a value is wrong by itself */
};

static void clash_add(struct clash *clash, struct job_reading *reading, const char *pointer)
{
    const struct job_found *found = found_at(reading, pointer);
    const struct problem_place place = job_found_place(reading, found);
    clash->wrong = clash->wrong || found->wrong;
    if (clash->last_pointer == NULL || problem_place_before(clash->last, place)) {
        clash->last = place;
        clash->last_pointer = pointer;
    }
}

static void add_value(char words[JOB_WORDS_BYTES], const struct job_reading *reading, const char *pointer)
{
    const struct job_key *key = job_key_at(reading->kinds, pointer);
    if (key->elements > 0)
        words_add(words, "an array of %.0f", job_value_number(&reading->job, key));
    else
        words_add_value(words, &reading->job, key, true);
}

/* ---- rules ---- */

static void report_rule(struct job_reading *reading, const struct job_rule *rule, struct problem_place place)
{
    const struct job_condition *then = &rule->then;
    char words[JOB_WORDS_BYTES] = "expected ";
    words_add_condition(words, reading->kinds, then);
    if (then->test == JOB_AT_MOST_KEY) {
        words_add(words, ", which is ");
        add_value(words, reading, then->name);
    }
    const char *before = "where";
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        if (strcmp(rule->when[i].pointer, then->pointer) == 0)
            continue;
        words_add(words, " %s %s is ", before, rule->when[i].pointer);
        add_value(words, reading, rule->when[i].pointer);
        before = "and";
    }
    words_add(words, ", got ");
    add_value(words, reading, then->pointer);
    if (rule->why != NULL)
        words_add(words, ": %s", rule->why);
    job_report(reading, place, then->pointer, "%s", words);
}

static void check_rule(struct job_reading *reading, const struct job_rule *rule)
{
    struct clash clash = {.last_pointer = NULL};
    bool broken = !job_condition_holds(&reading->job, reading->kinds, &rule->then);
    clash_add(&clash, reading, rule->then.pointer);
    for (size_t i = 0; i < 2 && rule->when[i].test != JOB_ALWAYS; i++) {
        clash_add(&clash, reading, rule->when[i].pointer);
        broken = broken && job_condition_holds(&reading->job, reading->kinds, &rule->when[i]);
    }
    if (rule->then.test == JOB_AT_MOST_KEY)
        clash_add(&clash, reading, rule->then.name);
    if (broken && !clash.wrong)
        report_rule(reading, rule, clash.last);
}

/* ---- limits ---- */

/* The first factor of a broken limit counts as wrong from then on: a limit with the same factors and more
 * does not report the clash again. */
static void check_limit(struct job_reading *reading, const struct job_limit *limit)
{
    struct clash clash = {.last_pointer = NULL};
    double product = 1;
    char words[JOB_WORDS_BYTES] = "";
    words_add(words, "expected at most %.0f %s, got ", limit->most, limit->of);
    for (size_t i = 0; i < JOB_FACTORS_MAX && limit->factors[i] != NULL; i++) {
        product *= job_value_number(&reading->job, job_key_at(reading->kinds, limit->factors[i]));
        clash_add(&clash, reading, limit->factors[i]);
        words_add(words, "%s%s ", i == 0 ? "" : " * ", limit->factors[i]);
        add_value(words, reading, limit->factors[i]);
    }
    words_add(words, " = %.0f", product);
    const bool applies =
        limit->when.test == JOB_ALWAYS || (!found_at(reading, limit->when.pointer)->wrong &&
                                           job_condition_holds(&reading->job, reading->kinds, &limit->when));
    if (!applies || product <= limit->most || clash.wrong)
        return;
    job_report(reading, clash.last, clash.last_pointer, "%s", words);
    found_at(reading, limit->factors[0])->wrong = true;
}

/* ---- sizes of messages ----
 * The calls of layers (worker/model_parallel/layer.h) carry their tensors together with the call's two
 * numbers, and gradients come back in messages of the same sizes. Parameters, and their momentum, travel one
 * at a time when a checkpoint is written. */

enum { NUMBER_BYTES = sizeof(float), CALL_BYTES = 2 * sizeof(uint64_t) };

struct message_list {
    struct job_message *messages;
    uint32_t count;
};

/* Lists a message of `bytes` bytes if the wire does not carry it; `how` gives the product. */
__attribute__((format(printf, 6, 7))) static void message_check(struct message_list *list, const char *what,
                                                                const char *one, const char *other,
                                                                uint64_t bytes, const char *how, ...)
{
    if (bytes <= WIRE_BODY_BYTES_MAX)
        return;
    struct job_message *message = &list->messages[list->count++];
    *message = (struct job_message){.keys = {one, other}};
    const int begin =
        snprintf(message->text, sizeof message->text,
                 "expected at most %d bytes in a message, got %llu for %s: ", WIRE_BODY_BYTES_MAX,
                 (unsigned long long)bytes, what);
    va_list arguments;
    va_start(arguments, how);
    vsnprintf(message->text + begin, sizeof message->text - (size_t)begin, how, arguments);
    va_end(arguments);
}

/* No key exceeds 2^20, and no product of keys here 2^54. */
static void messages_check_calls(struct message_list *list, const struct job *job, uint64_t tokens,
                                 const char *batch, uint32_t columns)
{
    static const char steps[] = "/data/steps";
    const uint64_t rows = (uint64_t)job->sequence.steps * columns;
    const uint64_t width = job->rnn.embedding > job->rnn.hidden ? job->rnn.embedding : job->rnn.hidden;
    const uint64_t state = 2 * (uint64_t)job->rnn.layers * columns * job->rnn.hidden;
    if (tokens > 0)
        message_check(list, "the logits", steps, batch, rows * tokens * NUMBER_BYTES,
                      "%s %u * %s %u * %llu tokens * %d", steps, job->sequence.steps, batch, columns,
                      (unsigned long long)tokens, NUMBER_BYTES);
    message_check(list, "the LSTM's input and state", steps, batch,
                  (rows * width + state) * NUMBER_BYTES + CALL_BYTES,
                  "(%s %u * %llu + 2 * /model/layers %u * /model/hidden %u) * %s %u * %d + %d", steps,
                  job->sequence.steps, (unsigned long long)width, job->rnn.layers, job->rnn.hidden, batch,
                  columns, NUMBER_BYTES, (int)CALL_BYTES);
}

static void message_check_table(struct message_list *list, const char *what, uint64_t tokens, const char *key,
                                uint32_t width)
{
    if (tokens > 0)
        message_check(list, what, "/model/tokens", key, tokens * width * NUMBER_BYTES,
                      "%llu tokens * %s %u * %d", (unsigned long long)tokens, key, width, NUMBER_BYTES);
}

uint32_t job_large_messages(const struct job *job, uint32_t tokens, struct job_message out[JOB_MESSAGES_MAX])
{
    static const char embedding[] = "/model/embedding", hidden[] = "/model/hidden";
    const bool wide = job->rnn.embedding > job->rnn.hidden;
    struct message_list list = {.messages = out};
    messages_check_calls(&list, job, tokens, "/trainers/batch", job->trainers.batch);
    if (job->data.kind == JOB_DATA_TEXT)
        messages_check_calls(&list, job, tokens, "/evaluation/batch", job->evaluation.batch);
    message_check_table(&list, "the embedding", tokens, embedding, job->rnn.embedding);
    message_check_table(&list, "the decoder", tokens, hidden, job->rnn.hidden);
    message_check(&list, "a weight of the LSTM", wide ? embedding : hidden, hidden,
                  4 * (uint64_t)job->rnn.hidden * (wide ? job->rnn.embedding : job->rnn.hidden) *
                      NUMBER_BYTES,
                  "4 * %s %u * %s %u * %d", hidden, job->rnn.hidden, wide ? embedding : hidden,
                  wide ? job->rnn.embedding : job->rnn.hidden, NUMBER_BYTES);
    return list.count;
}

/* A text's vocabulary is not known here: parallel_data_open, which reads the text, judges what depends on it.
 */
static void check_messages(struct job_reading *reading)
{
    static const char *const keys[] = {"/data/steps", "/model/tokens", "/model/embedding", "/model/hidden",
                                       "/model/layers"};
    struct job_message messages[JOB_MESSAGES_MAX];
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (found_at(reading, keys[i])->wrong)
            return;
    const uint32_t count = job_large_messages(&reading->job, reading->job.rnn.tokens, messages);
    for (uint32_t i = 0; i < count; i++) {
        struct clash clash = {.last_pointer = NULL};
        clash_add(&clash, reading, messages[i].keys[0]);
        clash_add(&clash, reading, messages[i].keys[1]);
        if (!clash.wrong)
            job_report(reading, clash.last, messages[i].keys[1], "%s", messages[i].text);
    }
}

/* ---- sequences ---- */

/* Whole sequences of n_steps rows make up a minibatch. */
static void check_sequences(struct job_reading *reading)
{
    static const char *const keys[] = {"/policy/recurrent", "/algorithm/sequences", "/algorithm/n_steps",
                                       "/algorithm/batch_size"};
    const struct job *job = &reading->job;
    const uint32_t steps = job->rollout.steps, size = job->algorithm.batch_size;
    struct clash clash = {.last_pointer = NULL};
    char words[JOB_WORDS_BYTES] = "expected a multiple of /algorithm/n_steps, the nearest ";
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        clash_add(&clash, reading, keys[i]);
    if (clash.wrong || !job->policy.has_recurrent || !job->algorithm.has_sequences ||
        job->algorithm.sequences != JOB_SEQUENCES_WHOLE || size % steps == 0)
        return;
    if (size < steps)
        words_add(words, "is %u", steps);
    else
        words_add(words, "are %u and %u", size / steps * steps, (size / steps + 1) * steps);
    words_add(words, ", or /algorithm/sequences \"padded\", got %u", size);
    job_report(reading, clash.last, "/algorithm/batch_size", "%s", words);
}

/* A default that depends on another key: where the key is absent, and any of its conditions holds. */
static enum status take_other_default(struct job_reading *reading, const struct job_key *key)
{
    const bool absent = reading->kinds != JOB_KINDS_ALL && (key->kinds & reading->kinds) != 0 &&
                        reading->found[key - job_keys].item == NULL;
    for (size_t i = 0; absent && i < JOB_OTHERWISE_MAX && key->otherwise_where[i].test != JOB_ALWAYS; i++) {
        const struct job_condition *where = &key->otherwise_where[i];
        if (!found_at(reading, where->pointer)->wrong &&
            job_condition_holds(&reading->job, reading->kinds, where))
            return job_value_otherwise(&reading->job, key);
    }
    return STATUS_OK;
}

/* Judges the rules between keys of the job's kind. A rule is silent where the value of one of its keys is
 * wrong. */
static void job_check_rules(struct job_reading *reading)
{
    if (reading->kinds == JOB_KINDS_ALL)
        return;
    for (size_t i = 0; i < job_rule_count; i++)
        if ((job_rules[i].kinds & reading->kinds) != 0)
            check_rule(reading, &job_rules[i]);
    if (reading->kinds == JOB_KINDS_OF(JOB_MODEL_PARALLEL))
        check_messages(reading);
    if (reading->kinds == JOB_KINDS_OF(JOB_VARIANT_PPO))
        check_sequences(reading);
    for (size_t i = 0; i < job_limit_count; i++)
        if ((job_limits[i].kinds & reading->kinds) != 0)
            check_limit(reading, &job_limits[i]);
}

/* ---- one value ---- */

/* `words` says what was expected; this adds what was found. */
static void report_value(struct job_reading *reading, const struct job_key *key, uint32_t source,
                         const cJSON *item, const char *pointer, char words[JOB_WORDS_BYTES])
{
    const struct json_document *document = &reading->documents[source];
    const struct problem_place place = {source, json_place_of(document, item)->value};
    char got[JSON_SHOWN_BYTES];
    json_document_show(got, document, item);
    words_add(words, ", got %s", got);
    if (cJSON_IsString(item))
        suggest_value(words, key, item->valuestring);
    job_report(reading, place, pointer, "%s", words);
}

static void check_value(struct job_reading *reading, const struct job_key *key, struct job_found *found)
{
    const struct json_document *document = &reading->documents[found->source];
    const bool has_elements = job_value_has_elements(key, found->item);
    char pointer[JSON_POINTER_BYTES], words[JOB_WORDS_BYTES] = "expected ";
    if (job_value_store(&reading->job, key, document, found->item))
        return;
    found->wrong = true;
    words_add_expected(words, key);
    if (!has_elements)
        report_value(reading, key, found->source, found->item, key->pointer, words);
    uint32_t index = 0;
    for (const cJSON *element = has_elements ? found->item->child : NULL; element != NULL;
         element = element->next, index++) {
        if (job_value_store_element(&reading->job, key, document, element, index))
            continue;
        snprintf(pointer, sizeof pointer, "%s/%u", key->pointer, index);
        snprintf(words, sizeof words, "expected ");
        words_add_element(words, key);
        report_value(reading, key, found->source, element, pointer, words);
    }
}

/* ---- what is not there ---- */

static void default_name(struct job_reading *reading)
{
    const struct job_key *key = job_key_at(JOB_KINDS_ALL, "/name");
    const struct job_found *found = &reading->found[key - job_keys];
    if (found->item != NULL)
        return;
    const char *slash = strrchr(reading->origin, '/');
    const char *stem = slash == NULL ? reading->origin : slash + 1;
    const char *dot = strrchr(stem, '.');
    const size_t length = dot == NULL || dot == stem ? strlen(stem) : (size_t)(dot - stem);
    char *name = reading->job.name, shown[JSON_SHOWN_BYTES];
    char words[JOB_WORDS_BYTES] = "this key is required where the file's own name is none; expected ";
    if (length < JOB_NAME_BYTES)
        memcpy(name, stem, length);
    if (job_pattern_matches(key, name))
        return;
    words_add_expected(words, key);
    text_show(shown, sizeof shown, stem, length, 40);
    job_report(reading, job_found_place(reading, found), key->pointer, "%s, got \"%s\"", words, shown);
}

/* What the algorithms with a number of steps have no key for. a2c is ppo with one minibatch: the whole
 * rollout, once. */
static void imply(struct job *job)
{
    if (!job_is_stepwise(job))
        return;
    job->rollout.mode = JOB_ROLLOUT_STEPS;
    job->rollout.begin = JOB_BEGIN_CONTINUE;
    job->optimizer.beta1 = 0.9;
    job->optimizer.beta2 = 0.999;
    job->running_reward.of = JOB_OF_MEAN;
    job->running_reward.weight = 1;
    if (job->algorithm.name != JOB_ALGORITHM_A2C)
        return;
    job->algorithm.n_epochs = 1;
    job->algorithm.batch_size = JOB_ROLLOUT_ROWS_MAX;
    job->algorithm.clip_range = (double)INFINITY;
}

/* Judges every value found (without a kind, those of keys that all kinds have), and stores the good ones into
 * reading->job over the defaults. Then checks that required keys are present, takes the default
 * name from the file's name, and checks the rules between keys. Errors: STATUS_NO_MEMORY. */
static enum status job_check(struct job_reading *reading)
{
    enum status status = job_defaults(&reading->job, reading->kinds);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < job_key_count; i++)
        if (reading->found[i].item != NULL && (job_keys[i].kinds & reading->kinds) == reading->kinds)
            check_value(reading, &job_keys[i], &reading->found[i]);
    /* A file that is no object has been reported. Which keys it lacks, and which clash, is not known. */
    if (!cJSON_IsObject(reading->documents[0].root))
        return STATUS_OK;
    const struct job_key *kind = job_key_at(JOB_KINDS_ALL, "/kind");
    const struct job_found *found = &reading->found[kind - job_keys];
    char words[JOB_WORDS_BYTES] = "this key is required; expected ";
    words_add_expected(words, kind);
    if (found->item == NULL)
        job_report(reading, job_found_place(reading, found), kind->pointer, "%s", words);
    default_name(reading);
    imply(&reading->job);
    for (size_t i = 0; i < job_key_count && status == STATUS_OK; i++)
        status = take_other_default(reading, &job_keys[i]);
    if (status == STATUS_OK)
        job_check_rules(reading);
    return status;
}

/* ---- one reading ---- */

static struct job_reading *reading_new(const char *origin, const char *const *overrides,
                                       size_t override_count)
{
    struct job_reading *reading =
        calloc(1, sizeof *reading + (1 + override_count) * sizeof *reading->documents);
    if (reading == NULL)
        return NULL;
    reading->kinds = JOB_KINDS_ALL;
    reading->origin = origin;
    reading->overrides = overrides;
    reading->override_count = (uint32_t)override_count;
    return reading;
}

/* Collects and judges a text, and the files that a good job names. */
static enum status reading_judge(struct job_reading *reading, const char *text, size_t length,
                                 job_files_judge *judge_files)
{
    if (length > JOB_TEXT_BYTES_MAX) {
        job_report(reading, (struct problem_place){0}, "", "longer than a job file may be (%d bytes)",
                   JOB_TEXT_BYTES_MAX);
        return STATUS_INVALID;
    }
    enum status status = job_collect(reading, text, length);
    if (status == STATUS_OK)
        status = job_check(reading);
    if (status == STATUS_OK && reading->problem_count > 0)
        status = STATUS_INVALID;
    if (status != STATUS_OK || judge_files == NULL)
        return status;
    const char *pointer;
    struct error error;
    status = judge_files(&reading->job, &pointer, &error);
    if (status != STATUS_OK) {
        const struct job_key *key = job_key_at(reading->kinds, pointer);
        job_report(reading, job_found_place(reading, &reading->found[key - job_keys]), pointer, "%s",
                   error.text);
    }
    return status;
}

/* Hands over the job, or the list of problems, and releases the reading. */
static enum status reading_end(struct job_reading *reading, enum status status, struct job *job,
                               char **problems)
{
    if (status == STATUS_OK)
        *job = reading->job;
    else if (status != STATUS_NO_MEMORY && job_problems_write(reading, problems) != STATUS_OK)
        status = STATUS_NO_MEMORY;
    for (size_t i = 0; i <= reading->override_count; i++)
        json_document_fini(&reading->documents[i]);
    free(reading);
    return status;
}

enum status job_parse(struct job *job, const char *text, size_t length, const char *origin,
                      const char *const *overrides, size_t override_count, char **problems)
{
    struct job_reading *reading = reading_new(origin, overrides, override_count);
    *problems = NULL;
    if (reading == NULL)
        return STATUS_NO_MEMORY;
    return reading_end(reading, reading_judge(reading, text, length, NULL), job, problems);
}

/* ---- from a file ---- */

enum status job_read_file(struct job *job, struct path path, const char *const *overrides,
                          size_t override_count, job_files_judge *judge_files, char **problems)
{
    char *text = malloc(JOB_TEXT_BYTES_MAX + 1), shown[4 * ERROR_TEXT_BYTES + 8];
    struct job_reading *reading;
    struct error error;
    ssize_t length = 0;
    uint64_t bytes;
    int fd = -1;
    *problems = NULL;
    enum status status = text != NULL ? file_open(&fd, &bytes, path, &error) : STATUS_NO_MEMORY;
    if (status == STATUS_OK) /* one byte more than a job may have, if the file has it */
        length = file_read_at(fd, text, JOB_TEXT_BYTES_MAX + 1, 0);
    if (length < 0)
        status = error_set_errno(&error, errno, "%s: cannot be read", path.text);
    if (fd >= 0)
        close(fd);
    if (status == STATUS_OK) {
        reading = reading_new(path.text, overrides, override_count);
        status = reading != NULL
                     ? reading_end(reading, reading_judge(reading, text, (size_t)length, judge_files), job,
                                   problems)
                     : STATUS_NO_MEMORY;
    } else if (text != NULL) {
        text_show(shown, sizeof shown, error.text, strlen(error.text), ERROR_TEXT_BYTES);
        status = asprintf(problems, "%s\n", shown) < 0 ? STATUS_NO_MEMORY : status;
    }
    free(text);
    return status;
}

/* ---- to text ---- */

/* A group's members follow it in the table. */
char *job_format(const struct job *job, size_t *bytes)
{
    char *text = NULL;
    const char *before = "{\n  ", *group = "";
    FILE *stream = open_memstream(&text, bytes);
    if (stream == NULL)
        return NULL;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        char value[JOB_WORDS_BYTES] = "";
        if ((key->kinds & JOB_KINDS_OF(job_variant(job))) == 0)
            continue;
        if (!job_key_is_member(key, group)) {
            fputs("}", stream);
            before = ",\n  ";
            group = "";
        }
        fprintf(stream, "%s\"%s\": ", before, job_key_name(key));
        if (key->type == JOB_OBJECT)
            group = key->pointer;
        else
            words_add_value(value, job, key, false);
        before = key->type == JOB_OBJECT ? "{" : group[0] == '\0' ? ",\n  " : ", ";
        fputs(value, stream);
    }
    fputs(group[0] == '\0' ? "\n}\n" : "}\n}\n", stream);
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}

/* ---- what depends on the machine ---- */

/* Replaces null by `threads`, within the bounds of the key `pointer`. */
static void default_threads(bool *has, uint32_t *count, uint32_t threads, const char *pointer)
{
    const uint32_t most = (uint32_t)job_key_at(JOB_KINDS_ALL, pointer)->max;
    if (*has)
        return;
    *has = true;
    *count = threads == 0 ? 1 : threads > most ? most : threads;
}

void job_resolve(struct job *job)
{
    const uint32_t processors = processors_count();
    if (job->kind == JOB_REINFORCE && job->policy.network == JOB_NETWORK_CNN)
        default_threads(&job->policy.has_threads, &job->policy.threads, processors, "/policy/threads");
    if (job->kind == JOB_REINFORCE)
        return;
    default_threads(&job->trainers.has_threads, &job->trainers.threads, processors / job->trainers.count,
                    "/trainers/threads");
    for (int layer = 0; layer < JOB_LAYERS && job->kind == JOB_MODEL_PARALLEL; layer++)
        default_threads(&job->threads[layer].has, &job->threads[layer].count, processors, "/threads/lstm");
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

uint64_t job_updates(const struct job *job, uint64_t epoch_updates)
{
    uint64_t updates = job->stop.has_updates ? job->stop.updates : UINT64_MAX;
    if (job->stop.has_epochs && epoch_updates > 0 && product(job->stop.epochs, epoch_updates) < updates)
        updates = product(job->stop.epochs, epoch_updates);
    return updates;
}
