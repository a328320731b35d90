/* Suggests, for "did you mean", the key or name that is most like a misspelt one. Pure; any thread. */
#include "kernels/base/text.h"
#include "worker/job/job_table.h"

#include <stdio.h>
#include <string.h>

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

/* The distance of two words, if one may be the other mistyped: by one slip, or by two in a word of five or
 * more letters. Else SIZE_MAX. */
static size_t near_distance(const char *word, const char *name)
{
    const size_t distance = text_distance(word, name);
    const size_t word_bytes = strlen(word), name_bytes = strlen(name);
    const size_t longer = word_bytes > name_bytes ? word_bytes : name_bytes;
    const bool near = distance == 0 || (distance == 1 && longer >= 2) || (distance == 2 && longer >= 5);
    return near ? distance : SIZE_MAX;
}

/* The key beside `pointer` whose name is nearest to its last name, or NULL. */
static const struct job_key *nearest_beside(unsigned kinds, const char *pointer)
{
    const char *name = strrchr(pointer, '/') + 1;
    const struct job_key *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        const size_t group = (size_t)(job_key_name(key) - key->pointer);
        const size_t distance = near_distance(name, job_key_name(key));
        if ((key->kinds & kinds) != 0 && group == (size_t)(name - pointer) &&
            memcmp(key->pointer, pointer, group) == 0 && distance < best_distance) {
            best = key;
            best_distance = distance;
        }
    }
    return best;
}

/* The pointer of the key that other programs call `name`, or NULL. */
static const char *pointer_of_other(unsigned kinds, const char *name)
{
    for (size_t i = 0; i < sizeof known_elsewhere / sizeof known_elsewhere[0]; i++)
        if (strcmp(known_elsewhere[i].name, name) == 0 &&
            job_key_at(kinds, known_elsewhere[i].pointer) != NULL)
            return known_elsewhere[i].pointer;
    return NULL;
}

void words_suggest_key(char words[JOB_WORDS_BYTES], unsigned kinds, const char *pointer)
{
    const char *name = strrchr(pointer, '/') + 1, *other = pointer_of_other(kinds, name);
    const struct job_key *beside = nearest_beside(kinds, pointer);
    size_t count = 0;
    if (other != NULL) {
        words_add(words, "; here it is %s", other);
        return;
    }
    if (beside != NULL) {
        words_add(words, "; did you mean \"%s\"?", job_key_name(beside));
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

void words_suggest_value(char words[JOB_WORDS_BYTES], const struct job_key *key, const char *got)
{
    const bool numbered = key->type == JOB_NUMBERED;
    char word[JOB_NAME_BYTES]; /* of these, the name before the number */
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(got, numbered ? " " : ""), got);
    for (size_t i = 0; key->names != NULL && key->names[i] != NULL; i++) {
        const size_t distance = near_distance(word, key->names[i]);
        if (distance < best_distance && strcmp(word, key->names[i]) != 0) {
            best = key->names[i];
            best_distance = distance;
        }
    }
    if (best != NULL)
        words_add(words, "; did you mean \"%s\"?", best);
}
